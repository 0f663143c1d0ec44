//! The other end: what peers ask of this node.
//!
//! In:    connections on the peer port. Out: openraft's and the engine's answers.
//! Never: lets a stranger past the handshake, or strangers keep a node waiting (`lobby.rs`); and while this node has not been let into its
//!        cluster (again), never votes or takes entries: it does not remember what it promised before.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf};
use tokio::sync::{Semaphore, mpsc};

use super::wire::{FRAME_MAX, PIECE_LEN, Stream, frame, receive, receive_bytes, send};
use super::{Ask, Door, Lane, PeerAnswer, lobby};
use crate::Engine;
use crate::encoding::append_from;
use crate::machine::net::{TcpListener, TcpStream};
use crate::machine::{self, Instant, fs};
use crate::membership::ChangeError;
use crate::snapshot_file::{self, SnapshotFile};
use crate::types::{NodeId, SnapshotMeta, TypeConfig, Vote};

/// How often the log tells of callers that were turned away.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// Connections of peers at once. Each peer needs five.
const CONNECTIONS_MAX: usize = 256;
/// Questions of one peer that are being answered at once.
const ANSWERING_MAX: usize = 256;

/// Answers peers until the node stops.
pub(crate) struct PeerServer {
    pub(crate) engine: Arc<Engine>,
    pub(crate) door: Arc<Door>,
}

/// Callers that were turned away: a stranger decides how many, and not how long the log gets.
#[derive(Default)]
struct TurnedAway(Mutex<(Option<Instant>, u64)>);

impl TurnedAway {
    fn count(&self, caller: SocketAddr, error: &io::Error) {
        let mut seen = self.0.lock();
        seen.1 += 1;
        if seen.0.is_none_or(|last| last.elapsed() >= TELL_EVERY) {
            let count = std::mem::take(&mut seen.1);
            seen.0 = Some(Instant::now());
            tracing::warn!(%caller, %error, count, "callers on the peer port were turned away; this was the last");
        }
    }
}

impl PeerServer {
    pub(crate) async fn run(self: Arc<Self>, listener: TcpListener) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let turned_away = Arc::new(TurnedAway::default());
        loop {
            match listener.accept().await {
                Ok((tcp, caller)) => {
                    let (server, places, turned_away) = (self.clone(), places.clone(), turned_away.clone());
                    let lobby = self.door.lobby.enter(caller.ip());
                    machine::spawn(async move {
                        match server.let_in(tcp, lobby).await {
                            Ok((stream, node, lane)) => {
                                let Ok(_place) = places.try_acquire() else {
                                    tracing::warn!(
                                        node,
                                        "a connection of node {node} was refused: {CONNECTIONS_MAX} connections of peers are open"
                                    );
                                    return;
                                };
                                server.serve(stream, node, lane).await;
                            }
                            // A node that stops, or is killed, hangs up in the middle of its greeting.
                            Err(error)
                                if error.kind() == io::ErrorKind::UnexpectedEof
                                    && server.door.lobby.knows(caller.ip()) => {}
                            Err(error) => turned_away.count(caller, &error),
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection of a peer could not be accepted; trying again");
                    machine::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// The handshake, unless the caller's place in the lobby goes to a newer one first.
    async fn let_in(
        &self,
        tcp: TcpStream,
        mut place: lobby::LobbyPlace,
    ) -> io::Result<(Stream, NodeId, Lane)> {
        let known = tokio::select! {
            biased;
            known = self.door.answer(tcp) => known?,
            () = place.thrown_out() => {
                return Err(io::Error::other("it had not proved who it is when a newer caller needed its place"));
            }
        };
        place.is_node();
        Ok(known)
    }

    async fn serve(self: Arc<Self>, stream: Stream, node: NodeId, lane: Lane) {
        self.engine.peers.called_by(node);
        let ended = match lane {
            Lane::Ask => self.answer(stream).await,
            Lane::Append => self.append(stream, node).await,
            Lane::Snapshot => self.snapshot(stream).await,
        };
        if let Err(error) = ended
            && error.kind() != io::ErrorKind::UnexpectedEof
        {
            tracing::debug!(node, ?lane, %error, "a connection of a peer ended");
        }
    }

    async fn answer(self: Arc<Self>, stream: Stream) -> io::Result<()> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let (answers, mut outgoing) = mpsc::channel::<Vec<u8>>(ANSWERING_MAX);
        let write = async {
            while let Some(bytes) = outgoing.recv().await {
                writer.write_all(&bytes).await?;
                writer.flush().await?;
            }
            io::Result::Ok(())
        };
        let read = async {
            let places = Arc::new(Semaphore::new(ANSWERING_MAX));
            loop {
                let (number, ask): (u64, Ask) = receive(&mut reader, FRAME_MAX).await?;
                let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
                let (server, answers) = (self.clone(), answers.clone());
                machine::spawn(async move {
                    let answer = server.engine.answer_peer(ask).await;
                    if let Ok(bytes) = frame(&(number, &answer)) {
                        answers.send(bytes).await.ok();
                    }
                    drop(place);
                });
            }
        };
        tokio::select! {
            biased;
            written = write => written,
            read = read => read,
        }
    }

    /// Entries and heartbeats of a leader.
    async fn append(&self, stream: Stream, node: NodeId) -> io::Result<()> {
        let (reader, mut writer) = tokio::io::split(stream);
        if !self.engine.is_admitted() {
            return Err(io::Error::other("this node has not joined its cluster yet"));
        }
        let requests = stream::unfold(reader, move |mut reader: ReadHalf<Stream>| async move {
            let received = receive_bytes(&mut reader, FRAME_MAX).await;
            match received.and_then(|bytes| append_from(&Bytes::from(bytes))) {
                Ok(request) => Some((request, reader)),
                Err(error) => {
                    if error.kind() != io::ErrorKind::UnexpectedEof {
                        tracing::debug!(node, %error, "a connection for entries ended");
                    }
                    None
                }
            }
        });
        let mut answers = std::pin::pin!(self.engine.raft().stream_append(requests));
        while let Some(answer) = answers.next().await {
            let answer = answer.map_err(io::Error::other)?;
            if answer.is_ok() {
                self.engine.table_clock().heard();
            }
            send(&mut writer, &answer).await?;
            if answer.is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn snapshot(&self, mut stream: Stream) -> io::Result<()> {
        if !self.engine.is_admitted() {
            return Err(io::Error::other("this node has not joined its cluster yet"));
        }
        let (vote, meta, len): (Vote, SnapshotMeta, u64) = receive(&mut stream, FRAME_MAX).await?;
        let dir = self.engine.snapshot_dir();
        let (path, file) = snapshot_file::incoming(&dir)?;
        if let Err(error) = receive_file(&mut stream, file, len).await {
            fs::remove_file(&path).ok();
            return Err(error);
        }
        tracing::info!(bytes = len, "a snapshot from the leader has arrived");
        let snapshot = openraft::type_config::alias::SnapshotOf::<TypeConfig, SnapshotFile> {
            meta,
            snapshot: SnapshotFile { path: path.clone() },
        };
        let installed = self.engine.raft().install_full_snapshot(vote, snapshot).await;
        machine::blocking(move || fs::remove_large(&path)).await?.ok();
        send(&mut stream, &installed.map_err(io::Error::other)?).await
    }
}

/// Writes what comes into a file, and syncs it.
async fn receive_file(stream: &mut Stream, mut file: fs::File, len: u64) -> io::Result<()> {
    let mut left = len;
    while left > 0 {
        let mut piece = Vec::with_capacity(PIECE_LEN.min(left as usize));
        (&mut *stream).take(PIECE_LEN.min(left as usize) as u64).read_to_end(&mut piece).await?;
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= piece.len() as u64;
        file = machine::blocking(move || file.write_all(&piece).map(|()| file)).await??;
    }
    machine::blocking(move || file.sync_all()).await?
}

impl Engine {
    /// What this node says to a peer.
    pub(super) async fn answer_peer(self: &Arc<Self>, ask: Ask) -> PeerAnswer {
        let admitted = self.is_admitted();
        if matches!(ask, Ask::Forward(_) | Ask::Barrier) {
            self.peers.note_asked();
        }
        match ask {
            Ask::Status { digest } => PeerAnswer::Status(Box::new(self.status(digest).await)),
            Ask::Welcome { run } if run == self.in_flight.run() => {
                self.journal.let_in();
                self.open();
                PeerAnswer::Done
            }
            Ask::Welcome { .. } => PeerAnswer::NotReady,
            _ if !admitted => PeerAnswer::NotReady,
            Ask::Vote(request) => match self.raft().vote(request).await {
                Ok(response) => PeerAnswer::Vote(response),
                Err(error) => PeerAnswer::Rejected(error.to_string()),
            },
            Ask::PreVote(request) => match self.raft().pre_vote(request).await {
                Ok(response) => PeerAnswer::Vote(response),
                Err(error) => PeerAnswer::Rejected(error.to_string()),
            },
            Ask::Transfer(request) => {
                self.journal.asked_to_lead(request.from_leader().leader_id.node_id);
                match self.raft().handle_transfer_leader(request).await {
                    Ok(Ok(())) => PeerAnswer::Done,
                    Ok(Err(error)) => PeerAnswer::Rejected(error.to_string()),
                    Err(error) => PeerAnswer::Rejected(error.to_string()),
                }
            }
            Ask::Forward(parcel) => PeerAnswer::Taken(self.proposer().take_forwarded(parcel).await),
            Ask::Barrier => match self.leader_barrier().await {
                Ok((index, now_us)) => PeerAnswer::Barrier { index, now_us },
                Err(_) => self.ask_leader(),
            },
            Ask::Join { id, run, address } => match self.admit(id, Some(run), &address).await {
                Ok(()) => PeerAnswer::Done,
                Err(ChangeError::Refused(why)) => PeerAnswer::Rejected(why),
                Err(ChangeError::NotLeader | ChangeError::Unknown) => self.ask_leader(),
            },
            Ask::Change(change) => match self.change_here(&change).await {
                Ok(()) => PeerAnswer::Done,
                Err(ChangeError::Refused(why)) => PeerAnswer::Rejected(why),
                Err(ChangeError::NotLeader | ChangeError::Unknown) => self.ask_leader(),
            },
        }
    }

    fn ask_leader(&self) -> PeerAnswer {
        let leader = self.known_leader();
        let address = leader.and_then(|leader| self.address_of(leader));
        PeerAnswer::AskLeader(leader, address)
    }
}
