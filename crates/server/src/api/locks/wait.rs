//! Blocking: a POST stands open until its lock is held, its wait is over, or somebody took it away.
//!
//! In:    a claim to be made. Out: the lock, or why there is none.
//! Never: leaves a claim behind whose client can't know of it. Who holds the guard changes on the way: this request
//!        while it waits, then the connection (`http/wire.rs`) until the answer has left. Never waits for long beyond
//!        the client's `wait`, whether or not this node reaches its cluster.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use leasehold_core::{ClaimId, Command, NewClaim, OnBusy, Outcome, Rejection, Status, View};

use super::orphans::NODE_SILENT;
use crate::access::Caller;
use crate::api::refused::{limited, unexpected};
use crate::app::App;
use crate::app::lost_answer::UnansweredClaim;
use crate::message::connection::Connection;
use crate::message::problem::{engine_problem, problem};
use crate::message::{Response, empty};
use leasehold_engine::EngineError;
use leasehold_engine::machine::{self, Instant};
use leasehold_engine::publish::Waiter;
use leasehold_engine::withdrawals::withdrawal;

/// How long the table may take to end a wait that is over. After that this node does it.
const LATE_MAX: Duration = Duration::from_secs(1);
/// A wait that is longer than this counts as endless here: the table ends it.
const WAIT_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Why there is no lock.
pub(super) enum NotAcquired {
    /// The wait is over.
    TimedOut,
    /// Somebody took the waiting request away.
    Deleted,
    /// The table has no room for it.
    Refused(Rejection),
    /// The engine gave no outcome.
    Failed(EngineError),
    /// The caller's credentials ended while it waited.
    CredentialsEnded,
    /// A bug.
    Unexpected(Outcome),
}

impl NotAcquired {
    pub(super) fn into_response(self) -> Response {
        match self {
            Self::TimedOut => empty(StatusCode::REQUEST_TIMEOUT),
            Self::Deleted => empty(StatusCode::CONFLICT),
            Self::Refused(rejection) => limited(&rejection, "locks"),
            Self::Failed(error) => engine_problem(&error),
            Self::CredentialsEnded => {
                let detail = "the credentials ended while the request waited, and it was withdrawn";
                problem(StatusCode::UNAUTHORIZED, "unauthorized", detail)
            }
            Self::Unexpected(outcome) => unexpected(&outcome, "locks"),
        }
    }
}

impl From<EngineError> for NotAcquired {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

/// Makes a claim and waits until it holds its resource.
pub(super) async fn acquire(
    app: &Arc<App>,
    connection: &Connection,
    new: NewClaim,
    caller: &Caller,
) -> Result<View, NotAcquired> {
    let id = new.id;
    let wait_us = match new.on_busy {
        OnBusy::QueueFor { wait_us } => wait_us,
        _ => 0,
    };
    let waiter = app.engine.publisher().wait_for(id);
    // From here on: whatever stops this function without an answer takes the claim back.
    let mut guard = UnansweredClaim::new(&app.engine, Some(id));
    let made = guard.watch(app.engine.submit(Command::Claim(new)).await);
    let view = match made? {
        Outcome::Granted(view) => Ok(*view),
        Outcome::Queued(view) => {
            drop(view);
            turn(app, waiter, id, wait_us, caller).await
        }
        Outcome::Rejected(Rejection::Busy(_)) => Err(NotAcquired::TimedOut),
        Outcome::Rejected(rejection) => Err(NotAcquired::Refused(rejection)),
        other => Err(NotAcquired::Unexpected(other)),
    };
    match &view {
        Ok(_) => connection.delivery.owe(guard.into_take_back()),
        // The outcome is unknown, and the client can't be told: the claim is taken back.
        Err(NotAcquired::Failed(_)) => drop(guard),
        // The table has ended the claim, or never had it.
        Err(_) => guard.defuse(),
    }
    view
}

/// Waits until the claim's turn has come, it is over, the caller's credentials end, or the node stops. The claim exists:
/// whatever is not known from here on is unknown, and never "nothing happened".
async fn turn(
    app: &App,
    mut waiter: Waiter,
    id: ClaimId,
    wait_us: u64,
    caller: &Caller,
) -> Result<View, NotAcquired> {
    let mut stopping = app.stopping.clone();
    let until = Instant::now() + Duration::from_micros(wait_us).min(WAIT_MAX) + LATE_MAX;
    loop {
        let (end, late) = tokio::select! {
            biased;
            () = waiter.woken() => (None, false),
            _ = stopping.wait_for(|stopping| *stopping) => (Some(EngineError::Stopping.into()), false),
            _ = caller.ended() => (Some(NotAcquired::CredentialsEnded), false),
            () = machine::sleep_until(until) => (None, true),
        };
        if let Some(end) = end {
            let why = match end {
                NotAcquired::CredentialsEnded => "its client's credentials ended while it waited",
                _ => "the server stopped while it waited",
            };
            give_up(app, id, why).await?;
            return Err(end);
        }
        if late {
            let ended = give_up(app, id, "its wait was over").await?;
            return ended.map_or(Err(NotAcquired::TimedOut), |view| judge(view, wait_us));
        }
        // Woken with everyone else, perhaps: wait on then, and miss nothing.
        waiter = app.engine.publisher().wait_for(id);
        let view = app.engine.claim_settled(id).await.ok().flatten().ok_or(EngineError::Unknown)?;
        if view.claim.status != Status::Waiting {
            return judge(view, wait_us);
        }
    }
}

/// What the end of a wait means for its client.
fn judge(view: View, wait_us: u64) -> Result<View, NotAcquired> {
    let claim = &view.claim;
    let reason = claim.end.as_ref().and_then(|end| end.reason.as_deref());
    match claim.status {
        // A lifetime that ended before this task was scheduled was granted all the same.
        Status::Active | Status::Expired => Ok(view),
        Status::Withdrawn if reason == Some(NODE_SILENT) => Err(EngineError::NotLeader.into()),
        Status::Withdrawn if claim.waited_us(view.now_us) >= wait_us => Err(NotAcquired::TimedOut),
        _ => Err(NotAcquired::Deleted),
    }
}

/// Withdraws a claim that waits. `None`: that has happened; otherwise how it had ended before.
async fn give_up(app: &App, id: ClaimId, reason: &str) -> Result<Option<View>, EngineError> {
    match app.engine.submit(withdrawal(id, reason)).await {
        Ok(Outcome::Finished(_)) => Ok(None),
        Ok(Outcome::Rejected(Rejection::Final(view))) => Ok(Some(*view)),
        _ => Err(EngineError::Unknown),
    }
}
