//! Long-polls: `?wait=SECONDS` holds a response until the claim is active, over, or the time is up.
//!
//! In:    a command and how long to wait. Out: the outcome as it is then.
//! Never: leaves a claim behind that nobody can know of: a POST without an idempotency key whose client goes away
//!        while it waits takes its claim back.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ClaimId, Command, Outcome, Rejection, Status, View};

use super::change::command;
use super::parse_change::Patch;
use super::{NewRequest, told};
use crate::access::Caller;
use crate::app::App;
use crate::app::lost_answer::UnansweredClaim;
use leasehold_engine::EngineError;
use leasehold_engine::machine;
use leasehold_engine::publish::Waiter;

/// Claims, and waits for the claim's turn.
pub(super) async fn claim(
    app: &Arc<App>,
    new: NewRequest,
    wait: Duration,
    caller: &Caller,
) -> Result<Outcome, EngineError> {
    let NewRequest { command, id, keyed } = new;
    let waiter = app.engine.publisher().wait_for(id);
    let mut unanswered = UnansweredClaim::new(&app.engine, (!keyed).then_some(id));
    let made = unanswered.watch(app.engine.submit(command).await);
    // The claim exists: what is not known from here on is unknown, and never "nothing happened".
    let unknown = |_| EngineError::Unknown;
    let outcome = match made? {
        Outcome::Queued(view) => {
            let view = opened(app, *view, wait).await.map_err(unknown)?;
            let view = match view.claim.status {
                Status::Waiting => turn(app, waiter, view, wait, caller).await.map_err(unknown)?,
                _ => view,
            };
            Outcome::Queued(Box::new(told(app, view).await.map_err(unknown)?))
        }
        // A retried request waits for the claim of the first one.
        Outcome::Existing(view) if view.claim.status == Status::Waiting => {
            let waiter = app.engine.publisher().wait_for(view.claim.id);
            // Which claim that is was not known before: its turn may have come in between.
            let view = opened(app, *view, wait).await.map_err(unknown)?;
            let view = match view.claim.status {
                Status::Waiting => turn(app, waiter, view, wait, caller).await.map_err(unknown)?,
                _ => view,
            };
            Outcome::Existing(Box::new(view))
        }
        outcome => outcome,
    };
    unanswered.defuse();
    Ok(outcome)
}

/// Waits for the turn of a claim that was made before.
pub(super) async fn activate(
    app: &Arc<App>,
    id: ClaimId,
    patch: &Patch,
    wait: Duration,
    caller: &Caller,
) -> Result<Outcome, EngineError> {
    let waiter = app.engine.publisher().wait_for(id);
    let opening = opening(app, id, patch, wait);
    let is_await = matches!(opening, Command::Await { .. });
    match app.engine.submit(opening).await? {
        Outcome::Rejected(Rejection::Waiting(view)) => match turn(app, waiter, *view, wait, caller).await? {
            view if view.claim.status == Status::Waiting => {
                Ok(Outcome::Rejected(Rejection::Waiting(Box::new(view))))
            }
            _ => app.engine.submit(command(id, patch, None)).await,
        },
        // It is its turn already: what else the request asks for is done now.
        Outcome::Active(_) if is_await && !matches!(patch, Patch::Activate) => {
            app.engine.submit(command(id, patch, None)).await
        }
        outcome => Ok(outcome),
    }
}

/// The command of a request that stands open. The table knows until when, so that this time is no pause of its client.
fn opening(app: &App, id: ClaimId, patch: &Patch, wait: Duration) -> Command {
    match patch {
        Patch::Activate | Patch::ActivateWithTtl(_) if app.engine.table_version() >= 2 => {
            await_command(id, wait)
        }
        patch => command(id, patch, None),
    }
}

fn await_command(id: ClaimId, wait: Duration) -> Command {
    Command::Await { id, wait_us: u64::try_from(wait.as_micros()).unwrap_or(u64::MAX) }
}

/// Tells the table that a request stands open for a claim that waits, which may have got its turn since.
async fn opened(app: &App, view: View, wait: Duration) -> Result<View, EngineError> {
    if app.engine.table_version() < 2 {
        return Ok(app.engine.claim_settled(view.claim.id).await?.unwrap_or(view));
    }
    match app.engine.submit(await_command(view.claim.id, wait)).await? {
        Outcome::Active(view) | Outcome::Rejected(Rejection::Waiting(view) | Rejection::Final(view)) => {
            Ok(*view)
        }
        _ => Ok(view),
    }
}

/// Waits until it is the claim's turn, it is over, the time is up, the caller's credentials end, or the node stops; then
/// tells how it is.
async fn turn(
    app: &App,
    mut waiter: Waiter,
    view: View,
    wait: Duration,
    caller: &Caller,
) -> Result<View, EngineError> {
    let mut stopping = app.stopping.clone();
    let until = machine::Instant::now() + wait;
    tokio::select! {
        biased;
        () = waiter.woken() => {}
        () = machine::sleep_until(until) => {}
        _ = caller.ended() => {}
        _ = stopping.wait_for(|stopping| *stopping) => return Ok(view),
    }
    Ok(app.engine.claim_settled(view.claim.id).await?.unwrap_or(view))
}
