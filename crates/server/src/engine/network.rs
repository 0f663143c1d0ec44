//! The network between nodes. A cluster of one has none.
//!
//! In:    openraft's messages for peers. Out: nothing yet: every peer is unreachable.
//! Never: reached in a cluster of one; it stands here so that more nodes are a network away, not a rewrite.

use std::future::Future;
use std::io;

use openraft::error::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::v2::RaftNetworkV2;
use openraft::network::{RPCOption, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};

use super::snapshot_file::SnapshotFile;
use super::types::{NodeId, TypeConfig, Vote};

type Snapshot = openraft::type_config::alias::SnapshotOf<TypeConfig, SnapshotFile>;

/// Makes a connection for each peer.
#[derive(Debug, Default)]
pub(super) struct NoPeers;

impl RaftNetworkFactory<TypeConfig> for NoPeers {
    type Network = Self;

    async fn new_client(&mut self, _target: NodeId, _node: &openraft::impls::BasicNode) -> Self {
        Self
    }
}

fn unreachable() -> Unreachable<TypeConfig> {
    Unreachable::new(&io::Error::other("this node is a cluster of one"))
}

impl RaftNetworkV2<TypeConfig> for NoPeers {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(unreachable()))
    }

    async fn vote(
        &mut self,
        _rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(unreachable()))
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: Snapshot,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        Err(StreamingError::Unreachable(unreachable()))
    }
}
