//! How an engine is set up.
//!
//! In:    what the command line and the file of settings said (`server/src/config.rs`), checked. Out: nothing.
//! Never: read again after the start.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Budgets, Settings};

use crate::peer::{PeerTls, Secret};
use crate::publish::Listener;
use crate::types::NodeId;

/// How an engine is set up.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// What travels in the log.
    pub settings: Settings,
    /// The same, from table version 2 on.
    pub budgets: Budgets,
    /// With more than this in memory, the node refuses commands that make the table larger; `None`: a limit that fits the
    /// machine.
    pub memory_max_bytes: Option<u64>,
    /// A snapshot is taken when the log has grown by this much, or by a third of the last snapshot.
    pub snapshot_log_bytes: u64,
    /// They are told every event.
    pub listeners: Vec<Arc<dyn Listener>>,
    /// The other nodes; `None`: there are none.
    pub cluster: Option<ClusterConfig>,
}

/// How a node finds the others.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// This node's number.
    pub node: NodeId,
    /// Where it listens for peers.
    pub listen: SocketAddr,
    /// Where peers reach it.
    pub advertise: String,
    /// The first members of a new cluster, with this one; empty for a node that joins.
    pub peers: BTreeMap<NodeId, String>,
    /// A member that this node asks to join a running cluster.
    pub join: Option<String>,
    /// What all nodes know.
    pub secret: Secret,
    /// Certificates, if connections between nodes are to be encrypted.
    pub tls: Option<PeerTls>,
    /// The time between two heartbeats of a leader; all timeouts of the cluster follow from it.
    pub heartbeat: Duration,
}
