//! A simulated network: messages come late, twice, in another order, or not at all.
//!
//! In:    openraft's messages and the nodes' own. Out: the same at the other node, in a task of that node.
//! Never: tells a sender more than a real network would: that no answer came.

use std::future::Future;
use std::io;
use std::time::Duration;

use openraft::BasicNode;
use openraft::async_runtime::AsyncRuntime;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::v2::RaftNetworkV2;
use openraft::network::{Backoff, RPCOption, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use tokio::sync::oneshot;

use super::runtime::{self, SimRuntime, sleep_us};
use super::types::{Raft, SimConfig, Snapshot, Vote};
use super::world;

/// Carries a question to a node and its answer back; `None` if no answer came.
pub(super) async fn carry<A, F, Fut>(from: u64, to: u64, patience: Duration, ask: F) -> Option<A>
where
    A: Send + 'static,
    F: Fn(Raft) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = Option<A>> + Send + 'static,
{
    let (answer, answered) = oneshot::channel();
    let passage = world::passage(from, to);
    if let Some(delay_us) = passage.twice_after_us {
        deliver(from, to, delay_us, ask.clone(), None);
    }
    if let Some(delay_us) = passage.after_us {
        deliver(from, to, delay_us, ask, Some(answer));
    }
    match SimRuntime::timeout(patience, answered).await {
        Ok(Ok(answer)) => Some(answer),
        // Lost: the sender notices by the clock alone.
        Ok(Err(_)) => {
            sleep_us(patience.as_micros() as u64).await;
            None
        }
        Err(_) => None,
    }
}

fn deliver<A, F, Fut>(from: u64, to: u64, delay_us: u64, ask: F, answer: Option<oneshot::Sender<A>>)
where
    A: Send + 'static,
    F: Fn(Raft) -> Fut + Send + 'static,
    Fut: Future<Output = Option<A>> + Send + 'static,
{
    // On its way it belongs to nobody: neither end's crash takes it off the wire.
    runtime::spawn_on(0, async move {
        sleep_us(delay_us).await;
        let Some(raft) = world::raft_of(to) else { return };
        runtime::spawn_on(to, async move {
            let Some(said) = ask(raft).await else { return };
            let back = world::passage(to, from);
            if let (Some(delay_us), Some(answer)) = (back.after_us, answer) {
                runtime::spawn_on(0, async move {
                    sleep_us(delay_us).await;
                    answer.send(said).ok();
                });
            }
        });
    });
}

/// Makes the network of one node.
#[derive(Clone)]
pub(super) struct Network(pub(super) u64);

/// The network from one node to another.
pub(super) struct Link {
    from: u64,
    to: u64,
}

impl RaftNetworkFactory<SimConfig> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, _: &BasicNode) -> Link {
        Link { from: self.0, to: target }
    }
}

fn no_answer() -> Unreachable<SimConfig> {
    Unreachable::new(&io::Error::from(io::ErrorKind::TimedOut))
}

impl RaftNetworkV2<SimConfig> for Link {
    type SnapshotData = Vec<u8>;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<SimConfig>, RPCError<SimConfig>> {
        let ask = move |raft: Raft| {
            let rpc = rpc.clone();
            async move { raft.append_entries(rpc).await.ok() }
        };
        let answer = carry(self.from, self.to, option.hard_ttl(), ask).await;
        answer.ok_or_else(|| RPCError::Unreachable(no_answer()))
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<SimConfig>, RPCError<SimConfig>> {
        let ask = move |raft: Raft| {
            let rpc = rpc.clone();
            async move { raft.vote(rpc).await.ok() }
        };
        let answer = carry(self.from, self.to, option.hard_ttl(), ask).await;
        answer.ok_or_else(|| RPCError::Unreachable(no_answer()))
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<SimConfig>, RPCError<SimConfig>> {
        let ask = move |raft: Raft| {
            let rpc = rpc.clone();
            async move { raft.pre_vote(rpc).await.ok() }
        };
        let answer = carry(self.from, self.to, option.hard_ttl(), ask).await;
        answer.ok_or_else(|| RPCError::Unreachable(no_answer()))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<SimConfig>, StreamingError<SimConfig>> {
        let ask = move |raft: Raft| {
            let snapshot = Snapshot { meta: snapshot.meta.clone(), snapshot: snapshot.snapshot.clone() };
            async move { raft.install_full_snapshot(vote, snapshot).await.ok() }
        };
        let answer = carry(self.from, self.to, Duration::from_secs(2), ask).await;
        answer.ok_or_else(|| StreamingError::Unreachable(no_answer()))
    }

    fn backoff(&self) -> Option<Backoff> {
        Some(Backoff::new(std::iter::repeat(Duration::from_millis(100))))
    }
}
