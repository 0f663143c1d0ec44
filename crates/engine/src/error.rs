//! Why the engine did not do what it was asked for.
//!
//! In:    what went wrong, anywhere in the engine. Out: one reason, which says whether anything happened.
//! Never: an answer of the table: that is an `Outcome`, and the same on every node.

use serde::{Deserialize, Serialize};

use crate::data_dir::DataDirError;
use crate::types::NodeId;
use crate::wal::WalError;

/// Why the engine gave no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum EngineError {
    /// Nothing happened: there is no leader.
    #[error("no node leads now: a majority of the nodes must be up and reach each other")]
    NotLeader,
    /// Nothing happened: too much waits already.
    #[error("too many commands are waiting: try again, more slowly")]
    Overloaded,
    /// Nothing happened: there is no room in the log. It travels between nodes, so it has no figures; a node tells its own
    /// in [`crate::node_state::NodeState::no_room`].
    #[error(
        "the disk of the data directory is full: free space there; the node's log and /readyz say how much"
    )]
    DiskFull,
    /// Nothing happened: the node is shutting down.
    #[error("this node is shutting down: try another one")]
    Stopping,
    /// It may have happened, or may yet: ask again under the same id.
    #[error("the outcome is unknown: the answer was lost")]
    Unknown,
    // New ones come last: nodes of other versions know the others by their places.
    /// Nothing happened: it needs a newer table version, and this member can't read it.
    #[error("node {node} runs version {version}, which is too old for this: upgrade that node")]
    MemberTooOld {
        /// The member.
        node: NodeId,
        /// The release that it runs.
        version: String,
    },
    /// Nothing happened: it needs a newer table version, and this member may be too old to read it.
    #[error(
        "this needs every node of the cluster to be upgraded; the version of node {node} is unknown, since it \
         does not answer"
    )]
    MemberAway {
        /// The member.
        node: NodeId,
    },
    /// Nothing happened: it needs a newer table version, which is being raised.
    #[error("the last node was upgraded just now: try again in a moment")]
    Upgrading,
    /// Nothing happened: there is no memory for a larger table.
    #[error(
        "this node's memory is full: it accepts only changes that need no more of it, such as renewals and releases"
    )]
    MemoryFull,
    /// Nothing happened: the command could not be sent towards the log in time.
    #[error("commands do not get through from this node: try another one")]
    TooSlow,
}

impl EngineError {
    /// Whether it is certain that nothing happened.
    pub fn is_certain(&self) -> bool {
        *self != Self::Unknown
    }
}

/// Why an engine can't start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The data directory can't be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The log can't be read.
    #[error(transparent)]
    Log(#[from] WalError),
    /// A snapshot can't be read, or a file not be made.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// openraft does not start.
    #[error("the node can't start: {0}")]
    Raft(String),
}
