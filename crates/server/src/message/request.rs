//! A request as the dialects see it: who asks, from where, for what, with which body.
//!
//! In:    head and body, as a transport read them. Out: its parts. `app/receive.rs` reads a body that is still to come.
//! Never: checked against anything yet.

use std::sync::Arc;

use hyper::header::HeaderName;
use hyper::http::uri::Uri;
use hyper::{Method, Version};

use super::body::{RequestBody, Sender};
use super::connection::Connection;
use super::headers::Headers;

/// Made once: a look-up by text would check and hash it anew with every request.
const REASON: HeaderName = HeaderName::from_static("leasehold-reason");

/// A request, whichever protocol it came by.
#[derive(Debug)]
pub struct Request {
    head: Head,
    body: RequestBody,
    /// A read that takes an old table for an answer: `stale=true`.
    may_be_stale: bool,
}

/// What stands before its body.
#[derive(Debug)]
pub struct Head {
    /// What is to be done ...
    pub method: Method,
    /// ... with what.
    pub uri: Uri,
    /// How the client speaks.
    pub version: Version,
    /// All else.
    pub headers: Headers,
}

impl Request {
    /// A request with this head and body.
    pub fn new(head: Head, body: RequestBody) -> Self {
        Self { head, body, may_be_stale: false }
    }

    /// What is to be done.
    pub fn method(&self) -> &Method {
        &self.head.method
    }

    /// What it is to be done with.
    pub fn uri(&self) -> &Uri {
        &self.head.uri
    }

    /// The same, to be changed.
    pub fn uri_mut(&mut self) -> &mut Uri {
        &mut self.head.uri
    }

    /// How the client speaks.
    pub fn version(&self) -> Version {
        self.head.version
    }

    /// Marks a read that takes an old table for an answer.
    pub fn allow_stale(&mut self) {
        self.may_be_stale = true;
    }

    /// Whether an old table is good enough: then nothing waits for a leader.
    pub fn may_be_stale(&self) -> bool {
        self.may_be_stale
    }

    /// Its headers.
    pub fn headers(&self) -> &Headers {
        &self.head.headers
    }

    /// Its body.
    pub fn body(&self) -> &RequestBody {
        &self.body
    }

    /// Counts a body that comes in pieces among the bytes that this connection and its client may have sent.
    pub fn count_body(&mut self, connection: &Arc<Connection>) {
        if !matches!(self.body, RequestBody::Whole(_)) {
            let client = connection.client(&self.head.headers);
            self.body.count(Sender { connection: connection.clone(), client });
        }
    }

    /// Its body alone.
    pub fn into_body(self) -> RequestBody {
        self.body
    }

    /// Its head and its body.
    pub fn into_parts(self) -> (Head, RequestBody) {
        (self.head, self.body)
    }
}

/// `Leasehold-Reason`, why somebody ends a claim. What can't be kept as text is left out.
pub fn reason(headers: &Headers) -> Option<Arc<str>> {
    let text = std::str::from_utf8(headers.get(REASON)?.as_bytes()).ok()?.trim();
    let text = &text[..text.floor_char_boundary(1024)];
    (!text.is_empty()).then(|| text.into())
}
