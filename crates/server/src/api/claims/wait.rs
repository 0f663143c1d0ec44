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

/// The shortest time that is announced for a request of a claim that is withdrawn when nobody asks for it.
const ANNOUNCED_MIN: Duration = Duration::from_secs(2);

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
    let known = app.engine.read(|table, now_us| table.claim_view(id, now_us));
    let announced = known.map_or(wait, |view| announced(&view, wait));
    let opening = opening(app, id, patch, announced);
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

/// For how long the table is told that a request stands open. A claim with items is withdrawn when nobody asks for it, and a
/// client that dies meanwhile must not count as asking until the end of its wait: its request is announced again and again.
fn announced(view: &View, wait: Duration) -> Duration {
    if view.items().is_empty() {
        return wait;
    }
    let ttl = view.claim.ttl_us().map_or(wait, Duration::from_micros);
    wait.min((ttl / 2).max(ANNOUNCED_MIN))
}

fn await_command(id: ClaimId, wait: Duration) -> Command {
    Command::Await { id, wait_us: u64::try_from(wait.as_micros()).unwrap_or(u64::MAX) }
}

/// Tells the table that a request stands open for a claim that waits, which may have got its turn since.
async fn opened(app: &App, view: View, wait: Duration) -> Result<View, EngineError> {
    if app.engine.table_version() < 2 {
        return Ok(app.engine.claim_settled(view.claim.id).await?.unwrap_or(view));
    }
    match app.engine.submit(await_command(view.claim.id, announced(&view, wait))).await? {
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
        () = announce(app, &view, until) => {}
        _ = caller.ended() => {}
        _ = stopping.wait_for(|stopping| *stopping) => return Ok(view),
    }
    Ok(app.engine.claim_settled(view.claim.id).await?.unwrap_or(view))
}

/// Tells the table again and again that the request still stands open, where that matters. Returns when the claim no longer waits.
async fn announce(app: &App, view: &View, until: machine::Instant) {
    loop {
        let left = until.saturating_duration_since(machine::Instant::now());
        let next = announced(view, left);
        if next == left {
            return std::future::pending().await;
        }
        machine::sleep(next).await;
        let left = until.saturating_duration_since(machine::Instant::now());
        match app.engine.submit(await_command(view.claim.id, announced(view, left))).await {
            // Nobody can be told now: the next announcement may come through.
            Ok(Outcome::Rejected(Rejection::Waiting(_))) | Err(_) => {}
            Ok(_) => return,
        }
    }
}
