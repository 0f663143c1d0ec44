//! Blocking: a POST stands open until its lock is held, its wait is over, or somebody took it away.
//!
//! In:    a claim to be made. Out: the lock, or why there is none.
//! Never: leaves a claim behind whose client can't know of it. Who holds the guard changes on the way: this request
//!        while it waits, then the connection (`http/delivery.rs`) until the answer has left.

use std::sync::Arc;

use hyper::StatusCode;
use leasehold_core::table::{ListFilter, ListPage};
use leasehold_core::{
    ClaimId, Command, Ending, Guard, NewClaim, OnBusy, Outcome, Rejection, Status, Target, View,
};

use super::{refused, unexpected};
use crate::access::Caller;
use crate::engine::{Engine, EngineError};
use crate::http::problem::{engine_problem, problem};
use crate::http::request::Connection;
use crate::http::server::App;
use crate::http::{Response, empty};
use crate::publish::Waiter;

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
            Self::Refused(rejection) => refused(&rejection),
            Self::Failed(error) => engine_problem(&error),
            Self::CredentialsEnded => {
                let detail = "the credentials ended while the request waited, and it was withdrawn";
                problem(StatusCode::UNAUTHORIZED, "unauthorized", detail)
            }
            Self::Unexpected(outcome) => unexpected(&outcome),
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
    let mut guard = Unheard { engine: app.engine.clone(), claim: Some(id) };
    let made = app.engine.submit(Command::Claim(new)).await.inspect_err(|error| {
        // Nothing was made that could be taken back.
        if error.is_certain() {
            guard.claim = None;
        }
    });
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
        // Who can't be told what became of its claim shall not have one.
        Err(NotAcquired::Failed(_)) => drop(guard),
        // The table has ended the claim, or never had it.
        Err(_) => guard.defuse(),
    }
    view
}

/// Waits until the claim's turn has come, it is over, the caller's credentials end, or the node stops.
async fn turn(
    app: &App,
    mut waiter: Waiter,
    id: ClaimId,
    wait_us: u64,
    caller: &Caller,
) -> Result<View, NotAcquired> {
    let mut stopping = app.stopping.clone();
    loop {
        let end = tokio::select! {
            () = waiter.woken() => None,
            _ = stopping.wait_for(|stopping| *stopping) => Some(NotAcquired::Failed(EngineError::Stopping)),
            _ = caller.ended() => Some(NotAcquired::CredentialsEnded),
        };
        if let Some(end) = end {
            let why = match end {
                NotAcquired::CredentialsEnded => "its client's credentials ended while it waited",
                _ => "the server stopped while it waited",
            };
            app.engine.submit(take_back(id, why)).await?;
            return Err(end);
        }
        // Woken with everyone else, perhaps: wait on then, and miss nothing.
        waiter = app.engine.publisher().wait_for(id);
        let Some(view) = app.engine.claim_settled(id).await? else { return Err(EngineError::Unknown.into()) };
        let claim = &view.claim;
        match claim.status {
            Status::Waiting => {}
            // A lifetime that ended before this task was scheduled was granted all the same.
            Status::Active | Status::Expired => return Ok(view),
            Status::Withdrawn if claim.waited_us(view.now_us) >= wait_us => {
                return Err(NotAcquired::TimedOut);
            }
            _ => return Err(NotAcquired::Deleted),
        }
    }
}

fn take_back(id: ClaimId, reason: &str) -> Command {
    Command::Finish {
        target: Target::Claim(id),
        guard: Guard::default(),
        ending: Ending::Withdrawn,
        reason: Some(reason.into()),
        purge_data: false,
    }
}

/// Takes a claim back whose answer can't reach anyone: hyper drops a request when its connection is gone.
struct Unheard {
    engine: Arc<Engine>,
    claim: Option<ClaimId>,
}

impl Unheard {
    /// The answer is on its way: from now on the connection decides.
    fn into_take_back(mut self) -> Box<dyn FnOnce() + Send> {
        let (engine, claim) = (self.engine.clone(), self.claim.take());
        Box::new(move || {
            if let Some(id) = claim {
                tracing::info!(claim = %id, "a lock was taken back: its client was gone before the answer came");
                submit_take_back(engine, id, "its client was gone before the answer reached it");
            }
        })
    }

    fn defuse(mut self) {
        self.claim = None;
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        if let Some(id) = self.claim {
            submit_take_back(self.engine.clone(), id, "its client went away while it waited");
        }
    }
}

fn submit_take_back(engine: Arc<Engine>, id: ClaimId, reason: &'static str) {
    tokio::spawn(async move {
        if let Err(error) = engine.submit(take_back(id, reason)).await {
            tracing::warn!(claim = %id, %error, "a lock that nobody waits for could not be taken back");
        }
    });
}

/// Withdraws the waiting requests of this node's last process: their connections ended with it.
///
/// Only requests that stand open give up after a while, so a waiting claim with a deadline is one of them; and the
/// id of each tells on which node it was made, and by which of its processes.
pub async fn withdraw_orphans(engine: Arc<Engine>) {
    let withdrawn = async {
        engine.barrier().await?;
        let filter = ListFilter { status: Some(Status::Waiting), ..ListFilter::default() };
        let mut page = ListPage::new(0, usize::MAX);
        while !page.done {
            engine.read(|table, now_us| table.list(&filter, &mut page, now_us, 4096));
        }
        let is_orphan =
            |view: &&View| view.claim.deadline_us().is_some() && engine.is_of_earlier_run(view.claim.id);
        let orphans = page.views.iter().filter(is_orphan);
        let commands: Vec<_> = orphans
            .map(|view| take_back(view.claim.id, "the server was started anew while it waited"))
            .collect();
        for chunk in commands.chunks(1000) {
            engine.submit_many(chunk.to_vec()).await?;
        }
        Ok::<_, EngineError>(commands.len())
    };
    match withdrawn.await {
        Ok(0) => {}
        Ok(orphans) => tracing::info!(orphans, "lock requests of the last run were withdrawn"),
        Err(error) => tracing::warn!(%error, "lock requests of the last run could not be withdrawn"),
    }
}
