//! Bodies: of requests, as they come; of responses, whole or as streams that end when nobody reads or the node stops.
//!
//! In:    bytes, or a channel that yields them. Out: frames for whoever reads or sends them.
//! Never: makes whole bodies pay for the others: those stand behind a pointer. Never takes a stream whose producer failed for
//!        a complete one.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;

use super::connection::Connection;

/// What HTTP/2 is given of an answer at a time.
const FRAME_LEN_MAX: usize = 16 << 10;

/// A request's body.
#[derive(Debug)]
pub enum RequestBody {
    /// All of it came with the head.
    Whole(Bytes),
    /// It comes over HTTP/1.1, as fast as it is read. Whoever reads it is polled by the connection's own task.
    Coming {
        /// What has come.
        pieces: Box<mpsc::Receiver<Result<Bytes, &'static str>>>,
        /// How long the whole is, if the head said so.
        len: Option<u64>,
        /// Who sends it.
        sender: Option<Box<Sender>>,
    },
    /// It comes over HTTP/2.
    Http2(Box<Incoming>, Option<Box<Sender>>),
}

/// Who sends a body: its bytes are counted there.
#[derive(Debug)]
pub struct Sender {
    /// Over this connection.
    pub connection: Arc<Connection>,
    /// The client's address.
    pub client: Arc<str>,
}

impl RequestBody {
    /// Says who sends it.
    pub(super) fn count(&mut self, from: Sender) {
        if let Self::Coming { sender, .. } | Self::Http2(_, sender) = self {
            *sender = Some(Box::new(from));
        }
    }

    /// Who sends it; asked once.
    pub(crate) fn sender(&mut self) -> Option<Sender> {
        match self {
            Self::Whole(_) => None,
            Self::Coming { sender, .. } | Self::Http2(_, sender) => sender.take().map(|sender| *sender),
        }
    }
}

/// A body can't be read to its end, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BodyError(pub &'static str);

impl From<Incoming> for RequestBody {
    fn from(body: Incoming) -> Self {
        match body.is_end_stream() {
            true => Self::Whole(Bytes::new()),
            false => Self::Http2(Box::new(body), None),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Whole(whole) => Poll::Ready(whole_frame(whole)),
            Self::Coming { pieces, .. } => {
                let piece = ready!(pieces.poll_recv(cx));
                Poll::Ready(piece.map(|piece| piece.map(Frame::data).map_err(|why| BodyError(why).into())))
            }
            Self::Http2(body, _) => Pin::new(&mut **body).poll_frame(cx).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_empty(),
            Self::Coming { .. } => false,
            Self::Http2(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => SizeHint::with_exact(whole.len() as u64),
            Self::Coming { len, .. } => len.map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Http2(body, _) => body.size_hint(),
        }
    }
}

/// A response's body.
#[derive(Debug)]
pub enum ResponseBody {
    /// Known as a whole.
    Whole(Bytes),
    /// Comes piece by piece.
    Stream(Box<Pieces>),
}

/// A part of a streamed body.
#[derive(Debug)]
pub enum Piece {
    /// More follows.
    More(Bytes),
    /// The end of the body. A stream that ends without it is broken, and the client must see that.
    Last(Bytes),
}

/// A streamed body, as its reader sees it.
#[derive(Debug)]
pub struct Pieces {
    channel: mpsc::Receiver<Piece>,
    /// What of the last piece has not been read yet.
    rest: Bytes,
    is_over: bool,
}

impl From<mpsc::Receiver<Piece>> for Pieces {
    fn from(channel: mpsc::Receiver<Piece>) -> Self {
        Self { channel, rest: Bytes::new(), is_over: false }
    }
}

/// A stream whose first piece has come already.
impl From<(Piece, mpsc::Receiver<Piece>)> for Pieces {
    fn from((first, channel): (Piece, mpsc::Receiver<Piece>)) -> Self {
        let mut pieces = Self::from(channel);
        pieces.rest = pieces.open(first);
        pieces
    }
}

impl Pieces {
    /// The next bytes; `None`: the body is complete.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BodyError>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.rest))));
        }
        if self.is_over {
            return Poll::Ready(Ok(None));
        }
        let piece = ready!(self.channel.poll_recv(cx));
        Poll::Ready(
            piece.ok_or(BodyError("the answer could not be completed")).map(|piece| Some(self.open(piece))),
        )
    }

    /// The next bytes, if they are there already.
    pub fn try_next(&mut self) -> Option<Bytes> {
        if self.is_over { None } else { self.channel.try_recv().ok().map(|piece| self.open(piece)) }
    }

    fn open(&mut self, piece: Piece) -> Bytes {
        match piece {
            Piece::More(bytes) => bytes,
            Piece::Last(bytes) => {
                self.is_over = true;
                bytes
            }
        }
    }

    /// The next bytes, cut into frames.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        while self.rest.is_empty() {
            match ready!(self.poll_next(cx)) {
                Ok(None) => return Poll::Ready(None),
                Ok(Some(bytes)) => self.rest = bytes,
                Err(broken) => return Poll::Ready(Some(Err(broken))),
            }
        }
        Poll::Ready(next_frame(&mut self.rest))
    }
}

impl Default for ResponseBody {
    fn default() -> Self {
        Self::Whole(Bytes::new())
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(bytes)
    }
}

/// For HTTP/2 alone: `http1` sends bodies without this.
impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = match self.get_mut() {
            Self::Whole(whole) => Poll::Ready(next_frame(whole)),
            Self::Stream(pieces) => pieces.poll_frame(cx),
        };
        stall::note(polled.is_ready());
        polled
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_empty(),
            Self::Stream(pieces) => pieces.is_over && pieces.rest.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => SizeHint::with_exact(whole.len() as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// The next frame of these bytes. HTTP/2 keeps a frame that its client has no window for: it keeps no more than this.
fn next_frame(bytes: &mut Bytes) -> Option<Result<Frame<Bytes>, BodyError>> {
    let frame = bytes.split_to(bytes.len().min(FRAME_LEN_MAX));
    (!frame.is_empty()).then(|| Ok(Frame::data(frame)))
}

/// All of it, once.
fn whole_frame<E>(whole: &mut Bytes) -> Option<Result<Frame<Bytes>, E>> {
    let whole = std::mem::take(whole);
    (!whole.is_empty()).then(|| Ok(Frame::data(whole)))
}

/// What the body of an HTTP/2 answer last told its reader, hyper, which polls it only inside the request's task.
pub(crate) mod stall {
    use std::cell::Cell;

    thread_local! {
        static NOTED: Cell<Option<bool>> = const { Cell::new(None) };
    }

    /// The body gave something; or, if `gave` is false, has nothing to give yet.
    pub(super) fn note(gave: bool) {
        NOTED.set(Some(gave));
    }

    /// What was noted since `forget`.
    pub(crate) fn noted() -> Option<bool> {
        NOTED.take()
    }

    pub(crate) fn forget() {
        NOTED.set(None);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn read(pieces: Vec<Piece>) -> Result<Vec<u8>, BodyError> {
        let (sender, channel) = mpsc::channel(8);
        pieces.into_iter().for_each(|piece| sender.try_send(piece).unwrap());
        drop(sender);
        let mut body = ResponseBody::Stream(Box::new(channel.into()));
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = frame?.into_data().unwrap();
            assert!(data.len() <= FRAME_LEN_MAX);
            read.extend_from_slice(&data);
        }
        Ok(read)
    }

    #[tokio::test]
    async fn a_stream_is_complete_only_with_its_last_piece() {
        let large = Bytes::from(vec![7; 3 * FRAME_LEN_MAX + 1]);
        let whole = read(vec![Piece::More(large.clone()), Piece::Last("x".into())]).await.unwrap();
        assert_eq!(whole.len(), large.len() + 1);
        assert_eq!(read(vec![Piece::Last(Bytes::new())]).await, Ok(Vec::new()));
        assert!(read(vec![Piece::More(large)]).await.is_err());
    }
}
