//! The queue between the callers and the flusher.
//!
//! In:    appends from any thread, in the order they arrive.
//! Out:   everything that is waiting, in one piece, to the flusher.
//! Never: holds its lock while a caller is being answered.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use super::Record;

/// How long a committed mark may wait for a frame to travel with when nothing else is appended.
const COMMITTED_LINGER: Duration = Duration::from_secs(1);

/// Told once whether an append is on disk.
pub(super) type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Tells one caller. A `done` that panics must neither end the flusher nor leave the others untold.
pub(super) fn answer(done: Done, result: io::Result<()>) {
    if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
        tracing::error!(
            "a caller of the log panicked when it was told about its append: this is a bug, please report it with the log"
        );
    }
}

/// One call of `Wal::append`.
pub(super) struct Pending {
    /// What to write, all in the same frame.
    pub(super) records: Vec<Record>,
    /// Who to tell.
    pub(super) done: Done,
}

/// Why the log takes no more appends; an `io::Error` that can be given to everyone who asks.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    kind: io::ErrorKind,
    what: String,
}

impl Failure {
    pub(super) fn new(error: &io::Error) -> Self {
        Self { kind: error.kind(), what: error.to_string() }
    }

    pub(super) fn error(&self) -> io::Error {
        io::Error::new(self.kind, self.what.clone())
    }
}

/// Appends on their way to the flusher.
#[derive(Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    /// Tells the flusher that something is pending or that the log is being closed.
    wake: Condvar,
}

#[derive(Default)]
struct Inner {
    pending: Vec<Pending>,
    /// The latest committed mark not yet written; older ones are not worth writing.
    committed: Option<Bytes>,
    closed: bool,
    failure: Option<Failure>,
}

impl Queue {
    /// Queues an append, and wakes the flusher's thread unless the caller flushes itself.
    pub(super) fn push(&self, pending: Pending, wake: bool) {
        let mut inner = self.inner.lock();
        if let Some(failure) = &inner.failure {
            let error = failure.error();
            drop(inner);
            return answer(pending.done, Err(error));
        }
        if inner.closed {
            drop(inner);
            let error = io::Error::new(io::ErrorKind::BrokenPipe, "the log is closed");
            return answer(pending.done, Err(error));
        }
        inner.pending.push(pending);
        drop(inner);
        if wake {
            self.wake.notify_one();
        }
    }

    /// Does not wake the flusher: the mark travels with the next frame.
    pub(super) fn set_committed(&self, committed: Bytes) {
        self.inner.lock().committed = Some(committed);
    }

    pub(super) fn close(&self) {
        self.inner.lock().closed = true;
        self.wake.notify_one();
    }

    /// Refuses all appends from now on. Those already queued are answered by the flusher.
    pub(super) fn fail(&self, failure: Failure) {
        self.inner.lock().failure.get_or_insert(failure);
    }

    /// Answers everything queued with the failure, for when the flusher can't any more.
    pub(super) fn fail_queued(&self, failure: &Failure) {
        self.fail(failure.clone());
        let pending = std::mem::take(&mut self.inner.lock().pending);
        for pending in pending {
            answer(pending.done, Err(failure.error()));
        }
    }

    /// Waits until something is queued; `false` when the log is closed and everything has been handed out.
    pub(super) fn wait(&self) -> bool {
        let mut inner = self.inner.lock();
        while inner.pending.is_empty() {
            if inner.closed {
                return inner.committed.is_some();
            }
            let waited = self.wake.wait_for(&mut inner, COMMITTED_LINGER);
            if waited.timed_out() && inner.committed.is_some() {
                break;
            }
        }
        true
    }

    /// Swaps everything queued into `batch`, which must be empty, and gives the committed mark to write along. Only
    /// the holder of the flusher may take: what is taken first is written first.
    pub(super) fn take(&self, batch: &mut Vec<Pending>) -> Option<Bytes> {
        let mut inner = self.inner.lock();
        std::mem::swap(&mut inner.pending, batch);
        inner.committed.take()
    }
}
