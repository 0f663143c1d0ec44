//! One thread, one epoll, many clients: a client is a future, polled when its own socket has news and never otherwise.
//!
//! In:    futures of clients, each on a `Seat` of its own. Out: what they return.
//! Never: wakes, spawns or times anything for them: a client waits for its socket only (see `clients/wire.rs`).
//!
//! The clients share the machine with the systems they drive, so a request costs what its system calls cost, and hardly
//! more: one send, one receive, and its share of an `epoll_wait`. All systems are driven by this one loop.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll as Progress, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Registry, Token};

/// As many as a look at the sockets may return.
const EVENTS_MAX: usize = 1024;
/// How long a wait may last before somebody looks whether the run is still wanted.
const NAP_MAX: Duration = Duration::from_millis(200);
/// A server of this machine that has not taken a connection by then will not.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What watches the sockets of all clients of a round.
pub(crate) struct Reactor {
    poll: RefCell<Poll>,
    registry: Registry,
}

/// A client's place: its socket wakes the task of the same number.
#[derive(Clone, Copy)]
pub(crate) struct Seat<'a> {
    registry: &'a Registry,
    token: Token,
}

impl Seat<'_> {
    /// Connects without delay of small writes.
    pub(crate) fn connect(&self, addr: SocketAddr) -> Result<TcpStream> {
        let stream = std::net::TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT)
            .with_context(|| format!("connecting to {addr}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        self.registry.register(&mut stream, self.token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(stream)
    }
}

type Task<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// Clients at work.
pub(crate) struct Crew<'a, T> {
    /// The seat of the first one; the others sit beside it.
    first: usize,
    tasks: Vec<Option<Task<'a, T>>>,
    /// What those who are through have returned.
    pub(crate) done: Vec<T>,
    has_started: bool,
}

impl<'a, T> Crew<'a, T> {
    /// `tasks` on the seats from `first` on.
    pub(crate) fn new(
        first: usize,
        tasks: impl IntoIterator<Item = impl Future<Output = Result<T>> + 'a>,
    ) -> Self {
        let tasks = tasks.into_iter().map(|task| Some(Box::pin(task) as Task<'a, T>)).collect();
        Self { first, tasks, done: Vec::new(), has_started: false }
    }

    fn is_through(&self) -> bool {
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
    /// Without clients yet.
    pub(crate) fn new() -> Result<Self> {
        let poll = Poll::new().context("creating an epoll instance")?;
        let registry = poll.registry().try_clone()?;
        Ok(Self { poll: RefCell::new(poll), registry })
    }

    /// A place for the socket of client `number`.
    pub(crate) fn seat(&self, number: usize) -> Seat<'_> {
        Seat { registry: &self.registry, token: Token(number) }
    }

    /// Lets the crew work until that time, or until all are through, which it then says, or one has failed.
    pub(crate) fn run<T>(&self, crew: &mut Crew<'_, T>, until: Instant) -> Result<bool> {
        if !crew.has_started {
            crew.has_started = true;
            (0..crew.tasks.len()).try_for_each(|at| crew.poll(at))?;
        }
        let mut poll = self.poll.borrow_mut();
        let mut events = Events::with_capacity(EVENTS_MAX);
        while !crew.is_through() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            ensure!(!crate::is_interrupted(), "interrupted");
            match poll.poll(&mut events, Some(left.min(NAP_MAX))) {
                Err(error) if error.kind() != ErrorKind::Interrupted => {
                    return Err(error).context("waiting for sockets");
                }
                _ => {}
            }
            // An event of a client that is through, or of an earlier crew, has no task.
            for event in &events {
                if let Some(at) = event.token().0.checked_sub(crew.first) {
                    crew.poll(at)?;
                }
            }
        }
        Ok(true)
    }
}

/// One client's work, to its end, or to an error after `limit`.
pub(crate) fn block_on<T>(limit: Duration, work: impl AsyncFnOnce(Seat<'_>) -> Result<T>) -> Result<T> {
    let reactor = Reactor::new()?;
    let mut crew = Crew::new(0, [work(reactor.seat(0))]);
    ensure!(reactor.run(&mut crew, Instant::now() + limit)?, "no answer within {limit:?}");
    crew.done.pop().context("a client that is through has a result")
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;
    use crate::clients::Wire;

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
        let mut wire = Wire::connect(addr, seat)?;
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
        assert!(reactor.run(&mut crew, Instant::now() + PATIENCE).unwrap());
        assert_eq!(crew.done, [20 + 100 * 190; 8]);
    }

    #[test]
    fn a_run_goes_on_where_it_was_left() {
        let addr = echo();
        let reactor = Reactor::new().unwrap();
        let mut crew = Crew::new(0, [talk(reactor.seat(0), addr, 30)]);
        let start = Instant::now();
        while !reactor.run(&mut crew, Instant::now() + Duration::from_millis(3)).unwrap() {
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!(crew.done, [30 + 100 * 435]);
    }

    #[test]
    fn silence_and_hanging_up_are_errors() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let wait = async |seat: Seat<'_>| Wire::connect(addr, seat)?.need(1).await;
        let error = block_on(Duration::from_millis(20), wait).unwrap_err();
        assert!(error.to_string().contains("no answer within"), "{error}");
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let error = block_on(PATIENCE, wait).unwrap_err();
        assert!(error.to_string().contains("closed the connection"), "{error}");
    }
}
