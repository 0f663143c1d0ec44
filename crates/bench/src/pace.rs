//! The open loop: requests leave on a schedule that was fixed before the run.
//!
//! In:    a rate and the length of the run; clients that are idle, in the order in which they became idle.
//! Out:   which client departs now, and the moment for which its request was scheduled.
//! Never: slips. The latency of a late request counts from the scheduled moment, so a stall of the server shows in every
//!        request that it delayed (no coordinated omission).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::reactor::Reactor;

/// Departures that are closer together leave in small groups: to wake up more often would cost the server's processor.
const TICK_MIN: Duration = Duration::from_micros(50);
/// The longest time between two ticks.
const TICK_MAX: Duration = Duration::from_millis(10);

/// A schedule, and the clients that wait for their departure.
pub struct Pace {
    schedule: Cell<Schedule>,
    /// The end of the schedule. What starts later is clean-up, which is not counted.
    deadline: Instant,
    /// The moment after which nobody waits any more, though departures may be left.
    end: Instant,
    /// Numbers of the clients that wait, the longest idle first.
    idle: RefCell<VecDeque<usize>>,
    /// The scheduled moment that the client with this number was given.
    given: RefCell<Vec<Option<Instant>>>,
    timer: OwnedFd,
}

impl Pace {
    /// `rate` departures a second from `start` on for `length`, for `clients` clients. A departure that finds no idle
    /// client until `end` is never sent.
    pub(crate) fn new(
        reactor: &Reactor,
        rate: f64,
        (start, length, end): (Instant, Duration, Instant),
        clients: usize,
    ) -> Result<Self> {
        let timer = reactor.tick_every(Duration::from_secs_f64(1.0 / rate).clamp(TICK_MIN, TICK_MAX))?;
        let schedule = Cell::new(Schedule::new(start, rate, length));
        let (idle, given) = (RefCell::default(), RefCell::new(vec![None; clients]));
        Ok(Self { schedule, deadline: start + length, end, idle, given, timer })
    }

    /// Waits for this client's departure; `None` once there are no more.
    pub(crate) async fn departure(&self, number: usize) -> Option<Instant> {
        self.idle.borrow_mut().push_back(number);
        poll_fn(|_| match self.given.borrow_mut()[number].take() {
            Some(scheduled) => Poll::Ready(Some(scheduled)),
            None if self.is_over(Instant::now()) => Poll::Ready(None),
            None => Poll::Pending,
        })
        .await
    }

    /// The client that departs now: because a departure is due, or because there will be none for it.
    pub(crate) fn depart(&self, now: Instant) -> Option<usize> {
        let mut schedule = self.schedule.get();
        let due = schedule.due(now);
        if due.is_none() && !self.is_over(now) {
            return None;
        }
        let number = self.idle.borrow_mut().pop_front()?;
        if due.is_some() && now < self.end {
            schedule.taken += 1;
            self.schedule.set(schedule);
            self.given.borrow_mut()[number] = due;
        }
        Some(number)
    }

    fn is_over(&self, now: Instant) -> bool {
        now >= self.end || now >= self.deadline && self.left() == 0
    }

    /// Departures that were not taken.
    pub(crate) fn left(&self) -> u64 {
        let schedule = self.schedule.get();
        schedule.total - schedule.taken
    }

    /// A periodic timerfd is ready again only once it was read.
    pub(crate) fn rearm(&self) {
        // Reading fails only with EAGAIN, when the tick was read already.
        let _ = rustix::io::read(&self.timer, &mut [0_u8; 8]);
    }
}

/// Evenly spaced departures.
#[derive(Clone, Copy)]
struct Schedule {
    /// The moment of departure number 0.
    start: Instant,
    /// Departures a second.
    rate: f64,
    /// Departures already taken.
    taken: u64,
    /// Departures in the whole run.
    total: u64,
}

impl Schedule {
    fn new(start: Instant, rate: f64, length: Duration) -> Self {
        Self { start, rate, taken: 0, total: (rate * length.as_secs_f64()).ceil() as u64 }
    }

    /// The moment of the next departure, if it is due at `now`.
    fn due(&self, now: Instant) -> Option<Instant> {
        if self.taken == self.total {
            return None;
        }
        // Counted from the start each time, never from the departure before: rounding errors do not add up.
        let at = self.start + Duration::from_secs_f64(self.taken as f64 / self.rate);
        (at <= now).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all_due(schedule: &mut Schedule, now: Instant) -> Vec<Instant> {
        std::iter::from_fn(|| {
            let at = schedule.due(now)?;
            schedule.taken += 1;
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
    fn a_schedule_ends_after_rate_times_length() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start, 33.0, Duration::from_secs(3));
        assert_eq!(take_all_due(&mut schedule, start + Duration::from_secs(9)).len(), 99);
        assert_eq!(schedule.due(start + Duration::from_secs(99)), None);
    }

    #[test]
    fn the_longest_idle_client_departs_first_and_all_leave_at_the_end() {
        let reactor = Reactor::new().unwrap();
        let start = Instant::now();
        let (length, end) = (Duration::from_secs(2), start + Duration::from_secs(5));
        let pace = Pace::new(&reactor, 1.0, (start, length, end), 3).unwrap();
        pace.idle.borrow_mut().extend([2, 0, 1]);
        assert_eq!(pace.depart(start), Some(2));
        assert_eq!(pace.given.borrow()[2], Some(start));
        assert_eq!(pace.depart(start), None, "the next one is due in a second");
        assert_eq!(pace.depart(start + Duration::from_secs(1)), Some(0));
        assert_eq!(pace.depart(start + Duration::from_millis(1900)), None, "what came now would be counted");
        assert_eq!(pace.depart(start + length), Some(1));
        assert_eq!((pace.given.borrow()[1], pace.left()), (None, 0), "there is no departure for it");
    }
}
