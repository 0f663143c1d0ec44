//! Requests and responses, as every part of the service sees them.
//!
//! In:    what a transport read, or what somebody answers. Out: its parts, by name.
//! Never: knows how they travel (`http/`), who asks (`access/`), or about locks.

pub mod body;
pub mod connection;
pub mod delivery;
pub mod digits;
pub mod headers;
pub mod origin;
pub mod problem;
pub mod query;
pub mod request;
pub mod time;

use std::pin::Pin;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use self::body::ResponseBody;

/// A response.
pub type Response = hyper::Response<ResponseBody>;

/// An answer on its way. It has the size of what it does: a connection keeps one, and neither a request that stands
/// open for hours nor one of a hundred thousand a second must take the room of the largest one.
pub type ResponseFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

/// An answer that needs nothing more.
pub fn at_once(response: Response) -> ResponseFuture {
    Box::pin(std::future::ready(response))
}

/// A response without a body.
pub fn empty(status: StatusCode) -> Response {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}

/// A response with a JSON body.
pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Response {
    typed(status, "application/json", body)
}

/// A response with a body of this content type.
pub fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(ResponseBody::from(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
