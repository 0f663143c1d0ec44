//! Unlocking: the claims that were looked at and checked are ended, each by its id, and no others.
//!
//! In:    ids, and the client's own id of the call if it has one. Out: what became of each lock, the first time.
//! Never: unlocks what was locked after the call did its work. Two threads of one process are the same owner, so the
//!        owner alone can't tell: the claim that was found is ended by its id, and keeps the call that ended it as its
//!        reason; a call that is sent again looks for that first.

use std::sync::Arc;

use leasehold_core::{ClaimId, Command, Ending, Guard, Outcome, Rejection, Table, Target, View};

use super::parse::Ask;
use super::render::{Errno, Fate};
use super::{settled, too_long};
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::api::one_resource_view::is_alone;
use crate::app::App;
use crate::audit::Noted;
use crate::message::Response;
use crate::message::problem::engine_problem;
use leasehold_engine::{EngineError, Settled};

/// How often a lock may change hands between the look and the unlock before it counts as gone.
const ROUNDS_MAX: usize = 5;

/// The command that ends this claim and no other: what was checked is what is applied.
fn finish(claim: ClaimId, ask: &Ask, place: usize) -> Command {
    let by_force = || format!("unlocked by force by {}", ask.owner.as_deref().unwrap_or("nobody")).into();
    let reason = match &ask.call {
        Some(call) => Some(call_reason(ask, call, place)),
        None => ask.reason.clone().or_else(|| ask.force.then(by_force)),
    };
    let guard = Guard { owner: ask.owner.clone().filter(|_| !ask.force), version: None };
    Command::Finish { target: Target::Claim(claim), guard, ending: ending(ask), reason, purge_data: false }
}

/// Who unlocks by force takes the lock away from its holder.
fn ending(ask: &Ask) -> Ending {
    if ask.force { Ending::Revoked } else { Ending::Released }
}

/// Unlocks as many as possible, each once for this call. `note` tells the audit which claims are about to end.
pub(super) async fn unlock(
    app: &App,
    ask: &Ask,
    who: &Caller,
    note: impl Fn(ClaimId, Ending) -> Noted,
) -> Result<Vec<Fate>, Response> {
    // Whether some are unlocked already: then nobody may say that nothing happened.
    let mut begun = false;
    let mut fates: Vec<Option<Fate>> =
        ask.resources.iter().map(|known| known.is_none().then(too_long)).collect();
    for round in 0..ROUNDS_MAX {
        let open: Vec<usize> = (0..fates.len()).filter(|place| fates[*place].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let found = look(app, ask, &open).await.map_err(|error| failed(error, begun))?;
        let mut to_end = Vec::new();
        for (place, fate) in open.into_iter().zip(found) {
            match admit(ask, place, &fate, who) {
                // Nothing has happened yet: the call as a whole is refused.
                Err(verb) if round == 0 => {
                    return Err(who.refuse(verb, ask.resources[place].as_deref().unwrap_or("*")).into());
                }
                Err(_) => fates[place] = Some(Fate::failed(Errno::Eacces, None)),
                Ok(()) => match fate {
                    Fate { errno: None, view: Some(view) } if !view.claim.status.is_final() => {
                        to_end.push((place, view));
                    }
                    fate => fates[place] = Some(fate),
                },
            }
        }
        // Whose a claim is and what it holds never changes: this can be told without the table. What is shared or part of a set is
        // not ended by the name of one lock.
        let is_others =
            |view: &View| !is_alone(view) || !ask.force && Some(&view.claim.owner) != ask.owner.as_ref();
        let (others, to_end): (Vec<_>, Vec<_>) = to_end.into_iter().partition(|(_, view)| is_others(view));
        for (place, view) in others {
            fates[place] = Some(Fate::failed(Errno::Eacces, Some(view)));
        }
        let noted: Vec<Noted> = to_end.iter().map(|(_, view)| note(view.claim.id, ending(ask))).collect();
        let commands = to_end.iter().map(|(place, view)| finish(view.claim.id, ask, *place)).collect();
        let outcomes = app.engine.submit_many(commands).await.map_err(|error| failed(error, begun))?;
        begun = true;
        noted.into_iter().for_each(Noted::settled);
        for ((place, _), outcome) in to_end.into_iter().zip(outcomes) {
            fates[place] = ended(outcome, ask, place);
        }
    }
    Ok(fates.into_iter().map(|fate| fate.unwrap_or(Fate::failed(Errno::Enolck, None))).collect())
}

/// Whether the caller may be told about this lock and unlock it; `Err`: the verb that is missing. Its own locks it may
/// always unlock. Without any right on the resource it learns nothing, not even whether the lock is free.
fn admit(ask: &Ask, place: usize, found: &Fate, who: &Caller) -> Result<(), Verb> {
    let Some(resource) = ask.resources[place].as_deref().filter(|_| who.is_checked()) else { return Ok(()) };
    let holder = found.view.as_ref().filter(|view| !view.claim.status.is_final());
    match holder {
        Some(view) if who.owns(&view.claim.owner) => Ok(()),
        Some(_) if ask.force => who.may(Verb::Revoke, resource).then_some(()).ok_or(Verb::Revoke),
        _ => {
            let known = [Verb::Claim, Verb::Read, Verb::Revoke].iter().any(|verb| who.may(*verb, resource));
            known.then_some(()).ok_or(if ask.force { Verb::Revoke } else { Verb::Claim })
        }
    }
}

fn failed(error: EngineError, begun: bool) -> Response {
    engine_problem(&if begun { EngineError::Unknown } else { error })
}

/// The holder of each of these, or the claim that this very call has ended already.
async fn look(app: &App, ask: &Ask, open: &[usize]) -> Result<Vec<Fate>, EngineError> {
    let question = |table: &Table, now_us: u64| -> Settled<Vec<Fate>> {
        let look = |place: &usize| {
            let Some(resource) = &ask.resources[*place] else { return too_long() };
            let call = ask.call.as_deref().filter(|_| ask.retry);
            let ended = |call| ended_before(table, resource, &call_reason(ask, call, *place), now_us);
            let view = call.and_then(ended);
            match view.or_else(|| table.holder_view(resource, now_us)) {
                Some(view) => Fate::ok(Box::new(view)),
                None => Fate::failed(Errno::Enolck, None),
            }
        };
        settled(open.iter().map(look).collect(), now_us)
    };
    app.engine.read_settled(question).await
}

fn ended_before(table: &Table, resource: &str, reason: &str, now_us: u64) -> Option<View> {
    let finished = table.resource(resource)?.finished().rev();
    let mut views = finished.map(|seq| table.view_at(seq, now_us));
    views.find(|view| is_reason(view, reason))
}

/// `None`: the claim that was found is over, and not by this call: look again.
fn ended(outcome: Outcome, ask: &Ask, place: usize) -> Option<Fate> {
    let by_this_call =
        |view: &View| ask.call.as_ref().is_some_and(|call| is_reason(view, &call_reason(ask, call, place)));
    match outcome {
        Outcome::Finished(view) => Some(Fate::ok(view)),
        Outcome::Rejected(Rejection::NotOwner(view)) if !view.claim.status.is_final() => {
            Some(Fate::failed(Errno::Eacces, Some(view)))
        }
        Outcome::Rejected(Rejection::Final(view)) if by_this_call(&view) => Some(Fate::ok(view)),
        _ => None,
    }
}

fn is_reason(view: &View, reason: &str) -> bool {
    let why = view.claim.end.as_ref().and_then(|end| end.reason.as_deref());
    why == Some(reason)
}

/// Each place in the list has its own: the same id twice in one call is unlocked once and then unknown.
fn call_reason(ask: &Ask, call: &str, place: usize) -> Arc<str> {
    let how = if ask.force { "unlocked by force" } else { "unlocked" };
    format!("{how} by {} in call {call}/{place}", ask.owner.as_deref().unwrap_or("nobody")).into()
}
