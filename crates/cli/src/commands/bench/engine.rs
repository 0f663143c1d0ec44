//! The load loop: one thread, one epoll, N connections, one request in flight on each.
//!
//! In:    a `Workload` (what to ask, what to think of the answer) and a `Plan` (how long, how fast).
//! Out:   `Stats`.
//! Never: spins, spawns, or waits without an end: a run ends by time, by count, or because the server
//!        stopped answering.
//!
//! Two system calls and one clock read per request. The generator shares the machine with the server
//! it measures, so every cycle spent here would be counted against the server.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::connection::{Connection, Received};
use super::output;
use super::process::{self, CpuClock};
use super::response::Response;
use super::run_state::{Plan, Run};
use super::stats::{Op, Recorder, Stats};

/// Big enough for a list of 100 claims in one read.
const SCRATCH_BYTES: usize = 64 * 1024;
/// The timer of the open loop; no connection has this number.
const TIMER: Token = Token(usize::MAX);
/// Departures closer together than this leave in small groups: waking more often costs the server's CPU.
const TIMER_INTERVAL_MIN: Duration = Duration::from_micros(50);
/// Broken connections before a run is given up.
const RECONNECTS_MAX: u32 = 1000;

/// What a connection does next.
pub(crate) enum Next {
    /// The request in the buffer, which is of this kind.
    Send(Op),
    /// Nothing more in this run.
    Done,
}

/// A scenario as the engine sees it.
pub(crate) trait Workload {
    /// Puts the next request of an idle connection into `out`. `now` is when it is written.
    fn next(&mut self, connection: usize, now: Instant, out: &mut Vec<u8>) -> Next;
    /// Takes an answer; `Err` names what is wrong with it and counts as an error.
    fn answered(&mut self, answer: &Answer<'_>, recorder: &mut Recorder) -> Result<(), &'static str>;
    /// A request whose answer will never come, since its connection broke.
    fn lost(&mut self, _connection: usize, _op: Op) {}
    /// Time is up: from now on only give back what is held.
    fn finish(&mut self);
}

/// An answer and its circumstances.
pub(crate) struct Answer<'a> {
    /// The number of the connection.
    pub(crate) connection: usize,
    /// What was asked.
    pub(crate) op: Op,
    /// The answer.
    pub(crate) response: &'a Response<'a>,
    /// When it was read.
    pub(crate) now: Instant,
}

/// The connections and the poll they are registered with; reused by the phases of one scenario.
pub(crate) struct Engine {
    addr: SocketAddr,
    poll: Poll,
    /// The departure clock of the open loop. `epoll_wait` counts in whole milliseconds, too coarse for it.
    timer: OwnedFd,
    connections: Vec<Connection>,
    scratch: Vec<u8>,
    reconnects: u32,
    /// The server's process, for its CPU use.
    server_pid: Option<u32>,
}

impl Engine {
    /// Opens `count` connections to `addr`.
    pub(crate) fn connect(addr: SocketAddr, count: usize, server_pid: Option<u32>) -> Result<Self> {
        process::allow_open_files(count as u64 + 64);
        let poll = Poll::new().context("creating an epoll instance")?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        poll.registry().register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        let connections = (0..count)
            .map(|index| Connection::open(addr, poll.registry(), Token(index)))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|error| unreachable_server(addr, &error))?;
        Ok(Self {
            addr,
            poll,
            timer,
            connections,
            scratch: vec![0; SCRATCH_BYTES],
            reconnects: 0,
            server_pid,
        })
    }

    /// Runs a workload to the end of its plan.
    pub(crate) fn run<W: Workload>(&mut self, workload: &mut W, plan: &Plan<'_>) -> Result<Stats> {
        let start = Instant::now();
        let mut cpu = CpuClock::start(self.server_pid);
        let mut run = Run::new(plan, start, self.connections.len());
        self.set_timer(plan.rate)?;
        if !run.is_open_loop() {
            for index in 0..self.connections.len() {
                self.advance(index, workload, &mut run, Instant::now())?;
            }
        }
        let mut events = Events::with_capacity(1024);
        while !run.is_over() {
            self.wait(&mut events, run.wake_in(Instant::now()))?;
            for event in &events {
                if event.token() == TIMER {
                    self.rearm_timer();
                } else {
                    self.on_event(event.token().0, event.is_read_closed(), workload, &mut run)?;
                }
            }
            let now = Instant::now();
            self.depart(workload, &mut run, now)?;
            if run.should_finish(now) {
                cpu.stop();
                self.finish(workload, &mut run, now)?;
            }
            run.progress(now);
            if run.has_stalled(now) {
                bail!("{} has not answered for {} s; is it stuck?", self.addr, run.silent_seconds(now));
            }
            if run.is_out_of_time(now) {
                break;
            }
        }
        cpu.stop();
        self.set_timer(None)?;
        self.abandon(&mut run)?;
        Ok(run.into_stats(&cpu))
    }

    fn wait(&mut self, events: &mut Events, timeout: Duration) -> Result<()> {
        match self.poll.poll(events, Some(timeout)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                Err(error).context("waiting for sockets")
            }
            _ => Ok(()),
        }
    }

    /// Sends every departure that is due and finds an idle connection.
    fn depart<W: Workload>(&mut self, workload: &mut W, run: &mut Run<'_>, now: Instant) -> Result<()> {
        while let Some((scheduled, index)) = run.departure(now) {
            self.advance(index, workload, run, scheduled)?;
        }
        Ok(())
    }

    fn finish<W: Workload>(&mut self, workload: &mut W, run: &mut Run<'_>, now: Instant) -> Result<()> {
        workload.finish();
        for index in run.finish(now) {
            self.advance(index, workload, run, now)?;
        }
        Ok(())
    }

    /// Asks the workload for the next request of an idle connection and writes it.
    fn advance<W: Workload>(
        &mut self,
        index: usize,
        workload: &mut W,
        run: &mut Run<'_>,
        started: Instant,
    ) -> Result<()> {
        let connection = &mut self.connections[index];
        connection.clear();
        match workload.next(index, started, &mut connection.out) {
            Next::Done => Ok(()),
            Next::Send(op) => {
                connection.in_flight = Some((op, started));
                run.sent(started);
                match connection.flush() {
                    Ok(()) => Ok(()),
                    Err(error) => self.on_broken(index, &error.to_string(), workload, run),
                }
            }
        }
    }

    fn on_event<W: Workload>(
        &mut self,
        index: usize,
        closing: bool,
        workload: &mut W,
        run: &mut Run<'_>,
    ) -> Result<()> {
        let connection = &mut self.connections[index];
        let Some((op, started)) = connection.in_flight else {
            // An idle connection has nothing to read; a server may close it, which is no error.
            return if connection.is_closed() { self.reopen(index) } else { Ok(()) };
        };
        if let Err(error) = connection.flush() {
            return self.on_broken(index, &error.to_string(), workload, run);
        }
        let received = connection.receive(&mut self.scratch);
        let (head, bytes) = match &received {
            Received::Nothing => return Ok(()),
            Received::InScratch(head, count) => (head, &self.scratch[..*count]),
            Received::InInput(head) => (head, connection.input()),
            Received::Closed(error) => return self.on_broken(index, &error.to_string(), workload, run),
            Received::Broken(why) => return self.on_broken(index, why, workload, run),
        };
        let now = Instant::now();
        let response = Response::new(head, bytes);
        run.answered(now);
        run.recorder.answer(op, started, now);
        let answer = Answer { connection: index, op, response: &response, now };
        if let Err(complaint) = workload.answered(&answer, &mut run.recorder) {
            run.recorder.error(format!("{op} {} {complaint}", response.status()), response.body());
        }
        connection.in_flight = None;
        if closing {
            self.reopen(index)?;
        }
        if run.keep_idle(index) { Ok(()) } else { self.advance(index, workload, run, now) }
    }

    /// Counts a connection that broke with a request in flight and opens another in its place.
    fn on_broken<W: Workload>(
        &mut self,
        index: usize,
        why: &str,
        workload: &mut W,
        run: &mut Run<'_>,
    ) -> Result<()> {
        if let Some((op, _)) = self.connections[index].in_flight.take() {
            run.recorder.error(format!("{op}: connection lost"), why.as_bytes());
            run.lost();
            workload.lost(index, op);
        }
        self.reopen(index)?;
        // Not asked for its next request here: a server that resets every connection would recurse.
        run.keep_for_later(index);
        Ok(())
    }

    fn reopen(&mut self, index: usize) -> Result<()> {
        self.reconnects += 1;
        if self.reconnects > RECONNECTS_MAX {
            bail!("{} closed {RECONNECTS_MAX} connections; giving up", self.addr);
        }
        self.connections[index] = Connection::open(self.addr, self.poll.registry(), Token(index))
            .map_err(|error| anyhow!("{} went away during the run ({error}); see its log", self.addr))?;
        Ok(())
    }

    /// Requests still unanswered at the end are errors; their connections are replaced, since a late
    /// answer would be taken for that of the next phase.
    fn abandon(&mut self, run: &mut Run<'_>) -> Result<()> {
        for index in 0..self.connections.len() {
            if let Some((op, _)) = self.connections[index].in_flight.take() {
                run.recorder.error(format!("{op}: no answer by the end"), b"");
                self.reopen(index)?;
            }
        }
        Ok(())
    }

    /// A periodic timerfd ticks again only once it was read.
    fn rearm_timer(&self) {
        // It fails only with EAGAIN, when the tick was read already.
        let _ = rustix::io::read(&self.timer, &mut [0_u8; 8]);
    }

    /// Starts the departure clock, or stops it.
    fn set_timer(&mut self, rate: Option<f64>) -> Result<()> {
        let period = rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(1.0 / rate).clamp(TIMER_INTERVAL_MIN, Duration::from_millis(10))
        });
        let every = Timespec { tv_sec: 0, tv_nsec: period.subsec_nanos().into() };
        let setting = Itimerspec { it_interval: every, it_value: every };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)
            .context("setting the departure timer")?;
        Ok(())
    }
}

/// The message for a server that is not there: what is wrong and what to do.
pub(crate) fn unreachable_server(addr: SocketAddr, error: &io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::ConnectionRefused {
        anyhow!("nothing listens on {addr}; start one with `leasehold serve` or add --serve")
    } else {
        anyhow!("cannot connect to {addr}: {error}; start a server with `leasehold serve` or add --serve")
    }
}

/// Shows the progress line; lives here so that the run state prints nothing itself.
pub(crate) fn show_progress(name: &str, elapsed: Duration, answers: u64, per_second: f64, errors: u64) {
    output::progress(&format!(
        "{name}: {:>4.0} s  {answers:>10} answers  {per_second:>9.0}/s  {errors} errors",
        elapsed.as_secs_f64()
    ));
}
