//! Where the time of a traced request goes on its way through the engine.
//!
//! In:    marks that `propose.rs`, `in_flight.rs` and `reads.rs` set for requests that are traced. Out: [`Hop`]s.
//! Never: costs more than a look at one flag while nobody traces.
//!
//! | hop | from | to |
//! |---|---|---|
//! | `queue` | a command is submitted | it is packed into a parcel |
//! | `forward` | it is packed into a parcel | on a follower: the leader has the parcel |
//! | `commit` | the leader has the parcel | the entry with the parcel is on the disks of a majority |
//! | `apply` | the entry is on the disks of a majority | this node's table has applied it, and the outcome is handed over |
//! | `barrier` | a read is asked for | this node's table is new enough for it |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::futures::TaskLocalFuture;

use crate::machine::Instant;

/// Hops of one request that are kept. A request makes a few; one that submits again and again must not collect without end.
const HOPS_MAX: usize = 32;

/// Whether any request may be traced.
static ON: AtomicBool = AtomicBool::new(false);

tokio::task_local! {
    /// The request that this task answers.
    static CURRENT: Arc<Hops>;
}

/// The hops of one request.
#[derive(Debug)]
pub struct Hops {
    began: Instant,
    hops: Mutex<Vec<Hop>>,
}

/// A part of the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// What was waited for.
    pub name: &'static str,
    /// When it began, counted from the beginning of the request.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
}

/// From now on requests may be traced.
pub fn switch_on() {
    ON.store(true, Ordering::Release);
}

pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The request that is being answered, if it is traced.
pub(crate) fn current() -> Option<Arc<Hops>> {
    if is_on() { CURRENT.try_with(Arc::clone).ok() } else { None }
}

impl Hops {
    /// A request begins.
    pub fn begin() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), hops: Mutex::default() })
    }

    /// Runs `answer`, and the future that it returns, as a part of this request.
    pub fn follow<F: Future>(self: &Arc<Self>, answer: impl FnOnce() -> F) -> TaskLocalFuture<Arc<Self>, F> {
        let answer = CURRENT.sync_scope(self.clone(), answer);
        CURRENT.scope(self.clone(), answer)
    }

    /// What was noted so far, and the time that has passed.
    pub fn taken(&self) -> (Vec<Hop>, Duration) {
        (std::mem::take(&mut *self.hops.lock()), self.began.elapsed())
    }

    pub(crate) fn note(&self, name: &'static str, start: Instant, end: Instant) {
        let since = |at: Instant| at.saturating_duration_since(self.began);
        let mut hops = self.hops.lock();
        if hops.len() < HOPS_MAX {
            hops.push(Hop { name, start: since(start), end: since(end) });
        }
    }
}

/// The traced requests of one parcel, and where it is.
#[derive(Debug, Default)]
pub(crate) struct Traced {
    requests: Vec<Arc<Hops>>,
    mark: Option<Instant>,
}

impl Traced {
    /// A command of this request, submitted then, is packed now.
    pub(crate) fn pack(&mut self, request: Arc<Hops>, submitted: Instant) {
        let now = Instant::now();
        request.note("queue", submitted, now);
        self.mark = Some(now);
        self.requests.push(request);
    }

    /// The parcel has come through this hop.
    pub(crate) fn passed(&mut self, name: &'static str) {
        let Some(mark) = self.mark else { return };
        let now = Instant::now();
        self.requests.iter().for_each(|request| request.note(name, mark, now));
        self.mark = Some(now);
    }
}
