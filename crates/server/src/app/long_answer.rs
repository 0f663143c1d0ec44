//! Long answers: made piece by piece, as fast as the client takes them; or, where that is not worth it, counted.
//!
//! In:    status and headers; a producer that writes the body, or a body as a whole. Out: a response.
//! Never: keeps more of a streamed body than two pieces, and never goes on when nobody reads it. Never keeps more long bodies
//!        than there is room for.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::mpsc;

use crate::access::{Caller, Refusal};
use crate::app::App;
use crate::app::budget::Place;
use crate::message::Response;
use crate::message::body::{Piece, ResponseBody};
use crate::message::problem::{engine_problem, problem, try_again};
use leasehold_engine::EngineError;

/// A body up to this has a length and comes as a whole; a longer one comes in pieces of this size.
const PIECE_LEN: usize = 64 << 10;

/// Bytes of long answers that are not streamed and whose clients have not taken them yet.
pub const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Where a producer writes the body.
#[derive(Debug)]
pub struct BodyWriter {
    /// The bytes of the next piece.
    pub buffer: Vec<u8>,
    pieces: mpsc::Sender<Piece>,
}

/// Why a body ends before it is complete.
#[derive(Debug)]
pub enum Unfinished {
    /// Nobody reads it.
    Unread,
    /// It can't be made. A client that has some of it already sees its connection end.
    Failed(Box<Response>),
}

impl From<Response> for Unfinished {
    fn from(response: Response) -> Self {
        Self::Failed(Box::new(response))
    }
}

impl BodyWriter {
    /// Waits for the client if a piece is full. To be called after every item.
    pub async fn rest(&mut self) -> Result<(), Unfinished> {
        if self.buffer.len() < PIECE_LEN {
            return Ok(());
        }
        let piece = Piece::More(self.take());
        self.pieces.send(piece).await.map_err(|_| Unfinished::Unread)
    }

    fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.buffer).into()
    }
}

/// A response whose body `produce` writes, in a task of its own that is not on the engine's thread.
/// It ends, incomplete, with the caller's credentials.
pub async fn long_answer<P, F>(
    app: &App,
    caller: &Caller,
    mut response: Response,
    produce: P,
) -> Result<Response, Response>
where
    P: FnOnce(BodyWriter) -> F,
    F: Future<Output = Result<BodyWriter, Unfinished>> + Send + 'static,
{
    let (sender, mut pieces) = mpsc::channel(1);
    let (failed, why) = tokio::sync::oneshot::channel();
    let produced = produce(BodyWriter { buffer: Vec::new(), pieces: sender });
    let caller = caller.clone();
    app.pool.spawn(async move {
        let produced = tokio::select! {
            biased;
            produced = produced => produced,
            _ = caller.ended() => Err(Response::from(Refusal::Withdrawn).into()),
        };
        match produced {
            Ok(mut writer) => {
                let last = Piece::Last(writer.take());
                writer.pieces.send(last).await.ok();
            }
            Err(Unfinished::Failed(refusal)) => drop(failed.send(refusal)),
            Err(Unfinished::Unread) => {}
        }
    });
    *response.body_mut() = match pieces.recv().await {
        Some(Piece::Last(whole)) => ResponseBody::Whole(whole),
        Some(first) => ResponseBody::Stream(Box::new((first, pieces).into())),
        None => {
            return Err(why
                .await
                .map_or_else(|_| engine_problem(&EngineError::Stopping), |refusal| *refusal));
        }
    };
    Ok(response)
}

/// An answer that may be kept until its client has taken it. What is short is bounded by the number of connections.
/// Only reads are refused for want of room: what changed something is answered as it happened.
pub(crate) fn counted(app: &App, client: &Arc<str>, is_read: bool, mut response: Response) -> Response {
    let ResponseBody::Whole(whole) = response.body_mut() else { return response };
    if whole.len() <= PIECE_LEN {
        return response;
    }
    match app.answer_bytes.take_many(client, whole.len()) {
        Ok(place) => {
            *whole = Bytes::from_owner(Kept { whole: std::mem::take(whole), _place: place });
            response
        }
        Err(_) if !is_read => response,
        Err(_) => {
            let detail = "too many long answers wait for their clients to take them: retry later";
            try_again(problem(StatusCode::SERVICE_UNAVAILABLE, "too-many-answers", detail))
        }
    }
}

/// A long body, until the last of it is sent.
struct Kept {
    whole: Bytes,
    _place: Place,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.whole
    }
}
