//! Calls: what is asked, sent until the answer is known, and what is sent again when it was lost.
//!
//! In:    ids, from any thread of any process that has the handle. Out: what became of each id, or an errno.
//! Never: takes a lost answer for a failure. A lock or unlock that may have reached the server is sent again under the
//!        same call id until the server says what became of it, or the time is up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::Errno;
use crate::config::{Config, Options};
use crate::http::{Connection, Failure, Reply};
use crate::refresh::Refresher;
use crate::sys::{self, PerProcess};
use crate::wire::{self, Answer, Body, Kind, Lock, Verb};

/// Idle connections that are kept: about as many threads as call at once.
const IDLE_LEN_MAX: usize = 64;
/// Pauses between tries: from the first to the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// A way to the typed locks of a server. Any number of threads may use it at once; a forked child may, too.
pub struct Client {
    config: Arc<Config>,
    process: PerProcess<Process>,
}

/// What one process has of a client.
pub(crate) struct Process {
    pub(crate) config: Arc<Config>,
    idle: Mutex<Vec<Connection>>,
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
    mut call: impl FnMut(&[&str]) -> Result<Answer, Errno>,
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

    /// Sends a call until its answer is known.
    fn call(&self, kind: Kind, verb: Verb, mut body: Body<'_>, deadline: Instant) -> Result<Answer, Errno> {
        let path = format!("/v1/dss/{}/{}", kind.as_str(), verb.as_str());
        let asked = body.ids;
        let mut tries = Tries { changes: body.call.is_some(), ..Tries::default() };
        loop {
            let bytes = serde_json::to_vec(&body).map_err(|_| Errno(libc::ENOMEM))?;
            match self.send(&path, &bytes, deadline, tries.count > 0) {
                Ok(reply) if !matches!(reply.status, 502..=504) => return Answer::read(&reply, asked),
                result => tries.again(result, deadline)?,
            }
            if verb == Verb::Unlock {
                body.retry = Some(true);
            }
        }
    }

    fn send(&self, path: &str, body: &[u8], deadline: Instant, afresh: bool) -> Result<Reply, Failure> {
        if afresh {
            // Where one connection was lost, those beside it are lost too.
            self.idle().clear();
        }
        let connection = match self.idle_connection() {
            Some(connection) => connection,
            None => Connection::open(&self.config, deadline)?,
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

    fn idle_connection(&self) -> Option<Connection> {
        loop {
            let connection = self.idle().pop()?;
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

/// Whether and when to send a call again.
#[derive(Default)]
struct Tries {
    /// How often it was sent.
    count: u32,
    /// Whether the server may have done it already.
    unknown: bool,
    /// Whether it changes anything, so that it must be known what became of it.
    changes: bool,
}

impl Tries {
    /// Waits before the next try, or says what the call fails with.
    fn again(&mut self, result: Result<Reply, Failure>, deadline: Instant) -> Result<(), Errno> {
        self.count += 1;
        let errno = match result {
            // The server can't now (503), or does not know itself (504); a proxy may have lost it on the way (502).
            Ok(reply) => {
                self.unknown |= reply.status != 503;
                Errno(libc::ETIMEDOUT)
            }
            Err(Failure { errno, sent }) => {
                self.unknown |= sent;
                let worth_it = match self.unknown && self.changes {
                    true => errno.is_unreachable() || errno.0 == libc::ETIMEDOUT,
                    // What changes nothing is tried once more, on a new connection, and no longer.
                    false => errno.is_lost_connection() && self.count == 1,
                };
                match worth_it {
                    false => return Err(errno),
                    true if self.count == 1 => return Ok(()),
                    true => errno,
                }
            }
        };
        let pause = PAUSE.0.saturating_mul(1 << self.count.min(10)).min(PAUSE.1);
        let left = deadline.saturating_duration_since(Instant::now());
        if left <= pause {
            return Err(if self.unknown && errno.is_unreachable() { Errno(libc::ECONNRESET) } else { errno });
        }
        std::thread::sleep(pause);
        Ok(())
    }
}
