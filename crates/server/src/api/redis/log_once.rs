//! Log lines that a client can cause at will: each is written once a minute at most.
//!
//! In:    a client's mistake. Out: whether this one is logged.
//! Never: lets a stranger fill the log.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_engine::machine;

/// Seconds between two lines of one kind.
const EVERY: u64 = 60;

/// One kind of log line, written once a minute at most.
pub(super) struct OncePerMinute(AtomicU64);

impl OncePerMinute {
    /// A kind that was never logged.
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether it is time for another line. Only one of several callers gets it.
    pub(super) fn is_time(&self) -> bool {
        let (now, said_at) = (machine::wall_us() / 1_000_000, self.0.load(Ordering::Relaxed));
        now.abs_diff(said_at) >= EVERY
            && self.0.compare_exchange(said_at, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
