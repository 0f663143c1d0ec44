//! The proposer: everything that waits at one moment becomes one stamped log entry.
//!
//! In:    commands from the dialects, each with someone who waits for its outcome.
//! Out:   batches to raft, at most [`IN_FLIGHT_MAX`] at a time; outcomes back to whoever waits.
//! Never: answers "failed" where it does not know: a reply that is lost on its way is [`EngineError::Unknown`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_core::{Batch, Command, Outcome};
use openraft::error::ClientWriteError;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::EngineError;
use super::clock::TableClock;
use super::types::{Callback, Raft, WriteResult};
use super::wal::{Room, Wal};

/// Entries on their way at once. Two: while one is being written the next is being filled, and batches stay large.
const IN_FLIGHT_MAX: usize = 2;
/// Commands in one entry: enough for every connection of a busy node.
const BATCH_LEN_MAX: usize = 2048;
/// Bytes of one entry, roughly: a fraction of a log segment.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Commands waiting to be packed; beyond that a node says it is overloaded instead of growing.
const PENDING_MAX: usize = 100_000;

/// Commands and who waits for them.
enum Job {
    One(Command, oneshot::Sender<Result<Outcome, EngineError>>),
    Many(Vec<Command>, oneshot::Sender<Result<Vec<Outcome>, EngineError>>),
}

impl Job {
    fn fail(self, error: EngineError) {
        match self {
            Self::One(_, reply) => drop(reply.send(Err(error))),
            Self::Many(_, reply) => drop(reply.send(Err(error))),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::One(..) => 1,
            Self::Many(commands, _) => commands.len(),
        }
    }

    fn is_tick(&self) -> bool {
        matches!(self, Self::One(Command::Tick | Command::Settle { .. }, _))
    }
}

/// Who waits for which outcomes of a batch, in its order.
enum Reply {
    One(oneshot::Sender<Result<Outcome, EngineError>>),
    Many(usize, oneshot::Sender<Result<Vec<Outcome>, EngineError>>),
}

/// Packs commands into entries.
pub(super) struct Proposer {
    pending: Mutex<Pending>,
    in_flight: AtomicUsize,
    /// Told when there is something to pack, or room for another entry.
    wake: Notify,
    clock: Arc<TableClock>,
    wal: Wal,
}

#[derive(Default)]
struct Pending {
    jobs: VecDeque<Job>,
    /// Commands in them.
    len: usize,
    closed: bool,
}

impl Proposer {
    /// A proposer whose [`Proposer::run`] is yet to be started.
    pub(super) fn new(clock: Arc<TableClock>, wal: Wal) -> Self {
        let pending = Mutex::new(Pending::default());
        Self { pending, in_flight: AtomicUsize::new(0), wake: Notify::new(), clock, wal }
    }

    /// Makes one command durable and applies it.
    pub(super) async fn submit(&self, command: Command) -> Result<Outcome, EngineError> {
        let (reply, outcome) = oneshot::channel();
        self.push(Job::One(command, reply));
        outcome.await.unwrap_or(Err(EngineError::Unknown))
    }

    /// The same for several, in one entry and in their order.
    pub(super) async fn submit_many(&self, commands: Vec<Command>) -> Result<Vec<Outcome>, EngineError> {
        let (reply, outcomes) = oneshot::channel();
        self.push(Job::Many(commands, reply));
        outcomes.await.unwrap_or(Err(EngineError::Unknown))
    }

    fn push(&self, job: Job) {
        let mut pending = self.pending.lock();
        if pending.closed {
            return job.fail(EngineError::Stopping);
        }
        if pending.len + job.len() > PENDING_MAX {
            return job.fail(EngineError::Overloaded);
        }
        pending.len += job.len();
        pending.jobs.push_back(job);
        drop(pending);
        self.wake.notify_one();
    }

    /// Refuses new commands from now on; what is pending still goes through.
    pub(super) fn close(&self) {
        self.pending.lock().closed = true;
        self.wake.notify_one();
    }

    /// Packs and proposes until closed and empty.
    pub(super) async fn run(self: Arc<Self>, raft: Raft) {
        loop {
            let free = self.in_flight.load(Ordering::Acquire) < IN_FLIGHT_MAX;
            match if free { self.pack() } else { None } {
                Some((commands, replies)) => self.propose(&raft, commands, replies).await,
                None if free && self.is_finished() => return,
                None => self.wake.notified().await,
            }
        }
    }

    fn is_finished(&self) -> bool {
        let pending = self.pending.lock();
        pending.closed && pending.jobs.is_empty()
    }

    fn pack(&self) -> Option<(Vec<Command>, Vec<Reply>)> {
        let mut pending = self.pending.lock();
        // A full disk refuses what clients ask; time goes on, in the room that is kept for it.
        let full = !pending.jobs.is_empty() && self.wal.room() == Room::Low;
        let mut commands = Vec::with_capacity(pending.len.min(BATCH_LEN_MAX));
        let mut replies = Vec::with_capacity(pending.jobs.len().min(BATCH_LEN_MAX));
        let mut bytes = 0;
        while commands.len() < BATCH_LEN_MAX
            && bytes < BATCH_BYTES_MAX
            && let Some(job) = pending.jobs.pop_front()
        {
            pending.len -= job.len();
            match job {
                job if full && !job.is_tick() => job.fail(EngineError::DiskFull),
                Job::One(command, reply) => {
                    bytes += weight(&command);
                    commands.push(command);
                    replies.push(Reply::One(reply));
                }
                Job::Many(many, reply) => {
                    bytes += many.iter().map(weight).sum::<usize>();
                    replies.push(Reply::Many(many.len(), reply));
                    commands.extend(many);
                }
            }
        }
        (!replies.is_empty()).then_some((commands, replies))
    }

    async fn propose(self: &Arc<Self>, raft: &Raft, commands: Vec<Command>, replies: Vec<Reply>) {
        let batch = Arc::new(Batch { stamp: self.clock.stamp(), commands });
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        let landed = Landing(self.clone());
        let callback = Callback(Box::new(move |result: WriteResult| {
            // Room for the next entry first: it can be on its way while these are told.
            drop(landed);
            match result {
                Ok(response) => answer(replies, response.data),
                Err(ClientWriteError::ForwardToLeader(_)) => refuse(replies, &EngineError::NotLeader),
                // Whatever else happened, the entry may yet be committed.
                Err(_) => refuse(replies, &EngineError::Unknown),
            }
        }));
        if let Err(fatal) = raft.write(batch).responder(callback).await {
            tracing::error!(%fatal, "the log can't be written any more");
        }
    }
}

/// Gives an entry's place back when its callback is called, or dropped.
struct Landing(Arc<Proposer>);

impl Drop for Landing {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.0.wake.notify_one();
    }
}

fn answer(replies: Vec<Reply>, outcomes: Vec<Outcome>) {
    let mut outcomes = outcomes.into_iter();
    for reply in replies {
        match reply {
            Reply::One(reply) => {
                if let Some(outcome) = outcomes.next() {
                    reply.send(Ok(outcome)).ok();
                }
            }
            Reply::Many(len, reply) => {
                reply.send(Ok(outcomes.by_ref().take(len).collect())).ok();
            }
        }
    }
}

fn refuse(replies: Vec<Reply>, error: &EngineError) {
    for reply in replies {
        match reply {
            Reply::One(reply) => drop(reply.send(Err(error.clone()))),
            Reply::Many(_, reply) => drop(reply.send(Err(error.clone()))),
        }
    }
}

/// About how many bytes a command takes in the log.
fn weight(command: &Command) -> usize {
    let data = |data: &Option<leasehold_core::Data>| data.as_ref().map_or(0, |data| data.bytes.len());
    64 + match command {
        Command::Claim(new) => new.resource.len() + new.owner.len() + data(&new.data),
        Command::Renew { data: new, .. } => data(new),
        Command::LockAll { items, data: shared, .. } => {
            items.iter().map(|(_, resource)| 32 + resource.len()).sum::<usize>() + data(shared)
        }
        Command::Settle { resources } => resources.iter().map(|resource| resource.len()).sum(),
        _ => 0,
    }
}
