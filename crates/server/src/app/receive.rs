//! Bodies of requests, received within their limits.
//!
//! In:    a body as it comes. Out: its bytes; or a refusal that says which limit it exceeds.
//! Never: keeps bytes that are not counted: what all clients, one client and one connection may have sent is bounded. What
//!        came together with its head (`RequestBody::Whole`) is bounded by the connection's own buffer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Body;
use hyper::header::{CONTENT_ENCODING, EXPECT};

use crate::access::{Caller, Refusal};
use crate::app::App;
use crate::app::budget::Place;
use crate::message::Response;
use crate::message::body::{RequestBody, Sender};
use crate::message::connection::Connection;
use crate::message::connection::Full;
use crate::message::headers::Headers;
use crate::message::problem::{closing, problem, try_again};

/// How much of a refused request is read before it is answered.
const DRAIN_LEN_MAX: usize = 64 << 10;
/// Bytes of bodies on one connection: one of the largest, or a hundred usual ones over HTTP/2.
const CONNECTION_BYTES_MAX: usize = 8 << 20;

/// Reads a body of at most `max` bytes, in time.
pub async fn read_body(
    app: &App,
    body: RequestBody,
    headers: &Headers,
    max: usize,
    caller: &Caller,
) -> Result<Bytes, Response> {
    expect_body(&body, headers, max)?;
    collect_body(app, body, max, caller).await
}

/// Refuses what the headers show to be no body for us, before any of it is read.
pub fn expect_body(body: &RequestBody, headers: &Headers, max: usize) -> Result<(), Response> {
    if let Some(coding) = headers.get(CONTENT_ENCODING).filter(|coding| coding.as_bytes() != b"identity") {
        let coding = String::from_utf8_lossy(coding.as_bytes());
        let detail = format!("the body has Content-Encoding {coding:?}; send it as it is, without one");
        return Err(closing(problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content-encoding", &detail)));
    }
    if body.size_hint().lower() > max as u64 {
        // With `Expect: 100-continue` the client has not started to send: nothing has to be thrown away.
        let response = too_large(max);
        return Err(if headers.contains_key(EXPECT) { response } else { closing(response) });
    }
    Ok(())
}

/// Reads a body that is expected, for as long as its caller's credentials are good.
pub async fn collect_body(
    app: &App,
    body: RequestBody,
    max: usize,
    caller: &Caller,
) -> Result<Bytes, Response> {
    match body {
        RequestBody::Whole(whole) if whole.len() <= max => Ok(whole),
        RequestBody::Whole(_) => Err(closing(too_large(max))),
        // Few bodies come in pieces: they alone pay for the room that it takes to wait for them.
        body => {
            Box::pin(async {
                tokio::select! {
                    biased;
                    _ = caller.ended() => Err(closing(Refusal::Withdrawn.into())),
                    collected = collect_pieces(app, body, max) => collected,
                }
            })
            .await
        }
    }
}

/// Puts a body together that comes in pieces. Every byte is counted before it is kept.
async fn collect_pieces(app: &App, mut body: RequestBody, max: usize) -> Result<Bytes, Response> {
    let mut budget = Budget::of(app, &mut body);
    let whole = async {
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let detail = format!("the body could not be read: {error}");
                closing(problem(StatusCode::BAD_REQUEST, "body-unreadable", &detail))
            })?;
            let Ok(piece) = frame.into_data() else { continue };
            if whole.len() + piece.len() > max {
                return Err(closing(too_large(max)));
            }
            budget.extend(piece.len()).map_err(too_many_bodies)?;
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    };
    match leasehold_engine::machine::timeout(app.config.body_timeout, whole).await {
        Ok(Ok(whole)) => Ok(Bytes::from_owner(Held { whole, _budget: budget })),
        Ok(Err(refusal)) => Err(refusal),
        Err(_) => {
            let detail = format!("the body did not arrive within {:?}", app.config.body_timeout);
            Err(closing(problem(StatusCode::REQUEST_TIMEOUT, "body-too-slow", &detail)))
        }
    }
}

/// What a body takes of the bytes that may be kept: of all clients, of its own, and of its connection.
struct Budget {
    place: Place,
    connection: Option<Arc<Connection>>,
    own: usize,
}

impl Budget {
    fn of(app: &App, body: &mut RequestBody) -> Self {
        let (connection, client) = match body.sender() {
            Some(Sender { connection, client }) => (Some(connection), client),
            None => (None, "".into()),
        };
        Self { place: app.body_bytes.none_yet(&client), connection, own: 0 }
    }

    fn extend(&mut self, len: usize) -> Result<(), Full> {
        self.place.extend(len)?;
        self.own += len;
        let Some(connection) = &self.connection else { return Ok(()) };
        let before = connection.body_bytes.fetch_add(len, Ordering::Relaxed);
        if before + len > CONNECTION_BYTES_MAX { Err(Full::Client) } else { Ok(()) }
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            connection.body_bytes.fetch_sub(self.own, Ordering::Relaxed);
        }
    }
}

/// A body, and what it takes of the budget for as long as it lasts.
struct Held {
    whole: Bytes,
    _budget: Budget,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.whole
    }
}

/// Reads what is left of a small body, and forgets it: a client that is refused while it still sends may miss the
/// answer over HTTP/2, where the rest of its request is reset.
pub async fn drain(app: &App, mut body: RequestBody) {
    if matches!(body, RequestBody::Whole(_)) {
        return;
    }
    let rest = async {
        let mut left = DRAIN_LEN_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let len = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(len) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    leasehold_engine::machine::timeout(app.config.body_timeout, rest).await.ok();
}

fn too_many_bodies(full: Full) -> Response {
    let whose = match full {
        Full::Total => "all clients",
        Full::Client => "this client",
    };
    let detail = format!("the bodies that {whose} send at this moment are too large together: retry later");
    closing(try_again(problem(StatusCode::SERVICE_UNAVAILABLE, "too-many-bodies", &detail)))
}

fn too_large(max: usize) -> Response {
    let detail = format!("the body is larger than {max} bytes");
    problem(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", &detail)
}
