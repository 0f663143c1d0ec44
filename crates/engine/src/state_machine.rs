//! The state machine: committed entries go into the table, outcomes and events come out.
//!
//! In:    entries from openraft, in log order. Out: outcomes to the requests that wait on this node (`in_flight.rs`), events to
//!        `publish.rs`, snapshots to `snapshot_file.rs`.
//! Never: decides about locks; that is the table's.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{Stream, StreamExt};
use leasehold_core::Table;
use leasehold_core::table::Frozen;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use parking_lot::RwLock;
use tokio::sync::Notify;

use super::clock::TableClock;
use super::entry::{Origins, Proposal};
use super::in_flight::InFlight;
use super::snapshot_file::{self, SnapshotFile};
use super::table_version::TableVersions;
use super::types::{LogId, SnapshotMeta, StoredMembership, TypeConfig};
use crate::publish::Publisher;
use crate::{hops, machine};

type Snapshot = openraft::type_config::alias::SnapshotOf<TypeConfig, SnapshotFile>;

/// "Nothing is due, ever", in [`SharedTable::earliest_deadline_us`].
pub const NO_DEADLINE: u64 = u64::MAX;

/// What the state machine shares with readers and with the ticker.
#[derive(Debug, Default)]
pub struct SharedTable {
    /// The table. Written by `apply` alone.
    pub table: RwLock<Table>,
    /// When the table next has something to end by itself.
    pub earliest_deadline_us: AtomicU64,
    /// Told when that moved to an earlier instant.
    pub deadline_moved: Notify,
    /// The newest entry in the table; 0 before the first.
    pub applied: AtomicU64,
    /// Told when that has grown.
    pub applied_moved: Notify,
    /// The time that the table has come to.
    pub clock: Arc<TableClock>,
    /// The table's version, and those that peers can read.
    pub versions: Arc<TableVersions>,
}

impl SharedTable {
    /// Waits until the table has this entry.
    pub async fn wait_applied(&self, index: u64) {
        loop {
            let moved = self.applied_moved.notified();
            if self.applied.load(Ordering::Acquire) >= index {
                return;
            }
            moved.await;
        }
    }

    fn note_applied(&self, log_id: Option<LogId>, now_us: u64) {
        self.clock.observe(now_us);
        self.applied.store(log_id.map_or(0, |id| id.index), Ordering::Release);
        self.applied_moved.notify_waiters();
    }
}

/// The table behind openraft's interface.
pub struct StateMachine {
    shared: Arc<SharedTable>,
    publisher: Arc<Publisher>,
    in_flight: Arc<InFlight>,
    snapshot_dir: PathBuf,
    applied: Option<LogId>,
    membership: StoredMembership,
    origins: Origins,
}

impl StateMachine {
    /// An empty table, and the folder where its snapshots are.
    pub fn new(
        shared: Arc<SharedTable>,
        publisher: Arc<Publisher>,
        in_flight: Arc<InFlight>,
        snapshot_dir: PathBuf,
    ) -> io::Result<Self> {
        snapshot_file::clean(&snapshot_dir)?;
        shared.earliest_deadline_us.store(NO_DEADLINE, Ordering::Release);
        let (applied, membership, origins) = Default::default();
        Ok(Self { shared, publisher, in_flight, snapshot_dir, applied, membership, origins })
    }

    /// Applies what has not happened yet, and tells those who wait for it on this node.
    fn apply_proposal(&mut self, index: u64, proposal: &Proposal) {
        let fresh = self.origins.first_of(proposal);
        let commands = fresh.iter().map(|parcel| &**parcel.commands);
        if hops::is_on() {
            let origins = fresh.iter().filter_map(|parcel| parcel.origin.as_ref());
            origins.for_each(|origin| self.in_flight.passed(origin, "commit"));
        }
        let mut table = self.shared.table.write();
        #[cfg(feature = "planted")]
        self.plant(&mut table);
        let applied = table.apply_all(proposal.stamp, commands);
        #[cfg(feature = "sim")]
        machine::simulated::applied(index, &table);
        Self::note_deadline(&self.shared, &table);
        self.shared.versions.set(table.version());
        // Still under the lock: a reader of the table also sees which entry it is of.
        self.shared.note_applied(self.applied, proposal.stamp.now_us);
        drop(table);
        self.publisher.publish(index, &applied.events);
        let mut outcomes = applied.outcomes.into_iter();
        for parcel in fresh {
            self.in_flight.applied(parcel, &mut outcomes);
        }
    }

    /// Bugs that the simulation must find.
    #[cfg(feature = "planted")]
    fn plant(&self, table: &mut Table) {
        use crate::machine::simulated::{Bug, is_new_term, is_planted};
        table.plant_lifo(is_planted(Bug::Lifo));
        let term = self.applied.map_or(0, |id| id.leader_id.term);
        table.plant_grant_twice(is_planted(Bug::GrantTwice) && is_new_term(term));
    }

    fn note_deadline(shared: &SharedTable, table: &Table) {
        let earliest_us = table.earliest_deadline_us().unwrap_or(NO_DEADLINE);
        let before_us = shared.earliest_deadline_us.swap(earliest_us, Ordering::AcqRel);
        if earliest_us < before_us {
            shared.deadline_moved.notify_one();
        }
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            // On a follower, usually nothing is waiting for this yet. Its leader waits to hear that the next entry is on disk;
            // let that answer go first.
            if responder.is_none() {
                tokio::task::yield_now().await;
            }
            self.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => self.shared.note_applied(self.applied, 0),
                EntryPayload::Normal(proposal) => self.apply_proposal(entry.log_id.index, &proposal),
                EntryPayload::Membership(membership) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), membership);
                    self.shared.note_applied(self.applied, 0);
                }
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let meta = SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() };
        let frozen = self.shared.table.read().freeze();
        let (origins, dir) = (self.origins.clone(), self.snapshot_dir.clone());
        SnapshotBuilder { frozen: Some(frozen), meta, origins, dir }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotFile) -> io::Result<()> {
        let (dir, of) = (self.snapshot_dir.clone(), meta.clone());
        let loaded = machine::blocking(move || {
            let (_, origins, table) = snapshot_file::load(&snapshot.path)?;
            snapshot_file::adopt(&dir, &of, &snapshot.path)?;
            Ok::<_, io::Error>((origins, table))
        });
        let (origins, table) = loaded.await??;
        Self::note_deadline(&self.shared, &table);
        #[cfg(feature = "planted")]
        let table = {
            let mut table = table;
            if machine::simulated::is_planted(machine::simulated::Bug::TokenReset) {
                table.plant_token_reset();
            }
            table
        };
        let now_us = table.clock().now_us;
        self.shared.versions.set(table.version());
        self.origins = origins;
        self.applied = meta.last_log_id;
        let replaced = {
            let mut current = self.shared.table.write();
            self.shared.note_applied(self.applied, now_us);
            std::mem::replace(&mut *current, table)
        };
        self.membership = meta.last_membership.clone();
        self.in_flight.covered_by(&self.origins);
        self.publisher.wake_all();
        // A large one takes a while to go, and this thread has others to serve.
        machine::blocking(move || drop(replaced)).await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let newest = snapshot_file::newest(&self.snapshot_dir)?;
        Ok(newest.map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}

/// Writes a frozen table to disk, beside the one that lives on.
pub struct SnapshotBuilder {
    /// Lent to the thread that writes it, and gone when it is written: what only it still holds takes a while to free.
    frozen: Option<Frozen>,
    meta: SnapshotMeta,
    origins: Origins,
    dir: PathBuf,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        // Each of these is reported once, however often it is tried.
        let (mut descriptors_told, mut space_told) = (false, false);
        loop {
            let (meta, origins, dir) = (self.meta.clone(), self.origins.clone(), self.dir.clone());
            let Some(frozen) = self.frozen.take() else {
                return Err(io::Error::other("this snapshot was written already"));
            };
            let writing = machine::in_background(move || {
                let written = snapshot_file::write(&dir, &meta, &origins, &frozen);
                written.map_err(|error| Box::new((error, frozen)))
            });
            let (error, frozen) = match writing.await? {
                Ok(snapshot) => return Ok(Snapshot { meta: self.meta.clone(), snapshot }),
                Err(failed) => *failed,
            };
            match error {
                // A snapshot only saves time at the next start. Lack of space is no reason to stop: the log
                // has everything, and its own reserve says when clients must be refused.
                error if machine::lacks_descriptors(&error) => {
                    self.frozen = Some(frozen);
                    if !std::mem::replace(&mut descriptors_told, true) {
                        tracing::error!(
                            %error,
                            "no file descriptor is free for a snapshot; trying every second: raise the limit of open files"
                        );
                    }
                    machine::sleep(std::time::Duration::from_secs(1)).await;
                }
                error if error.kind() == io::ErrorKind::StorageFull => {
                    self.frozen = Some(frozen);
                    if !std::mem::replace(&mut space_told, true) {
                        tracing::error!(%error, "no space to write a snapshot; trying every 5 s: free space on the disk of the data directory");
                    }
                    machine::sleep(std::time::Duration::from_secs(5)).await;
                }
                error => return Err(error),
            }
        }
    }
}
