//! The state of this node, for metrics and probes.
//!
//! In:    openraft's metrics and the log, at the moment of asking. Out: plain numbers.
//! Never: asks another node, or waits for a change of openraft's metrics: they change with every entry.

use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;

use super::Engine;
use super::leadership::Role;
use super::types::NodeId;
use super::wal::{NoRoom, Room};

/// The state of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// Its number.
    pub id: NodeId,
    /// `leader`, `follower`, `learner`, `candidate` or `stopped`.
    pub role: &'static str,
    /// The leader, as far as this node knows.
    pub leader: Option<NodeId>,
    /// The term.
    pub term: u64,
    /// The newest entry in its log.
    pub last_log: u64,
    /// The newest entry in its table.
    pub applied: u64,
    /// The newest entry in a snapshot.
    pub snapshot: u64,
    /// On the leader: every other member, and how many entries it is behind.
    pub lags: Vec<(NodeId, u64)>,
    /// Bytes of entries in the log.
    pub log_bytes: u64,
    /// Whether the log has room for what clients ask.
    pub has_room: bool,
    /// What its disk lacks, if that is known.
    pub no_room: Option<NoRoom>,
    /// How long the disk has been hanging, if it is.
    pub disk_hangs: Option<Duration>,
    /// Why the node can't go on, if so.
    pub fatal: Option<String>,
}

/// A disk hangs if one write takes longer than this.
const DISK_HANGS_AFTER: Duration = Duration::from_secs(1);
/// The engine's thread gets no new connections when it has waited for its disk for longer than this.
const MAY_BE_STUCK_AFTER: Duration = Duration::from_millis(50);

/// The roles there are, as [`NodeState::role`] names them.
pub const ROLES: [&str; 5] = ["leader", "follower", "learner", "candidate", "stopped"];

impl Engine {
    /// The state of this node now.
    pub fn node_state(&self) -> NodeState {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let last_log = metrics.last_log_index.unwrap_or(0);
        let behind = |matched: &Option<super::types::LogId>| {
            last_log.saturating_sub(matched.as_ref().map_or(0, |log_id| log_id.index))
        };
        let lags = metrics.replication.iter().flatten().filter(|(id, _)| **id != metrics.id);
        NodeState {
            id: metrics.id,
            role: self.role_name(metrics.state),
            leader: self.known_leader(),
            term: metrics.current_term,
            last_log,
            applied: metrics.last_applied.as_ref().map_or(0, |log_id| log_id.index),
            snapshot: metrics.snapshot.as_ref().map_or(0, |log_id| log_id.index),
            lags: lags.map(|(id, matched)| (*id, behind(matched))).collect(),
            log_bytes: self.log.wal().log_bytes(),
            has_room: self.log.wal().room() != Room::Low,
            no_room: self.log.wal().no_room(),
            disk_hangs: self.disk_hangs(),
            fatal: metrics.running_state.as_ref().err().map(|fatal| crate::plain_words(&fatal.to_string())),
        }
    }

    /// How long the disk has been at work on one write, if it hangs.
    pub fn disk_hangs(&self) -> Option<Duration> {
        self.log.wal().writing_for().filter(|length| *length > DISK_HANGS_AFTER)
    }

    /// Whether the engine's thread may be waiting for its disk. Then it serves no connection.
    pub fn may_be_stuck(&self) -> bool {
        self.log.wal().writing_for().is_some_and(|length| length > MAY_BE_STUCK_AFTER)
    }

    /// Returns when the engine's thread has run a task: proof that it is not stuck.
    pub async fn answers(&self) {
        self.thread.spawn(async {}).await.ok();
    }

    /// One of [`ROLES`]. openraft calls a node leader until it hears of another one. To its clients it is a candidate from
    /// the moment that it misses its majority, and until it has confirmed that it has one. A node that was added is a learner
    /// until it knows that it is a voter: an operator who removed it earlier would see it come back.
    pub(super) fn role_name(&self, state: ServerState) -> &'static str {
        match state {
            ServerState::Leader if self.leads() => "leader",
            ServerState::Leader | ServerState::Candidate => "candidate",
            ServerState::Learner => "learner",
            ServerState::Follower if self.joining.load(Ordering::Acquire) => "learner",
            ServerState::Follower => "follower",
            ServerState::Shutdown => "stopped",
        }
    }

    /// The newest entry in this node's log, from the log itself: openraft's metrics come a moment later.
    pub fn log_end(&self) -> u64 {
        self.log.end()
    }

    /// Whether this node knows that it was removed from its cluster. A removed node does not rejoin by itself.
    /// Its log may end with the first half of the removal, in which it is still named and no longer votes.
    pub fn is_removed(&self) -> bool {
        let members = self.members();
        let votes = members.get(&self.node).is_some_and(|(_, votes)| *votes);
        !self.joining.load(Ordering::Acquire) && !members.is_empty() && !votes
    }

    /// Whether this node leads.
    pub fn leads(&self) -> bool {
        matches!(self.leadership.role(), Role::Leads { .. })
    }
}
