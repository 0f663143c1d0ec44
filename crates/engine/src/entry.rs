//! A log entry: commands under one stamp, with their origins.
//!
//! In:    commands of one or more nodes, packed by `propose.rs` on the leader.
//! Out:   what openraft replicates; and [`Origins`], which knows the parcels that were applied before.
//! Never: lets a parcel happen twice. A node that lost its leader sends its parcels again, and can't know whether
//!        the old leader's copy is still on its way into the log.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use leasehold_core::table::FIRST_TABLE_VERSION;
use leasehold_core::{Batch, Command, Stamp};
use serde::{Deserialize, Serialize};

use super::types::NodeId;

/// Processes of one node that are remembered: a parcel of an earlier process may still be in the log of an old leader.
const RUNS_KEPT: usize = 4;
/// How far a parcel may be behind the newest one of its process. The proposer keeps far fewer on their way.
pub const WINDOW: u64 = 64;

/// One log entry: everything that was waiting on the leader at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// When the leader packed it.
    pub stamp: Stamp,
    /// Applied in this order.
    pub parcels: Vec<Parcel>,
    /// The entry as bytes, once it was encoded (`encoding.rs`).
    #[serde(skip)]
    bytes: KeptBytes,
}

/// Bytes of what they stand beside: two that are equal have equal ones.
#[derive(Debug, Clone, Default)]
struct KeptBytes(OnceLock<Bytes>);

impl PartialEq for KeptBytes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for KeptBytes {}

impl Proposal {
    /// Parcels under one stamp.
    pub fn new(stamp: Stamp, parcels: Vec<Parcel>) -> Self {
        Self { stamp, parcels, bytes: KeptBytes::default() }
    }

    /// The table version that a node must know to read this.
    pub(super) fn table_version(&self) -> u32 {
        let commands = self.parcels.iter().flat_map(|parcel| parcel.commands.iter());
        commands.map(Command::table_version).max().unwrap_or(FIRST_TABLE_VERSION)
    }

    /// What was kept.
    pub(super) fn bytes(&self) -> Option<&Bytes> {
        self.bytes.0.get()
    }

    /// Keeps what postcard makes of this.
    pub(super) fn keep_bytes(&self, bytes: Bytes) {
        self.bytes.0.set(bytes).ok();
    }
}

/// Commands that one node sent together: they happen together, and once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parcel {
    /// Who sent it; entries of the first format don't say.
    pub origin: Option<Origin>,
    /// Shared with `in_flight.rs`, which may have to send them again.
    pub commands: Arc<Vec<Command>>,
}

impl From<Batch> for Proposal {
    fn from(batch: Batch) -> Self {
        let parcel = Parcel { origin: None, commands: Arc::new(batch.commands) };
        Self::new(batch.stamp, vec![parcel])
    }
}

/// The name of a parcel in the whole cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The node that took the requests.
    pub node: NodeId,
    /// Its process, by a random number.
    pub run: u64,
    /// The parcel's number in that process, from 1 on.
    pub number: u64,
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commands: usize = self.parcels.iter().map(|parcel| parcel.commands.len()).sum();
        write!(f, "{commands} commands at {} us", self.stamp.now_us)
    }
}

/// Which parcels have happened: part of what is replicated, and of every snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origins {
    /// The newest runs of each node, the most recent last.
    nodes: BTreeMap<NodeId, Vec<NodeRun>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NodeRun {
    run: u64,
    /// The newest parcel that happened ...
    newest: u64,
    /// ... and which of the [`WINDOW`] before it did: bit 0 is the one just before.
    before: u64,
}

impl Origins {
    /// The parcels of an entry that come for the first time; they are remembered from now on.
    pub fn first_of<'a>(&mut self, proposal: &'a Proposal) -> Vec<&'a Parcel> {
        #[cfg(feature = "sim")]
        if crate::machine::simulated::is_planted(crate::machine::simulated::Bug::ParcelTwice) {
            return proposal.parcels.iter().collect();
        }
        let is_first = |parcel: &&Parcel| parcel.origin.is_none_or(|origin| self.is_first(&origin));
        proposal.parcels.iter().filter(is_first).collect()
    }

    /// Whether a parcel has happened, or counts as having happened.
    pub fn contains(&self, origin: &Origin) -> bool {
        let runs = self.nodes.get(&origin.node).into_iter().flatten();
        runs.filter(|known| known.run == origin.run).any(|run| !run.clone().is_first(origin.number))
    }

    /// Whether a parcel comes for the first time; it is remembered from now on.
    pub fn is_first(&mut self, origin: &Origin) -> bool {
        let runs = self.nodes.entry(origin.node).or_default();
        match runs.iter_mut().find(|known| known.run == origin.run) {
            Some(run) => run.is_first(origin.number),
            None => {
                if runs.len() == RUNS_KEPT {
                    runs.remove(0);
                }
                runs.push(NodeRun { run: origin.run, newest: origin.number, before: 0 });
                true
            }
        }
    }
}

impl NodeRun {
    fn is_first(&mut self, number: u64) -> bool {
        if number > self.newest {
            let ahead = number - self.newest;
            let moved = self.before.checked_shl(u32::try_from(ahead).unwrap_or(u32::MAX)).unwrap_or(0);
            let newest = 1_u64.checked_shl(u32::try_from(ahead - 1).unwrap_or(u32::MAX)).unwrap_or(0);
            (self.newest, self.before) = (number, moved | newest);
            return true;
        }
        let behind = self.newest - number;
        if behind == 0 || behind > WINDOW {
            return false;
        }
        let bit = 1 << (behind - 1);
        let first = self.before & bit == 0;
        self.before |= bit;
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(run: u64, number: u64) -> Origin {
        Origin { node: 1, run, number }
    }

    #[test]
    fn a_parcel_happens_once_in_whatever_order_they_come() {
        let mut origins = Origins::default();
        for number in [1, 3, 2, 70, 69, 10] {
            assert!(origins.is_first(&origin(7, number)), "{number} came for the first time");
        }
        for number in [1, 2, 3, 10, 69, 70] {
            assert!(origins.contains(&origin(7, number)), "{number} came before");
        }
        for other in [origin(7, 11), origin(7, 71), origin(8, 1)] {
            assert!(!origins.contains(&other), "{other:?} never came");
        }
        for number in [1, 2, 3, 10, 69, 70] {
            assert!(!origins.is_first(&origin(7, number)), "{number} came before");
        }
    }

    #[test]
    fn what_is_older_than_the_window_counts_as_having_happened() {
        let mut origins = Origins::default();
        assert!(origins.is_first(&origin(7, 100)));
        assert!(!origins.is_first(&origin(7, 100 - WINDOW - 1)));
        assert!(origins.is_first(&origin(7, 100 - WINDOW)));
        assert!(origins.is_first(&origin(7, 1000)));
        assert!(!origins.is_first(&origin(7, 100)));
    }

    #[test]
    fn a_late_parcel_of_an_earlier_run_is_still_known() {
        let mut origins = Origins::default();
        assert!(origins.is_first(&origin(1, 5)));
        assert!(origins.is_first(&origin(2, 1)));
        assert!(!origins.is_first(&origin(1, 5)));
    }
}
