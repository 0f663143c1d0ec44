//! What the driver knows of one claim, and what it shows of it.
//!
//! In:    the driver's word. Out: [`SharedClaim`], which handles read without asking the driver.
//! Never: says "held" a moment longer than the driver has promised.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use crate::clock::BootInstant;
use crate::error::{Error, Lost};
use crate::item::{GrantedItem, Item};
use crate::machine::{Request, State, Timer};
use crate::request::{Wait, Worker};
use crate::settings::OnLost;
use crate::wire::ClaimInfo;

/// What a claim that waits can show.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// The claim's id, once the server has given it one.
    pub claim: Option<String>,
    /// Place in the queue, 1 = next.
    pub position: Option<u64>,
    /// Who holds the resource.
    pub holder: Option<ClaimInfo>,
    /// Why the last request failed, while it is repeated.
    pub trouble: Option<String>,
}

/// Where a claim is, for its client.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Phase {
    /// Not yet its turn.
    Waiting(Box<Progress>),
    /// It holds the resource.
    Active,
    /// It gives the resource up.
    Releasing,
    /// It does not hold the resource for certain any more.
    Lost(Lost),
    /// It has given the resource up.
    Released,
    /// It is over: it never held the resource, or gave it up and the server may not know.
    Ended,
}

/// What a claim was granted.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) id: String,
    pub(crate) token: Option<u64>,
    pub(crate) items: Vec<GrantedItem>,
    pub(crate) session: Option<String>,
}

/// What driver and handles share of one claim.
pub(crate) struct SharedClaim {
    pub(crate) resource: String,
    /// How long before the end of the ttl the claim is called lost.
    pub(crate) lead: Duration,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) grant: OnceLock<Grant>,
    /// Why the last renewal failed, until one gets through. Each failure is sent, also if it is the same as before.
    pub(crate) trouble: watch::Sender<Option<String>>,
    /// Until when it certainly holds, in nanoseconds of the boot clock.
    until: AtomicU64,
    /// What happens after the callbacks when it is lost.
    on_lost: OnLost,
    callbacks: Mutex<Vec<Callback>>,
    /// Within which callbacks run.
    runtime: Handle,
}

type Callback = Box<dyn FnOnce(Lost) + Send>;

impl SharedClaim {
    pub(crate) fn new(resource: String, lead: Duration, on_lost: OnLost, runtime: Handle) -> Self {
        Self {
            resource,
            lead,
            phase: watch::Sender::new(Phase::Waiting(Box::default())),
            grant: OnceLock::new(),
            trouble: watch::Sender::new(None),
            until: AtomicU64::new(0),
            on_lost,
            callbacks: Mutex::default(),
            runtime,
        }
    }

    pub(crate) fn until(&self) -> BootInstant {
        BootInstant::from_nanos(self.until.load(Ordering::Acquire))
    }

    pub(super) fn set_until(&self, until: BootInstant) {
        self.until.store(until.as_nanos(), Ordering::Release);
        // Wakes those who follow the claim.
        self.phase.send_if_modified(|phase| *phase == Phase::Active);
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.send_replace(phase.clone());
        if let Phase::Lost(lost) = phase {
            let callbacks = std::mem::take(&mut *self.callbacks());
            // Who aborts its own claims is leaving already.
            let terminates = self.on_lost == OnLost::Terminate && lost != Lost::Aborted;
            self.call(callbacks, lost, terminates);
        }
    }

    /// Calls it once if and when the claim is lost.
    pub(crate) fn on_lost(&self, callback: Callback) {
        let mut callbacks = self.callbacks();
        let lost = match &*self.phase.borrow() {
            Phase::Lost(lost) => lost.clone(),
            _ => return callbacks.push(callback),
        };
        drop(callbacks);
        self.call(vec![callback], lost, false);
    }

    /// On a thread of its own, since a callback may block.
    fn call(&self, callbacks: Vec<Callback>, lost: Lost, terminates: bool) {
        if callbacks.is_empty() && !terminates {
            return;
        }
        let runtime = self.runtime.clone();
        let tell = move || {
            let _within = runtime.enter();
            for callback in callbacks {
                // A callback's mistake must not keep the process from being stopped.
                catch_unwind(AssertUnwindSafe(|| callback(lost.clone()))).ok();
            }
            if terminates {
                terminate_this_process();
            }
        };
        // None of the runtime's: those may all be busy.
        if std::thread::Builder::new().name("on-lost".into()).spawn(tell).is_err() && terminates {
            terminate_this_process();
        }
    }

    fn callbacks(&self) -> std::sync::MutexGuard<'_, Vec<Callback>> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim's token, if it holds right now, by this machine's clock and nobody's word.
    pub(crate) fn validate(&self) -> Result<Option<u64>, Error> {
        match &*self.phase.borrow() {
            Phase::Active if self.until().is_past() => Err(Error::Lost(Lost::NotRenewed(None))),
            Phase::Active => Ok(self.grant.get().and_then(|grant| grant.token)),
            Phase::Lost(lost) => Err(Error::Lost(lost.clone())),
            Phase::Releasing | Phase::Released => Err(Error::Ended("released".into())),
            Phase::Waiting(_) | Phase::Ended => Err(Error::Ended("it does not hold its resource".into())),
        }
    }
}

fn terminate_this_process() {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).ok();
}

/// The timers of a claim: the machine's, and the driver's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerId {
    Machine(Timer),
    /// The claim can't be relied on any more.
    Lost,
    /// The server's ttl is over.
    End,
    /// It was held for as long as it may be.
    MaxHold,
}

pub(super) type Reporter<T> = oneshot::Sender<Result<T, Error>>;

/// One claim.
pub(super) struct Entry {
    pub(super) state: State,
    pub(super) shared: std::sync::Arc<SharedClaim>,
    pub(super) ttl: Duration,
    /// The ttl in the last renewal that was sent: what its answer is about.
    pub(super) sent_ttl: Duration,
    /// The ttl that the server has accepted last.
    pub(super) agreed_ttl: Duration,
    pub(super) wait: Wait,
    pub(super) items: Vec<Item>,
    pub(super) session: Option<String>,
    pub(super) data: Option<Box<RawValue>>,
    pub(super) max_hold: Option<Duration>,
    pub(super) lead: Duration,
    pub(super) worker: Worker,
    /// Under which its POST is repeated.
    pub(super) idempotency_key: String,
    pub(super) started: BootInstant,
    /// Its id on the server.
    pub(super) id: Option<String>,
    /// Grows with every request: an answer to an older one means nothing.
    pub(super) seq: u64,
    pub(super) in_flight: Option<AbortHandle>,
    /// The long-poll that is on its way: since when, and how long it may take.
    pub(super) long_poll: Option<(BootInstant, Duration)>,
    /// Until when this client certainly asked for the claim, in the eyes of the server.
    pub(super) asked: BootInstant,
    /// Failures in a row.
    pub(super) attempts: u32,
    /// Its last request was sent before, and may have arrived.
    pub(super) end_was_sent: bool,
    /// Questions in a row that the server answered at once.
    pub(super) polls: u32,
    /// How often it was refused by a deadlock that may pass.
    pub(super) deadlocks: u32,
    /// A POST may have made a claim whose id is not known.
    pub(super) may_be_registered: bool,
    /// A server has put it into its queue, or granted it, at least once.
    pub(super) was_taken: bool,
    /// Why the last attempt to register it failed.
    pub(super) not_taken: Option<Error>,
    pub(super) trouble: Option<String>,
    /// What it was granted; handles see it once the grant is certain.
    pub(super) grant: Option<Grant>,
    /// How long the last answer asked to wait before the request is repeated.
    pub(super) retry_after: Option<Duration>,
    /// When the last grant or renewal was sent.
    pub(super) renewed: BootInstant,
    /// Granted, but for too long ago to rely on: a renewal has to succeed before anyone is told.
    pub(super) unconfirmed: bool,
    pub(super) is_lost: bool,
    /// How it ended, if that is decided before its last request is through.
    pub(super) verdict: Option<Error>,
    pub(super) on_claim: Option<Reporter<()>>,
    pub(super) on_release: Vec<Reporter<()>>,
    pub(super) on_refresh: Vec<Reporter<()>>,
    pub(super) timers: Vec<(TimerId, BootInstant)>,
}

impl Entry {
    /// Whether the claim is on its way out: another one on the same resource may begin.
    pub(super) fn is_ending(&self) -> bool {
        use State::{Aborting, Releasing, RetryingAbort, RetryingRelease, RetryingWithdraw, Withdrawing};
        let ending = [Releasing, RetryingRelease, Withdrawing, RetryingWithdraw, Aborting, RetryingAbort];
        self.is_lost || self.state.is_final() || ending.contains(&self.state)
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.shared.set_phase(phase);
    }

    /// Whether it is on one resource, exclusively, as every server knows it.
    pub(super) fn is_plain(&self) -> bool {
        matches!(&self.items[..], [item] if item.mode.is_exclusive())
    }

    pub(super) fn timed_out(&self) -> Error {
        let waited = BootInstant::now().since(self.started);
        Error::Timeout { resource: self.shared.resource.clone(), waited }
    }

    /// How long repeating a request makes sense: while the claim holds, or until its time to wait or to end is over.
    pub(super) fn time_left(&self, request: Request) -> Duration {
        if request == Request::Renew {
            return self.shared.until().remaining();
        }
        let timeout = self.timers.iter().find(|(timer, _)| *timer == TimerId::Machine(Timer::Timeout));
        timeout.map_or(Duration::MAX, |(_, due)| due.remaining())
    }

    /// A request failed; whoever waits for the claim or holds it can see why.
    pub(super) fn set_trouble(&mut self, trouble: Option<String>) {
        self.show(|progress| progress.trouble.clone_from(&trouble));
        let was_well = self.shared.trouble.borrow().is_none();
        if self.state.is_holding() && !(was_well && trouble.is_none()) {
            self.shared.trouble.send_replace(trouble.clone());
        }
        self.trouble = trouble;
    }

    /// Changes what a waiting claim shows.
    pub(super) fn show(&self, change: impl FnOnce(&mut Progress)) {
        self.shared.phase.send_if_modified(|phase| {
            let Phase::Waiting(progress) = phase else { return false };
            let before = progress.clone();
            change(progress);
            *progress != before
        });
    }
}
