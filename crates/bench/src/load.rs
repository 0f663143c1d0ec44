//! A run: many clients on one reactor, for a fixed time or for a fixed number of requests.
//!
//! In:    a [`Plan`], and one future for each client that asks [`Run::next`] when to send its next request.
//! Out:   [`Stats`]: latencies, errors, processor time.
//! Never: waits without an end: a run ends by time, by count, or because the server has stopped answering.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::output;
use crate::pace::Pace;
use crate::process::{CpuTimes, cpu_between, cpu_times, own_cpu_time};
use crate::reactor::{Crew, Reactor};
use crate::stats::{Op, Recorder, Stats};

/// The longest time for requests that began before the end, and for giving back what is held.
const CLEANUP_MAX: Duration = Duration::from_secs(5);
/// No answer on any connection for this long, with requests in flight, means that the server is stuck.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// The pace of the progress line.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// How long and how fast a run is.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// The name in the progress line.
    pub name: &'a str,
    /// Time before anything is counted.
    pub warmup: Duration,
    /// How the run ends.
    pub span: Span,
    /// Open loop: departures a second. Closed loop: `None`.
    pub rate: Option<f64>,
    /// Whether a line on standard error tells of the progress every second.
    pub shows_progress: bool,
}

/// How a run ends.
#[derive(Clone, Copy)]
pub enum Span {
    /// After this long.
    Timed(Duration),
    /// When the clients have nothing more to send; the limit only guards against a server that crawls.
    Counted {
        /// The latest end.
        limit: Duration,
    },
}

/// A run, as its clients see it.
pub struct Run<'a> {
    plan: Plan<'a>,
    start: Instant,
    /// When the clients are to finish.
    deadline: Instant,
    /// When the run ends whatever happens.
    hard_stop: Instant,
    pace: Option<Pace>,
    /// The request in flight on each connection.
    in_flight: RefCell<Vec<Option<Op>>>,
    last_news: Cell<Instant>,
    recorder: RefCell<Recorder>,
}

impl<'a> Run<'a> {
    /// A run that starts now.
    pub fn new(reactor: &Reactor, plan: Plan<'a>, clients: usize) -> Result<Self> {
        let start = Instant::now();
        let (deadline, until) = match plan.span {
            Span::Timed(length) => {
                let deadline = start + plan.warmup + length;
                (deadline, Some(deadline))
            }
            Span::Counted { limit } => (start + limit, None),
        };
        let departures = (start, deadline - start, deadline + CLEANUP_MAX / 2);
        let pace = plan.rate.map(|rate| Pace::new(reactor, rate, departures, clients)).transpose()?;
        Ok(Self {
            plan,
            start,
            deadline,
            hard_stop: deadline + CLEANUP_MAX,
            pace,
            in_flight: RefCell::new(vec![None; clients]),
            last_news: Cell::new(start),
            recorder: RefCell::new(Recorder::new(start + plan.warmup, until)),
        })
    }

    /// When the next request of client `number` starts: now, or, in the open loop, when it is its turn. `None` when the
    /// client is to give back what it holds and end.
    pub async fn next(&self, number: usize) -> Option<Instant> {
        match &self.pace {
            Some(pace) => pace.departure(number).await,
            None => Some(Instant::now()).filter(|now| *now < self.deadline),
        }
    }

    /// Whether requests leave on a schedule.
    pub(crate) fn is_open_loop(&self) -> bool {
        self.pace.is_some()
    }

    /// Client `number` sends a request.
    pub(crate) fn sent(&self, number: usize, op: Op) {
        self.in_flight.borrow_mut()[number] = Some(op);
    }

    /// Client `number` has its answer.
    pub(crate) fn answered(&self, number: usize, op: Op, started: Instant) {
        let now = Instant::now();
        self.in_flight.borrow_mut()[number] = None;
        self.last_news.set(now);
        self.recorder.borrow_mut().answer(op, started, now);
    }

    /// Client `number` will never have its answer: its connection broke.
    pub(crate) fn lost(&self, number: usize, op: Op, why: &anyhow::Error) {
        self.in_flight.borrow_mut()[number] = None;
        self.error(format!("{op}: connection lost"), format!("{why:#}").as_bytes());
    }

    /// Counts a latency until now that is not the answer to a request, such as that of a hand-over.
    pub fn latency(&self, op: Op, started: Instant) {
        self.recorder.borrow_mut().answer(op, started, Instant::now());
    }

    /// Counts an error.
    pub(crate) fn error(&self, kind: String, detail: &[u8]) {
        self.recorder.borrow_mut().error(kind, detail);
    }

    /// Drives the clients to the end of the run. Returns whether all have ended by themselves.
    pub fn drive<T>(
        &self,
        reactor: &Reactor,
        pids: &[u32],
        tasks: impl IntoIterator<Item = impl Future<Output = Result<T>>>,
    ) -> Result<bool> {
        // Their results are dropped last: PostgreSQL's processes end with their connections, and their times with them.
        let mut crew = Crew::new(0, tasks);
        let mut cpu = CpuMeter { pids, from: self.start + self.plan.warmup, began: None, used: None };
        let mut progress = Shown { next: self.start + PROGRESS_EVERY, answers: 0 };
        let have_all_ended = loop {
            let now = Instant::now();
            cpu.look(now, self.deadline);
            let next = [cpu.from, self.deadline].into_iter().filter(|at| *at > now).min();
            let wake = next.unwrap_or(self.hard_stop).min(progress.next.max(now)).min(self.hard_stop);
            if reactor.run(&mut crew, wake, self.pace.as_ref())? {
                break true;
            }
            let now = Instant::now();
            self.show_progress(&mut progress, now);
            self.ensure_answers(now)?;
            if now >= self.hard_stop {
                break false;
            }
        };
        cpu.look(self.hard_stop, self.deadline);
        self.recorder.borrow_mut().used(cpu.used);
        Ok(have_all_ended)
    }

    fn ensure_answers(&self, now: Instant) -> Result<()> {
        let silent = now.saturating_duration_since(self.last_news.get());
        if self.in_flight.borrow().iter().all(Option::is_none) {
            // With nothing in flight, silence is no fault of the server: it counts from here.
            self.last_news.set(now);
        } else if silent > SILENCE_MAX {
            bail!("the server has not answered for {} s; is it stuck?", silent.as_secs());
        }
        Ok(())
    }

    fn show_progress(&self, shown: &mut Shown, now: Instant) {
        if now < shown.next {
            return;
        }
        let (answers, errors) = {
            let recorder = self.recorder.borrow();
            (recorder.answers(), recorder.errors())
        };
        let span = now.saturating_duration_since(shown.next) + PROGRESS_EVERY;
        let per_second = (answers - shown.answers) as f64 / span.as_secs_f64();
        let elapsed = now.saturating_duration_since(self.start).as_secs_f64();
        if self.plan.shows_progress {
            output::progress(&format!(
                "{}: {elapsed:>4.0} s  {answers:>10} answers  {per_second:>9.0}/s  {errors} errors",
                self.plan.name
            ));
        }
        *shown = Shown { next: now + PROGRESS_EVERY, answers };
    }

    /// The counts. A request without an answer is an error.
    pub fn into_stats(self) -> Stats {
        let mut recorder = self.recorder.into_inner();
        for op in self.in_flight.into_inner().into_iter().flatten() {
            recorder.error(format!("{op}: no answer by the end"), b"");
        }
        let mut stats = recorder.finish(Instant::now());
        stats.unsent = self.pace.map_or(0, |pace| pace.left());
        stats
    }
}

/// What the progress line showed last.
struct Shown {
    next: Instant,
    answers: u64,
}

/// Processor time of the server's processes and of this one, in the measured time.
struct CpuMeter<'a> {
    pids: &'a [u32],
    from: Instant,
    began: Option<(Instant, CpuTimes, Duration)>,
    used: Option<CpuUse>,
}

/// Processor time used.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuUse {
    /// How long it was measured.
    pub over: Duration,
    /// By the processes of the server; `None` if they are not known.
    pub server: Option<Duration>,
    /// By this process.
    pub generator: Duration,
}

impl CpuMeter<'_> {
    /// Begins to count at the end of the warm-up, and stops at the end of the measured time.
    fn look(&mut self, now: Instant, until: Instant) {
        match &self.began {
            None if now >= self.from => self.began = Some((now, cpu_times(self.pids), own_cpu_time())),
            Some((began, server, generator)) if now >= until && self.used.is_none() => {
                let server = (!self.pids.is_empty()).then(|| cpu_between(server, &cpu_times(self.pids)));
                let generator = own_cpu_time().saturating_sub(*generator);
                self.used = Some(CpuUse { over: began.elapsed(), server, generator });
            }
            _ => {}
        }
    }
}
