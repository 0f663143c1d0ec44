//! Bodies: of requests, as they come; of responses, whole or as streams that end when nobody reads or the node stops.
//!
//! In:    bytes, or a channel that yields them. Out: frames for whoever reads or sends them.
//! Never: makes whole bodies pay for the others: those stand behind a pointer.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;

/// A request's body.
#[derive(Debug)]
pub enum RequestBody {
    /// All of it came with the head.
    Whole(Bytes),
    /// It comes over HTTP/1.1, as fast as it is read. Whoever reads it is polled by the connection's own task.
    Coming {
        /// What has come.
        pieces: Box<mpsc::Receiver<Result<Bytes, Broken>>>,
        /// How long the whole is, if the head said so.
        len: Option<u64>,
    },
    /// It comes over HTTP/2.
    Http2(Box<Incoming>),
}

/// What was announced as a body is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub &'static str);

impl From<Incoming> for RequestBody {
    fn from(body: Incoming) -> Self {
        match body.is_end_stream() {
            true => Self::Whole(Bytes::new()),
            false => Self::Http2(Box::new(body)),
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
                Poll::Ready(piece.map(|piece| piece.map(Frame::data).map_err(Into::into)))
            }
            Self::Http2(body) => Pin::new(&mut **body).poll_frame(cx).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_empty(),
            Self::Coming { .. } => false,
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => SizeHint::with_exact(whole.len() as u64),
            Self::Coming { len, .. } => len.map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Http2(body) => body.size_hint(),
        }
    }
}

/// A response's body.
#[derive(Debug)]
pub enum ResponseBody {
    /// Known as a whole.
    Whole(Bytes),
    /// Comes piece by piece.
    Stream(Box<mpsc::Receiver<Bytes>>),
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

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(whole) => Poll::Ready(whole_frame(whole)),
            Self::Stream(pieces) => {
                pieces.poll_recv(cx).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_empty(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => SizeHint::with_exact(whole.len() as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// All of it, once.
fn whole_frame<E>(whole: &mut Bytes) -> Option<Result<Frame<Bytes>, E>> {
    let whole = std::mem::take(whole);
    (!whole.is_empty()).then(|| Ok(Frame::data(whole)))
}
