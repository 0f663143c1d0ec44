//! One address of the service: its connections, and whether the node behind it is alive.
//!
//! In:    requests. Out: responses, or how the exchange broke.
//! Never: reuses a connection that a response did not end cleanly, and never waits on for a node that has fallen silent.
//!
//! A request may be answered late for good reasons (it waits for its turn, a table is copied), so its own silence says
//! nothing. While it is out, the node is asked for `/livez`: once for all requests that wait, and only if nothing else was
//! heard of the node.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HOST;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use crate::address::Address;
use crate::tls::{self, Tls};

/// How long one connection may take to be made before the next address gets its chance.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Idle connections that are kept.
const IDLE_MAX: usize = 16;
/// How long a request is out before the node is asked whether it is alive. With the next constant: a node that has fallen
/// silent is left after three seconds.
const LIFE_AFTER: Duration = Duration::from_secs(1);
/// How long a node may take to say that it is alive.
const LIFE_WITHIN: Duration = Duration::from_secs(2);
/// A node that answers is asked less and less often, down to once in this time: a request may be out for hours.
const LIFE_EVERY_MAX: Duration = Duration::from_secs(3);

/// What a node may say about being alive.
const LIFE_LEN_MAX: usize = 64 << 10;

/// A connection with no request on it.
pub(crate) type Connection = SendRequest<Full<Bytes>>;

/// How an exchange broke. The request may have arrived.
pub(crate) enum Broken {
    Closed(String),
    /// No sign of life.
    Silent,
}

/// One address of the service.
pub(crate) struct Node {
    pub(crate) address: Address,
    tls: Option<Arc<Tls>>,
    idle: Mutex<VecDeque<Connection>>,
    /// When something came from there last.
    heard: Mutex<Option<Instant>>,
    /// When nobody was found alive there last. Locked while somebody asks.
    dead: tokio::sync::Mutex<Option<Instant>>,
}

impl Node {
    /// Connects to nothing yet.
    pub(crate) fn new(address: Address, tls: Option<Arc<Tls>>) -> Self {
        Self { address, tls, idle: Mutex::default(), heard: Mutex::default(), dead: Default::default() }
    }

    /// A connection that is open already.
    pub(crate) fn idle_connection(&self) -> Option<Connection> {
        let mut idle = lock(&self.idle);
        while let Some(connection) = idle.pop_back() {
            if connection.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for the next request.
    pub(crate) fn keep(&self, connection: Connection) {
        let mut idle = lock(&self.idle);
        if idle.len() < IDLE_MAX && !connection.is_closed() {
            idle.push_back(connection);
        }
    }

    /// A new connection.
    pub(crate) async fn connect(&self, within: Duration) -> Result<Connection, String> {
        let connecting = async {
            let stream = self.connect_tcp(within.min(CONNECT_TIMEOUT)).await?;
            stream.set_nodelay(true).ok();
            match &self.tls {
                Some(tls) => handshake(tls.connect(&self.address.host, stream).await?).await,
                None => handshake(stream).await,
            }
        };
        match timeout(within.min(CONNECT_TIMEOUT), connecting).await {
            Ok(made) => made.map_err(|why| self.named(&why)),
            Err(_) => Err(self.named("no connection in time")),
        }
    }

    /// A name may stand for several machines; each gets its part of the time.
    async fn connect_tcp(&self, within: Duration) -> Result<TcpStream, String> {
        let place = (self.address.host.as_str(), self.address.port);
        let found = tokio::net::lookup_host(place).await.map_err(|error| error.to_string())?;
        let found: Vec<SocketAddr> = found.collect();
        let mut last = "the name has no address".to_string();
        for at in &found {
            let part = within / u32::try_from(found.len()).unwrap_or(1);
            match timeout(part, TcpStream::connect(at)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => last = "no connection in time".into(),
            }
        }
        Err(last)
    }

    /// What happened, with the address where it did.
    pub(crate) fn named(&self, why: &str) -> String {
        format!("{}: {why}", self.address.authority)
    }

    /// Sends a request and waits for the head of its response, as long as the node is alive; if it is quiet, whether it is
    /// or not.
    pub(crate) async fn ask(
        &self,
        connection: &mut Connection,
        request: Request<Full<Bytes>>,
        is_quiet: bool,
    ) -> Result<Response<Incoming>, Broken> {
        let response = connection.send_request(request);
        tokio::select! {
            biased;
            response = response => {
                self.hear();
                response.map_err(|error| Broken::Closed(self.closed(&error)))
            }
            () = self.fallen_silent(), if !is_quiet => {
                lock(&self.idle).clear();
                Err(Broken::Silent)
            }
        }
    }

    fn closed(&self, error: &hyper::Error) -> String {
        if let Some(why) = tls::explain(error) {
            return why;
        }
        if error.is_parse() {
            let other = if self.address.is_https { "" } else { " (if it speaks TLS, use https://)" };
            return format!("its answer is not HTTP{other}");
        }
        let cause = std::error::Error::source(error).map_or(String::new(), |cause| format!(": {cause}"));
        format!("the connection broke ({error}{cause})")
    }

    fn hear(&self) {
        *lock(&self.heard) = Some(Instant::now());
    }

    /// Returns when the node gives no sign of life any more.
    async fn fallen_silent(&self) {
        let mut heard = Instant::now();
        let mut pause = LIFE_AFTER;
        loop {
            sleep_until(heard + pause).await;
            let last = lock(&self.heard).filter(|last| *last > heard);
            if let Some(last) = last {
                heard = last;
                continue;
            }
            let asked = Instant::now();
            let mut dead = self.dead.lock().await;
            // Somebody else has asked meanwhile.
            if dead.is_some_and(|dead| dead > asked) {
                return;
            }
            if lock(&self.heard).is_some_and(|last| last > asked) {
                continue;
            }
            if !timeout(LIFE_WITHIN, self.is_alive()).await.unwrap_or(false) {
                *dead = Some(Instant::now());
                return;
            }
            heard = Instant::now();
            pause = (pause + LIFE_AFTER).min(LIFE_EVERY_MAX);
        }
    }

    /// Whether anything answers, whatever it says.
    async fn is_alive(&self) -> bool {
        // The server may have closed a connection that was idle: that says nothing about it.
        if let Some(connection) = self.idle_connection() {
            if self.answers(connection).await {
                return true;
            }
        }
        match self.connect(LIFE_WITHIN).await {
            Ok(connection) => self.answers(connection).await,
            Err(_) => false,
        }
    }

    async fn answers(&self, mut connection: Connection) -> bool {
        let request = Request::get("/livez").header(HOST, &self.address.authority).body(Full::default());
        let Ok(request) = request else { return false };
        let Ok(response) = connection.send_request(request).await else { return false };
        self.hear();
        if Limited::new(response.into_body(), LIFE_LEN_MAX).collect().await.is_ok() {
            self.keep(connection);
        }
        true
    }
}

async fn handshake<S>(stream: S) -> Result<Connection, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let made = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = made.map_err(|error| error.to_string())?;
    // Ends with the connection; its errors reach the requests that wait for a response.
    tokio::spawn(connection);
    Ok(sender)
}

/// Nothing that holds one of these locks can panic; if it did, what they guard is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
