//! Unlocking once, however often it is asked: for clients whose response was lost.
//!
//! In:    ids and the client's own id of the call. Out: what became of each lock, the first time.
//! Never: unlocks what was locked after the call did its work. Two threads of one process are the same owner, so the
//!        owner alone can't tell: the claim that was found is ended by its id, and keeps the call that ended it as its
//!        reason; a call that is sent again looks for that first.

use std::sync::Arc;

use leasehold_core::{Command, Ending, Guard, Outcome, Rejection, Table, Target, View};

use super::parse::Ask;
use super::render::{Errno, Fate};
use super::{settled, too_long};
use crate::engine::{EngineError, Settled};
use crate::http::Response;
use crate::http::problem::engine_problem;
use crate::http::server::App;

/// How often a lock may change hands between the look and the unlock before it counts as gone.
const ROUNDS_MAX: usize = 5;

/// The command that unlocks.
pub(super) fn finish(target: Target, ask: &Ask, reason: Option<Arc<str>>) -> Command {
    let by_force = || format!("unlocked by force by {}", ask.owner.as_deref().unwrap_or("nobody")).into();
    Command::Finish {
        target,
        guard: Guard { owner: ask.owner.clone().filter(|_| !ask.force), version: None },
        ending: if ask.force { Ending::Revoked } else { Ending::Released },
        reason: reason.or_else(|| ask.reason.clone()).or_else(|| ask.force.then(by_force)),
        purge_data: false,
    }
}

/// Unlocks as many as possible, each once for this call.
pub(super) async fn once(app: &App, ask: &Ask, call: &str) -> Result<Vec<Fate>, Response> {
    // Whether some are unlocked already: then nobody may say that nothing happened.
    let mut begun = false;
    let mut fates: Vec<Option<Fate>> =
        ask.resources.iter().map(|known| known.is_none().then(too_long)).collect();
    for _ in 0..ROUNDS_MAX {
        let open: Vec<usize> = (0..fates.len()).filter(|place| fates[*place].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let found = look(app, ask, call, &open).await.map_err(|error| failed(error, begun))?;
        let mut to_end = Vec::new();
        for (place, fate) in open.into_iter().zip(found) {
            match fate {
                Fate { errno: None, view: Some(view) } if !view.claim.status.is_final() => {
                    to_end.push((place, view));
                }
                fate => fates[place] = Some(fate),
            }
        }
        let command = |(place, view): &(usize, Box<View>)| {
            finish(Target::Claim(view.claim.id), ask, Some(reason(ask, call, *place)))
        };
        let commands = to_end.iter().map(command).collect();
        let outcomes = app.engine.submit_many(commands).await.map_err(|error| failed(error, begun))?;
        begun = true;
        for ((place, _), outcome) in to_end.into_iter().zip(outcomes) {
            fates[place] = fate(outcome, &reason(ask, call, place));
        }
    }
    Ok(fates.into_iter().map(|fate| fate.unwrap_or(Fate::failed(Errno::Enolck, None))).collect())
}

fn failed(error: EngineError, begun: bool) -> Response {
    engine_problem(&if begun { EngineError::Unknown } else { error })
}

/// The holder of each of these, or the claim that this very call has ended already.
async fn look(app: &App, ask: &Ask, call: &str, open: &[usize]) -> Result<Vec<Fate>, EngineError> {
    let question = |table: &Table, now_us: u64| -> Settled<Vec<Fate>> {
        let look = |place: &usize| {
            let Some(resource) = &ask.resources[*place] else { return too_long() };
            let ended = || ended_before(table, resource, &reason(ask, call, *place), now_us);
            let view = if ask.retry { ended() } else { None };
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
fn fate(outcome: Outcome, reason: &str) -> Option<Fate> {
    match outcome {
        Outcome::Finished(view) => Some(Fate::ok(view)),
        Outcome::Rejected(Rejection::NotOwner(view)) if !view.claim.status.is_final() => {
            Some(Fate::failed(Errno::Eacces, Some(view)))
        }
        Outcome::Rejected(Rejection::Final(view)) if is_reason(&view, reason) => Some(Fate::ok(view)),
        _ => None,
    }
}

fn is_reason(view: &View, reason: &str) -> bool {
    let why = view.claim.end.as_ref().and_then(|end| end.reason.as_deref());
    why == Some(reason)
}

/// Each place in the list has its own: the same id twice in one call is unlocked once and then unknown.
fn reason(ask: &Ask, call: &str, place: usize) -> Arc<str> {
    let how = if ask.force { "unlocked by force" } else { "unlocked" };
    format!("{how} by {} in call {call}/{place}", ask.owner.as_deref().unwrap_or("nobody")).into()
}
