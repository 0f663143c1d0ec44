//! The table version of a cluster: who can read what, and when the next version may hold.
//!
//! In:    what peers say in their greeting (`peer/handshake.rs`), and the version of this node's table.
//! Out:   the format that this node writes; on the leader, one `Upgrade` as soon as every member can read it; for
//!        requests that need a version, which member is in the way.
//! Never: decides what `apply` does: that is the table's own version, which is replicated.
//!
//! Until the version is raised, a node writes log entries and snapshots byte for byte as release 0.1.0 does, so that
//! any node can go back to that release.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_core::Command;
use leasehold_core::table::{FIRST_TABLE_VERSION, NEWEST_TABLE_VERSION};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::peer::{Ask, PeerAnswer};
use super::types::NodeId;
use super::wakeups::sleep_about;
use super::{Engine, EngineError};
use crate::machine;

/// How often a leader looks whether every member can read a newer version. It stops when the newest one holds.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long a request waits for a version that every member can read: the leader is about to raise it. A new cluster is asked
/// for everything in its first moment.
const RAISED_WITHIN: Duration = Duration::from_secs(3);

/// The format of entries of the first table version. There was one before it, without a version.
const FIRST_FORMAT: u8 = 2;

/// The newest format of log entries that this build reads.
pub(super) const ENTRY_FORMAT_NEWEST: u8 = entry_format(NEWEST_TABLE_VERSION);

/// The format of a log entry that needs this table version.
pub(super) const fn entry_format(table_version: u32) -> u8 {
    FIRST_FORMAT + (table_version - FIRST_TABLE_VERSION) as u8
}

/// The newest table version that a node reads, by the format of log entries it reads.
fn table_version_of(entry_format: u8) -> u32 {
    FIRST_TABLE_VERSION + u32::from(entry_format.saturating_sub(FIRST_FORMAT))
}

/// The version of this node's table, and those that its peers can read.
#[derive(Debug)]
pub struct TableVersions {
    own: AtomicU32,
    /// Wakes requests that wait for a newer version.
    raised: Notify,
    /// What each peer said when it last greeted, or was greeted.
    peers: Mutex<BTreeMap<NodeId, u32>>,
}

impl Default for TableVersions {
    fn default() -> Self {
        Self { own: AtomicU32::new(FIRST_TABLE_VERSION), raised: Notify::new(), peers: Mutex::default() }
    }
}

impl TableVersions {
    /// This node's table has this version.
    pub(super) fn set(&self, version: u32) {
        if self.own() != version {
            self.own.store(version, Ordering::Release);
            self.raised.notify_waiters();
        }
    }

    /// Returns when this node's table has this version or a newer one.
    async fn reach(&self, version: u32) {
        loop {
            let raised = self.raised.notified();
            if self.own() >= version {
                return;
            }
            raised.await;
        }
    }

    /// The version of this node's table.
    pub(super) fn own(&self) -> u32 {
        self.own.load(Ordering::Acquire)
    }

    /// The newest format of log entries that this node may write.
    pub(super) fn written_format(&self) -> u8 {
        entry_format(self.own())
    }

    /// A peer reads entries up to this format.
    pub(super) fn note_peer(&self, node: NodeId, entry_format: u8) {
        self.peers.lock().insert(node, table_version_of(entry_format));
    }

    /// The newest version that a peer can read, if it has ever been met.
    pub(super) fn read_by(&self, node: NodeId) -> Option<u32> {
        self.peers.lock().get(&node).copied()
    }
}

impl Engine {
    /// The version of this node's table.
    pub fn table_version(&self) -> u32 {
        self.shared.versions.own()
    }

    /// The newest table version that a member can read, if this node has met it.
    pub(super) fn reads_table_version(&self, node: NodeId) -> Option<u32> {
        if node == self.node { Some(NEWEST_TABLE_VERSION) } else { self.shared.versions.read_by(node) }
    }

    /// Returns when a request that needs this table version can be carried out; waits where the version is about to be raised.
    /// If it can't, the error names the member that must be upgraded first.
    pub async fn reach_table_version(&self, version: u32) -> Result<(), EngineError> {
        match self.require_table_version(version).await {
            Err(EngineError::Upgrading) => {
                let raised = machine::timeout(RAISED_WITHIN, self.shared.versions.reach(version));
                raised.await.map_err(|_| EngineError::Upgrading)
            }
            known => known,
        }
    }

    /// The same without waiting.
    pub async fn require_table_version(&self, version: u32) -> Result<(), EngineError> {
        if self.table_version() >= version {
            return Ok(());
        }
        // In a box: requests that stand open for hours pass here, and asking members takes much room.
        match Box::pin(self.readable_by_all()).await {
            Err(in_the_way) => Err(in_the_way),
            Ok(readable) if readable >= version => Err(EngineError::Upgrading),
            Ok(_) => Err(EngineError::MemberTooOld { node: self.node, version: own_release() }),
        }
    }

    /// The newest version that every member can read, or the first member that is too old for this build's newest one or
    /// does not answer. Each is asked now: what it said before it was started again does not count.
    async fn readable_by_all(&self) -> Result<u32, EngineError> {
        for (node, (address, _)) in self.members() {
            if node == self.node {
                continue;
            }
            self.peers.know(node, &address);
            let Ok(PeerAnswer::Status(status)) = self.peers.ask(node, &Ask::Status { digest: false }).await
            else {
                return Err(EngineError::MemberAway { node });
            };
            if self.shared.versions.read_by(node).unwrap_or(FIRST_TABLE_VERSION) < NEWEST_TABLE_VERSION {
                return Err(EngineError::MemberTooOld { node, version: status.version });
            }
        }
        Ok(NEWEST_TABLE_VERSION)
    }

    /// Raises the table version if this node leads and every member can read it. No node is added meanwhile.
    pub(super) async fn raise_table_version(&self) -> Result<(), EngineError> {
        // First without holding up changes of the members, while one of them does not answer.
        self.readable_by_all().await?;
        let _one_at_a_time = self.changing.lock().await;
        let version = self.readable_by_all().await?;
        if version > self.table_version() {
            let raised = self.submit(Command::Upgrade { version }).await;
            // Settings that only the new version knows: the ticker looks after them, also if the answer was lost.
            self.leadership.ticker.notify_one();
            raised?;
            tracing::info!(version, "the table version is {version} now: every node can read it");
        }
        Ok(())
    }
}

/// Raises the table version as soon as the whole cluster can read it, if this node leads then.
pub(super) async fn raise(engine: Arc<Engine>) {
    let mut told = None;
    while engine.table_version() < NEWEST_TABLE_VERSION {
        sleep_about(LOOK_EVERY).await;
        if !engine.leads() {
            continue;
        }
        if let Err(error) = engine.raise_table_version().await
            && told.as_ref() != Some(&error)
        {
            tracing::info!(%error, "the table version stays at {}", engine.table_version());
            told = Some(error);
        }
    }
}

/// The release of this build.
fn own_release() -> String {
    env!("CARGO_PKG_VERSION").into()
}
