//! The types that openraft is built with: the one place where its generics are spelled out.
//!
//! In:    nothing. Out: aliases for the rest of the engine.
//! Never: known outside this crate: an upgrade of openraft touches nothing else.

use std::sync::Arc;

use openraft::RaftTypeConfig;
use openraft::raft::responder::Responder;

use super::entry::Proposal;

/// One node's number in its cluster.
pub type NodeId = u64;

/// Leasehold's raft: entries are parcels of commands. Their outcomes take another way (`in_flight.rs`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeConfig;

impl RaftTypeConfig for TypeConfig {
    // Entries are cloned into the log's cache, replication and apply: cheap, since it is one pointer.
    type D = Arc<Proposal>;
    type R = ();
    type NodeId = NodeId;
    type Node = openraft::impls::BasicNode;
    type Term = u64;
    type LeaderId = LeaderId;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Self::D, Self::NodeId, Self::Node>;
    type Entry = openraft::Entry<Self::LeaderId, Self::Payload>;
    type AsyncRuntime = crate::machine::Runtime;
    type Responder<T>
        = Callback<T>
    where
        T: Send + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: Send + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// Called with the result of a write, on the task that applied it: no task and no channel in between.
///
/// Dropped without a call, the outcome of the write is unknown.
pub struct Callback<T>(pub Box<dyn FnOnce(T) + Send>);

impl<T: Send + 'static> Responder<TypeConfig, T> for Callback<T> {
    fn on_complete(self, result: T) {
        (self.0)(result);
    }
}

pub(super) type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, NodeId>;
pub(super) type Entry = openraft::type_config::alias::EntryOf<TypeConfig>;
pub(super) type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
pub(super) type Vote = openraft::type_config::alias::VoteOf<TypeConfig>;
pub(super) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;
pub(super) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
pub(super) type WriteResult = openraft::raft::ClientWriteResult<TypeConfig>;
pub(super) type Raft = openraft::Raft<TypeConfig, super::state_machine::StateMachine>;
