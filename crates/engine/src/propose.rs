//! The proposer: everything that waits at one moment becomes one parcel, and parcels become log entries.
//!
//! In:    commands from the dialects, each with someone who waits for its outcome; on a leader, parcels of other nodes.
//! Out:   on the leader, stamped entries to raft, at most [`ENTRIES_MAX`] at a time; elsewhere, parcels to the leader.
//!        Outcomes come back through `awaited.rs`, when this node's table has applied them.
//! Never: answers "failed" where it does not know: what was sent and is not heard of again is [`EngineError::Unknown`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_core::{Command, Outcome};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::EngineError;
use super::awaited::{Awaited, Reply};
use super::clock::TableClock;
use super::entry::{Origin, Parcel, Proposal, WINDOW};
use super::leadership::{Leadership, Role};
use super::memory::MemoryGuard;
use super::peer::{Ask, Peers};
use super::table_version::TableVersions;
use super::types::{Callback, LeaderId, Raft, WriteResult};
use super::wal::{Room, Wal};
use crate::machine::{self, Instant};

/// Entries on their way at once. Two: while one is being written the next is being filled, and batches stay large.
const ENTRIES_MAX: usize = 2;
/// Parcels on their way to a leader at once: a few, so that a slow link stays busy.
const PARCELS_MAX: usize = 4;
const _: () = assert!(2 * PARCELS_MAX as u64 + ENTRIES_MAX as u64 <= WINDOW);
/// How long a parcel that was refused rests: by then there may be another leader, or this one may take it.
const SEND_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// How long the proposer rests while the log's next segment is being prepared.
const ROOM_AGAIN_AFTER: Duration = Duration::from_millis(2);
/// Commands in one parcel: enough for every connection of a busy node.
const PARCEL_LEN_MAX: usize = 2048;
/// Bytes of one parcel, roughly: a fraction of a log segment.
const PARCEL_BYTES_MAX: usize = 1 << 20;
/// Commands waiting to be packed; beyond that a node says it is overloaded instead of growing.
const PENDING_MAX: usize = 100_000;
/// Parcels of other nodes waiting to be packed: each node sends only a few at a time.
const FORWARDED_MAX: usize = 64;
/// The longest that a command may wait for its outcome. After that its client is told that it certainly did not happen,
/// if it was never sent, or that nobody knows.
const OUTCOME_MAX: Duration = Duration::from_secs(5);
/// A node whose oldest command has waited this long is not ready.
const STALLED_AFTER: Duration = Duration::from_secs(2);
/// How often the proposer looks whether more has come before it packs what there is.
const LOOKS_MAX: usize = 8;

/// An entry with so many commands is watched for instead of slept for ...
const WATCHED_LEN_MIN: usize = 16;
/// ... for so long at the most: a peer that is further away is worth no processor.
const WATCH_MAX: Duration = Duration::from_millis(1);

/// Commands that were submitted together, and when.
struct Job {
    since: Instant,
    what: What,
}

/// Commands and who waits for them.
enum What {
    One(Command, oneshot::Sender<Result<Outcome, EngineError>>),
    Many(Vec<Command>, oneshot::Sender<Result<Vec<Outcome>, EngineError>>),
}

impl Job {
    fn fail(self, error: EngineError) {
        match self.what {
            What::One(_, reply) => drop(reply.send(Err(error))),
            What::Many(_, reply) => drop(reply.send(Err(error))),
        }
    }

    fn len(&self) -> usize {
        match &self.what {
            What::One(..) => 1,
            What::Many(commands, _) => commands.len(),
        }
    }

    fn grows(&self) -> bool {
        match &self.what {
            What::One(command, _) => command.grows(),
            What::Many(commands, _) => commands.iter().any(Command::grows),
        }
    }

    fn is_tick(&self) -> bool {
        matches!(self.what, What::One(Command::Tick | Command::Settle { .. }, _))
    }
}

/// A parcel of another node, and where to say whether it was taken.
type Forwarded = (Parcel, oneshot::Sender<Result<(), EngineError>>);

/// Packs commands into parcels and entries.
pub(super) struct Proposer {
    pending: Mutex<Pending>,
    entries: AtomicUsize,
    /// Told when there is something to pack, or room for another entry.
    wake: Notify,
    awaited: Arc<Awaited>,
    leadership: Arc<Leadership>,
    peers: Arc<Peers>,
    clock: Arc<TableClock>,
    wal: Wal,
    /// Whether commands were given up, and none has come through since.
    stalled: Arc<AtomicBool>,
    memory: Arc<MemoryGuard>,
    versions: Arc<TableVersions>,
}

#[derive(Default)]
struct Pending {
    jobs: VecDeque<Job>,
    /// Commands in them.
    len: usize,
    forwarded: VecDeque<Forwarded>,
    closed: bool,
}

impl Proposer {
    /// A proposer whose [`Proposer::run`] is yet to be started.
    pub(super) fn new(
        awaited: Arc<Awaited>,
        leadership: Arc<Leadership>,
        peers: Arc<Peers>,
        clock: Arc<TableClock>,
        wal: Wal,
        (memory, versions): (Arc<MemoryGuard>, Arc<TableVersions>),
    ) -> Self {
        let (pending, entries, wake, stalled) = Default::default();
        Self { pending, entries, wake, awaited, leadership, peers, clock, wal, stalled, memory, versions }
    }

    /// Makes one command durable and applies it. No `async fn`: what waits for the outcome need not have room for the
    /// command.
    pub(super) fn submit(
        &self,
        command: Command,
    ) -> impl Future<Output = Result<Outcome, EngineError>> + Send + use<> {
        let (reply, outcome) = oneshot::channel();
        self.push(What::One(command, reply));
        async move { outcome.await.unwrap_or(Err(EngineError::Unknown)) }
    }

    /// The same for several, in one entry and in their order.
    pub(super) async fn submit_many(&self, commands: Vec<Command>) -> Result<Vec<Outcome>, EngineError> {
        let (reply, outcomes) = oneshot::channel();
        self.push(What::Many(commands, reply));
        outcomes.await.unwrap_or(Err(EngineError::Unknown))
    }

    /// Takes a parcel of another node into the log. Its outcome reaches that node through its own table.
    pub(super) async fn take_forwarded(&self, parcel: Parcel) -> Result<(), EngineError> {
        if !matches!(self.leadership.role(), Role::Leads { .. }) {
            return Err(EngineError::NotLeader);
        }
        // Only a leader that has asked the members itself raises the table version.
        if parcel.commands.iter().any(|command| matches!(command, Command::Upgrade { .. })) {
            return Err(EngineError::NotLeader);
        }
        let (reply, taken) = oneshot::channel();
        {
            let mut pending = self.pending.lock();
            if pending.closed {
                return Err(EngineError::NotLeader);
            }
            if pending.forwarded.len() >= FORWARDED_MAX {
                return Err(EngineError::Overloaded);
            }
            pending.forwarded.push_back((parcel, reply));
        }
        self.wake.notify_one();
        taken.await.unwrap_or(Err(EngineError::NotLeader))
    }

    fn push(&self, what: What) {
        let job = Job { since: Instant::now(), what };
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

    /// No more commands; [`Proposer::run`] ends when the last has its outcome.
    pub(super) fn close(&self) {
        self.pending.lock().closed = true;
        self.wake.notify_one();
    }

    /// Sends what waits, until closed.
    pub(super) async fn run(self: Arc<Self>, raft: Raft) {
        loop {
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                () = self.awaited.changed.notified() => {}
                () = self.leadership.changed.notified() => {}
            }
            // Of the newest entry.
            let mut commands = 0;
            loop {
                self.gather().await;
                let sent = match self.leadership.role() {
                    Role::Leads { .. } => {
                        let proposed = self.propose_next(&raft).await;
                        commands = proposed.unwrap_or(commands);
                        proposed.is_some()
                    }
                    Role::Follows { leader } => self.forward_next(leader),
                    Role::None => false,
                    Role::Gone => {
                        self.give_up();
                        false
                    }
                };
                if !sent {
                    break;
                }
            }
            if self.is_drained() {
                return;
            }
            self.watch_entries(commands).await;
        }
    }

    /// How much there is to pack.
    fn waiting(&self) -> usize {
        let pending = self.pending.lock();
        pending.len + pending.forwarded.len()
    }

    /// Lets connections on this thread hand in what they have received already, until a look finds nothing new: a
    /// larger entry costs hardly more than a small one, and a sync as much. Whoever is alone waits for one look.
    async fn gather(&self) {
        let mut before = self.waiting();
        for _ in 0..LOOKS_MAX {
            if before == 0 || before >= PARCEL_LEN_MAX {
                return;
            }
            tokio::task::yield_now().await;
            let now = self.waiting();
            if now == before {
                return;
            }
            before = now;
        }
    }

    /// Keeps this thread awake while an entry is on its way to other nodes that many wait for. It comes back within a
    /// millisecond, mostly, and a processor that sleeps takes a good part of that to wake up, in a virtual machine above all.
    async fn watch_entries(&self, commands: usize) {
        // The simulation's clock stands still while anybody has something to do.
        if commands < WATCHED_LEN_MIN || self.leadership.is_alone() || cfg!(feature = "sim") {
            return;
        }
        let started = std::time::Instant::now();
        let nothing_else = || match self.entries.load(Ordering::Acquire) {
            0 => false,
            ENTRIES_MAX.. => true,
            _ => self.waiting() == 0,
        };
        while nothing_else() && started.elapsed() < WATCH_MAX {
            tokio::task::yield_now().await;
        }
    }

    /// Answers the commands that have waited for too long. Called now and then, also while nothing else happens.
    pub(super) fn give_up_overdue(&self) {
        let mut overdue = Vec::new();
        {
            let mut pending = self.pending.lock();
            while let Some(job) = pending.jobs.pop_front_if(|job| job.since.elapsed() > OUTCOME_MAX) {
                pending.len -= job.len();
                overdue.push(job);
            }
        }
        let unknown = self.awaited.give_up_older(OUTCOME_MAX);
        if unknown || !overdue.is_empty() {
            tracing::warn!(unsent = overdue.len(), unknown, "commands waited for too long and were given up");
            self.stalled.store(true, Ordering::Release);
        }
        overdue.into_iter().for_each(|job| job.fail(EngineError::TooSlow));
        self.try_while_stalled();
    }

    /// A node that is not ready gets no requests. A tick of its own shows when commands come through again.
    fn try_while_stalled(&self) {
        if !self.stalled.load(Ordering::Acquire) || self.oldest().is_some() {
            return;
        }
        let (stalled, tick) = (self.stalled.clone(), self.submit(Command::Tick));
        machine::spawn(async move {
            if tick.await.is_ok() {
                stalled.store(false, Ordering::Release);
            }
        });
    }

    /// When the oldest command without an outcome was submitted.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let pending = self.pending.lock().jobs.front().map(|job| job.since);
        pending.into_iter().chain(self.awaited.oldest()).min()
    }

    /// Whether commands get stuck on their way.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
            || self.oldest().is_some_and(|oldest| oldest.elapsed() > STALLED_AFTER)
    }

    /// Nothing comes to wake the proposer any more: it is closed, and everybody has an answer.
    fn is_drained(&self) -> bool {
        let pending = self.pending.lock();
        pending.closed && pending.jobs.is_empty() && self.awaited.len() == 0
    }

    /// No leader for too long. What was never sent did not happen; of what was sent nobody knows.
    fn give_up(&self) {
        let (jobs, forwarded) = {
            let mut pending = self.pending.lock();
            pending.len = 0;
            (std::mem::take(&mut pending.jobs), std::mem::take(&mut pending.forwarded))
        };
        drop(forwarded);
        jobs.into_iter().for_each(|job| job.fail(EngineError::NotLeader));
        self.awaited.give_up();
    }

    /// Packs jobs into a parcel.
    fn pack(&self, full: bool) -> Option<Parcel> {
        let mut pending = self.pending.lock();
        if pending.jobs.is_empty() {
            return None;
        }
        let mut commands = Vec::with_capacity(pending.len.min(PARCEL_LEN_MAX));
        let mut replies = Vec::with_capacity(pending.jobs.len().min(PARCEL_LEN_MAX));
        let (mut bytes, mut since) = (0, None);
        let no_memory = self.memory.is_full();
        while commands.len() < PARCEL_LEN_MAX
            && bytes < PARCEL_BYTES_MAX
            && let Some(job) = pending.jobs.pop_front()
        {
            pending.len -= job.len();
            if full && !job.is_tick() {
                job.fail(EngineError::DiskFull);
                continue;
            }
            if no_memory && job.grows() {
                job.fail(EngineError::MemoryFull);
                continue;
            }
            since = since.or(Some(job.since));
            match job.what {
                What::One(command, reply) => {
                    bytes += weight(&command);
                    commands.push(command);
                    replies.push(Reply::One(reply));
                }
                What::Many(many, reply) => {
                    bytes += many.iter().map(weight).sum::<usize>();
                    replies.push(Reply::Many(many.len(), reply));
                    commands.extend(many);
                }
            }
        }
        drop(pending);
        let commands = Arc::new(commands);
        let origin = self.awaited.expect(commands.clone(), replies, since?);
        Some(Parcel { origin: Some(origin), commands })
    }

    /// Everything that waits on the leader as one entry. Says how many commands it has, if there was anything, and room
    /// for it.
    async fn propose_next(self: &Arc<Self>, raft: &Raft) -> Option<usize> {
        if self.entries.load(Ordering::Acquire) >= ENTRIES_MAX {
            return None;
        }
        let full = self.is_full().await;
        let mut parcels: Vec<Parcel> = match self.awaited.has_unsent() {
            false => Vec::new(),
            true => {
                let unsent = self.awaited.take_unsent().into_iter();
                unsent.map(|(origin, commands)| Parcel { origin: Some(origin), commands }).collect()
            }
        };
        self.collect_forwarded(full, &mut parcels);
        parcels.extend(self.pack(full));
        if parcels.is_empty() {
            return None;
        }
        let commands = parcels.iter().map(|parcel| parcel.commands.len()).sum();
        let (stamp, term) = self.clock.stamp();
        let proposal = Arc::new(Proposal::new(stamp, parcels));
        self.entries.fetch_add(1, Ordering::AcqRel);
        let (landed, awaited, written) = (Landing(self.clone()), self.awaited.clone(), proposal.clone());
        let callback = Callback(Box::new(move |result: WriteResult| {
            drop(landed);
            if result.is_err() {
                // Whatever happened, the entry may yet be committed; sent again, a parcel still happens once. Not at
                // once: a leader that hands over refuses everything until the other one leads.
                machine::spawn(async move {
                    machine::sleep(SEND_AGAIN_AFTER).await;
                    let origins = written.parcels.iter().filter_map(|parcel| parcel.origin);
                    origins.for_each(|origin| awaited.send_again(&origin, true));
                });
            }
        }));
        // Should this node lead in another term by now, the stamp is not of its clock.
        let leader = LeaderId { term, node_id: *raft.node_id() };
        if let Err(fatal) = raft.write(proposal).with_leader(leader).responder(callback).await {
            tracing::error!(%fatal, "the log can't be written any more");
            self.awaited.give_up();
        }
        Some(commands)
    }

    /// A full disk refuses what clients ask; time goes on, in the room that is kept for it. A disk that is not known to
    /// be full makes them wait.
    async fn is_full(&self) -> bool {
        loop {
            match self.wal.room() {
                Room::Enough => return false,
                Room::Low => return true,
                Room::Soon => machine::sleep(ROOM_AGAIN_AFTER).await,
            }
        }
    }

    fn collect_forwarded(&self, full: bool, parcels: &mut Vec<Parcel>) {
        let mut bytes = 0;
        let mut pending = self.pending.lock();
        while bytes < PARCEL_BYTES_MAX
            && let Some((parcel, taken)) = pending.forwarded.pop_front()
        {
            if full {
                taken.send(Err(EngineError::DiskFull)).ok();
            } else if taken.send(Ok(())).is_ok() {
                bytes += parcel.commands.iter().map(weight).sum::<usize>();
                parcels.push(self.without_growth(parcel));
            }
        }
    }

    /// A parcel of another node, without what a leader without memory does not take: renewals and releases stand in the same
    /// parcel as claims. The others are told by the table, which refuses what stands in their place.
    fn without_growth(&self, parcel: Parcel) -> Parcel {
        let grows = || parcel.commands.iter().any(Command::grows);
        if !self.memory.is_full() || self.versions.own() < Command::Refuse.table_version() || !grows() {
            return parcel;
        }
        let commands = parcel.commands.iter();
        let commands =
            commands.map(|command| if command.grows() { Command::Refuse } else { command.clone() });
        Parcel { commands: Arc::new(commands.collect()), ..parcel }
    }

    /// The next parcel to the leader. Says whether there was one, and room for it.
    fn forward_next(self: &Arc<Self>, leader: u64) -> bool {
        let unsent = self.awaited.take_unsent();
        let again = !unsent.is_empty();
        for (origin, commands) in unsent {
            self.clone().forward(leader, origin, commands);
        }
        if self.awaited.len() >= PARCELS_MAX {
            return again;
        }
        let Some(parcel) = self.pack(false) else { return again };
        if let Some(origin) = parcel.origin {
            self.clone().forward(leader, origin, parcel.commands);
        }
        true
    }

    fn forward(self: Arc<Self>, leader: u64, origin: Origin, commands: Arc<Vec<Command>>) {
        machine::spawn(async move {
            let ask = Ask::Forward(Parcel { origin: Some(origin), commands });
            let in_doubt = match self.peers.ask(leader, &ask).await.and_then(super::peer::Answer::taken) {
                Ok(Ok(())) => return self.leadership.leader_took(true),
                Ok(Err(error @ (EngineError::DiskFull | EngineError::Overloaded))) => {
                    return self.awaited.refuse(&origin, &error);
                }
                // Not the leader (any more): it did not take the parcel.
                Ok(Err(EngineError::NotLeader)) => false,
                Ok(Err(_)) => true,
                Err(error) => error.may_have_arrived(),
            };
            self.leadership.leader_took(false);
            // By then there may be another one to ask.
            machine::sleep(SEND_AGAIN_AFTER).await;
            self.awaited.send_again(&origin, in_doubt);
        });
    }
}

/// Gives an entry's place back when its callback is called, or dropped.
struct Landing(Arc<Proposer>);

impl Drop for Landing {
    fn drop(&mut self) {
        self.0.entries.fetch_sub(1, Ordering::AcqRel);
        self.0.wake.notify_one();
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
