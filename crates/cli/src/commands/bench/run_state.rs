//! The state of one run: its clock, its stage, its idle connections.
//!
//! In:    a `Plan`; what the engine sent, received and lost.
//! Out:   decisions: when to finish, when a departure leaves on which connection, when to give up.
//! Never: touches a socket or a request.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::engine::show_progress;
use super::process::CpuClock;
use super::schedule::Schedule;
use super::stats::{Recorder, Stats};

/// How long the clean-up after a timed run may take.
const CLEANUP_MAX: Duration = Duration::from_secs(5);
/// No answer on any connection for this long, with requests in flight, means the server is stuck.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// The pace of the progress line.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// How long and how fast a workload runs.
pub(crate) struct Plan<'a> {
    /// The name in the progress line.
    pub(crate) name: &'a str,
    /// Time before anything is counted.
    pub(crate) warmup: Duration,
    /// How the run ends.
    pub(crate) span: Span,
    /// Open loop: departures per second. Closed loop: unset.
    pub(crate) rate: Option<f64>,
}

/// How a run ends.
#[derive(Clone, Copy)]
pub(crate) enum Span {
    /// After this long.
    Timed(Duration),
    /// When the workload has no more requests; this limit only guards against a server that crawls.
    Counted {
        /// The latest end.
        limit: Duration,
    },
}

/// A run under way.
pub(crate) struct Run<'a> {
    plan: &'a Plan<'a>,
    start: Instant,
    /// When the workload is told to finish.
    deadline: Instant,
    /// When the run ends whatever happens.
    hard_stop: Instant,
    /// Set once the workload was told to finish.
    finishing: bool,
    /// Requests in flight.
    in_flight: usize,
    /// Connections without a request: in the open loop those that wait for a departure.
    idle: VecDeque<usize>,
    schedule: Option<Schedule>,
    last_answer: Instant,
    next_progress: Instant,
    answers_shown: u64,
    /// The counts.
    pub(crate) recorder: Recorder,
}

impl<'a> Run<'a> {
    /// A run of `plan` over `connections` that starts now.
    pub(crate) fn new(plan: &'a Plan<'a>, start: Instant, connections: usize) -> Self {
        let (deadline, hard_stop, until) = match plan.span {
            Span::Timed(length) => {
                let deadline = start + plan.warmup + length;
                (deadline, deadline + CLEANUP_MAX, Some(deadline))
            }
            Span::Counted { limit } => (start + limit, start + limit + CLEANUP_MAX, None),
        };
        let schedule = plan.rate.map(|rate| Schedule::new(start, rate, deadline - start));
        let idle = if schedule.is_some() { (0..connections).collect() } else { VecDeque::new() };
        Self {
            plan,
            start,
            deadline,
            hard_stop,
            finishing: false,
            in_flight: 0,
            idle,
            schedule,
            last_answer: start,
            next_progress: start + PROGRESS_EVERY,
            answers_shown: 0,
            recorder: Recorder::new(start + plan.warmup, until),
        }
    }

    /// Whether requests leave on a schedule.
    pub(crate) fn is_open_loop(&self) -> bool {
        self.schedule.is_some()
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_over(&self) -> bool {
        self.in_flight == 0 && self.idle.is_empty()
    }

    /// How long the engine may sleep.
    pub(crate) fn wake_in(&self, now: Instant) -> Duration {
        if self.idle.is_empty() || self.schedule.is_some() {
            let next = if self.finishing { self.hard_stop } else { self.deadline };
            return next.min(self.next_progress).saturating_duration_since(now);
        }
        // A connection was replaced and waits for its next request.
        Duration::ZERO
    }

    /// The next departure that is due, with the connection that carries it.
    pub(crate) fn departure(&mut self, now: Instant) -> Option<(Instant, usize)> {
        let Some(schedule) = self.schedule.as_mut().filter(|_| !self.finishing) else {
            return self.idle.pop_front().map(|index| (now, index));
        };
        let scheduled = schedule.due(now)?;
        let index = self.idle.pop_front()?;
        schedule.take();
        Some((scheduled, index))
    }

    /// Whether the workload is to be told to finish now: in the open loop only after the last departure.
    pub(crate) fn should_finish(&self, now: Instant) -> bool {
        let all_left = self.schedule.as_ref().is_none_or(|schedule| schedule.left() == 0);
        let last_moment = self.deadline + CLEANUP_MAX / 2;
        !self.finishing && now >= self.deadline && (all_left || now >= last_moment)
    }

    /// Starts the clean-up; returns the idle connections, which may have something to give back.
    pub(crate) fn finish(&mut self, now: Instant) -> VecDeque<usize> {
        self.finishing = true;
        self.last_answer = now;
        std::mem::take(&mut self.idle)
    }

    /// Whether the clean-up has taken too long.
    pub(crate) fn is_out_of_time(&self, now: Instant) -> bool {
        now >= self.hard_stop
    }

    /// A request was written.
    pub(crate) fn sent(&mut self, now: Instant) {
        // With nothing in flight silence was no fault of the server: it is counted from here.
        if self.in_flight == 0 {
            self.last_answer = self.last_answer.max(now);
        }
        self.in_flight += 1;
    }

    /// A request was answered.
    pub(crate) fn answered(&mut self, now: Instant) {
        self.in_flight -= 1;
        self.last_answer = now;
    }

    /// A request will never be answered.
    pub(crate) fn lost(&mut self) {
        self.in_flight -= 1;
    }

    /// Whether a connection whose answer has come now waits for a departure.
    pub(crate) fn keep_idle(&mut self, index: usize) -> bool {
        let waits = self.schedule.is_some() && !self.finishing;
        if waits {
            self.idle.push_back(index);
        }
        waits
    }

    /// Keeps a replaced connection for the next turn of the loop.
    pub(crate) fn keep_for_later(&mut self, index: usize) {
        self.idle.push_back(index);
    }

    /// Whether the server has stopped answering.
    pub(crate) fn has_stalled(&self, now: Instant) -> bool {
        self.in_flight > 0 && now.saturating_duration_since(self.last_answer) > SILENCE_MAX
    }

    /// Whole seconds since the last answer.
    pub(crate) fn silent_seconds(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.last_answer).as_secs()
    }

    /// Shows the progress line once a second.
    pub(crate) fn progress(&mut self, now: Instant) {
        if now < self.next_progress {
            return;
        }
        let answers = self.recorder.answers();
        let span = now.saturating_duration_since(self.next_progress) + PROGRESS_EVERY;
        let per_second = (answers - self.answers_shown) as f64 / span.as_secs_f64();
        let elapsed = now.saturating_duration_since(self.start);
        show_progress(self.plan.name, elapsed, answers, per_second, self.recorder.errors());
        self.answers_shown = answers;
        self.next_progress = now + PROGRESS_EVERY;
    }

    /// The counts.
    pub(crate) fn into_stats(self, cpu: &CpuClock) -> Stats {
        let mut stats = self.recorder.finish(Instant::now());
        stats.unsent = self.schedule.map_or(0, |schedule| schedule.left());
        (stats.generator_cores, stats.server_cores) = cpu.cores();
        stats
    }
}
