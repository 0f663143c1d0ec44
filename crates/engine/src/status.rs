//! How a node and its cluster are.
//!
//! In:    openraft's state of this node; the same of the others, asked over their links. Out: one table of all nodes.
//! Never: waits long for a node that does not answer: it is shown as unreachable.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use openraft::Instant as _;
use openraft::async_runtime::WatchReceiver;
use serde::{Deserialize, Serialize};

use super::Engine;
use super::peer::{Ask, PeerAnswer};
use super::types::NodeId;
use crate::machine;

/// What a node says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct NodeStatus {
    /// Its number.
    pub(super) id: NodeId,
    /// Which process of it: another one each time it starts.
    pub(super) run: u64,
    /// Whether that process takes part already: it has its data, or was added without.
    pub(super) admitted: bool,
    /// One of `node_state::ROLES`.
    pub(super) role: String,
    /// The term it is in.
    pub(super) term: u64,
    /// Whom it takes for the leader.
    pub(super) leader: Option<NodeId>,
    /// Its newest log entry; `None` if it has none.
    pub(super) last_log: Option<u64>,
    /// The newest entry in its table.
    pub(super) applied: u64,
    /// Where clients reach it; empty if it does not know.
    pub(super) url: String,
    /// Its version.
    pub(super) version: String,
    /// A fingerprint of its table, if it was asked for, and the entry after which it was taken.
    pub(super) digest: Option<(u64, String)>,
    /// On a leader, also one that has lost its majority: the newest entry each other node has, and how long ago it was heard (in ms).
    pub(super) others: BTreeMap<NodeId, (Option<u64>, Option<u64>)>,
}

/// The whole cluster, as one node sees it.
#[derive(Debug, Clone, Serialize)]
pub struct ClusterStatus {
    /// The node that was asked.
    pub node: NodeId,
    /// The leader, if there is one.
    pub leader: Option<NodeId>,
    /// Its term.
    pub term: u64,
    /// The version of the asked node's table: which commands and rules hold.
    pub table_version: u32,
    /// All members.
    pub nodes: Vec<MemberStatus>,
}

/// One member.
#[derive(Debug, Clone, Serialize)]
pub struct MemberStatus {
    /// Its number.
    pub id: NodeId,
    /// Where its peers reach it.
    pub address: String,
    /// `leader`, `follower`, `candidate`, `learner`, `stopped` or `unreachable`; `deposed`: an old leader that has not noticed yet.
    pub role: String,
    /// Whether it votes.
    pub voter: bool,
    /// Its newest log entry.
    pub log: Option<u64>,
    /// The newest entry in its table.
    pub applied: Option<u64>,
    /// How many entries it is behind the leader.
    pub lag: Option<u64>,
    /// How long ago the leader last heard of it; without a leader, the asked node if it was the last one.
    pub last_contact_ms: Option<u64>,
    /// Where clients reach it, if it knows.
    pub url: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// The newest table version that it can read, if the asked node has met it.
    pub reads_table_version: Option<u32>,
    /// A fingerprint of its table, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The entry after which that was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest_at: Option<u64>,
}

impl Engine {
    /// This node.
    pub(super) async fn status(&self, digest: bool) -> NodeStatus {
        let digest = match digest {
            false => None,
            true => {
                let shared = self.shared.clone();
                let computed = machine::blocking(move || {
                    let (index, frozen) = {
                        let table = shared.table.read();
                        (shared.applied.load(std::sync::atomic::Ordering::Acquire), table.freeze())
                    };
                    let digest = frozen.digest().iter().map(|byte| format!("{byte:02x}")).collect();
                    (index, digest)
                });
                computed.await.ok()
            }
        };
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let heartbeats = metrics.heartbeat.iter().flatten();
        let heard: BTreeMap<_, _> = heartbeats
            .filter_map(|(id, acked)| Some((*id, acked.as_ref()?.elapsed().as_millis() as u64)))
            .collect();
        let others = metrics.replication.iter().flatten();
        let others = others.map(|(id, matched)| {
            (*id, (matched.as_ref().map(|log_id| log_id.index), heard.get(id).copied()))
        });
        NodeStatus {
            id: metrics.id,
            run: self.in_flight.run(),
            admitted: self.is_admitted(),
            role: self.role_name(metrics.state).into(),
            term: metrics.current_term,
            leader: self.known_leader(),
            last_log: metrics.last_log_index,
            applied: self.shared.applied.load(std::sync::atomic::Ordering::Acquire),
            url: self.url.get().cloned().unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").into(),
            digest,
            others: others.filter(|(id, _)| *id != metrics.id).collect(),
        }
    }

    /// All nodes of the cluster, asked at once.
    pub async fn cluster_status(self: &Arc<Self>, digest: bool) -> ClusterStatus {
        let members = self.members();
        let asked = members.iter().map(|(&id, (address, voter))| async move {
            let answer = match id == self.node_id() {
                true => Some(self.status(digest).await),
                false => {
                    self.peers.know(id, address);
                    match self.peers.ask(id, &Ask::Status { digest }).await {
                        Ok(PeerAnswer::Status(status)) => Some(*status),
                        _ => None,
                    }
                }
            };
            (id, address.clone(), *voter, answer)
        });
        let answers = join_all(asked).await;
        let leading = |status: &&NodeStatus| status.role == "leader";
        let statuses = answers.iter().filter_map(|(.., status)| status.as_ref());
        let leader = statuses.clone().filter(leading).max_by_key(|status| status.term).cloned();
        let asked_node = statuses.clone().find(|status| status.id == self.node_id()).cloned();
        let others = leader.clone().or(asked_node).map(|status| status.others).unwrap_or_default();
        let term = statuses.map(|status| status.term).max().unwrap_or(0);
        let nodes = answers.into_iter().map(|(id, address, voter, status)| {
            let leads = leader.as_ref().is_some_and(|leader| leader.id == id);
            let progress = others.get(&id).copied();
            let log = status.as_ref().and_then(|status| status.last_log);
            let end = leader.as_ref().and_then(|leader| leader.last_log);
            let (matched, heard) = if leads { (end, Some(0)) } else { progress.unwrap_or((None, None)) };
            let known = if status.is_some() { log } else { matched };
            let (digest_at, digest) = status.as_ref().and_then(|status| status.digest.clone()).unzip();
            MemberStatus {
                id,
                address,
                role: status.as_ref().map_or("unreachable".into(), |status| match leads {
                    false if status.role == "leader" => "deposed".into(),
                    _ => status.role.clone(),
                }),
                voter,
                log: known,
                applied: status.as_ref().map(|status| status.applied),
                lag: end.map(|end| end.saturating_sub(known.unwrap_or(0))),
                last_contact_ms: heard,
                url: status.as_ref().map(|status| status.url.clone()).filter(|url| !url.is_empty()),
                version: status.as_ref().map(|status| status.version.clone()),
                reads_table_version: self.reads_table_version(id),
                digest,
                digest_at,
            }
        });
        ClusterStatus {
            node: self.node_id(),
            leader: leader.as_ref().map(|leader| leader.id),
            term,
            table_version: self.table_version(),
            nodes: nodes.collect(),
        }
    }
}
