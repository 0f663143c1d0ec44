//! HTTP to a service of several addresses, over one pool of connections.
//!
//! In:    requests. Out: responses, stamped with a moment before they were sent; or why there is none.
//! Never: waits longer than it is told, reuses a connection that a response did not end cleanly, or calls a request
//!        failed that may have arrived.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use crate::address::Address;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::settings::Options;
use crate::wire;

/// How long one connection may take to be made before the next address gets its chance.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Idle connections that are kept for each address.
const IDLE_MAX: usize = 16;
/// Short requests at a time; the others wait their turn here instead of each opening a connection.
const IN_FLIGHT_MAX: usize = 32;
/// Largest body that is read: a list of a thousand claims with large user data.
const BODY_LEN_MAX: usize = 128 << 20;

/// A whole response.
#[derive(Debug, Clone)]
pub struct Reply {
    /// A moment before the request was sent: what the server did, it did after it.
    pub sent: BootInstant,
    /// The HTTP status.
    pub status: u16,
    /// The URL of a claim that was made.
    pub location: Option<String>,
    /// Where the next page is, as the `Link` header has it.
    pub link: Option<String>,
    /// How long the server asks to wait before the request is repeated.
    pub retry_after: Option<Duration>,
    /// The body.
    pub body: Bytes,
}

/// Why there is no response.
#[derive(Debug, Clone)]
pub enum Failure {
    /// The request has certainly not been sent.
    NotSent(String),
    /// It may have arrived.
    Lost(String),
}

impl Failure {
    /// What happened, in words.
    pub fn why(&self) -> &str {
        match self {
            Self::NotSent(why) | Self::Lost(why) => why,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent(why) => Self::Unreachable(why),
            Failure::Lost(why) => Self::Unknown(why),
        }
    }
}

/// A request.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Path below the API version, with its query: `claims/?limit=1`.
    pub path: String,
    /// Further headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// JSON.
    pub body: Bytes,
}

impl Call {
    /// One without further headers.
    pub fn new(method: Method, path: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: body.into() }
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((HeaderName::from_static(name), value));
        }
        self
    }
}

/// The service as seen from here.
pub struct Http {
    addresses: Vec<Address>,
    /// The address that answered last.
    preferred: AtomicUsize,
    idle: Vec<Mutex<VecDeque<SendRequest<Full<Bytes>>>>>,
    authorization: Option<HeaderValue>,
    prefix: String,
    short: Arc<Semaphore>,
}

impl Http {
    /// Connects to nothing yet.
    pub fn new(options: &Options) -> Result<Self, Error> {
        let addresses = options.check()?;
        let authorization = options.key.as_ref().and_then(|key| {
            // Overwritten when the last request that has it is gone.
            let text = Zeroizing::new(format!("Bearer {key}").into_bytes());
            let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(text)).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        Ok(Self {
            idle: addresses.iter().map(|_| Mutex::default()).collect(),
            addresses,
            preferred: AtomicUsize::new(0),
            authorization,
            prefix: format!("/{}/", options.api_version),
            short: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
        })
    }

    /// Sends a request that is answered at once.
    pub async fn send(&self, call: &Call, within: Duration) -> Result<Reply, Failure> {
        let Ok(_permit) = self.short.acquire().await else {
            return Err(Failure::NotSent("the client is shutting down".into()));
        };
        self.send_long(call, within).await
    }

    /// Sends a request whose answer may take its time: no other waits for it.
    pub async fn send_long(&self, call: &Call, within: Duration) -> Result<Reply, Failure> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut last = Failure::NotSent("no address".into());
        for turn in 0..self.addresses.len() {
            let at = (first + turn) % self.addresses.len();
            match self.send_to(at, call, within).await {
                Ok(reply) => {
                    // A node that can't serve now is left for the next one, the next time.
                    let next = if reply.status >= 500 { at + 1 } else { at };
                    self.preferred.store(next % self.addresses.len(), Ordering::Relaxed);
                    return Ok(reply);
                }
                Err(Failure::NotSent(why)) => last = Failure::NotSent(why),
                Err(lost) => {
                    // It may have arrived there: whoever asked decides whether to repeat it, elsewhere.
                    self.preferred.store((at + 1) % self.addresses.len(), Ordering::Relaxed);
                    return Err(lost);
                }
            }
        }
        Err(last)
    }

    async fn send_to(&self, at: usize, call: &Call, within: Duration) -> Result<Reply, Failure> {
        let address = &self.addresses[at];
        let name = &address.authority;
        if let Some(mut connection) = self.idle_connection(at) {
            match self.exchange(at, &mut connection, call, within).await {
                // The server has given up on the idle connection (408): the request has not been heard.
                Ok(reply) if reply.status == 408 => {}
                Ok(reply) => {
                    self.keep(at, connection);
                    return Ok(reply);
                }
                // The server may close a connection that was idle just when it is used. Every request here can be
                // repeated: a POST has its key, an update says what is to be.
                Err(Broken::Closed(_)) => {}
                Err(Broken::TooLate) => return Err(Failure::Lost(format!("{name} does not answer"))),
            }
        }
        let mut connection = self.connect(address, within).await.map_err(Failure::NotSent)?;
        match self.exchange(at, &mut connection, call, within).await {
            Ok(reply) => {
                self.keep(at, connection);
                Ok(reply)
            }
            Err(Broken::Closed(why)) => Err(Failure::Lost(format!("{name}: {why}"))),
            Err(Broken::TooLate) => Err(Failure::Lost(format!("{name} does not answer"))),
        }
    }

    async fn connect(&self, address: &Address, within: Duration) -> Result<SendRequest<Full<Bytes>>, String> {
        let name = &address.authority;
        let connecting = TcpStream::connect((address.host.as_str(), address.port));
        let stream = match tokio::time::timeout(within.min(CONNECT_TIMEOUT), connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(format!("{name}: {error}")),
            Err(_) => return Err(format!("{name}: no connection within the time")),
        };
        stream.set_nodelay(true).ok();
        let made = http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await;
        let (sender, connection) = made.map_err(|error| format!("{name}: {error}"))?;
        // Ends with the connection; its errors reach whoever waits for a response.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn exchange(
        &self,
        at: usize,
        connection: &mut SendRequest<Full<Bytes>>,
        call: &Call,
        within: Duration,
    ) -> Result<Reply, Broken> {
        let mut builder = hyper::Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", self.prefix, call.path))
            .header(HOST, self.addresses[at].authority.as_str())
            .header(CONTENT_TYPE, "application/json");
        for (name, value) in &call.headers {
            builder = builder.header(name, value);
        }
        if let Some(authorization) = &self.authorization {
            builder = builder.header(AUTHORIZATION, authorization);
        }
        let request =
            builder.body(Full::new(call.body.clone())).map_err(|error| Broken::Closed(error.to_string()))?;
        let sent = BootInstant::now();
        let whole = async {
            let response =
                connection.send_request(request).await.map_err(|error| Broken::Closed(closed(&error)))?;
            read(response, sent).await
        };
        match tokio::time::timeout(within, whole).await {
            Ok(result) => result,
            Err(_) => Err(Broken::TooLate),
        }
    }

    fn idle_connection(&self, at: usize) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = lock(&self.idle[at]);
        while let Some(connection) = idle.pop_back() {
            if connection.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    fn keep(&self, at: usize, connection: SendRequest<Full<Bytes>>) {
        let mut idle = lock(&self.idle[at]);
        if idle.len() < IDLE_MAX && !connection.is_closed() {
            idle.push_back(connection);
        }
    }
}

enum Broken {
    Closed(String),
    TooLate,
}

fn closed(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error).map_or(String::new(), |cause| format!(": {cause}"));
    format!("the connection broke ({error}{cause})")
}

async fn read(response: Response<Incoming>, sent: BootInstant) -> Result<Reply, Broken> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, BODY_LEN_MAX).collect().await;
    let body = body.map_err(|error| Broken::Closed(format!("the response broke off ({error})")))?;
    let text = |name: &str| Some(head.headers.get(name)?.to_str().ok()?.to_string());
    let (location, link) = (text("location"), text("link"));
    let retry_after = text("retry-after").and_then(|seconds| seconds.trim().parse().ok());
    let retry_after = retry_after.map(Duration::from_secs);
    Ok(Reply { sent, status: head.status.as_u16(), location, link, retry_after, body: body.to_bytes() })
}

/// Nothing that holds one of these locks can panic; if it did, the connections are still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reply {
    /// An error unless it is a success.
    pub fn ok(self) -> Result<Self, Error> {
        if (200..300).contains(&self.status) {
            return Ok(self);
        }
        Err(self.refusal())
    }

    /// Whether what was asked certainly did not happen, though it was not refused for good.
    pub(crate) fn is_certainly_undone(&self) -> bool {
        wire::is_certainly_undone(self.status, &self.body)
    }

    /// The refusal that it is.
    pub fn refusal(&self) -> Error {
        match (self.status, wire::status_in(&self.body)) {
            (400, Some(status)) => Error::Ended(status),
            (status, _) if status >= 500 && !self.is_certainly_undone() => {
                Error::Unknown(format!("{status}: {}", wire::detail(&self.body)))
            }
            (status, _) => Error::Refused { status, detail: wire::detail(&self.body) },
        }
    }
}
