//! Which nodes speak version 1 of the handshake and nothing newer: those of 0.1.0, in the middle of a rolling upgrade.
//!
//! In:    the version that each node proved last; where nodes are. Out: whether version 1 may be spoken with one.
//! Never: believes a caller: what it knows comes from handshakes in which the node proved that it knows the secret.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;

use crate::machine::Instant;
use crate::types::NodeId;

/// A node that somebody says he is, by version 1, is called at most this often to see whether it is true.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// The old nodes.
#[derive(Debug, Default)]
pub(super) struct OldNodes(Mutex<NodeVersions>);

#[derive(Debug, Default)]
struct NodeVersions {
    old: BTreeSet<NodeId>,
    /// Where each node is, and when it was last called because of a caller that may be old.
    nodes: BTreeMap<NodeId, (String, Option<Instant>)>,
}

impl OldNodes {
    /// Node `id` is at this address.
    pub(super) fn know(&self, id: NodeId, address: &str) {
        self.0.lock().nodes.insert(id, (address.into(), None));
    }

    /// A node proved itself, and this is the newest version that it and this node speak.
    pub(super) fn proved(&self, id: NodeId, version: u16) {
        let mut known = self.0.lock();
        match version {
            1 => known.old.insert(id),
            _ => known.old.remove(&id),
        };
    }

    pub(super) fn contains(&self, id: NodeId) -> bool {
        self.0.lock().old.contains(&id)
    }

    /// Where to ask a node for its version, if it is not known to be old and was not asked a moment ago.
    pub(super) fn to_probe(&self, id: NodeId) -> Option<String> {
        let mut known = self.0.lock();
        if known.old.contains(&id) {
            return None;
        }
        let (address, probed) = known.nodes.get_mut(&id)?;
        if probed.is_some_and(|probed| probed.elapsed() < PROBE_EVERY) {
            return None;
        }
        *probed = Some(Instant::now());
        Some(address.clone())
    }
}
