//! Calls: what is asked, sent until the answer is known, and what is sent again when it was lost.
//!
//! In:    ids, from any thread of any process that has the handle. Out: what became of each id, or an errno.
//! Never: takes a lost answer for a failure. A lock or unlock that may have reached the server is sent again under the
//!        same call id until the server says what became of it, or the time is up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::Errno;
use crate::config::{Config, Options};
use crate::http::{Connection, Failure, Reply};
use crate::refresh::Refresher;
use crate::sys::{self, PerProcess};
use crate::wire::{self, Body, Kind, Lock, LocksAnswer, Verb};

/// Idle connections that are kept: about as many threads as call at once.
const IDLE_LEN_MAX: usize = 64;
/// Pauses between tries: from the first to the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// How long a server may be silent before the next one is asked.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// A way to the typed locks of a server. Any number of threads may use it at once; a forked child may, too.
pub struct Client {
    config: Arc<Config>,
    process: PerProcess<Process>,
}

/// What one process has of a client.
pub(crate) struct Process {
    pub(crate) config: Arc<Config>,
    idle: Mutex<Vec<Connection>>,
    /// The server that answered last.
    preferred: AtomicUsize,
    pub(crate) refresher: Refresher,
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// Of this host.
    pub hostname: &'a str,
    /// This process there.
    pub pid: i32,
}

/// The pid under which this process owns its locks.
pub(crate) fn own_pid() -> i32 {
    std::process::id() as i32
}

impl Client {
    /// A client that has not connected yet.
    pub fn new(options: Options) -> Result<Self, Errno> {
        Ok(Self { config: Arc::new(options.check()?), process: PerProcess::new() })
    }

    fn process(&self) -> Arc<Process> {
        let make = || Process {
            config: self.config.clone(),
            idle: Mutex::default(),
            preferred: AtomicUsize::new(0),
            refresher: Refresher::default(),
        };
        // The parent goes on using its connections: only this process's ends of them are closed.
        self.process.get(make, Process::forget_connections)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.config.timeout
    }

    /// Takes all of these locks or none of them.
    pub fn lock(&self, kind: Kind, ids: &[&str], caller: Caller<'_>) -> Result<Vec<Lock>, Errno> {
        let process = self.process();
        let (deadline, ttl) = (self.deadline(), self.config.ttl);
        if ttl.is_some() {
            process.refresher.start(&process)?;
        }
        loop {
            let call = format!("{:032x}", sys::random());
            let body = Body {
                ids: Some(ids),
                hostname: Some(caller.hostname),
                owner: Some(caller.pid),
                ttl: ttl.map(|ttl| ttl.as_secs_f64()),
                call: Some(&call),
                ..Body::default()
            };
            let answer = process.call(kind, Verb::Lock, body, deadline)?;
            match answer.errno {
                None if ttl.is_some() => {
                    process.refresher.add(kind, ids, caller.hostname);
                    return Ok(answer.locks);
                }
                None => return Ok(answer.locks),
                // Taken while the connection was down, and lost again meanwhile: the server gave the rest back.
                Some(Errno(libc::ENOLCK)) => {}
                Some(errno) => return Err(errno),
            }
        }
    }

    /// Refreshes as many as possible; the first error comes beside what became of each.
    pub fn refresh(&self, kind: Kind, ids: &[&str], caller: Caller<'_>) -> (Vec<Lock>, Result<(), Errno>) {
        self.process().refresh(kind, ids, caller, self.deadline())
    }

    /// Unlocks as many as possible; the first error comes beside what became of each.
    pub fn unlock(
        &self,
        kind: Kind,
        ids: &[&str],
        caller: Caller<'_>,
        force: bool,
    ) -> (Vec<Lock>, Result<(), Errno>) {
        let (process, deadline) = (self.process(), self.deadline());
        let mark = process.refresher.mark();
        let done = in_chunks(ids, |ids| {
            let call = format!("{:032x}", sys::random());
            let body = Body {
                ids: Some(ids),
                hostname: Some(caller.hostname),
                owner: Some(caller.pid),
                force: Some(force),
                call: Some(&call),
                ..Body::default()
            };
            process.call(kind, Verb::Unlock, body, deadline)
        });
        process.refresher.forget(kind, done.0.iter().map(|lock| &*lock.id), mark);
        done
    }

    /// Asks for as many as possible; the first error comes beside what is known of each.
    pub fn status(&self, kind: Kind, ids: &[&str]) -> (Vec<Lock>, Result<(), Errno>) {
        let (process, deadline) = (self.process(), self.deadline());
        in_chunks(ids, |ids| {
            process.call(kind, Verb::Status, Body { ids: Some(ids), ..Body::default() }, deadline)
        })
    }

    /// All locks of a host, or of one process there.
    pub fn list(&self, kind: Kind, hostname: &str, pid: Option<i32>) -> Result<Vec<Lock>, Errno> {
        let (process, deadline) = (self.process(), self.deadline());
        let mut locks = Vec::new();
        let mut after = None;
        loop {
            let body =
                Body { hostname: Some(hostname), owner: pid, after: after.as_deref(), ..Body::default() };
            let answer = process.call(kind, Verb::List, body, deadline)?;
            locks.extend(answer.locks);
            match answer.next {
                None => return Ok(locks),
                next => after = next,
            }
        }
    }
}

impl Drop for Client {
    /// Ends the background refresh of this process. Locks stay.
    fn drop(&mut self) {
        if let Some(process) = self.process.current() {
            process.refresher.stop();
        }
    }
}

/// Calls once for each part that fits; goes on after an error, and gives the first. There is one lock for each id, in
/// their order: what a failed call says nothing about has the call's error.
fn in_chunks(
    ids: &[&str],
    mut call: impl FnMut(&[&str]) -> Result<LocksAnswer, Errno>,
) -> (Vec<Lock>, Result<(), Errno>) {
    let (mut locks, mut result) = (Vec::new(), Ok(()));
    for chunk in wire::chunks(ids) {
        match call(chunk) {
            Ok(answer) => {
                result = result.and(answer.errno.map_or(Ok(()), Err));
                locks.extend(answer.locks);
            }
            Err(errno) => {
                result = result.and(Err(errno));
                let unknown = |id: &&str| Lock {
                    id: (*id).into(),
                    errno: Some(errno),
                    hostname: None,
                    owner: None,
                    timestamp: None,
                    token: None,
                };
                locks.extend(chunk.iter().map(unknown));
            }
        }
    }
    (locks, result)
}

impl Process {
    /// Refreshes as many as possible.
    pub(crate) fn refresh(
        &self,
        kind: Kind,
        ids: &[&str],
        caller: Caller<'_>,
        deadline: Instant,
    ) -> (Vec<Lock>, Result<(), Errno>) {
        in_chunks(ids, |ids| {
            let body = Body {
                ids: Some(ids),
                hostname: Some(caller.hostname),
                owner: Some(caller.pid),
                ..Body::default()
            };
            self.call(kind, Verb::Refresh, body, deadline)
        })
    }

    /// Sends a call until its answer is known: to the server that answered last, then to the others in turn.
    fn call(
        &self,
        kind: Kind,
        verb: Verb,
        mut body: Body<'_>,
        deadline: Instant,
    ) -> Result<LocksAnswer, Errno> {
        let path = format!("/v1/dss/{}/{}", kind.as_str(), verb.as_str());
        let (asked, servers) = (body.ids, self.config.servers.len());
        let mut tries = Tries::new(body.call.is_some(), servers);
        loop {
            let bytes = serde_json::to_vec(&body).map_err(|_| Errno(libc::ENOMEM))?;
            let at = self.preferred.load(Ordering::Relaxed);
            let trouble = match self.send(at, &path, &bytes, tries.until(deadline), tries.count > 0) {
                Ok(reply) => match (reply.status, LocksAnswer::read(&reply, asked)) {
                    (502..=504, _) => Trouble::Later { certain: wire::is_certainly_undone(&reply) },
                    // Somebody else's server, or one that does not know the key yet.
                    (_, Err(errno @ Errno(libc::EPROTO | libc::EPERM))) => Trouble::Refused(errno),
                    (_, answer) => return answer,
                },
                Err(failure) => Trouble::Failed(failure),
            };
            tries.again(trouble, deadline)?;
            let next = (at + 1) % servers;
            self.preferred.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed).ok();
            if verb == Verb::Unlock {
                body.retry = Some(true);
            }
        }
    }

    fn send(
        &self,
        at: usize,
        path: &str,
        body: &[u8],
        deadline: Instant,
        afresh: bool,
    ) -> Result<Reply, Failure> {
        if afresh {
            // Where one connection was lost, those beside it are lost too.
            self.idle().retain(|connection| connection.at != at);
        }
        let connection = match self.idle_connection(at) {
            Some(connection) => connection,
            None => Connection::open(&self.config, at, deadline)?,
        };
        let (reply, connection) = connection.post(&self.config, path, body, deadline)?;
        if let Some(connection) = connection {
            let mut idle = self.idle();
            if idle.len() < IDLE_LEN_MAX {
                idle.push(connection);
            }
        }
        Ok(reply)
    }

    fn idle_connection(&self, at: usize) -> Option<Connection> {
        loop {
            let mut idle = self.idle();
            let place = idle.iter().rposition(|connection| connection.at == at)?;
            let connection = idle.remove(place);
            drop(idle);
            if connection.is_alive() {
                return Some(connection);
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes this process's ends of the idle connections, unless a thread that is no more was busy with them.
    fn forget_connections(&self) {
        match self.idle.try_lock() {
            Ok(mut idle) => idle.clear(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clear(),
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

/// Why a call has to be sent again.
#[derive(Clone, Copy)]
enum Trouble {
    /// The server can't now (503), does not know itself (504), or a proxy may have lost it on the way (502, or its own 503).
    Later {
        certain: bool,
    },
    /// This server does not help: another one may.
    Refused(Errno),
    Failed(Failure),
}

/// Whether and when to send a call again. All servers in turn are a round.
struct Tries {
    servers: u32,
    /// How often it was sent.
    count: u32,
    /// Whether a server may have done it already.
    unknown: bool,
    /// Whether it changes anything, so that it must be known what became of it.
    changes: bool,
    /// Whether a server of this round asked for time.
    later: bool,
    /// What a server refused with.
    refused: Option<Errno>,
}

impl Tries {
    fn new(changes: bool, servers: usize) -> Self {
        let servers = u32::try_from(servers).unwrap_or(1).max(1);
        Self { servers, count: 0, unknown: false, changes, later: false, refused: None }
    }

    /// How long one server has. With others to turn to: a few seconds, and twice as long in each round.
    fn until(&self, deadline: Instant) -> Instant {
        if self.servers == 1 {
            return deadline;
        }
        let round = (self.count / self.servers).min(10);
        deadline.min(Instant::now() + SILENCE_MAX * (1 << round))
    }

    /// Waits before the next try, or says what the call fails with.
    fn again(&mut self, trouble: Trouble, deadline: Instant) -> Result<(), Errno> {
        self.count += 1;
        let errno = match trouble {
            Trouble::Later { certain } => {
                self.unknown |= !certain;
                self.later = true;
                Errno(libc::ETIMEDOUT)
            }
            Trouble::Refused(errno) => {
                self.refused.get_or_insert(errno);
                errno
            }
            Trouble::Failed(Failure { errno, sent }) => {
                self.unknown |= sent;
                errno
            }
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if !self.count.is_multiple_of(self.servers) && !left.is_zero() {
            return Ok(());
        }
        let errno = self.sum_up(errno);
        if !std::mem::take(&mut self.later) {
            if !self.is_worth_it(errno) {
                return Err(errno);
            }
            if self.count <= self.servers {
                return Ok(());
            }
        }
        let pause = PAUSE.0.saturating_mul(1 << (self.count / self.servers).min(10)).min(PAUSE.1);
        if left <= pause {
            return Err(if self.unknown && errno.is_unreachable() { Errno(libc::ECONNRESET) } else { errno });
        }
        std::thread::sleep(pause);
        Ok(())
    }

    /// What a whole round comes to: with several servers, the last one's trouble is not all there is to say.
    fn sum_up(&self, last: Errno) -> Errno {
        match (self.servers > 1, self.unknown && self.changes, self.refused) {
            // It has to be found out, on whichever server can tell.
            (true, true, _) if !last.is_unreachable() => Errno(libc::ETIMEDOUT),
            (true, false, Some(refused)) => refused,
            _ => last,
        }
    }

    fn is_worth_it(&self, errno: Errno) -> bool {
        match self.unknown && self.changes {
            true => errno.is_unreachable() || errno.0 == libc::ETIMEDOUT,
            // What changes nothing is tried once more, on a new connection, and no longer; but a server that was only
            // slow gets more time in the next round.
            false => {
                errno.is_lost_connection() && self.count <= self.servers
                    || errno.0 == libc::ETIMEDOUT && self.servers > 1
            }
        }
    }
}
