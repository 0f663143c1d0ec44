//! Questions and answers over one connection to one peer, many at a time.
//!
//! In:    [`Ask`]s. Out: their [`Answer`]s, in whatever order they come.
//! Never: asks twice by itself: whoever asks knows whether a question may be repeated.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};

use super::wire::{FRAME_MAX, Stream, frame, receive};
use super::{Answer, Ask, Door, Lane, PeerError};
use crate::engine::types::NodeId;

/// Questions on their way at once; more wait.
const QUEUE: usize = 256;

/// A peer that can be asked. It is called when there is a question and no connection.
pub(super) struct Link {
    door: Arc<Door>,
    node: Option<NodeId>,
    address: String,
    line: tokio::sync::Mutex<Option<Line>>,
    next: AtomicU64,
}

/// Those who wait for an answer; `None` once the connection is gone.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>>;

#[derive(Clone)]
struct Line {
    frames: mpsc::Sender<Vec<u8>>,
    waiting: Waiting,
}

impl Link {
    pub(super) fn new(door: Arc<Door>, node: Option<NodeId>, address: &str) -> Self {
        let (line, next) = Default::default();
        Self { door, node, address: address.into(), line, next }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Asks, and waits for the answer.
    pub(super) async fn ask(&self, ask: &Ask, time: Duration) -> Result<Answer, PeerError> {
        let asked = tokio::time::timeout(time, self.ask_now(ask)).await;
        asked.unwrap_or_else(|_| Err(PeerError::TooSlow(self.address.clone())))
    }

    async fn ask_now(&self, ask: &Ask) -> Result<Answer, PeerError> {
        let line = self.line().await?;
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
        let stream = self.door.call(&self.address, self.node, Lane::Ask).await;
        let stream = stream.map_err(|error| self.unreachable(&error))?;
        let (frames, outgoing) = mpsc::channel(QUEUE);
        let new = Line { frames, waiting: Arc::new(Mutex::new(Some(HashMap::new()))) };
        tokio::spawn(carry(stream, outgoing, new.waiting.clone()));
        *line = Some(new.clone());
        Ok(new)
    }

    fn unreachable(&self, why: &dyn std::fmt::Display) -> PeerError {
        PeerError::Unreachable { address: self.address.clone(), why: why.to_string() }
    }
}

/// Whoever gives up on an answer is not kept.
struct Forget<'a> {
    waiting: &'a Waiting,
    number: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.lock().as_mut() {
            waiting.remove(&self.number);
        }
    }
}

/// Carries frames both ways until either end is gone; then whoever still waits is told by a closed channel.
async fn carry(stream: Stream, mut outgoing: mpsc::Receiver<Vec<u8>>, waiting: Waiting) {
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
        while let Ok((number, answer)) = receive::<(u64, Answer)>(&mut reader, FRAME_MAX).await {
            let reply = waiting.lock().as_mut().and_then(|waiting| waiting.remove(&number));
            if let Some(reply) = reply {
                reply.send(answer).ok();
            }
        }
    };
    tokio::select! {
        () = send => {}
        () = take => {}
    }
    waiting.lock().take();
}
