//! Questions and answers over one connection to one peer, many at a time.
//!
//! In:    [`Ask`]s. Out: their [`PeerAnswer`]s, in whatever order they come.
//! Never: asks twice by itself: whoever asks knows whether a question may be repeated. Never asks over a connection on
//!        which an answer was waited for in vain: TCP may take half a minute to notice that the peer is reached again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc, oneshot};

use super::pace::Pace;
use super::wire::{FRAME_MAX, Stream, frame, receive};
use super::{Ask, Door, Lane, PeerAnswer, PeerError};
#[cfg(feature = "sim")]
use crate::machine::simulated::{Bug, is_planted};
use crate::machine::{self, Instant};
use crate::types::NodeId;

/// Questions on their way at once; more wait.
const QUEUE: usize = 256;

/// A call that takes longer than this may hang: another one is made.
const HANGS_AFTER: Duration = Duration::from_millis(500);
/// A connection may hang if it brings no answer at all to a question that was given up after this long. openraft gives up
/// a transfer of leadership after two heartbeats.
const SILENT_AFTER: Duration = Duration::from_millis(150);

/// A peer that can be asked. It is called when there is a question and no connection.
pub(super) struct Link {
    door: Arc<Door>,
    node: Option<NodeId>,
    address: String,
    line: tokio::sync::Mutex<Option<Line>>,
    next: AtomicU64,
    pace: Pace,
}

/// Who waits for the answer to which question; `None` once the connection is gone.
type AnswerWaiters = Arc<Mutex<Option<BTreeMap<u64, oneshot::Sender<PeerAnswer>>>>>;

#[derive(Clone)]
struct Line {
    frames: mpsc::Sender<Vec<u8>>,
    waiting: AnswerWaiters,
    /// Answers that have come.
    answers: Arc<AtomicU64>,
    /// Told when the connection is to be closed.
    hang_up: Arc<Notify>,
}

impl Link {
    pub(super) fn new(door: Arc<Door>, node: Option<NodeId>, address: &str) -> Self {
        let (line, next, pace) = Default::default();
        Self { door, node, address: address.into(), line, next, pace }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Asks, and waits for the answer: as long as `time` for a connection, if there is none, and then for the answer. A new
    /// connection takes several ways there and back; the answer must not be blamed for them.
    pub(super) async fn ask(&self, ask: &Ask, time: Duration) -> Result<PeerAnswer, PeerError> {
        let line = self.in_time(Instant::now() + time, self.line()).await?;
        self.ask_on(&line, ask, Instant::now() + time).await
    }

    /// Asks over a connection of its own, where nothing can stand in the way.
    pub(super) async fn ask_apart(&self, ask: &Ask, time: Duration) -> Result<PeerAnswer, PeerError> {
        let until = Instant::now() + time;
        let line = self.in_time(until, self.call()).await?;
        let answer = self.ask_on(&line, ask, until).await;
        line.hang_up.notify_one();
        answer
    }

    async fn in_time(
        &self,
        until: Instant,
        line: impl Future<Output = Result<Line, PeerError>>,
    ) -> Result<Line, PeerError> {
        let line = machine::timeout_at(until, line).await;
        line.unwrap_or_else(|_| Err(self.unreachable(&"no connection in time")))
    }

    async fn ask_on(&self, line: &Line, ask: &Ask, until: Instant) -> Result<PeerAnswer, PeerError> {
        let _question =
            OpenQuestion { line, answers: line.answers.load(Ordering::Acquire), at: Instant::now() };
        let asked = machine::timeout_at(until, self.ask_now(line, ask)).await;
        asked.unwrap_or_else(|_| Err(PeerError::TooSlow(self.address.clone())))
    }

    async fn ask_now(&self, line: &Line, ask: &Ask) -> Result<PeerAnswer, PeerError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let bytes = frame(&(number, ask)).map_err(|error| self.unreachable(&error))?;
        let (reply, answer) = oneshot::channel();
        let gone = || PeerError::Lost(self.address.clone());
        line.waiting.lock().as_mut().ok_or_else(gone)?.insert(number, reply);
        let _forget = Forget { waiting: &line.waiting, number };
        line.frames.send(bytes).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }

    async fn line(&self) -> Result<Line, PeerError> {
        let mut line = self.line.lock().await;
        if let Some(line) = line.as_ref().filter(|line| line.waiting.lock().is_some()) {
            return Ok(line.clone());
        }
        let stream = self.call_for(Lane::Ask).await;
        let new = self.begin(stream)?;
        *line = Some(new.clone());
        Ok(new)
    }

    /// A connection, when it is time to call. A call that hangs may be one from before a cut healed, or one to a peer that is
    /// far away: others are made beside it, and the first that comes through is taken.
    pub(super) async fn call_for(&self, lane: Lane) -> std::io::Result<Stream> {
        let call = || self.door.call(&self.address, self.node, lane);
        self.pace.next().await;
        let mut first = std::pin::pin!(call());
        let others = async {
            loop {
                self.pace.next().await;
                if let Ok(Ok(stream)) = machine::timeout(HANGS_AFTER, call()).await {
                    return stream;
                }
            }
        };
        let called = match machine::timeout(HANGS_AFTER, &mut first).await {
            Ok(called) => called,
            Err(_) => tokio::select! {
                biased;
                called = first => called,
                stream = others => Ok(stream),
            },
        };
        let stream = called?;
        self.pace.is_there();
        Ok(stream)
    }

    /// A connection for questions, at once.
    async fn call(&self) -> Result<Line, PeerError> {
        self.begin(self.door.call(&self.address, self.node, Lane::Ask).await)
    }

    fn begin(&self, stream: std::io::Result<Stream>) -> Result<Line, PeerError> {
        let stream = stream.map_err(|error| self.unreachable(&error))?;
        let (frames, outgoing) = mpsc::channel(QUEUE);
        let (answers, hang_up) = Default::default();
        let new = Line { frames, waiting: Arc::new(Mutex::new(Some(BTreeMap::new()))), answers, hang_up };
        machine::spawn(carry(stream, outgoing, new.clone().into_ends()));
        Ok(new)
    }

    fn unreachable(&self, why: &dyn std::fmt::Display) -> PeerError {
        PeerError::Unreachable { address: self.address.clone(), why: why.to_string() }
    }
}

/// A question that waits for its answer. Dropped after a while in which the connection has brought no answer to anything, it
/// closes the connection. Callers that give up drop it as well: otherwise a connection that hangs would never be closed.
struct OpenQuestion<'a> {
    line: &'a Line,
    /// Answers that had come by then.
    answers: u64,
    at: Instant,
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if is_planted(Bug::StuckLinks) {
            return;
        }
        let is_silent = self.line.answers.load(Ordering::Acquire) == self.answers;
        if is_silent && self.at.elapsed() >= SILENT_AFTER {
            self.line.hang_up.notify_one();
        }
    }
}

/// Removes the waiter of a question when its caller gives up.
struct Forget<'a> {
    waiting: &'a AnswerWaiters,
    number: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.lock().as_mut() {
            waiting.remove(&self.number);
        }
    }
}

/// What a connection needs of its line. It has no way to send: it ends with the last one who has.
struct Ends {
    waiting: AnswerWaiters,
    answers: Arc<AtomicU64>,
    hang_up: Arc<Notify>,
}

impl Line {
    fn into_ends(self) -> Ends {
        Ends { waiting: self.waiting, answers: self.answers, hang_up: self.hang_up }
    }
}

/// Carries frames both ways until either end is gone; then whoever still waits is told by a closed channel.
async fn carry(stream: Stream, mut outgoing: mpsc::Receiver<Vec<u8>>, ends: Ends) {
    let Ends { waiting, answers, hang_up } = ends;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let send = async {
        while let Some(mut bytes) = outgoing.recv().await {
            // One system call for all that wait.
            while bytes.len() < 64 << 10
                && let Ok(more) = outgoing.try_recv()
            {
                bytes.extend(more);
            }
            if writer.write_all(&bytes).await.is_err() || writer.flush().await.is_err() {
                return;
            }
        }
    };
    let take = async {
        while let Ok((number, answer)) = receive::<(u64, PeerAnswer)>(&mut reader, FRAME_MAX).await {
            answers.fetch_add(1, Ordering::AcqRel);
            let reply = waiting.lock().as_mut().and_then(|waiting| waiting.remove(&number));
            if let Some(reply) = reply {
                reply.send(answer).ok();
            }
        }
    };
    tokio::select! {
        biased;
        () = hang_up.notified() => {}
        () = send => {}
        () = take => {}
    }
    waiting.lock().take();
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::super::Secret;
    use super::*;

    fn door(node: NodeId) -> Arc<Door> {
        let secret = Secret::new("a secret of the tests").unwrap();
        // As a node does before it begins: the time for a greeting is not for that.
        secret.prepare(false);
        Arc::new(Door::new(node, secret, None, Default::default()))
    }

    #[tokio::test]
    async fn a_connection_that_its_askers_give_up_on_is_not_used_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let link = Link::new(door(1), Some(2), &listener.local_addr().unwrap().to_string());
        let known = Arc::new(AtomicU64::new(0));
        // It knows its callers, and answers nothing.
        let called = known.clone();
        tokio::spawn(async move {
            let (door, mut open) = (door(2), Vec::new());
            while let Ok((tcp, _)) = listener.accept().await {
                open.extend(door.answer(tcp).await);
                called.store(open.len() as u64, Ordering::Release);
            }
        });
        while known.load(Ordering::Acquire) < 2 {
            let asked = link.ask(&Ask::Barrier, Duration::from_secs(60));
            // A question may also end at once, with the connection that is given up.
            let asked = machine::timeout(2 * SILENT_AFTER, asked).await;
            assert!(!matches!(asked, Ok(Ok(_))), "nobody answers");
            tokio::task::yield_now().await;
        }
    }

    /// A connection from before a cut may never bring an answer. It must not keep others from being tried.
    #[tokio::test]
    async fn a_call_that_hangs_does_not_stand_in_the_way_of_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let link = Link::new(door(1), Some(2), &listener.local_addr().unwrap().to_string());
        let peer = door(2);
        let answers = async {
            let _silent = listener.accept().await;
            while let Ok((tcp, _)) = listener.accept().await {
                peer.answer(tcp).await.ok();
            }
        };
        tokio::select! {
            called = link.call_for(Lane::Ask) => assert!(called.is_ok(), "{:?}", called.err()),
            () = answers => panic!("nobody can call any more"),
        }
    }
}
