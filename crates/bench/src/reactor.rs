//! One thread, one epoll, many clients: a client is a future that is polled when its own socket has news.
//!
//! In:    futures of clients, each with a [`Seat`] of its own; for the open loop, a `Pace` that says who departs when.
//! Out:   what the futures return.
//! Never: a waker, a spawned task or a timer for one client: a client waits for its socket or for its departure.
//!
//! The clients share the machine with the server that they measure. A request costs one send, one receive and a share of
//! an `epoll_wait`, and hardly more.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll as Progress, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::pace::Pace;

/// The most events that one look at the sockets returns.
const EVENTS_MAX: usize = 1024;
/// The longest wait before the reactor looks whether the run was interrupted.
const NAP_MAX: Duration = Duration::from_millis(200);
/// The timer of the open loop; no client has this number.
const TIMER: Token = Token(usize::MAX);

/// Set by a program that wants every run to end with an error, so that what it started is dropped in order.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Fails once the run was interrupted.
pub fn ensure_wanted() -> Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

/// Watches the sockets of all clients of a run.
pub struct Reactor {
    poll: RefCell<Poll>,
    registry: Registry,
}

/// A client's place: news of its socket wakes the task of the same number.
#[derive(Clone, Copy)]
pub struct Seat<'a> {
    registry: &'a Registry,
    token: Token,
}

impl Seat<'_> {
    /// Watches this socket from now on.
    pub(crate) fn watch(&self, stream: &mut TcpStream) -> Result<()> {
        self.registry.register(stream, self.token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(())
    }
}

type Task<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// Clients at work.
pub struct Crew<'a, T> {
    /// The seat of the first client; the others follow.
    first: usize,
    tasks: Vec<Option<Task<'a, T>>>,
    /// The results of the tasks that have ended.
    pub done: Vec<T>,
    has_started: bool,
}

impl<'a, T> Crew<'a, T> {
    /// `tasks` on the seats from `first` on.
    pub fn new(first: usize, tasks: impl IntoIterator<Item = impl Future<Output = Result<T>> + 'a>) -> Self {
        let tasks = tasks.into_iter().map(|task| Some(Box::pin(task) as Task<'a, T>)).collect();
        Self { first, tasks, done: Vec::new(), has_started: false }
    }

    fn has_ended(&self) -> bool {
        self.done.len() == self.tasks.len()
    }

    fn poll(&mut self, at: usize) -> Result<()> {
        let Some(slot) = self.tasks.get_mut(at) else { return Ok(()) };
        let Some(task) = slot else { return Ok(()) };
        if let Progress::Ready(result) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            *slot = None;
            self.done.push(result?);
        }
        Ok(())
    }
}

impl Reactor {
    /// A reactor without clients.
    pub fn new() -> Result<Self> {
        let poll = Poll::new().context("creating an epoll instance")?;
        let registry = poll.registry().try_clone()?;
        Ok(Self { poll: RefCell::new(poll), registry })
    }

    /// The place of client `number`.
    pub fn seat(&self, number: usize) -> Seat<'_> {
        Seat { registry: &self.registry, token: Token(number) }
    }

    /// A timer that wakes the reactor every `period`, for as long as it is kept. `epoll_wait` counts in whole
    /// milliseconds, which is too coarse for departures.
    pub(crate) fn tick_every(&self, period: Duration) -> Result<OwnedFd> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        self.registry.register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        let every = Timespec { tv_sec: 0, tv_nsec: period.subsec_nanos().into() };
        timerfd_settime(
            &timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: every, it_value: every },
        )?;
        Ok(timer)
    }

    /// Lets the crew work until `until`. Returns whether all tasks have ended; fails with the first task that fails.
    pub fn run<T>(&self, crew: &mut Crew<'_, T>, until: Instant, pace: Option<&Pace>) -> Result<bool> {
        if !crew.has_started {
            crew.has_started = true;
            (0..crew.tasks.len()).try_for_each(|at| crew.poll(at))?;
        }
        let mut poll = self.poll.borrow_mut();
        let mut events = Events::with_capacity(EVENTS_MAX);
        while !crew.has_ended() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            ensure_wanted()?;
            match poll.poll(&mut events, Some(left.min(NAP_MAX))) {
                Err(error) if error.kind() != ErrorKind::Interrupted => {
                    return Err(error).context("waiting for sockets");
                }
                _ => {}
            }
            for event in &events {
                match (event.token(), pace) {
                    (TIMER, Some(pace)) => pace.rearm(),
                    // An event of a task that has ended, or of an earlier crew, finds no task.
                    (Token(number), _) => {
                        if let Some(at) = number.checked_sub(crew.first) {
                            crew.poll(at)?;
                        }
                    }
                }
            }
            if let Some(pace) = pace {
                while let Some(number) = pace.depart(Instant::now()) {
                    crew.poll(number - crew.first)?;
                }
            }
        }
        Ok(true)
    }
}

/// One client's work, to its end, or to an error after `limit`.
pub fn block_on<T>(limit: Duration, work: impl AsyncFnOnce(Seat<'_>) -> Result<T>) -> Result<T> {
    let reactor = Reactor::new()?;
    let mut crew = Crew::new(0, [work(reactor.seat(0))]);
    ensure!(reactor.run(&mut crew, Instant::now() + limit, None)?, "no answer within {limit:?}");
    crew.done.pop().context("a task that has ended has a result")
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener};

    use super::*;
    use crate::wire::Wire;

    /// Generous: a busy machine is no failure.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Answers every line with the same line, in two pieces with a pause between, on any number of connections.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                stream.set_nodelay(true).unwrap();
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        let (front, back) = buffer[..count].split_at(count / 2);
                        stream.write_all(front).unwrap();
                        std::thread::sleep(Duration::from_millis(1));
                        stream.write_all(back).unwrap();
                    }
                });
            }
        });
        addr
    }

    async fn talk(seat: Seat<'_>, addr: SocketAddr, words: usize) -> Result<usize> {
        let mut wire = Wire::connect(addr, None, seat)?;
        let mut bytes = 0;
        for word in 0..words {
            // Growing, so that the input buffer has to grow too.
            let text = vec![b'a' + (word % 26) as u8; 1 + word * 100];
            wire.out.extend_from_slice(&text);
            wire.flush().await?;
            wire.need(text.len()).await?;
            assert_eq!(wire.input(), text);
            wire.take(text.len());
            bytes += text.len();
        }
        Ok(bytes)
    }

    #[test]
    fn clients_wait_for_their_own_sockets_only() {
        let addr = echo();
        let reactor = Reactor::new().unwrap();
        let mut crew = Crew::new(3, (3..11).map(|number| talk(reactor.seat(number), addr, 20)));
        assert!(reactor.run(&mut crew, Instant::now() + PATIENCE, None).unwrap());
        assert_eq!(crew.done, [20 + 100 * 190; 8]);
    }

    #[test]
    fn a_run_goes_on_where_it_was_left() {
        let addr = echo();
        let reactor = Reactor::new().unwrap();
        let mut crew = Crew::new(0, [talk(reactor.seat(0), addr, 30)]);
        let start = Instant::now();
        while !reactor.run(&mut crew, Instant::now() + Duration::from_millis(3), None).unwrap() {
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!(crew.done, [30 + 100 * 435]);
    }

    #[test]
    fn silence_and_hanging_up_are_errors() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let wait = async |seat: Seat<'_>| Wire::connect(addr, None, seat)?.need(1).await;
        let error = block_on(Duration::from_millis(20), wait).unwrap_err();
        assert!(error.to_string().contains("no answer within"), "{error}");
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let error = block_on(PATIENCE, wait).unwrap_err();
        assert!(error.to_string().contains("closed the connection"), "{error}");
    }
}
