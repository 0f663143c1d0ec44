//! What passes between a connection and its user: requests with their bodies, answers, and refusals.
//!
//! In:    nothing. Out: the types of `http1`, which know no service.

use std::borrow::Cow;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::http::uri::Uri;
use hyper::{Method, StatusCode, Version};
use tokio::sync::mpsc;

use super::head::Field;

/// Why a body can't be read to its end.
pub type BodyError = &'static str;

/// A request.
#[derive(Debug)]
pub struct Request {
    /// What is to be done ...
    pub method: Method,
    /// ... with what.
    pub uri: Uri,
    /// How the client speaks.
    pub version: Version,
    /// All bytes of the head ...
    pub head: Bytes,
    /// ... and where its headers are in them.
    pub fields: Vec<Field>,
    /// What follows the head.
    pub body: Body,
}

/// The body of a request.
#[derive(Debug)]
pub enum Body {
    /// All of it came with the head.
    Whole(Bytes),
    /// It comes as fast as it is read. Whoever reads it is polled by the connection's own task.
    Coming {
        /// What has come.
        pieces: mpsc::Receiver<Result<Bytes, BodyError>>,
        /// How long the whole is, if the head said so.
        len: Option<u64>,
    },
}

/// What answers have as their body.
pub trait AnswerBody {
    /// Where the bytes of a streamed body come from.
    type Source: BodySource;
    /// Which kind it is.
    fn into_outgoing(self) -> Outgoing<Self::Source>;
}

/// The body of an answer.
#[derive(Debug)]
pub enum Outgoing<P> {
    /// Known as a whole.
    Whole(Bytes),
    /// Comes piece by piece.
    Stream(P),
}

/// The body of an answer that comes piece by piece.
pub trait BodySource {
    /// The next bytes; `None`: the body is complete.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BodyError>>;
    /// The next bytes, if they are there already.
    fn try_next(&mut self) -> Option<Bytes>;
}

/// Why a connection is closed in the middle of a request, for the answer to its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRefusal {
    /// 400, 408, 414 or 431.
    pub status: StatusCode,
    /// What is wrong.
    pub detail: Cow<'static, str>,
}
