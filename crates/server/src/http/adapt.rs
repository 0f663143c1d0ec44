//! Between HTTP/1.1, which knows nothing of this service, and the messages that the service knows.
//!
//! In:    requests and refusals of `http1`, answers of the service. Out: the same, as the other side knows them.
//! Never: copies a head or a body.

use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::StatusCode;

use super::http1::{self, AnswerBody, Body, BodyError, BodySource, HttpRefusal, Outgoing};
use crate::message::Response;
use crate::message::body::{Pieces, RequestBody, ResponseBody};
use crate::message::headers::Headers;
use crate::message::problem::problem;
use crate::message::request::{Head, Request};

/// A request of HTTP/1.1.
pub(crate) fn request(request: http1::Request) -> Request {
    let http1::Request { method, uri, version, head, fields, body } = request;
    let body = match body {
        Body::Whole(whole) => RequestBody::Whole(whole),
        Body::Coming { pieces, len } => RequestBody::Coming { pieces: Box::new(pieces), len, sender: None },
    };
    Request::new(Head { method, uri, version, headers: Headers::new(head, fields) }, body)
}

/// The answer to what is no request.
pub(crate) fn refusal(refusal: &HttpRefusal) -> Response {
    let kind = match refusal.status {
        StatusCode::REQUEST_TIMEOUT => "headers-too-slow",
        StatusCode::URI_TOO_LONG => "uri-too-long",
        _ => "not-http",
    };
    problem(refusal.status, kind, &refusal.detail)
}

impl AnswerBody for ResponseBody {
    type Source = Box<Pieces>;

    fn into_outgoing(self) -> Outgoing<Box<Pieces>> {
        match self {
            Self::Whole(whole) => Outgoing::Whole(whole),
            Self::Stream(pieces) => Outgoing::Stream(pieces),
        }
    }
}

impl BodySource for Box<Pieces> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BodyError>> {
        Pieces::poll_next(self, cx).map_err(|broken| broken.0)
    }

    fn try_next(&mut self) -> Option<Bytes> {
        Pieces::try_next(self)
    }
}
