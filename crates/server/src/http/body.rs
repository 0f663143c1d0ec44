//! Bodies of responses: whole ones, and streams that end when nobody reads or the node stops.
//!
//! In:    bytes, or a channel that yields them. Out: frames for hyper.
//! Never: makes whole bodies pay for streams: those stand behind a pointer.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// A response's body.
#[derive(Debug)]
pub enum ResponseBody {
    /// Known as a whole.
    Whole(Full<Bytes>),
    /// Comes piece by piece.
    Stream(Box<mpsc::Receiver<Bytes>>),
}

impl Default for ResponseBody {
    fn default() -> Self {
        Self::Whole(Full::default())
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(Full::new(bytes))
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
            Self::Whole(whole) => Pin::new(whole).poll_frame(cx),
            Self::Stream(pieces) => {
                pieces.poll_recv(cx).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_end_stream(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => whole.size_hint(),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
