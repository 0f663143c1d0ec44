//! HTTP to a service of several addresses, over one pool of connections.
//!
//! In:    requests. Out: responses, stamped with a moment before they were sent; or why there is none.
//! Never: waits longer than it is told, or calls a request failed that may have arrived.
//!
//! Everything here that talks to a server does it through [`Http`]. `node.rs` has the connections of one address,
//! `tls.rs` makes them secure.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{HeaderMap, Request, Response};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use zeroize::Zeroizing;

pub use crate::call::Call;
pub(crate) use crate::call::{Failure, Reply};
use crate::clock::BootInstant;
use crate::error::Error;
use crate::node::{Broken, Connection, Node};
use crate::settings::Options;
use crate::tls::Tls;
use crate::wire;

/// Short requests at a time; the others wait their turn here instead of each opening a connection.
const IN_FLIGHT_MAX: usize = 32;
/// Largest body that is read: a list of a thousand claims with large user data.
const BODY_LEN_MAX: usize = 128 << 20;

/// A response whose body comes piece by piece: events, for example.
pub struct Streamed {
    /// The address that answered: host and port.
    pub from: String,
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    body: Incoming,
}

impl Streamed {
    /// The whole body, as far as it is shorter than this: a refusal, for example.
    pub async fn rest(mut self, len_max: usize, within: Duration) -> Vec<u8> {
        let mut body = Vec::new();
        while let Ok(Some(piece)) = self.next(within).await {
            if body.len() >= len_max {
                break;
            }
            body.extend_from_slice(&piece);
        }
        body
    }

    /// The next piece; `None` at the end.
    pub async fn next(&mut self, within: Duration) -> Result<Option<Bytes>, Failure> {
        loop {
            let Ok(frame) = timeout(within, self.body.frame()).await else {
                return Err(Failure::Lost("its answer broke off: nothing more arrives".into()));
            };
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => return Err(Failure::Lost(format!("its answer broke off ({error})"))),
            }
        }
    }
}

/// The service as seen from here.
pub(crate) struct Http {
    nodes: Vec<Node>,
    /// The address that answered last.
    preferred: AtomicUsize,
    authorization: Option<HeaderValue>,
    prefix: String,
    short: Arc<Semaphore>,
}

impl Http {
    /// Connects to nothing yet.
    pub(crate) fn new(options: &Options) -> Result<Self, Error> {
        let addresses = options.check()?;
        let authorization = options.key.as_ref().and_then(|key| {
            // Overwritten when the last request that has it is gone.
            let text = Zeroizing::new(format!("Bearer {key}").into_bytes());
            let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(text)).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let is_https = addresses.iter().any(|address| address.is_https);
        let tls = if is_https { Some(Arc::new(Tls::new(&options.tls)?)) } else { None };
        let node = |address: crate::address::Address| {
            let tls = tls.clone().filter(|_| address.is_https);
            Node::new(address, tls)
        };
        Ok(Self {
            nodes: addresses.into_iter().map(node).collect(),
            preferred: AtomicUsize::new(0),
            authorization,
            prefix: format!("/{}/", options.api_version),
            short: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
        })
    }

    /// Sends a request that is answered at once.
    pub(crate) async fn send(&self, call: &Call, within: Duration) -> Result<Reply, Failure> {
        let Ok(_permit) = self.short.acquire().await else {
            return Err(Failure::NotSent("the client is shutting down".into()));
        };
        self.send_long(call, within).await
    }

    /// Sends a request whose answer may take its time: no other waits for it. An address that can't help is left for
    /// the next one, unless the request may have arrived there and must not be repeated.
    pub(crate) async fn send_long(&self, call: &Call, within: Duration) -> Result<Reply, Failure> {
        let until = Instant::now() + within;
        let mut tried = Tried::default();
        for at in self.turns() {
            let began = BootInstant::now();
            let result = self.send_to(&self.nodes[at], call, until).await;
            match result {
                Ok(reply) if settles(call, &reply) => {
                    // A node that can't serve now is left for the next one, the next time.
                    self.prefer(if reply.status >= 500 { at + 1 } else { at });
                    let is_repeated = reply.is_repeated || tried.first_sent.is_some();
                    let sent = tried.first_sent.unwrap_or(reply.sent);
                    return Ok(Reply { sent, is_repeated, ..reply });
                }
                result => tried.note(result, began),
            }
            self.prefer(at + 1);
            if (call.once && tried.first_sent.is_some()) || Instant::now() >= until {
                break;
            }
        }
        tried.best()
    }

    /// Sends a read and returns when its response begins. A refusal is a response, too, if no address has a better one.
    pub(crate) async fn open(&self, call: &Call, within: Duration) -> Result<Streamed, Failure> {
        let until = Instant::now() + within;
        let mut tried = Tried::default();
        let mut refusal = None;
        for at in self.turns() {
            let began = BootInstant::now();
            match self.head(&self.nodes[at], call, until).await {
                Ok((.., response)) => {
                    let (head, body) = response.into_parts();
                    let from = self.nodes[at].address.authority.clone();
                    let response =
                        Streamed { from, status: head.status.as_u16(), headers: head.headers, body };
                    if !matches!(response.status, 401 | 404 | 500..) {
                        self.prefer(at);
                        return Ok(response);
                    }
                    refusal.get_or_insert(response);
                }
                Err(failure) => tried.note(Err(failure), began),
            }
            self.prefer(at + 1);
        }
        refusal.ok_or_else(|| tried.failure())
    }

    /// Every address once, the one that answered last before the others.
    fn turns(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, len) = (self.preferred.load(Ordering::Relaxed), self.nodes.len());
        (0..len).map(move |turn| (first + turn) % len)
    }

    fn prefer(&self, at: usize) {
        self.preferred.store(at % self.nodes.len(), Ordering::Relaxed);
    }

    async fn send_to(&self, node: &Node, call: &Call, until: Instant) -> Result<Reply, Failure> {
        let (connection, sent, is_repeated, response) = self.head(node, call, until).await?;
        let whole = timeout_at(until, read(response, node, sent)).await;
        let reply = whole.unwrap_or_else(|_| Err("its answer did not end in time".into()));
        let reply = reply.map_err(|why| Failure::Lost(node.named(&why)))?;
        node.keep(connection);
        if !call.raw && (200..300).contains(&reply.status) && !is_json(&reply.body) {
            let what = format!("its answer ({}) is not that of a lock server", reply.status);
            return Err(Failure::Lost(node.named(&what)));
        }
        Ok(Reply { is_repeated, ..reply })
    }

    /// Sends a request and waits for the head of its response; also when it was sent for the first time.
    async fn head(&self, node: &Node, call: &Call, until: Instant) -> Result<Answered, Failure> {
        let request = self.request(node, call).map_err(|why| Failure::NotSent(node.named(&why)))?;
        let mut first_sent = None;
        if let Some(mut connection) = node.idle_connection().filter(|_| !call.once) {
            let sent = *first_sent.insert(BootInstant::now());
            match timeout_at(until, node.ask(&mut connection, request.clone(), call.quiet)).await {
                Ok(Ok(response)) if response.status() != 408 => {
                    return Ok((connection, sent, false, response));
                }
                // The server may close a connection that was idle, or give up on it (408), just when it is used. This request
                // can be repeated.
                Ok(Ok(_) | Err(Broken::Closed(_))) => {}
                Ok(Err(Broken::Silent)) | Err(_) => return Err(Failure::Lost(node.named(NO_ANSWER))),
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        let mut connection = match (node.connect(left).await, first_sent) {
            (Ok(connection), _) => connection,
            (Err(why), None) => return Err(Failure::NotSent(why)),
            (Err(why), Some(_)) => return Err(Failure::Lost(why)),
        };
        let sent = first_sent.unwrap_or_else(BootInstant::now);
        match timeout_at(until, node.ask(&mut connection, request, call.quiet)).await {
            Ok(Ok(response)) => Ok((connection, sent, first_sent.is_some(), response)),
            Ok(Err(Broken::Closed(why))) => Err(Failure::Lost(node.named(&why))),
            Ok(Err(Broken::Silent)) | Err(_) => Err(Failure::Lost(node.named(NO_ANSWER))),
        }
    }

    fn request(&self, node: &Node, call: &Call) -> Result<Request<Full<Bytes>>, String> {
        let prefix = if call.path.starts_with('/') { "" } else { &self.prefix };
        let mut builder = Request::builder()
            .method(call.method.clone())
            .uri(format!("{prefix}{}", call.path))
            .header(HOST, node.address.authority.as_str())
            .header(CONTENT_TYPE, "application/json");
        for (name, value) in &call.headers {
            builder = builder.header(name, value);
        }
        if let Some(authorization) = &self.authorization {
            builder = builder.header(AUTHORIZATION, authorization);
        }
        builder.body(Full::new(call.body.clone())).map_err(|error| error.to_string())
    }
}

const NO_ANSWER: &str = "it does not answer";

/// A connection, when the request was first sent, whether that was in vain, and the head of the response.
type Answered = (Connection, BootInstant, bool, Response<Incoming>);

/// What the addresses said that could not help.
#[derive(Default)]
struct Tried {
    /// When the request was first sent, if it may have arrived.
    first_sent: Option<BootInstant>,
    /// What says most about it, and how much.
    best: Option<(u8, Result<Reply, Failure>)>,
    troubles: Vec<String>,
}

impl Tried {
    fn note(&mut self, result: Result<Reply, Failure>, began: BootInstant) {
        let weight = match &result {
            Err(Failure::NotSent(_)) => 0,
            Err(Failure::Lost(_)) => UNKNOWN,
            Ok(reply) if reply.status >= 500 && !reply.is_certainly_undone() => UNKNOWN,
            Ok(reply) if wire::is_problem_of_ours(&reply.body) => 2,
            Ok(_) => 1,
        };
        if weight == UNKNOWN {
            self.first_sent.get_or_insert(began);
        }
        self.troubles.push(match &result {
            Ok(reply) => format!("{}: {} {}", reply.from, reply.status, wire::detail(&reply.body)),
            Err(failure) => failure.why().into(),
        });
        if self.best.as_ref().is_none_or(|(best, _)| weight > *best) {
            self.best = Some((weight, result));
        }
    }

    /// The answer that says most; or what became of the request at all addresses.
    fn best(mut self) -> Result<Reply, Failure> {
        match self.best.take() {
            Some((_, Ok(reply))) => Ok(reply),
            _ => Err(self.failure()),
        }
    }

    fn failure(self) -> Failure {
        let why = self.troubles.join("; ");
        if self.first_sent.is_some() { Failure::Lost(why) } else { Failure::NotSent(why) }
    }
}

/// How much it says that the request may have happened: nothing may hide that.
const UNKNOWN: u8 = 3;

/// Whether an answer is the last word, so that no other address is asked.
fn settles(call: &Call, reply: &Reply) -> bool {
    match reply.status {
        // This node may not know the key yet, or the server may not be one of this service.
        401 => false,
        404 => wire::is_problem_of_ours(&reply.body),
        507 => true,
        500.. => call.once && !reply.is_certainly_undone(),
        _ => true,
    }
}

/// As far as the first letter shows.
fn is_json(body: &[u8]) -> bool {
    body.trim_ascii_start().first().is_none_or(|first| b"{[".contains(first))
}

async fn read(response: Response<Incoming>, node: &Node, sent: BootInstant) -> Result<Reply, String> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, BODY_LEN_MAX).collect().await;
    let body = body.map_err(|error| format!("its answer broke off ({error})"))?;
    let text = |name: &str| Some(head.headers.get(name)?.to_str().ok()?.to_string());
    Ok(Reply {
        sent,
        is_repeated: false,
        from: node.address.authority.clone(),
        status: head.status.as_u16(),
        location: text("location"),
        link: text("link"),
        retry_after: text("retry-after").and_then(|after| after.trim().parse().ok()).map(Duration::from_secs),
        body: body.to_bytes(),
    })
}
