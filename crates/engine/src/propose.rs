//! The proposer: everything that waits at one moment becomes one parcel, and parcels become log entries.
//!
//! In:    commands from the dialects; on a leader, parcels of other nodes too.
//! Out:   on the leader, stamped entries to raft, at most [`ENTRIES_MAX`] at a time; elsewhere, parcels to the leader.
//!        Outcomes come back through `in_flight.rs`, when this node's table has applied them.
//! Never: answers "failed" where it does not know: a command that was sent and has no outcome is [`EngineError::Unknown`].

mod pending;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_core::{Command, Outcome};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use self::pending::{Job, PARCEL_LEN_MAX, Pending, Refuses, What};
use super::EngineError;
use super::clock::TableClock;
use super::entry::{Origin, Parcel, Proposal, WINDOW};
use super::hops;
use super::in_flight::InFlight;
use super::leadership::{Leadership, Role};
use super::memory::MemoryGuard;
use super::peer::{Ask, Peers};
use super::table_version::TableVersions;
use super::types::{Callback, LeaderId, Raft, WriteResult};
use super::wal::{Room, Wal};
use crate::machine::{self, Instant};

/// Entries that are being written at once. With two, the next one fills while one is written, and entries stay large.
const ENTRIES_MAX: usize = 2;
/// Parcels on their way to a leader at once: a few, to keep a slow link busy.
const PARCELS_MAX: usize = 4;
const _: () = assert!(2 * PARCELS_MAX as u64 + ENTRIES_MAX as u64 <= WINDOW);
/// The pause before a refused parcel is sent again: by then another node may lead, or this leader may accept it.
const SEND_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// The pause between two looks while the log's next segment is being prepared.
const ROOM_AGAIN_AFTER: Duration = Duration::from_millis(2);
/// The longest that a command may wait for its outcome. Then its client is told that it certainly did not happen, if it was
/// never sent, or else that its outcome is unknown.
const OUTCOME_MAX: Duration = Duration::from_secs(5);
/// A node whose oldest command has waited this long is not ready.
const STALLED_AFTER: Duration = Duration::from_secs(2);
/// How often the proposer looks for further commands before it packs.
const LOOKS_MAX: usize = 8;

/// The proposer spins while an entry with at least this many commands is being replicated ...
const WATCHED_LEN_MIN: usize = 16;
/// ... for at most this long. Spinning does not pay off when the round trip is longer.
const WATCH_MAX: Duration = Duration::from_millis(1);

/// Packs commands into parcels and entries.
pub(super) struct Proposer {
    pending: Mutex<Pending>,
    entries: AtomicUsize,
    /// Notified when there is something to pack, or room for another entry.
    wake: Notify,
    in_flight: Arc<InFlight>,
    leadership: Arc<Leadership>,
    peers: Arc<Peers>,
    clock: Arc<TableClock>,
    wal: Wal,
    /// Whether commands timed out, and none has succeeded since.
    stalled: Arc<AtomicBool>,
    memory: Arc<MemoryGuard>,
    versions: Arc<TableVersions>,
}

impl Proposer {
    /// A proposer whose [`Proposer::run`] is yet to be started.
    pub(super) fn new(
        in_flight: Arc<InFlight>,
        leadership: Arc<Leadership>,
        peers: Arc<Peers>,
        clock: Arc<TableClock>,
        wal: Wal,
        (memory, versions): (Arc<MemoryGuard>, Arc<TableVersions>),
    ) -> Self {
        let (pending, entries, wake, stalled) = Default::default();
        Self { pending, entries, wake, in_flight, leadership, peers, clock, wal, stalled, memory, versions }
    }

    /// Makes one command durable and applies it. Not an `async fn`, whose future would keep room for the command while it
    /// waits for the outcome.
    pub(super) fn submit(
        &self,
        command: Command,
    ) -> impl Future<Output = Result<Outcome, EngineError>> + Send + use<> {
        let (reply, outcome) = oneshot::channel();
        self.push(What::One(command, reply));
        async move { outcome.await.unwrap_or(Err(EngineError::Unknown)) }
    }

    /// The same for several commands, in one entry and in this order.
    pub(super) async fn submit_many(&self, commands: Vec<Command>) -> Result<Vec<Outcome>, EngineError> {
        let (reply, outcomes) = oneshot::channel();
        self.push(What::Many(commands, reply));
        outcomes.await.unwrap_or(Err(EngineError::Unknown))
    }

    /// Takes a parcel of another node into the log. That node gets the outcome from its own table.
    pub(super) async fn take_forwarded(&self, parcel: Parcel) -> Result<(), EngineError> {
        if !matches!(self.leadership.role(), Role::Leads { .. }) {
            return Err(EngineError::NotLeader);
        }
        // Only a leader that has asked the members itself raises the table version.
        if parcel.commands.iter().any(|command| matches!(command, Command::Upgrade { .. })) {
            return Err(EngineError::NotLeader);
        }
        let (reply, taken) = oneshot::channel();
        self.pending.lock().push_forwarded(parcel, reply)?;
        self.wake.notify_one();
        taken.await.unwrap_or(Err(EngineError::NotLeader))
    }

    fn push(&self, what: What) {
        let accepted = self.pending.lock().push(Job { since: Instant::now(), what, traced: hops::current() });
        match accepted {
            Ok(()) => self.wake.notify_one(),
            Err((job, error)) => job.fail(error),
        }
    }

    /// No more commands; [`Proposer::run`] ends when the last has its outcome.
    pub(super) fn close(&self) {
        self.pending.lock().closed = true;
        self.wake.notify_one();
    }

    /// Sends commands until closed.
    pub(super) async fn run(self: Arc<Self>, raft: Raft) {
        loop {
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                () = self.in_flight.changed.notified() => {}
                () = self.leadership.changed.notified() => {}
            }
            // The number of commands in the newest entry.
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

    /// The number of commands and parcels that wait to be packed.
    fn waiting(&self) -> usize {
        let pending = self.pending.lock();
        pending.len + pending.forwarded.len()
    }

    /// Lets connections on this thread submit the requests that they have received, until a look finds nothing new. A large
    /// entry costs hardly more than a small one, and the same sync. A single request waits for one look only.
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

    /// Keeps this thread awake while a large entry is on its way to other nodes. The entry is usually committed within a
    /// millisecond, and a sleeping processor takes a good part of that to wake up, above all in a virtual machine.
    async fn watch_entries(&self, commands: usize) {
        // The simulation's clock stands still while any task is ready.
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

    /// Answers the commands that have waited for too long, and sends those again that a leader took and lost. Called now and
    /// then, also while nothing else happens.
    pub(super) fn give_up_overdue(&self) {
        let overdue = self.pending.lock().take_older(OUTCOME_MAX);
        let unknown = self.in_flight.give_up_older(OUTCOME_MAX);
        if (unknown || !overdue.is_empty()) && !self.stalled.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                "commands do not get through: their clients are told so after {} s (see `leasehold cluster status`)",
                OUTCOME_MAX.as_secs()
            );
        }
        overdue.into_iter().for_each(|job| job.fail(EngineError::TooSlow));
        if matches!(self.leadership.role(), Role::Follows { .. }) {
            self.in_flight.send_again_older(self.peers.client_waits());
        }
        self.try_while_stalled();
    }

    /// A node that is not ready gets no requests. So it submits a tick of its own to find out when commands succeed again.
    fn try_while_stalled(&self) {
        if !self.stalled.load(Ordering::Acquire) || self.oldest().is_some() {
            return;
        }
        let (stalled, tick) = (self.stalled.clone(), self.submit(Command::Tick));
        machine::spawn(async move {
            if tick.await.is_ok() && stalled.swap(false, Ordering::AcqRel) {
                tracing::info!("commands get through again");
            }
        });
    }

    /// When the oldest command without an outcome was submitted.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let pending = self.pending.lock().jobs.front().map(|job| job.since);
        pending.into_iter().chain(self.in_flight.oldest()).min()
    }

    /// Whether commands are stuck.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
            || self.oldest().is_some_and(|oldest| oldest.elapsed() > STALLED_AFTER)
    }

    /// Whether the proposer is closed and every command has an answer.
    fn is_drained(&self) -> bool {
        let pending = self.pending.lock();
        pending.closed && pending.jobs.is_empty() && self.in_flight.len() == 0
    }

    /// There was no leader for too long. Commands that were never sent did not happen; the others are unknown.
    fn give_up(&self) {
        // Parcels of other nodes are dropped, which tells those nodes that they were not taken.
        let Pending { jobs, .. } = self.pending.lock().take_all();
        jobs.into_iter().for_each(|job| job.fail(EngineError::NotLeader));
        self.in_flight.give_up();
    }

    /// Packs waiting commands into a parcel.
    fn pack(&self, is_disk_full: bool) -> Option<Parcel> {
        let refuses = Refuses { all: is_disk_full, growth: self.memory.is_full() };
        let packed = self.pending.lock().pack(refuses)?;
        let commands = Arc::new(packed.commands);
        let origin = self.in_flight.expect(commands.clone(), packed.waiters, packed.since, packed.traced);
        Some(Parcel { origin: Some(origin), commands })
    }

    /// Packs everything that waits on the leader into one entry. Returns the number of its commands; `None` if nothing waits
    /// or there is no room for another entry.
    async fn propose_next(self: &Arc<Self>, raft: &Raft) -> Option<usize> {
        if self.entries.load(Ordering::Acquire) >= ENTRIES_MAX {
            return None;
        }
        let full = self.is_full().await;
        let mut parcels: Vec<Parcel> = match self.in_flight.has_unsent() {
            false => Vec::new(),
            true => {
                let unsent = self.in_flight.take_unsent().into_iter();
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
        let (landed, in_flight, written) = (Landing(self.clone()), self.in_flight.clone(), proposal.clone());
        let callback = Callback(Box::new(move |result: WriteResult| {
            drop(landed);
            if result.is_err() {
                // The entry may still be committed; a parcel that is sent again still happens once. It is not sent again
                // immediately: a leader that is handing over leadership rejects commands briefly.
                machine::spawn(async move {
                    machine::sleep(SEND_AGAIN_AFTER).await;
                    let origins = written.parcels.iter().filter_map(|parcel| parcel.origin);
                    origins.for_each(|origin| in_flight.send_again(&origin, true));
                });
            }
        }));
        // If this node leads in another term by now, the stamp is not of that term's clock.
        let leader = LeaderId { term, node_id: *raft.node_id() };
        if let Err(fatal) = raft.write(proposal).with_leader(leader).responder(callback).await {
            tracing::error!(%fatal, "this node can no longer write its log");
            self.in_flight.give_up();
        }
        Some(commands)
    }

    /// Whether the disk is full. Then clients are refused, and the room that is left is kept for ticks. Waits while the log
    /// is still preparing room.
    async fn is_full(&self) -> bool {
        loop {
            match self.wal.room() {
                Room::Enough => return false,
                Room::Low => return true,
                Room::Soon => machine::sleep(ROOM_AGAIN_AFTER).await,
            }
        }
    }

    fn collect_forwarded(&self, is_disk_full: bool, parcels: &mut Vec<Parcel>) {
        let forwarded = self.pending.lock().take_forwarded(is_disk_full);
        parcels.extend(forwarded.into_iter().map(|parcel| self.without_growth(parcel)));
    }

    /// Takes the commands that make the table larger out of another node's parcel while this leader is out of memory. `Refuse`
    /// stands in their place, so that the table refuses them; renewals and releases in the same parcel go on.
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

    /// Sends the next parcel to the leader. Returns whether there was one, and room for it.
    fn forward_next(self: &Arc<Self>, leader: u64) -> bool {
        let unsent = self.in_flight.take_unsent();
        let again = !unsent.is_empty();
        for (origin, commands) in unsent {
            self.clone().forward(leader, origin, commands);
        }
        if self.in_flight.len() >= PARCELS_MAX {
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
            let in_doubt = match self.peers.ask(leader, &ask).await.and_then(super::peer::PeerAnswer::taken) {
                Ok(Ok(())) => {
                    self.in_flight.passed(&origin, "forward");
                    return self.leadership.leader_took(true);
                }
                Ok(Err(error @ (EngineError::DiskFull | EngineError::Overloaded))) => {
                    return self.in_flight.refuse(&origin, &error);
                }
                // That node does not lead (any more), and did not take the parcel.
                Ok(Err(EngineError::NotLeader)) => false,
                Ok(Err(_)) => true,
                Err(error) => error.may_have_arrived(),
            };
            self.leadership.leader_took(false);
            // By then another node may lead.
            machine::sleep(SEND_AGAIN_AFTER).await;
            self.in_flight.send_again(&origin, in_doubt);
        });
    }
}

/// Makes room for another entry when this one's callback is called, or dropped.
struct Landing(Arc<Proposer>);

impl Drop for Landing {
    fn drop(&mut self) {
        self.0.entries.fetch_sub(1, Ordering::AcqRel);
        self.0.wake.notify_one();
    }
}
