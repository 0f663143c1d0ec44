//! Refreshing in the background: locks that have a ttl stay held while their process lives.
//!
//! In:    what this process locks and unlocks through a handle with a ttl. Out: a refresh of all of it, every third of the ttl.
//! Never: runs in a process that did not ask for it: a forked child has none until it locks something itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Errno;
use crate::client::{Caller, Process, own_pid};
use crate::sys;
use crate::wire::Kind;

/// After a refresh that failed, the next one comes soon, but not at once.
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// The thread calls a few functions deep and keeps its buffers on the heap.
const STACK_BYTES: usize = 256 << 10;

/// The locks to refresh, and the thread that does.
#[derive(Default)]
pub(crate) struct Refresher {
    work: Mutex<Work>,
    stopping: Condvar,
}

#[derive(Default)]
struct Work {
    locks: BTreeMap<(Kind, String), Held>,
    /// Grows with every lock that is added.
    count: u64,
    thread: Option<JoinHandle<()>>,
    stop: bool,
}

/// Ids, by type and host.
type Groups = BTreeMap<(Kind, Arc<str>), Vec<String>>;

/// One lock to refresh.
#[derive(Clone)]
struct Held {
    hostname: Arc<str>,
    /// When it was added, on the refresher's own count.
    added: u64,
}

impl Refresher {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread, unless it runs.
    pub(crate) fn start(&self, process: &Arc<Process>) -> Result<(), Errno> {
        let mut work = self.work();
        if work.thread.is_some() {
            return Ok(());
        }
        let process = process.clone();
        let builder = std::thread::Builder::new().name("leasehold-dss".into()).stack_size(STACK_BYTES);
        let started = sys::without_signals(|| builder.spawn(move || run(&process)));
        work.thread = Some(started.map_err(|error| Errno::of(&error))?);
        Ok(())
    }

    /// Ends the thread, and waits until it is gone.
    pub(crate) fn stop(&self) {
        let mut work = self.work();
        work.stop = true;
        let thread = work.thread.take();
        drop(work);
        self.stopping.notify_all();
        if let Some(thread) = thread {
            thread.join().ok();
        }
    }

    /// These are held now.
    pub(crate) fn add(&self, kind: Kind, ids: &[&str], hostname: &str) {
        let mut work = self.work();
        work.count += 1;
        let held = Held { hostname: hostname.into(), added: work.count };
        work.locks.extend(ids.iter().map(|id| ((kind, (*id).to_string()), held.clone())));
    }

    /// A point in time: what is added later is newer.
    pub(crate) fn mark(&self) -> u64 {
        self.work().count
    }

    /// These are not held any more, unless they were locked again after the mark.
    pub(crate) fn forget<'a>(&self, kind: Kind, ids: impl Iterator<Item = &'a str>, mark: u64) {
        let mut work = self.work();
        if work.locks.is_empty() {
            return;
        }
        for id in ids {
            let key = (kind, id.to_string());
            if work.locks.get(&key).is_some_and(|held| held.added <= mark) {
                work.locks.remove(&key);
            }
        }
    }

    /// Everything to refresh, by who holds it.
    fn snapshot(&self) -> (Groups, u64) {
        let work = self.work();
        let mut groups = Groups::new();
        for ((kind, id), held) in &work.locks {
            groups.entry((*kind, held.hostname.clone())).or_default().push(id.clone());
        }
        (groups, work.count)
    }

    /// Waits; `false` when the thread is to end.
    fn wait(&self, pause: Duration) -> bool {
        let work = self.work();
        let waited = self.stopping.wait_timeout_while(work, pause, |work| !work.stop);
        !waited.unwrap_or_else(PoisonError::into_inner).0.stop
    }
}

fn run(process: &Process) {
    let every = process.config.ttl.unwrap_or(AGAIN_MAX) / 3;
    let mut pause = every;
    while process.refresher.wait(pause) {
        pause = if refresh_all(process, every) { every } else { every.min(AGAIN_MAX) };
    }
}

/// Refreshes everything; `false` if the server gave no answer about some of it.
fn refresh_all(process: &Process, patience: Duration) -> bool {
    let (groups, mark) = process.refresher.snapshot();
    let mut answered = true;
    for ((kind, hostname), ids) in groups {
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let caller = Caller { hostname: &hostname, pid: own_pid() };
        let deadline = Instant::now() + patience.min(process.config.timeout);
        let (locks, _) = process.refresh(kind, &ids, caller, deadline);
        let lost = |errno: Option<Errno>| matches!(errno, Some(Errno(libc::ENOLCK | libc::EACCES)));
        answered &= locks.iter().all(|lock| lock.errno.is_none() || lost(lock.errno));
        let gone = locks.iter().filter(|lock| lost(lock.errno)).map(|lock| &*lock.id);
        process.refresher.forget(kind, gone, mark);
    }
    answered
}
