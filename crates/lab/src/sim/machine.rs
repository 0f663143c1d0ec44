//! The real table behind openraft, with everything checked after each entry.
//!
//! In:    committed entries. Out: outcomes to whoever waits on this node; violations to [`super::world`].
//! Never: lets a parcel happen twice: the service's own [`Origins`] decide.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use leasehold_core::table::Restorer;
use leasehold_core::{Outcome, Table};
use leasehold_server::engine::entry::{Origins, Parcel, Proposal};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Bug;
use super::disk::Disk;
use super::types::{LogId, SimConfig, Snapshot, SnapshotMeta, StoredMembership};
use super::world;

/// What the parts of one node share while it runs.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) table: Table,
    pub(super) applied: Option<LogId>,
    /// Who waits for the outcomes of which parcel of this run.
    pub(super) awaited: BTreeMap<u64, oneshot::Sender<Vec<Outcome>>>,
    pub(super) run: u64,
}

/// One node's table, for openraft.
pub(super) struct Machine {
    node: u64,
    shared: Arc<Mutex<Node>>,
    membership: StoredMembership,
    origins: Origins,
    disk: Disk,
    bug: Option<Bug>,
    #[cfg_attr(not(feature = "planted"), expect(dead_code, reason = "only bugs ask for it"))]
    term: u64,
}

impl Machine {
    pub(super) fn new(node: u64, shared: Arc<Mutex<Node>>, disk: Disk, bug: Option<Bug>) -> Self {
        let mut machine = Self {
            node,
            shared,
            membership: StoredMembership::default(),
            origins: Origins::default(),
            disk,
            bug,
            term: 0,
        };
        machine.plant();
        if let Some((meta, bytes)) = machine.disk.snapshot() {
            machine.restore(&meta, &bytes);
        }
        machine
    }

    #[cfg(not(feature = "planted"))]
    fn plant(&mut self) {}

    #[cfg(feature = "planted")]
    fn plant(&mut self) {
        self.shared.lock().table.plant_lifo(self.bug == Some(Bug::Lifo));
    }

    fn restore(&mut self, meta: &SnapshotMeta, bytes: &[u8]) {
        let (origins, chunks): (Origins, Vec<Vec<u8>>) =
            postcard::from_bytes(bytes).expect("a snapshot is read as it was written");
        let mut restorer = Restorer::default();
        chunks.iter().for_each(|chunk| restorer.push(chunk).expect("a snapshot's chunks are a table"));
        let table = restorer.finish().expect("a snapshot is a table");
        {
            let mut shared = self.shared.lock();
            shared.table = table;
            shared.applied = meta.last_log_id;
            #[cfg(feature = "planted")]
            if self.bug == Some(Bug::TokenReset) {
                shared.table.plant_token_reset();
            }
        }
        self.plant();
        (self.origins, self.membership) = (origins, meta.last_membership.clone());
    }

    fn apply_proposal(&mut self, log_id: LogId, proposal: &Proposal) {
        let origins = &mut self.origins;
        let is_first = |parcel: &&Parcel| parcel.origin.is_none_or(|origin| origins.is_first(&origin));
        let fresh: Vec<&Parcel> = proposal.parcels.iter().filter(is_first).collect();
        let mut shared = self.shared.lock();
        let shared = &mut *shared;
        #[cfg(feature = "planted")]
        {
            let failover = self.bug == Some(Bug::GrantTwice) && log_id.leader_id.term != self.term;
            self.term = log_id.leader_id.term;
            shared.table.plant_grant_twice(failover);
        }
        let commands = fresh.iter().flat_map(|parcel| parcel.commands.iter());
        let applied = shared.table.apply_all(proposal.stamp, commands);
        let mut outcomes = applied.outcomes.into_iter();
        for parcel in fresh {
            let own: Vec<Outcome> = outcomes.by_ref().take(parcel.commands.len()).collect();
            let ours = parcel.origin.filter(|origin| origin.node == self.node && origin.run == shared.run);
            if let Some(reply) = ours.and_then(|origin| shared.awaited.remove(&origin.number)) {
                reply.send(own).ok();
            }
        }
        world::check_table(self.node, log_id.index, &shared.table);
    }
}

impl RaftStateMachine<SimConfig> for Machine {
    type SnapshotData = Vec<u8>;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.shared.lock().applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = Result<EntryResponder<SimConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(proposal) => self.apply_proposal(entry.log_id, &proposal),
                EntryPayload::Membership(membership) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), membership);
                }
            }
            self.shared.lock().applied = Some(entry.log_id);
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let shared = self.shared.lock();
        let meta = SnapshotMeta { last_log_id: shared.applied, last_membership: self.membership.clone() };
        let chunks: Vec<Vec<u8>> = shared.table.freeze().chunks().collect();
        let bytes = postcard::to_stdvec(&(&self.origins, chunks)).expect("plain data can be encoded");
        Builder { meta, bytes, disk: self.disk.clone() }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Vec<u8>) -> io::Result<()> {
        self.restore(meta, &snapshot);
        self.disk.save_snapshot(meta.clone(), snapshot);
        world::count("snapshot-installed");
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(self.disk.snapshot().map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}

/// Writes a snapshot to the simulated disk.
pub(super) struct Builder {
    meta: SnapshotMeta,
    bytes: Vec<u8>,
    disk: Disk,
}

impl RaftSnapshotBuilder<SimConfig> for Builder {
    type SnapshotData = Vec<u8>;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        self.disk.save_snapshot(self.meta.clone(), self.bytes.clone());
        Ok(Snapshot { meta: self.meta.clone(), snapshot: self.bytes.clone() })
    }
}
