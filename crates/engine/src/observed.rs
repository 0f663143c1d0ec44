//! What a node knows of itself at once, without asking anyone: for metrics and probes.
//!
//! In:    openraft's metrics and the log, at the moment of asking. Out: plain numbers.
//! Never: waits for a change of openraft's metrics: they change with every entry, and whoever waits pays for each.

use std::time::Duration;

use openraft::async_runtime::WatchReceiver;

use super::Engine;
use super::leadership::Role;
use super::types::NodeId;
use super::wal::Room;

/// A node as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Its number.
    pub id: NodeId,
    /// `leader`, `follower`, `learner`, `candidate` or `stopped`.
    pub role: &'static str,
    /// Who leads, as far as it knows.
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
    /// For how long the disk has not answered, if that is long.
    pub disk_hangs: Option<Duration>,
    /// Why the node can't go on, if so.
    pub fatal: Option<String>,
}

/// A disk that takes longer for one write hangs.
const DISK_HANGS_AFTER: Duration = Duration::from_secs(1);
/// New connections are not given to the engine's thread while it waits for its disk for longer than this.
const MAY_BE_STUCK_AFTER: Duration = Duration::from_millis(50);

/// The roles there are, as [`Observed::role`] names them.
pub const ROLES: [&str; 5] = ["leader", "follower", "learner", "candidate", "stopped"];

impl Engine {
    /// What this node knows.
    pub fn observed(&self) -> Observed {
        use openraft::ServerState as State;
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let last_log = metrics.last_log_index.unwrap_or(0);
        let role = match metrics.state {
            State::Leader => "leader",
            State::Follower => "follower",
            State::Learner => "learner",
            State::Candidate => "candidate",
            State::Shutdown => "stopped",
        };
        let behind = |matched: &Option<super::types::LogId>| {
            last_log.saturating_sub(matched.as_ref().map_or(0, |log_id| log_id.index))
        };
        let lags = metrics.replication.iter().flatten().filter(|(id, _)| **id != metrics.id);
        Observed {
            id: metrics.id,
            role,
            leader: metrics.current_leader,
            term: metrics.current_term,
            last_log,
            applied: metrics.last_applied.as_ref().map_or(0, |log_id| log_id.index),
            snapshot: metrics.snapshot.as_ref().map_or(0, |log_id| log_id.index),
            lags: lags.map(|(id, matched)| (*id, behind(matched))).collect(),
            log_bytes: self.log.wal().log_bytes(),
            has_room: self.log.wal().room() != Room::Low,
            disk_hangs: self.disk_hangs(),
            fatal: metrics.running_state.as_ref().err().map(ToString::to_string),
        }
    }

    /// For how long the disk has been at work on one write, if that is so long that this node can't be counted on.
    pub fn disk_hangs(&self) -> Option<Duration> {
        self.log.wal().writing_for().filter(|length| *length > DISK_HANGS_AFTER)
    }

    /// Whether the engine's thread may be waiting for its disk: then it serves nobody.
    pub fn may_be_stuck(&self) -> bool {
        self.log.wal().writing_for().is_some_and(|length| length > MAY_BE_STUCK_AFTER)
    }

    /// Returns when the engine's thread has come round to it.
    pub async fn answers(&self) {
        self.thread.spawn(async {}).await.ok();
    }

    /// Whether this node leads.
    pub fn leads(&self) -> bool {
        matches!(self.leadership.role(), Role::Leads { .. })
    }
}
