//! The table clock: the only place that turns this machine's monotonic clock into stamps.
//!
//! In:    the instant up to which the table has come, when this node starts to lead.
//! Out:   [`Stamp`]s for entries, and "now" for readers.
//! Never: lets wall time shorten or end a lease: it is read for display alone.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use leasehold_core::Stamp;
use parking_lot::Mutex;

/// Counts on from a stamp with the monotonic clock.
#[derive(Debug)]
pub struct TableClock {
    base: Mutex<Base>,
}

#[derive(Debug, Clone, Copy)]
struct Base {
    /// The table clock stood here ...
    now_us: u64,
    /// ... at this instant.
    at: Instant,
    /// The newest stamp given out.
    last_us: u64,
}

impl Default for TableClock {
    fn default() -> Self {
        Self { base: Mutex::new(Base { now_us: 0, at: Instant::now(), last_us: 0 }) }
    }
}

impl TableClock {
    /// Goes on from `now_us`, where the log left off: the time in between did not count.
    pub fn resume_from(&self, now_us: u64) {
        let mut base = self.base.lock();
        *base = Base { now_us, at: Instant::now(), last_us: now_us.max(base.last_us) };
    }

    /// The table's time at this instant.
    pub fn now_us(&self) -> u64 {
        let base = *self.base.lock();
        base.now_us + base.at.elapsed().as_micros() as u64
    }

    /// A stamp for the next entry: later than every one before it.
    pub fn stamp(&self) -> Stamp {
        let mut base = self.base.lock();
        let now_us = base.now_us + base.at.elapsed().as_micros() as u64;
        base.last_us = now_us.max(base.last_us + 1);
        Stamp { now_us: base.last_us, wall_us: wall_us() }
    }

    /// The instant of this machine at which the table's time will be `now_us`.
    pub fn instant_of(&self, now_us: u64) -> Instant {
        let base = *self.base.lock();
        let ahead = std::time::Duration::from_micros(now_us.saturating_sub(base.now_us));
        // A deadline beyond what the machine can count is as good as never: look again in a day.
        base.at.checked_add(ahead).unwrap_or_else(|| Instant::now() + std::time::Duration::from_secs(86_400))
    }
}

/// Microseconds since 1970 by the wall clock; 0 where it stands before that.
pub fn wall_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_only_grow_also_when_the_clock_resumes_from_the_past() {
        let clock = TableClock::default();
        clock.resume_from(1_000_000);
        let first = clock.stamp().now_us;
        let second = clock.stamp().now_us;
        clock.resume_from(10);
        assert!(1_000_000 <= first && first < second && second < clock.stamp().now_us);
    }
}
