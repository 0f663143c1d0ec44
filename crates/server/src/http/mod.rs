//! HTTP: connections, requests, responses. What every dialect needs and none should write twice.
//!
//! In:    bytes from strangers. Out: requests to the dialects (`dispatch.rs`), their responses back.
//! Never: knows about locks.

pub mod aside;
pub mod basic;
pub mod body;
pub mod cluster;
pub mod delivery;
pub mod digits;
pub mod headers;
mod http1;
mod http2;
pub mod limits;
mod listeners;
pub mod long_answer;
pub mod places;
pub mod problem;
pub mod query;
mod receive;
pub mod request;
pub mod seats;
pub mod server;
pub mod time;
pub mod tls;
pub mod trace;
pub mod web_origin;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use self::body::ResponseBody;

/// A response.
pub type Response = hyper::Response<ResponseBody>;

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
