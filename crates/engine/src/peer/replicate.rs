//! openraft's network: entries, votes and snapshots to one peer.
//!
//! In:    openraft's messages. Out: the peer's answers.
//! Never: waits for a peer that shows no sign of life, or calls it without a pause; entries travel one behind the other
//!        without waiting for the answer to each. A vote has a connection of its own.

use std::future::Future;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::Fuse;
use futures_util::{Stream as Items, StreamExt, stream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::v2::RaftNetworkV2;
use openraft::network::{Backoff, RPCOption, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, OptionalSend};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc};

use super::link::Link;
use super::wire::{FRAME_MAX, PIECE_LEN, Stream, frame, frame_of, receive};
use super::{Ask, Lane, PeerAnswer, PeerError, Peers};
use crate::encoding::append_after;
use crate::machine::{self, Instant, StopOnDrop, fs};
use crate::snapshot_file::SnapshotFile;
use crate::types::{NodeId, TypeConfig, Vote};

type Snapshot = openraft::type_config::alias::SnapshotOf<TypeConfig, SnapshotFile>;
type RpcResult<T> = Result<T, RPCError<TypeConfig>>;
type Appended = RpcResult<StreamAppendResult<TypeConfig>>;

/// Requests on their way to a peer at once; more wait for answers.
const PIPELINE: usize = 16;
/// How long a request without entries, which only tells what is committed, may wait for one with entries that tells it
/// as well. Without this a busy leader would send every peer two requests an entry.
const MARK_WAIT: Duration = Duration::from_millis(1);

/// Makes the network to each peer.
#[derive(Clone)]
pub(crate) struct PeerNetwork(pub(crate) Arc<Peers>);

/// The network to one peer, for one of openraft's tasks.
pub(crate) struct ToPeer {
    peers: Arc<Peers>,
    target: NodeId,
    address: String,
    /// The connection for entries, while it is clean: every request on it has its answer.
    lane: Arc<Mutex<Option<Stream>>>,
}

impl RaftNetworkFactory<TypeConfig> for PeerNetwork {
    type Network = ToPeer;

    async fn new_client(&mut self, target: NodeId, node: &BasicNode) -> ToPeer {
        self.0.know(target, &node.addr);
        ToPeer { peers: self.0.clone(), target, address: node.addr.clone(), lane: Arc::default() }
    }
}

fn unreachable(error: &(impl std::error::Error + 'static)) -> Unreachable<TypeConfig> {
    Unreachable::new(error)
}

impl ToPeer {
    /// The way to the peer as it is known now: openraft keeps this network when the peer's address changes.
    fn link(&self) -> Arc<Link> {
        self.peers.known(self.target).unwrap_or_else(|| self.peers.link(self.target, &self.address))
    }

    async fn ask(&self, ask: &Ask, time: Duration) -> RpcResult<PeerAnswer> {
        self.link().ask(ask, time).await.map_err(|error| RPCError::Unreachable(unreachable(&error)))
    }

    fn confused<T>(&self) -> RpcResult<T> {
        let error = PeerError::Confused(self.address.clone());
        Err(RPCError::Unreachable(unreachable(&error)))
    }

    async fn vote_by(&self, ask: Ask, time: Duration) -> RpcResult<VoteResponse<TypeConfig>> {
        let asked = self.link().ask_apart(&ask, time).await;
        match asked.map_err(|error| RPCError::Unreachable(unreachable(&error)))? {
            PeerAnswer::Vote(response) => Ok(response),
            _ => self.confused(),
        }
    }

    async fn send_snapshot(
        &self,
        vote: Vote,
        snapshot: Snapshot,
    ) -> io::Result<SnapshotResponse<TypeConfig>> {
        let link = self.link();
        let stream = link.call_for(Lane::Snapshot).await?;
        tokio::select! {
            biased;
            sent = send_snapshot_on(stream, vote, snapshot) => sent,
            // A slow disk may take its time, so a silent connection is not given up soon. But one from before a cut would
            // keep the peer waiting for as long.
            () = link.pace().is_back() => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

async fn send_snapshot_on(
    mut stream: Stream,
    vote: Vote,
    snapshot: Snapshot,
) -> io::Result<SnapshotResponse<TypeConfig>> {
    let path = snapshot.snapshot.path;
    let open = move || fs::open_whole(&path).and_then(|file| Ok((fs::file_len(&file)?, file)));
    let (len, mut file) = machine::blocking(open).await??;
    stream.write_all(&frame(&(vote, &snapshot.meta, len))?).await?;
    loop {
        let mut piece = Vec::with_capacity(PIECE_LEN);
        let read = move || (&mut file).take(PIECE_LEN as u64).read_to_end(&mut piece).map(|_| (file, piece));
        let (back, piece) = machine::blocking(read).await??;
        if piece.is_empty() {
            break;
        }
        stream.write_all(&piece).await?;
        file = back;
    }
    stream.flush().await?;
    receive(&mut stream, FRAME_MAX).await
}

impl RaftNetworkV2<TypeConfig> for ToPeer {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<TypeConfig>> {
        let mut answers = self.stream_append(stream::iter([rpc]), option).await?;
        match answers.next().await {
            Some(answer) => answer.map(AppendEntriesResponse::from),
            None => {
                let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                Err(RPCError::Network(NetworkError::new(&error)))
            }
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> Pin<Box<dyn Future<Output = RpcResult<Pin<Box<dyn Items<Item = Appended> + Send + 's>>>> + Send + 's>>
    where
        S: Items<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            // A peer that is there answers well within the time after which it would look for another leader.
            let patience = option.hard_ttl() * 3 / 2;
            let (answers, answered) = mpsc::channel(PIPELINE);
            let requests = Requests { input: input.fuse(), peers: self.peers.clone() };
            let to = Destination { link: self.link(), home: self.lane.clone(), patience };
            // With it goes the connection.
            let flow = machine::spawn(to.flow(requests, answers));
            let answers = stream::unfold((answered, StopOnDrop(flow)), |(mut answered, flow)| async move {
                let answer = answered.recv().await?;
                Some((answer, (answered, flow)))
            });
            Ok(Box::pin(answers) as Pin<Box<dyn Items<Item = Appended> + Send + 's>>)
        })
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
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        tokio::select! {
            biased;
            sent = self.send_snapshot(vote, snapshot) => {
                sent.map_err(|error| StreamingError::Unreachable(unreachable(&error)))
            }
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<TransferLeaderResponse<TypeConfig>> {
        match self.ask(&Ask::Transfer(req), option.hard_ttl()).await? {
            PeerAnswer::Done => Ok(Ok(())),
            PeerAnswer::Rejected(why) => {
                let error = io::Error::other(why);
                Err(RPCError::Unreachable(unreachable(&error)))
            }
            _ => self.confused(),
        }
    }

    /// A node that comes back is noticed within a heartbeat or two.
    fn backoff(&self) -> Option<Backoff> {
        Some(Backoff::new(std::iter::repeat(Duration::from_millis(100))))
    }
}

/// openraft's requests, those that tell nothing of their own left out.
struct Requests<S> {
    input: Fuse<S>,
    peers: Arc<Peers>,
}

impl<S> Requests<S>
where
    S: Items<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin,
{
    async fn next(&mut self) -> Option<AppendEntriesRequest<TypeConfig>> {
        let mut request = self.input.next().await?;
        let until = Instant::now() + MARK_WAIT;
        // Whoever waits on a peer for what is committed must not wait for more entries.
        while request.entries.is_empty() && !self.peers.wait_for_us() {
            match machine::timeout_at(until, self.input.next()).await {
                // Each request tells all that is committed by then.
                Ok(Some(later)) => request = later,
                Ok(None) | Err(_) => break,
            }
        }
        Some(request)
    }
}

/// Where requests go.
struct Destination {
    link: Arc<Link>,
    /// Where a clean connection is kept.
    home: Arc<Mutex<Option<Stream>>>,
    /// How long an answer may take.
    patience: Duration,
}

impl Destination {
    /// Requests out, answers in. The peer is called when there is something to send, and not before: openraft pauses
    /// between requests to a peer that can't be reached, and takes the answer to none as "try again".
    async fn flow<S>(self, mut requests: Requests<S>, answers: mpsc::Sender<Appended>)
    where
        S: Items<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin,
    {
        let Some(first) = requests.next().await else { return };
        let clean = self.home.lock().take();
        let lane = match clean {
            Some(lane) => Ok(lane),
            None => self.link.call_for(Lane::Append).await,
        };
        let flowed = match lane {
            Ok(lane) => flow(lane, first, requests, &answers, &self).await,
            Err(error) => Err(error),
        };
        if let Err(error) = flowed {
            answers.send(Err(RPCError::Unreachable(unreachable(&error)))).await.ok();
        }
    }
}

/// Requests out, answers in, each behind the other. At the end of the requests a clean connection goes home.
async fn flow<S>(
    lane: Stream,
    first: AppendEntriesRequest<TypeConfig>,
    mut requests: Requests<S>,
    answers: &mpsc::Sender<Appended>,
    to: &Destination,
) -> io::Result<()>
where
    S: Items<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin,
{
    let (mut reader, mut writer) = tokio::io::split(lane);
    let (sent, received) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (asked, moved) = (Notify::new(), Notify::new());
    let write = async {
        let mut next = Some(first);
        while let Some(request) = next {
            sent.fetch_add(1, Ordering::AcqRel);
            asked.notify_one();
            writer.write_all(&frame_of(|head| append_after(head, &request))?).await?;
            writer.flush().await?;
            next = requests.next().await;
        }
        while received.load(Ordering::Acquire) < sent.load(Ordering::Acquire) {
            moved.notified().await;
        }
        io::Result::Ok(())
    };
    let read = async {
        loop {
            let answer: StreamAppendResult<TypeConfig> = receive(&mut reader, FRAME_MAX).await?;
            let last = answer.is_err();
            let delivered = answers.send(Ok(answer)).await;
            received.fetch_add(1, Ordering::AcqRel);
            moved.notify_one();
            if last || delivered.is_err() {
                // The peer stops at an error, and so does openraft: this connection is of no more use.
                return io::Result::Ok(());
            }
        }
    };
    let watch = async {
        loop {
            let before = received.load(Ordering::Acquire);
            if sent.load(Ordering::Acquire) == before {
                // Without a timer: nearly all connections are idle.
                asked.notified().await;
                continue;
            }
            machine::sleep(to.patience).await;
            if received.load(Ordering::Acquire) == before {
                return io::Error::from(io::ErrorKind::TimedOut);
            }
        }
    };
    tokio::select! {
        biased;
        written = write => written?,
        read = read => return read,
        error = watch => return Err(error),
    }
    *to.home.lock() = Some(reader.unsplit(writer));
    Ok(())
}
