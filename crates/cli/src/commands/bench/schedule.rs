//! The open-loop schedule: when each request should leave, fixed before the run starts.
//!
//! In:    a rate and the length of the run.
//! Out:   the scheduled moment of the next request, once that moment has come.
//! Never: slips. A late server makes requests late, and their latency is counted from the scheduled
//!        moment, so a stall shows in every request it delayed (no coordinated omission).

use std::time::{Duration, Instant};

/// Evenly spaced departures.
pub(crate) struct Schedule {
    /// The moment of departure number 0.
    start: Instant,
    /// Departures per second.
    rate: f64,
    /// Departures already taken.
    taken: u64,
    /// Departures in the whole run.
    total: u64,
}

impl Schedule {
    /// Departures at `rate` per second, from `start`, for `length`.
    pub(crate) fn new(start: Instant, rate: f64, length: Duration) -> Self {
        let total = (rate * length.as_secs_f64()).ceil() as u64;
        Self { start, rate, taken: 0, total }
    }

    /// The scheduled moment of the next departure if it is due at `now`.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        if self.taken == self.total {
            return None;
        }
        // From the start each time, never from the previous departure, so rounding cannot add up.
        let at = self.start + Duration::from_secs_f64(self.taken as f64 / self.rate);
        (at <= now).then_some(at)
    }

    /// Marks the due departure as gone.
    pub(crate) fn take(&mut self) {
        self.taken += 1;
    }

    /// Departures that have not gone.
    pub(crate) fn left(&self) -> u64 {
        self.total - self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all_due(schedule: &mut Schedule, now: Instant) -> Vec<Instant> {
        std::iter::from_fn(|| {
            let at = schedule.due(now)?;
            schedule.take();
            Some(at)
        })
        .collect()
    }

    #[test]
    fn departures_keep_their_moments_however_late_they_are_taken() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start, 1000.0, Duration::from_secs(1));
        assert_eq!(take_all_due(&mut schedule, start).len(), 1);
        let late = take_all_due(&mut schedule, start + Duration::from_millis(500));
        assert_eq!(late.len(), 500);
        assert_eq!(late[0], start + Duration::from_millis(1));
        assert_eq!(late[499], start + Duration::from_millis(500));
    }

    #[test]
    fn ends_after_rate_times_length() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start, 33.0, Duration::from_secs(3));
        assert_eq!(schedule.left(), 99);
        assert_eq!(take_all_due(&mut schedule, start + Duration::from_secs(9)).len(), 99);
        assert_eq!(schedule.left(), 0);
        assert_eq!(schedule.due(start + Duration::from_secs(99)), None);
    }
}
