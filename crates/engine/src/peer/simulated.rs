//! The network between simulated nodes: messages come late, twice, in another order, or not at all.
//!
//! In:    questions, entries and snapshots to a peer; addresses are numbers of nodes. Out: the peer's answers, from a task
//!        of that peer, by the same functions that serve real connections.
//! Never: tells a sender more than a real network would: that no answer came.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use openraft::BasicNode;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::v2::RaftNetworkV2;
use openraft::network::{Backoff, RPCOption, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use tokio::sync::oneshot;

use super::{ANSWER_MAX, Answer, Ask, CHANGE_MAX, Door, PeerError, Peers};
use crate::Engine;
use crate::machine;
use crate::machine::fs;
use crate::machine::simulated::runtime::{current_node, sleep_us, spawn_on};
use crate::machine::simulated::world;
use crate::snapshot_file::{self, SnapshotFile};
use crate::types::{NodeId, TypeConfig, Vote};

type Snapshot = openraft::type_config::alias::SnapshotOf<TypeConfig, SnapshotFile>;
type RpcResult<T> = Result<T, RPCError<TypeConfig>>;

/// How long a sender may take to notice that its connection is gone.
const BREAK_US_MAX: u64 = 3_000_000;

thread_local! {
    /// Nodes that answer.
    static DOORS: RefCell<BTreeMap<NodeId, Arc<Engine>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A node answers its peers from now on.
pub(crate) fn open(engine: &Arc<Engine>, _: Arc<Door>) {
    DOORS.with(|doors| doors.borrow_mut().insert(engine.node_id(), engine.clone()));
}

/// It does no more.
pub(crate) fn close(node: NodeId) {
    let closed = DOORS.with(|doors| doors.borrow_mut().remove(&node));
    drop(closed);
}

fn engine_of(node: NodeId) -> Option<Arc<Engine>> {
    DOORS.with(|doors| doors.borrow().get(&node).cloned())
}

/// Carries a question to a node and its answer back; `None` if no answer came.
async fn carry<A, F, Fut>(to: NodeId, patience: Duration, ask: F) -> Option<A>
where
    A: Send + 'static,
    F: Fn(Arc<Engine>) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = Option<A>> + Send + 'static,
{
    let (answer, answered) = oneshot::channel();
    let from = current_node();
    let passage = world().passage(from, to);
    if let Some(delay_us) = passage.twice_after_us {
        deliver(from, to, delay_us, ask.clone(), None);
    }
    if let Some(delay_us) = passage.after_us {
        deliver(from, to, delay_us, ask, Some(answer));
    } else {
        drop(answer);
    }
    match machine::timeout(patience, answered).await {
        Ok(Ok(answer)) => Some(answer),
        // Lost, or the other end is gone: a connection breaks at some time.
        Ok(Err(_)) => {
            machine::sleep(patience.min(Duration::from_micros(machine::random::<u64>() % BREAK_US_MAX)))
                .await;
            None
        }
        Err(_) => None,
    }
}

fn deliver<A, F, Fut>(from: NodeId, to: NodeId, delay_us: u64, ask: F, answer: Option<oneshot::Sender<A>>)
where
    A: Send + 'static,
    F: Fn(Arc<Engine>) -> Fut + Send + 'static,
    Fut: Future<Output = Option<A>> + Send + 'static,
{
    // On its way it belongs to nobody: neither end's crash takes it off the wire.
    spawn_on(0, async move {
        sleep_us(delay_us).await;
        let Some(engine) = engine_of(to) else { return };
        spawn_on(to, async move {
            let Some(said) = ask(engine).await else { return };
            let back = world().passage(to, from);
            if let (Some(delay_us), Some(answer)) = (back.after_us, answer) {
                spawn_on(0, async move {
                    sleep_us(delay_us).await;
                    answer.send(said).ok();
                });
            }
        });
    });
}

/// Asks the node at an address.
pub(super) fn ask(address: &str, ask: &Ask) -> Asked {
    let time = if matches!(ask, Ask::Change(_) | Ask::Join { .. }) { CHANGE_MAX } else { ANSWER_MAX };
    ask_within(address, ask, time)
}

/// An answer, or none; boxed, since an answer may need another question.
type Asked = Pin<Box<dyn Future<Output = Result<Answer, PeerError>> + Send>>;

fn ask_within(address: &str, ask: &Ask, time: Duration) -> Asked {
    let to = address.parse().unwrap_or(0);
    let (ask, address) = (ask.clone(), address.to_string());
    let question = move |engine: Arc<Engine>| {
        let ask = ask.clone();
        async move { Some(engine.answer_peer(ask).await) }
    };
    Box::pin(async move { carry(to, time, question).await.ok_or(PeerError::TooSlow(address)) })
}

/// Makes the network to each peer.
#[derive(Clone)]
pub(crate) struct PeerNetwork(pub(crate) Arc<Peers>);

/// The network to one peer.
pub(crate) struct ToPeer {
    node: NodeId,
}

impl RaftNetworkFactory<TypeConfig> for PeerNetwork {
    type Network = ToPeer;

    async fn new_client(&mut self, target: NodeId, node: &BasicNode) -> ToPeer {
        self.0.know(target, &node.addr);
        ToPeer { node: target }
    }
}

fn no_answer() -> Unreachable<TypeConfig> {
    Unreachable::new(&io::Error::from(io::ErrorKind::TimedOut))
}

impl ToPeer {
    async fn ask(&self, ask: &Ask, time: Duration) -> RpcResult<Answer> {
        let answer = ask_within(&self.node.to_string(), ask, time).await;
        answer.map_err(|_| RPCError::Unreachable(no_answer()))
    }

    async fn vote_by(&self, ask: Ask, time: Duration) -> RpcResult<VoteResponse<TypeConfig>> {
        match self.ask(&ask, time).await? {
            Answer::Vote(response) => Ok(response),
            _ => Err(RPCError::Unreachable(no_answer())),
        }
    }
}

impl RaftNetworkV2<TypeConfig> for ToPeer {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<TypeConfig>> {
        let ask = move |engine: Arc<Engine>| {
            let rpc = rpc.clone();
            async move {
                if !engine.is_admitted() {
                    return None;
                }
                let answer = engine.raft().append_entries(rpc).await.ok()?;
                // As `serve.rs`: a leader whose entries are taken was heard.
                if matches!(answer, AppendEntriesResponse::Success | AppendEntriesResponse::PartialSuccess(_))
                {
                    engine.table_clock().heard();
                }
                Some(answer)
            }
        };
        let answer = carry(self.node, option.hard_ttl(), ask).await;
        answer.ok_or_else(|| RPCError::Unreachable(no_answer()))
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        self.vote_by(Ask::Vote(rpc), option.soft_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        self.vote_by(Ask::PreVote(rpc), option.soft_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let bytes = fs::read(&snapshot.snapshot.path);
        let bytes = Arc::new(bytes.map_err(|error| StreamingError::Unreachable(Unreachable::new(&error)))?);
        let meta = snapshot.meta.clone();
        let ask = move |engine: Arc<Engine>| {
            let (bytes, meta) = (bytes.clone(), meta.clone());
            async move {
                if !engine.is_admitted() {
                    return None;
                }
                let (path, mut file) = snapshot_file::incoming(&engine.snapshot_dir()).ok()?;
                let written = file.write_all(&bytes).and_then(|()| file.sync_all());
                if written.is_err() {
                    fs::remove_file(&path).ok();
                    return None;
                }
                let snapshot = Snapshot { meta, snapshot: SnapshotFile { path: path.clone() } };
                let installed = engine.raft().install_full_snapshot(vote, snapshot).await;
                fs::remove_file(&path).ok();
                world().count("snapshot-sent");
                installed.ok()
            }
        };
        let answer = carry(self.node, Duration::from_secs(2), ask).await;
        answer.ok_or_else(|| StreamingError::Unreachable(no_answer()))
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<TransferLeaderResponse<TypeConfig>> {
        match self.ask(&Ask::Transfer(req), option.hard_ttl()).await? {
            Answer::Done => Ok(Ok(())),
            _ => Err(RPCError::Unreachable(no_answer())),
        }
    }

    fn backoff(&self) -> Option<Backoff> {
        Some(Backoff::new(std::iter::repeat(Duration::from_millis(100))))
    }
}
