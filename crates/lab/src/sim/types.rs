//! The types that openraft is built with in the simulation: the service's own entries, another runtime.
//!
//! In:    nothing. Out: aliases.

use std::sync::Arc;

use leasehold_server::engine::entry::Proposal;
use openraft::RaftTypeConfig;

use super::runtime::SimRuntime;

/// As `engine/types.rs` of the server, in simulated time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SimConfig;

impl RaftTypeConfig for SimConfig {
    type D = Arc<Proposal>;
    type R = ();
    type NodeId = u64;
    type Node = openraft::impls::BasicNode;
    type Term = u64;
    type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Self::D, Self::NodeId, Self::Node>;
    type Entry = openraft::Entry<Self::LeaderId, Self::Payload>;
    type AsyncRuntime = SimRuntime;
    type Responder<T>
        = openraft::impls::OneshotResponder<Self, T>
    where
        T: Send + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: Send + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub(super) type Entry = openraft::type_config::alias::EntryOf<SimConfig>;
pub(super) type LogId = openraft::type_config::alias::LogIdOf<SimConfig>;
pub(super) type Vote = openraft::type_config::alias::VoteOf<SimConfig>;
pub(super) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<SimConfig>;
pub(super) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<SimConfig>;
pub(super) type Snapshot = openraft::type_config::alias::SnapshotOf<SimConfig, Vec<u8>>;
pub(super) type Raft = openraft::Raft<SimConfig, super::machine::Machine>;
