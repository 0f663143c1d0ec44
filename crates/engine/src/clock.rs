//! The table clock: the only place that turns this machine's monotonic clock into stamps.
//!
//! In:    stamps of applied entries, the instants at which the leader was heard, and pulses while this node leads.
//! Out:   [`Stamp`]s for entries, and "now" for readers.
//! Never: lets wall time shorten or end a lease: it is read for display alone. Never counts time in which nobody could
//!        renew: it stands still without a leader, and goes on for at most [`STALL_MAX`] without a pulse.

use std::time::Duration;

use leasehold_core::Stamp;
use parking_lot::Mutex;

use crate::machine::Instant;
pub use crate::machine::wall_us;

/// How far the clock of a leader goes on by itself. A leader that was stopped (SIGSTOP, a frozen machine) or has lost
/// its majority does not pulse, and what passed beyond this did not count.
pub const STALL_MAX: Duration = Duration::from_secs(1);

/// Counts on from a stamp with the monotonic clock.
#[derive(Debug)]
pub struct TableClock {
    base: Mutex<Base>,
}

#[derive(Debug, Clone, Copy)]
struct Base {
    /// The table clock stood here: at the newest stamp in the table or, on a leader, where its own clock has come to ...
    now_us: u64,
    /// ... at this instant.
    at: Instant,
    /// The time that a leader told last. It is good for readers and nothing else: it is no stamp, so the next leader may
    /// begin before it.
    told_us: u64,
    /// When the leader was last heard.
    heard: Instant,
    /// Whether this process has heard a leader, or led. Until then `heard` is when it started.
    has_heard: bool,
    /// Whether this node leads, so that its clock is the table's.
    leading: bool,
    /// The term in which it leads, or last did.
    term: u64,
    /// The newest stamp given out in that term.
    last_us: u64,
}

impl Base {
    fn now_us(&self, instant: Instant) -> u64 {
        match self.leading {
            false => self.now_us.max(self.told_us),
            true => {
                let passed = instant.saturating_duration_since(self.at).min(STALL_MAX);
                self.now_us + passed.as_micros() as u64
            }
        }
    }

    fn observe(&mut self, applied_us: u64) {
        if !self.leading && applied_us > self.now_us {
            (self.now_us, self.at) = (applied_us, Instant::now());
        }
    }

    fn follow(&mut self, applied_us: u64) {
        if self.leading {
            let now = Instant::now();
            (self.now_us, self.told_us, self.leading) = (applied_us, 0, false);
            (self.at, self.heard, self.has_heard) = (now, now, true);
        }
    }
}

impl Default for TableClock {
    fn default() -> Self {
        let at = Instant::now();
        let base = Base {
            now_us: 0,
            at,
            told_us: 0,
            heard: at,
            has_heard: false,
            leading: false,
            term: 0,
            last_us: 0,
        };
        Self { base: Mutex::new(base) }
    }
}

impl TableClock {
    /// An entry with this stamp was applied: the table is at least so far.
    pub fn observe(&self, applied_us: u64) {
        self.base.lock().observe(applied_us);
    }

    /// The leader told its time.
    pub fn told(&self, now_us: u64) {
        self.base.lock().told_us = now_us;
    }

    /// The leader was heard just now.
    pub fn heard(&self) {
        let mut base = self.base.lock();
        (base.heard, base.has_heard) = (Instant::now(), true);
    }

    /// Whether a leader was heard at all since this process started.
    pub fn has_heard(&self) -> bool {
        self.base.lock().has_heard
    }

    /// How long ago the leader was heard.
    pub fn since_heard(&self) -> Duration {
        self.base.lock().heard.elapsed()
    }

    /// This node leads from now on, in this term; its table has everything from before, and has come to `applied_us`. The
    /// clock goes on from there, plus what passed until the old leader was last heard: after that, nobody could renew. A
    /// leader stamps once a second while that matters, so more than that was not counted by anybody.
    ///
    /// What this node stamped in an earlier term and is not in the table was never agreed on. Others have led since then and
    /// counted from an earlier time: to go on from such a stamp would end their leases early.
    pub fn lead(&self, term: u64, applied_us: u64) {
        let mut base = self.base.lock();
        if base.leading && base.term == term {
            return;
        }
        base.follow(applied_us);
        base.observe(applied_us);
        if base.term != term {
            // Followers know when a stamp came only if it is later than the one before. They would count the time without a
            // leader, too, if the next leader were one of them.
            (base.term, base.last_us) = (term, applied_us);
        }
        let counted = base.heard.saturating_duration_since(base.at).min(STALL_MAX);
        base.now_us = (base.now_us + counted.as_micros() as u64).max(base.last_us);
        (base.at, base.leading) = (Instant::now(), true);
    }

    /// This node leads no more; the table has come to `applied_us`. What its clock said beyond that was never agreed on.
    pub fn follow(&self, applied_us: u64) {
        self.base.lock().follow(applied_us);
    }

    /// This node still leads a majority: what passed since the last pulse counts.
    pub fn pulse(&self) {
        let mut base = self.base.lock();
        if base.leading {
            let now = Instant::now();
            (base.now_us, base.at) = (base.now_us(now), now);
        }
    }

    /// The table's time at this instant: on the leader by its clock, on any other node as far as it has been told.
    pub fn now_us(&self) -> u64 {
        self.base.lock().now_us(Instant::now())
    }

    /// A stamp for the next entry, later than every one before it, and the term in which it is good.
    pub fn stamp(&self) -> (Stamp, u64) {
        let mut base = self.base.lock();
        let now_us = base.now_us(Instant::now());
        #[cfg(feature = "sim")]
        let now_us = match crate::machine::simulated::is_planted(crate::machine::simulated::Bug::WallClock) {
            true => wall_us(),
            false => now_us,
        };
        base.last_us = now_us.max(base.last_us + 1);
        (Stamp { now_us: base.last_us, wall_us: wall_us() }, base.term)
    }

    /// The instant of this machine at which the table's time will be `now_us`.
    pub fn instant_of(&self, now_us: u64) -> Instant {
        let base = *self.base.lock();
        let ahead = Duration::from_micros(now_us.saturating_sub(base.now_us));
        // A deadline beyond what the machine can count is as good as never: look again in a day.
        base.at.checked_add(ahead).unwrap_or_else(|| Instant::now() + Duration::from_secs(86_400))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_a_term_only_grow_also_when_its_leader_loses_its_majority_for_a_while() {
        let clock = TableClock::default();
        clock.observe(1_000_000);
        clock.lead(1, 1_000_000);
        let first = clock.stamp().0.now_us;
        let second = clock.stamp().0.now_us;
        clock.follow(first);
        clock.lead(1, first);
        assert!(1_000_000 <= first && first < second && second < clock.stamp().0.now_us);
    }

    #[test]
    fn the_first_stamp_of_a_term_is_later_than_all_before_also_if_no_time_has_passed() {
        let clock = TableClock::default();
        clock.observe(5_000_000);
        clock.lead(3, 5_000_000);
        clock.base.lock().at = Instant::now() + Duration::from_secs(3600);
        assert_eq!(clock.stamp().0.now_us, 5_000_001);
    }

    /// A clock that stands where the table does, whatever it said before: leases end no earlier than they would have.
    fn assert_goes_on_from(clock: &TableClock, applied_us: u64) {
        let (stamp, term) = clock.stamp();
        let ahead = Duration::from_micros(stamp.now_us.checked_sub(applied_us).expect("stamps grow"));
        assert!(ahead < STALL_MAX / 2, "the clock went ahead by {ahead:?}");
        assert_eq!(term, 3);
    }

    #[test]
    fn a_stamp_of_an_earlier_term_that_was_never_agreed_on_is_forgotten() {
        let clock = TableClock::default();
        clock.lead(1, 5_000_000);
        clock.base.lock().last_us = 9_000_000;
        clock.follow(5_000_000);
        // Another one led, and counted from where the table was.
        clock.observe(5_300_000);
        clock.lead(3, 5_300_000);
        assert_goes_on_from(&clock, 5_300_000);
    }

    #[test]
    fn so_is_the_clock_of_an_earlier_term_whose_end_nobody_noticed() {
        let clock = TableClock::default();
        clock.lead(1, 5_000_000);
        clock.base.lock().now_us = 9_000_000;
        clock.lead(3, 5_300_000);
        assert_goes_on_from(&clock, 5_300_000);
    }

    #[test]
    fn what_a_leader_told_is_for_readers_and_not_for_the_next_leader() {
        let clock = TableClock::default();
        clock.observe(5_000_000);
        clock.told(9_000_000);
        assert_eq!(clock.now_us(), 9_000_000);
        clock.observe(5_300_000);
        clock.lead(3, 5_300_000);
        assert_goes_on_from(&clock, 5_300_000);
    }

    #[test]
    fn a_follower_tells_the_time_it_was_told_and_a_leader_stops_without_pulses() {
        let clock = TableClock::default();
        clock.observe(5_000_000);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(clock.now_us(), 5_000_000);
        clock.lead(1, 5_000_000);
        let base = clock.base.lock().at;
        let much_later = base + 10 * STALL_MAX;
        let now_us = clock.base.lock().now_us(much_later);
        assert_eq!(now_us, clock.base.lock().now_us + STALL_MAX.as_micros() as u64);
    }

    #[test]
    fn a_new_leader_counts_until_the_old_one_was_last_heard_and_no_further() {
        let clock = TableClock::default();
        clock.observe(7_000_000);
        let (told, silence) = (Duration::from_millis(300), Duration::from_secs(1));
        {
            let mut base = clock.base.lock();
            base.at = base.at.checked_sub(told + silence).expect("the machine is up for longer");
            base.heard = base.at + told;
        }
        clock.lead(1, 7_000_000);
        assert_eq!(clock.base.lock().now_us, 7_300_000);
    }
}
