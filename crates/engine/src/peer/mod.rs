//! Node to node: everything that travels between the nodes of a cluster, on a port of its own.
//!
//! In:    questions to a peer ([`Ask`]), entries and snapshots from openraft. Out: their answers.
//! Never: says a word to a stranger: each connection begins with `handshake.rs`, in which both ends prove that they
//!        know the cluster's secret.
//!
//! - `wire.rs`       frames on a stream
//! - `handshake.rs`  who are you, do we speak the same version, do we share a secret
//! - `secret.rs`     what all nodes know
//! - `lobby.rs`      where callers wait who have proved nothing yet
//! - `old_nodes.rs`  which nodes are of version 0.1.0 still
//! - `connect.rs`    makes a connection for one purpose (its [`Lane`])
//! - `pace.rs`       how often a peer that does not answer is called
//! - `link.rs`       questions and answers over one connection, many at a time
//! - `replicate.rs`  openraft's network: entries, votes and snapshots to a peer
//! - `serve.rs`      the other end of all of these

mod connect;
#[cfg(test)]
mod golden;
mod handshake;
mod link;
mod lobby;
mod old_nodes;
mod pace;
mod replicate;
mod secret;
mod serve;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::raft::{TransferLeaderRequest, VoteRequest, VoteResponse};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::EngineError;
use super::entry::Parcel;
use super::status::NodeStatus;
use super::types::{NodeId, TypeConfig};
use crate::machine::Instant;
use crate::membership::MembershipChange;

pub(super) use self::connect::Door;
pub use self::connect::PeerTls;
use self::link::Link;
pub(super) use self::replicate::PeerNetwork;
pub use self::secret::Secret;
pub(super) use self::serve::PeerServer;

/// How long an answer may take. Then the caller asks again, or another node.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// The same where a client waits, and a leader answers at once: a connection from before a cut may never bring the answer. In a
/// cluster with long ways it is [`BEATS`] heartbeats, if these are longer.
const CLIENT_WAITS_MAX: Duration = Duration::from_secs(1);
const BEATS: u32 = 4;
/// A peer that asked so lately has clients who wait for what this leader commits.
const LATELY: Duration = Duration::from_secs(1);
/// How long a change of the members may take: the new one may have to copy the whole table first.
const CHANGE_MAX: Duration = Duration::from_secs(120);

/// What a connection is for. One purpose each, so that a snapshot never stands in the way of a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Lane {
    /// [`Ask`]s and [`PeerAnswer`]s, each under a number.
    Ask,
    /// Entries and heartbeats, and how far they got, in order.
    Append,
    /// One snapshot.
    Snapshot,
}

/// A question to a peer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Ask {
    /// openraft: vote for me.
    Vote(VoteRequest<TypeConfig>),
    /// openraft: would you?
    PreVote(VoteRequest<TypeConfig>),
    /// openraft: lead, please.
    Transfer(TransferLeaderRequest<TypeConfig>),
    /// Take these commands into the log.
    Forward(Parcel),
    /// Up to which entry must I have applied to know everything that has been acknowledged so far?
    Barrier,
    /// How are you?
    Status {
        /// Also a digest of the table: that takes a while.
        digest: bool,
    },
    /// You are added: the cluster no longer relies on what you promised before you lost your data.
    Welcome {
        /// The process that is meant: another one may have lost its data since.
        run: u64,
    },
    /// I have no data: add me (again).
    Join {
        /// Who asks.
        id: NodeId,
        /// Which process of it.
        run: u64,
        /// Where it is reached.
        address: String,
    },
    /// An operator wants other members.
    Change(MembershipChange),
}

/// The answer to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum PeerAnswer {
    Vote(VoteResponse<TypeConfig>),
    Done,
    /// openraft said no.
    Rejected(String),
    /// The commands are, or are not, on their way into the log.
    Taken(Result<(), EngineError>),
    /// This entry, at this time of the table clock.
    Barrier {
        index: u64,
        now_us: u64,
    },
    Status(Box<NodeStatus>),
    /// Ask this one: it leads.
    AskLeader(Option<NodeId>, Option<String>),
    /// It has no data yet, or was not added yet.
    NotReady,
}

/// Why a peer gave no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum PeerError {
    #[error("node {0} is not a member of this cluster")]
    NoMember(NodeId),
    #[error("can't reach {address}: {why}")]
    Unreachable { address: String, why: String },
    #[error("the connection to {0} was lost")]
    Lost(String),
    #[error("{0} did not answer in time")]
    TooSlow(String),
    #[error("{0} gave an unexpected answer")]
    Confused(String),
}

impl PeerError {
    /// Whether the question may have reached the peer.
    pub(super) fn may_have_arrived(&self) -> bool {
        !matches!(self, Self::NoMember(_) | Self::Unreachable { .. })
    }
}

impl PeerAnswer {
    /// Whether a parcel was taken.
    pub(super) fn taken(self) -> Result<Result<(), EngineError>, PeerError> {
        match self {
            Self::Taken(taken) => Ok(taken),
            Self::NotReady => Ok(Err(EngineError::NotLeader)),
            _ => Err(PeerError::Confused("the leader".into())),
        }
    }
}

/// Links to the other nodes, made when they are first needed.
pub(super) struct Peers {
    door: Arc<Door>,
    links: Mutex<BTreeMap<NodeId, Arc<Link>>>,
    /// When a peer last asked this node for something on behalf of a client.
    asked: Mutex<Option<Instant>>,
    /// How long a question on behalf of a client may take.
    client_waits: Duration,
}

impl Peers {
    pub(super) fn new(door: Arc<Door>, heartbeat: Duration) -> Self {
        let client_waits = CLIENT_WAITS_MAX.max(BEATS * heartbeat);
        Self { door, links: Mutex::default(), asked: Mutex::default(), client_waits }
    }

    /// How long a client's question to a leader may take.
    pub(super) fn client_waits(&self) -> Duration {
        self.client_waits
    }

    /// A peer asked for something on behalf of a client.
    fn note_asked(&self) {
        *self.asked.lock() = Some(Instant::now());
    }

    /// Whether clients of peers may be waiting for what this node commits as their leader.
    fn wait_for_us(&self) -> bool {
        self.asked.lock().is_some_and(|asked| asked.elapsed() < LATELY)
    }

    /// Node `id` is at this address from now on.
    pub(super) fn know(&self, id: NodeId, address: &str) {
        self.link(id, address);
    }

    fn known(&self, id: NodeId) -> Option<Arc<Link>> {
        self.links.lock().get(&id).cloned()
    }

    fn link(&self, id: NodeId, address: &str) -> Arc<Link> {
        let mut links = self.links.lock();
        match links.get(&id) {
            Some(link) if link.address() == address => link.clone(),
            _ => {
                self.door.know(id, address);
                let link = Arc::new(Link::new(self.door.clone(), Some(id), address));
                links.insert(id, link.clone());
                link
            }
        }
    }

    /// A member has called: it can be called as well, as far as anybody can tell.
    fn called_by(&self, id: NodeId) {
        if let Some(link) = self.known(id) {
            link.pace().is_there();
        }
    }

    /// Asks a member.
    pub(super) async fn ask(&self, id: NodeId, ask: &Ask) -> Result<PeerAnswer, PeerError> {
        let link = self.known(id);
        let time = match ask {
            Ask::Change(_) | Ask::Join { .. } => CHANGE_MAX,
            Ask::Forward(_) | Ask::Barrier => self.client_waits,
            _ => ANSWER_MAX,
        };
        link.ok_or(PeerError::NoMember(id))?.ask(ask, time).await
    }

    /// Asks the node at an address, whichever it is.
    pub(super) async fn ask_at(&self, address: &str, ask: &Ask) -> Result<PeerAnswer, PeerError> {
        let time = if matches!(ask, Ask::Join { .. } | Ask::Change(_)) { CHANGE_MAX } else { ANSWER_MAX };
        Link::new(self.door.clone(), None, address).ask(ask, time).await
    }
}
