//! Looks at the other nodes of a cluster from outside, for `leasehold doctor`.
//!
//! In:    a node's cluster settings. Out: who answers, with which version; how fast the leader's clock runs.
//! Never: starts a node, changes anything, or introduces itself by a member's number: peers would take this program's version
//!        for that of the node that runs.

use std::sync::Arc;
use std::time::Duration;

use super::ClusterConfig;
use super::peer::{Ask, Door, PeerAnswer, Peers};
use super::table_version::TableVersions;
use super::types::NodeId;
use crate::machine::{self, Instant};

/// The number by which this introduces itself. No node has it.
const NOBODY: NodeId = NodeId::MAX;

/// What was found at a peer's address.
#[derive(Debug, Clone)]
pub struct PeerReport {
    /// The node that should be there; `None`: any.
    pub expected: Option<NodeId>,
    /// Its address.
    pub address: String,
    /// What it says of itself, or why it says nothing.
    pub found: Result<PeerFound, String>,
}

/// What a peer says of itself.
#[derive(Debug, Clone)]
pub struct PeerFound {
    /// Its number.
    pub id: NodeId,
    /// Its version.
    pub version: String,
    /// Its role.
    pub role: String,
    /// The leader, as far as it knows.
    pub leader: Option<NodeId>,
    /// How long the answer took, the connection and its handshake included.
    pub took: Duration,
}

/// How fast the leader's clock runs.
#[derive(Debug, Clone, Copy)]
pub struct ClockRate {
    /// Its seconds in one of this machine's.
    pub rate: f64,
    /// How far off that may be.
    pub error: f64,
}

/// A visitor to a cluster.
pub struct Checkup {
    peers: Peers,
    addresses: Vec<(Option<NodeId>, String)>,
}

impl Checkup {
    /// Of the cluster that this node belongs to, with its secret and certificates.
    pub fn new(cluster: &ClusterConfig) -> Self {
        // Otherwise the first handshake would take longer than it may.
        cluster.secret.prepare(false);
        let versions = Arc::new(TableVersions::default());
        let door = Arc::new(Door::new(NOBODY, cluster.secret.clone(), cluster.tls.clone(), versions));
        let members = cluster.peers.iter().filter(|(id, _)| **id != cluster.node);
        let members = members.map(|(id, address)| (Some(*id), address.clone()));
        let addresses = members.chain(cluster.join.iter().map(|address| (None, address.clone()))).collect();
        Self { peers: Peers::new(door, cluster.heartbeat), addresses }
    }

    /// Asks each of the others how it is.
    pub async fn peers(&self) -> Vec<PeerReport> {
        let asked = self.addresses.iter().map(|(expected, address)| async move {
            let began = Instant::now();
            let found = match self.peers.ask_at(address, &Ask::Status { digest: false }).await {
                Ok(PeerAnswer::Status(status)) => Ok(PeerFound {
                    id: status.id,
                    version: status.version,
                    role: status.role,
                    leader: status.leader,
                    took: began.elapsed(),
                }),
                Ok(_) => Err("its answer is not that of a node".into()),
                Err(error) => Err(error.to_string()),
            };
            PeerReport { expected: *expected, address: address.clone(), found }
        });
        futures_util::future::join_all(asked).await
    }

    /// Compares the leader's clock with this machine's over this length of time.
    pub async fn clock_rate(
        &self,
        leader: NodeId,
        address: &str,
        length: Duration,
    ) -> Result<ClockRate, String> {
        self.peers.know(leader, address);
        // The first question also makes the connection, and takes longer.
        self.table_clock(leader).await?;
        let (first_us, first) = self.table_clock(leader).await?;
        machine::sleep(length).await;
        let (second_us, second) = self.table_clock(leader).await?;
        let theirs = second_us.saturating_sub(first_us) as f64 / 1e6;
        let ours = (second.0 + second.1 / 2).saturating_duration_since(first.0 + first.1 / 2).as_secs_f64();
        // Each reading was made somewhere between a question and its answer.
        let error = (first.1 + second.1).as_secs_f64() / 2.0 / ours;
        Ok(ClockRate { rate: theirs / ours, error })
    }

    /// The table clock, when it was asked for, and how long the answer took.
    async fn table_clock(&self, leader: NodeId) -> Result<(u64, (Instant, Duration)), String> {
        let began = Instant::now();
        match self.peers.ask(leader, &Ask::Barrier).await {
            Ok(PeerAnswer::Barrier { now_us, .. }) => Ok((now_us, (began, began.elapsed()))),
            Ok(_) => Err("it no longer leads".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}
