//! The listener: accepts connections, serves requests on them, stops in order.
//!
//! In:    TCP connections, with TLS or without. Out: requests to `routes.rs`, by `http1` or, for HTTP/2, hyper.
//! Never: lets one connection, or too many of them, keep the others from being served.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{HOST, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use leasehold_core::ClaimId;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};

use super::Response;
use super::aside::Aside;
use super::basic::Administrators;
use super::body::RequestBody;
use super::delivery::Wire;
use super::headers::Headers;
use super::http1::Http1;
use super::problem::{problem, try_again};
use super::request::{self, Connection, Head};
use super::routes;
use super::tls::Tls;
use super::trace::Trace;
use crate::access::rate::Rates;
use crate::access::{Access, Caller, Policy};
use crate::audit::Audit;
use crate::config::Config;
use crate::engine::Engine;
use crate::observe::metrics::Dialect;
use crate::observe::{Observer, health};

/// How long requests in flight may take to be answered once the node stops.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// Bytes of headers that a request over HTTP/2 may have.
const HEADER_LIST_MAX: u32 = 64 << 10;
/// How long a connection that is over may still send what nobody reads ...
const LINGER: Duration = Duration::from_secs(5);
/// ... and how much.
const LINGER_BYTES_MAX: u64 = 64 << 20;

/// Connections that the engine's own thread serves; further ones, and those with TLS, are served by other threads. On a
/// small machine many: a request that stays on one thread takes a fifth less of the processor, and there is no third
/// core for the threads to run on side by side ...
const NEAR_ON_TWO_CORES: usize = 192;
/// ... so many more at a leader whose followers run on the same machine: what changes something there needs them too, and
/// other threads would take what they need; larger entries cost them less ...
const NEAR_BESIDE_FOLLOWERS: usize = 832;
/// ... elsewhere some, so that a few clients get the shortest way and many get all the cores.
const NEAR_ON_MORE_CORES: usize = 64;

/// How long a new connection is watched for a probe. A probe speaks at once.
const FIRST_BYTES_MAX: Duration = Duration::from_secs(1);

/// A place near the engine, if the connection has one.
type Near = Option<OwnedSemaphorePermit>;

/// Requests that one HTTP/2 connection may have open at a time.
const STREAMS_MAX: u32 = 100;
/// How often an HTTP/2 connection is asked whether its client still lives.
const PING_EVERY: Duration = Duration::from_secs(15);

/// Who stands at the door: access control, TLS, the audit.
pub struct Guards {
    /// Who may do what.
    pub access: Arc<Access>,
    /// Certificate and key.
    pub tls: Option<Arc<Tls>>,
    /// Who got what.
    pub audit: Option<Arc<Audit>>,
}

impl Guards {
    /// Reads everything that the configuration names, and keeps an eye on it.
    pub fn new(config: &Config) -> Result<Self, String> {
        let audit = config.audit.as_ref().map(Audit::start).transpose()?;
        let policy = config.access.as_ref().map(|options| Policy::new(options, None)).transpose()?;
        let rates = config.requests_per_second.map(|rate| Rates::new(rate, 2.0 * rate));
        let tls = config.tls.as_ref().map(Tls::new).transpose().map_err(|why| format!("tls: {why}"))?;
        let access = Access::new(policy, rates, audit.clone());
        access.watch_keys();
        if let Some(tls) = &tls {
            tls.watch();
        }
        Ok(Self { access, tls, audit })
    }

    /// Reads it anew.
    pub fn reload(&self, config: &Config) -> Result<(), String> {
        if let Some(tls) = &self.tls {
            tls.reload();
        }
        match &config.access {
            Some(options) => self.access.reload(options),
            None if self.access.is_on() => {
                Err("the [access] part is gone: start the node anew to turn access control off".into())
            }
            None => Ok(()),
        }
    }
}

/// What every request can reach.
pub struct App {
    /// The lock table.
    pub engine: Arc<Engine>,
    /// How this node is set up.
    pub config: Config,
    /// Who may use the locks dialect's administration.
    pub administrators: Administrators,
    /// Access control, TLS and audit.
    pub guards: Arc<Guards>,
    /// Places for requests that stand open.
    pub long_polls: Semaphore,
    /// Streams, metrics, charts.
    pub observer: Arc<Observer>,
    /// Turns true when the node stops: long-polls answer then.
    pub stopping: watch::Receiver<bool>,
    /// Where long answers are made.
    pub aside: Aside,
}

impl App {
    /// Tells the audit who asks for the next change of this claim.
    pub fn note(&self, claim: ClaimId, caller: &Caller, connection: &Connection, headers: &Headers) {
        if self.guards.audit.is_some() {
            self.note_from(claim, caller.owner(connection, headers), connection.client(headers));
        }
    }

    /// The same where owner and address are known.
    pub fn note_from(&self, claim: ClaimId, owner: Arc<str>, client: Arc<str>) {
        if let Some(audit) = &self.guards.audit {
            audit.note(claim, owner, client);
        }
    }

    /// A place for a request that may stand open for long.
    pub fn long_poll(&self) -> Result<SemaphorePermit<'_>, Response> {
        self.long_polls.try_acquire().map_err(|_| {
            let detail = "too many requests stand open already: come back later, or ask without waiting";
            try_again(problem(StatusCode::SERVICE_UNAVAILABLE, "too-many-long-polls", detail))
        })
    }
}

/// For the simulation: the same road, without a socket.
#[cfg(feature = "sim")]
impl App {
    /// What requests to a simulated node can reach.
    pub fn simulated(engine: Arc<Engine>, observer: Arc<Observer>) -> Arc<Self> {
        let config = crate::config::Options::default().validate().expect("the defaults are good");
        let (stop, stopping) = watch::channel(false);
        // It is never told to stop: it crashes.
        std::mem::forget(stop);
        let administrators = Administrators::new(config.admin.clone());
        let guards = Arc::new(Guards { access: Access::new(None, None, None), tls: None, audit: None });
        let long_polls = Semaphore::new(1000);
        let aside = Aside::default();
        Arc::new(Self { engine, config, administrators, guards, long_polls, observer, stopping, aside })
    }

    /// Serves a connection, over bytes that travel as the simulation pleases.
    pub async fn serve(self: Arc<Self>, stream: tokio::io::DuplexStream) {
        let [peer, local] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let connection = Arc::new(Connection::new(peer, local, &[]));
        serve_http1(self, stream, connection, None).await;
    }
}

/// A bound listener: clients can connect, nobody answers yet.
pub struct Server {
    listener: TcpListener,
    app: Arc<App>,
    stop: watch::Sender<bool>,
    /// Places near the engine.
    near: Arc<Semaphore>,
    /// How many of them only a leader gives away.
    near_at_leader: usize,
}

impl Server {
    /// Binds the configured address.
    pub async fn bind(
        engine: Arc<Engine>,
        config: Config,
        guards: Arc<Guards>,
        observer: Arc<Observer>,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        let (stop, stopping) = watch::channel(false);
        let administrators = Administrators::new(config.admin.clone());
        let long_polls = Semaphore::new(config.long_polls_max.min(Semaphore::MAX_PERMITS));
        observer.metrics.started(&engine);
        let aside = Aside::here();
        let app = App { engine, config, administrators, guards, long_polls, observer, stopping, aside };
        let few_cores = std::thread::available_parallelism().is_ok_and(|cores| cores.get() <= 2);
        // Only from the same machine can peers reach such a node.
        let beside_peers = app.config.cluster.as_ref().is_some_and(|own| own.listen.ip().is_loopback());
        let (near, near_at_leader) = match few_cores {
            true => (NEAR_ON_TWO_CORES, if beside_peers { NEAR_BESIDE_FOLLOWERS } else { 0 }),
            false => (NEAR_ON_MORE_CORES, 0),
        };
        let near = Arc::new(Semaphore::new(near + near_at_leader));
        Ok(Self { listener, app: Arc::new(app), stop, near, near_at_leader })
    }

    /// Where it listens: the port is the system's choice if 0 was asked for.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is done, then answers what is in flight.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let places = Arc::new(Semaphore::new(self.app.config.connections_max));
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut stop => break,
            };
            match accepted {
                Ok((stream, peer)) => match places.clone().try_acquire_owned() {
                    Ok(place) => self.start(stream, peer, place),
                    Err(_) => drop(tokio::spawn(turn_away(stream))),
                },
                Err(error) => {
                    // Out of file descriptors, most likely: let some connections end first.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(self.listener);
        self.stop.send_replace(true);
        // When every place is free, every connection has ended.
        let all = places.acquire_many(self.app.config.connections_max as u32);
        if tokio::time::timeout(STOP_GRACE, all).await.is_err() {
            tracing::warn!("some connections did not end in time and are cut");
        }
    }

    /// A place near the engine, if there is one for another connection.
    fn near(&self) -> Near {
        let engine = &self.app.engine;
        let free = self.near.available_permits() > self.near_at_leader
            || engine.known_leader() == Some(engine.node_id());
        // A handshake takes long.
        let plain = self.app.guards.tls.is_none();
        (free && plain && !engine.may_be_stuck())
            .then(|| self.near.clone().try_acquire_owned().ok())
            .flatten()
    }

    /// Has a connection served near the engine while there is a place, and elsewhere otherwise.
    fn start(&self, stream: TcpStream, peer: SocketAddr, place: OwnedSemaphorePermit) {
        let app = self.app.clone();
        let near = self.near();
        let Some(near) = near else {
            tokio::spawn(serve(app, stream, peer, place, None));
            return;
        };
        tokio::spawn(async move {
            if begins_with_probe(&app, &stream).await {
                drop(near);
                return serve(app, stream, peer, place, None).await;
            }
            let engine = app.engine.clone();
            // Whichever thread serves it is to hear of what it receives.
            let moved = stream.into_std();
            engine.spawn_near(async move {
                match moved.and_then(TcpStream::from_std) {
                    Ok(stream) => serve(app, stream, peer, place, Some(near)).await,
                    Err(error) => tracing::warn!(%error, "a connection could not be served"),
                }
            });
        });
    }
}

/// Whether the first request on a connection is a probe's. Probes must be answered while the engine's thread waits for its
/// disk: they are not given to it.
async fn begins_with_probe(app: &App, stream: &TcpStream) -> bool {
    let mut first = [0; 32];
    let peeked = tokio::select! {
        peeked = tokio::time::timeout(FIRST_BYTES_MAX, stream.peek(&mut first)) => peeked,
        () = stopped(app.stopping.clone()) => return false,
    };
    let Ok(Ok(len)) = peeked else { return false };
    let mut words = first[..len].split(|byte| b" ?".contains(byte));
    let method = words.next().is_some_and(|method| [&b"GET"[..], b"HEAD"].contains(&method));
    method && words.next().and_then(|path| std::str::from_utf8(path).ok()).is_some_and(health::is_probe)
}

/// Serves the requests of one connection until it ends, or the node stops and its request is answered.
async fn serve(app: Arc<App>, stream: TcpStream, peer: SocketAddr, place: OwnedSemaphorePermit, near: Near) {
    let Ok(local) = stream.local_addr() else { return };
    stream.set_nodelay(true).ok();
    keep_alive(&stream);
    let mut connection = Connection::new(peer, local, &app.config.trusted_proxies);
    connection.secure = app.guards.tls.is_some();
    let connection = Arc::new(connection);
    let wire = Wire::new(stream, connection.clone());
    match app.guards.tls.clone() {
        None => serve_http1(app, wire, connection, near).await,
        // A handshake takes much more room than a connection that has none.
        Some(tls) => Box::pin(serve_tls(app, wire, connection, &tls)).await,
    }
    drop(place);
}

/// The handshake, within the time for headers; then whichever protocol both sides speak.
async fn serve_tls(app: Arc<App>, wire: Wire, connection: Arc<Connection>, tls: &Tls) {
    let handshake = tls.acceptor().accept(wire);
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(app.config.header_timeout, handshake) => shaken,
        () = stopped(app.stopping.clone()) => return,
    };
    let peer = connection.peer;
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%peer, %error, "a TLS handshake failed"),
        Err(_) => return tracing::debug!(%peer, "a TLS handshake took too long"),
    };
    let (_, session) = stream.get_ref();
    if let Some(certificate) = session.peer_certificates().and_then(<[_]>::first) {
        connection.certificate.set(certificate.as_ref().into()).ok();
    }
    if session.alpn_protocol() == Some(b"h2") {
        serve_http2(app, stream, connection).await;
    } else {
        serve_http1(app, stream, connection, None).await;
    }
}

async fn serve_http1<S>(app: Arc<App>, stream: S, connection: Arc<Connection>, near: Near)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let metrics = app.observer.metrics.clone();
    metrics.connections.fetch_add(1, Ordering::Relaxed);
    let stopping = app.stopping.clone();
    // The simulation has no clock of its own for connections.
    let patience = (!cfg!(feature = "sim")).then_some(app.config.header_timeout);
    let is_stopping = || !matches!(stopping.has_changed(), Ok(false));
    // An entry has outcomes for connections of several threads once there are more than have a place here. What the others
    // answer is to be under way before this thread sends: clients that go on too early would take the processor from them,
    // and from this thread at the end of its next sync (docs/benchmarks.md).
    let stands_back = || near.as_ref().is_some_and(|near| near.semaphore().available_permits() == 0);
    let answer = |request| {
        connection.delivery.seen();
        answer(&app, &connection, request)
    };
    let http1 = Http1::new(stream);
    let mut stream = http1.serve(patience, stopped(stopping.clone()), is_stopping, stands_back, answer).await;
    connection.delivery.close();
    tokio::select! {
        biased;
        () = linger(&mut stream) => {}
        () = stopped(stopping.clone()) => {}
    }
    metrics.connections.fetch_sub(1, Ordering::Relaxed);
}

/// One request, counted and traced, whichever protocol it came by.
fn answer(
    app: &Arc<App>,
    connection: &Arc<Connection>,
    request: request::Request,
) -> impl Future<Output = Response> {
    let (dialect, trace) = (Dialect::of(request.uri().path()), Trace::of(&request));
    let answer = routes::answer(app.clone(), connection.clone(), request);
    async move {
        let mut response = answer.await;
        app.observer.metrics.answered(dialect, response.status().as_u16());
        trace.answered(&connection.peer_name, &mut response);
        response
    }
}

async fn serve_http2<S>(app: Arc<App>, stream: S, connection: Arc<Connection>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    connection.delivery.share();
    let (stopping, peer) = (app.stopping.clone(), connection.peer);
    let service = service_fn(move |mut request: Request<Incoming>| {
        name_host(&mut request);
        let (head, body) = request.into_parts();
        let headers = head.headers.iter().collect();
        let head = Head { method: head.method, uri: head.uri, version: head.version, headers };
        let request = request::Request::new(head, RequestBody::from(body));
        let (app, connection) = (app.clone(), connection.clone());
        async move { Ok::<_, Infallible>(answer(&app, &connection, request).await) }
    });
    let mut serving = std::pin::pin!(
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_header_list_size(HEADER_LIST_MAX)
            .max_concurrent_streams(STREAMS_MAX)
            .keep_alive_interval(Some(PING_EVERY))
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = stopped(stopping) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

/// HTTP/2 names the host in a place of its own: from here on it is a header, as it was before.
fn name_host(request: &mut Request<Incoming>) {
    let authority = request.uri().authority().map(hyper::http::uri::Authority::as_str);
    if let Some(Ok(host)) = authority.map(HeaderValue::from_str)
        && !request.headers().contains_key(HOST)
    {
        request.headers_mut().insert(HOST, host);
    }
}

async fn stopped(mut stopping: watch::Receiver<bool>) {
    stopping.wait_for(|stopping| *stopping).await.ok();
}

/// Reads on for a moment: a socket that is closed with bytes unread is reset, and the answer lost with it.
async fn linger(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let rest = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
    };
    let _ = crate::outside::timeout(LINGER, rest).await;
}

/// The last words on a connection; who does not take them in time misses them.
async fn send_last(stream: &mut (impl AsyncWriteExt + Unpin), text: &str) {
    let _ = tokio::time::timeout(LINGER, stream.write_all(text.as_bytes())).await;
}

/// A client whose machine or network is gone says nothing: after half a minute of silence its connection is, too.
fn keep_alive(stream: &TcpStream) {
    let probes = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    if let Err(error) = SockRef::from(stream).set_tcp_keepalive(&probes) {
        tracing::debug!(%error, "TCP keep-alive could not be set");
    }
}

/// Tells one connection too many to come back.
async fn turn_away(mut stream: TcpStream) {
    const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
        Content-Length: 0\r\n\r\n";
    send_last(&mut stream, BUSY).await;
}
