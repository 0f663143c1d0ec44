//! The listener: accepts connections, serves requests on them, stops in order.
//!
//! In:    TCP connections, with TLS or without. Out: requests to `dispatch.rs`, by `http1` or, for HTTP/2, hyper.
//! Never: lets one connection, or too many of them, keep the others from being served.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::{Method, StatusCode};
use leasehold_core::{ClaimId, Ending};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::Response;
use super::aside::Aside;
use super::basic::Administrators;
use super::delivery::Wire;
use super::headers::Headers;
use super::http1::Http1;
use super::http2;
use super::listeners::Listeners;
use super::long_answer::{ANSWER_BYTES_MAX, counted};
use super::places::{Full, Place, Places, Share};
use super::problem::{closing, problem, try_again};
use super::request::{Connection, Request};
use super::seats::{self, Seat, Seats, too_many_connections, turn_away};
use super::tls::Tls;
use super::trace::Trace;
use super::web_origin::WebOrigins;
use crate::access::certificate;
use crate::access::rate::Rates;
use crate::access::{Access, Caller, Policy};
use crate::audit::{Audit, Noted};
use crate::config::Config;
use crate::dispatch;
use crate::observe::Observer;
use crate::observe::hub::STREAMS_MAX;
use crate::route::{Dialect, Misrouted, Route};
use crate::withdrawal;
use leasehold_engine::Engine;

/// How long requests in flight may take to be answered once the node stops.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// How long a connection that is over may still send what nobody reads ...
const LINGER: Duration = Duration::from_secs(5);
/// ... and how much.
const LINGER_BYTES_MAX: u64 = 64 << 20;

/// How often the wall clock is looked at while a client certificate is valid.
const CLOCK_LOOK_EVERY: Duration = Duration::from_secs(10);

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
    pub long_polls: Arc<Places>,
    /// Places for event streams.
    pub streams: Arc<Places>,
    /// Bytes of bodies that are received.
    pub body_bytes: Arc<Places>,
    /// Bytes of long answers that wait for their clients.
    pub answer_bytes: Arc<Places>,
    /// What web pages may do here.
    pub web_origins: WebOrigins,
    /// Streams, metrics, charts.
    pub observer: Arc<Observer>,
    /// Turns true when the node stops: long-polls answer then.
    pub stopping: watch::Receiver<bool>,
    /// Where long answers are made.
    pub aside: Aside,
}

impl App {
    /// Tells the audit who asks for this claim to be made. Call `settled` when the table has answered.
    pub fn note(&self, claim: ClaimId, caller: &Caller, connection: &Connection, headers: &Headers) -> Noted {
        match &self.guards.audit {
            Some(audit) => audit.note(claim, caller.owner(connection, headers), connection.client(headers)),
            None => Noted::default(),
        }
    }

    /// The same where owner and address are known.
    pub fn note_from(&self, claim: ClaimId, owner: Arc<str>, client: Arc<str>) -> Noted {
        let audit = self.guards.audit.as_ref();
        audit.map_or_else(Noted::default, |audit| audit.note(claim, owner, client))
    }

    /// Tells the audit who asks for this claim to end in this way; `only_of` is the command's guard.
    pub fn note_end(
        &self,
        claim: ClaimId,
        ending: Ending,
        only_of: Option<&Arc<str>>,
        owner: Arc<str>,
        client: Arc<str>,
    ) -> Noted {
        let audit = self.guards.audit.as_ref();
        audit.map_or_else(Noted::default, |audit| {
            audit.note_end(claim, ending, only_of.cloned(), owner, client)
        })
    }

    /// A place for a request of this owner that may stand open for long.
    pub fn long_poll(&self, owner: &Arc<str>) -> Result<Place, Response> {
        self.long_polls.take(owner).map_err(|full| {
            let whose = if full == Full::Client { " of this client" } else { "" };
            let detail = format!(
                "too many requests{whose} stand open already: come back later, or ask without waiting"
            );
            try_again(problem(StatusCode::SERVICE_UNAVAILABLE, "too-many-long-polls", &detail))
        })
    }

    /// How long this connection may take to ask for something.
    pub(super) fn patience(&self, connection: &Connection) -> Duration {
        let patience = self.config.header_timeout;
        if connection.crowded.is_some() { patience.min(seats::CROWDED_PATIENCE) } else { patience }
    }

    fn new(
        engine: Arc<Engine>,
        config: Config,
        guards: Arc<Guards>,
        observer: Arc<Observer>,
        stopping: watch::Receiver<bool>,
        aside: Aside,
    ) -> Self {
        // Where users have names of their own, none of them gets more by calling itself 127.0.0.1.
        let loopback = if config.access.is_some() { config.share.client } else { config.share.loopback };
        let by_user = Share { loopback, ..config.share };
        Self {
            administrators: Administrators::new(config.admin.clone()),
            long_polls: Places::new(config.long_polls_max, by_user),
            streams: Places::new(STREAMS_MAX, by_user),
            body_bytes: Places::new(config.body_bytes_max, config.share),
            answer_bytes: Places::new(ANSWER_BYTES_MAX, config.share),
            web_origins: WebOrigins::new(&config),
            engine,
            config,
            guards,
            observer,
            stopping,
            aside,
        }
    }
}

/// For the simulation: the same road, without a socket.
#[cfg(feature = "sim")]
impl App {
    /// What requests to a simulated node can reach.
    pub fn simulated(engine: Arc<Engine>, observer: Arc<Observer>) -> Arc<Self> {
        let allowed_hosts = Some(vec!["*".into()]);
        let options = crate::config::Options { allowed_hosts, ..Default::default() };
        let config = options.validate().expect("the defaults are good");
        let (stop, stopping) = watch::channel(false);
        // It is never told to stop: it crashes.
        std::mem::forget(stop);
        let guards = Arc::new(Guards { access: Access::new(None, None, None), tls: None, audit: None });
        Arc::new(Self::new(engine, config, guards, observer, stopping, Aside::default()))
    }

    /// Serves a connection, over bytes that travel as the simulation pleases.
    pub async fn serve(self: Arc<Self>, stream: tokio::io::DuplexStream) {
        let [peer, local] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let connection = Arc::new(Connection::new(peer, local, &[]));
        serve_http1(self, stream, connection, None).await;
    }
}

/// Bound listeners: clients can connect, nobody answers yet.
pub struct Server {
    listeners: Listeners,
    app: Arc<App>,
    stop: watch::Sender<bool>,
    /// Places near the engine.
    near: Arc<Semaphore>,
    /// How many of them only a leader gives away.
    near_at_leader: usize,
    /// Places for connections.
    seats: Seats,
}

impl Server {
    /// Binds the configured addresses: all of them, or none.
    pub async fn bind(
        engine: Arc<Engine>,
        config: Config,
        guards: Arc<Guards>,
        observer: Arc<Observer>,
    ) -> std::io::Result<Self> {
        let listeners = Listeners::bind(&config.listen)?;
        let (stop, stopping) = watch::channel(false);
        observer.metrics.started(&engine);
        let app = App::new(engine, config, guards, observer, stopping, Aside::here());
        if app.guards.access.is_on() {
            tokio::spawn(withdrawal::follow(app.engine.clone(), app.guards.access.clone()));
        }
        let few_cores = std::thread::available_parallelism().is_ok_and(|cores| cores.get() <= 2);
        // Only from the same machine can peers reach such a node.
        let beside_peers = app.config.cluster.as_ref().is_some_and(|own| own.listen.ip().is_loopback());
        let (near, near_at_leader) = match few_cores {
            true => (NEAR_ON_TWO_CORES, if beside_peers { NEAR_BESIDE_FOLLOWERS } else { 0 }),
            false => (NEAR_ON_MORE_CORES, 0),
        };
        let near = Arc::new(Semaphore::new(near + near_at_leader));
        let seats = Seats::new(&app.config);
        Ok(Self { listeners, app: Arc::new(app), stop, near, near_at_leader, seats })
    }

    /// Where it listens, in the order of the configuration: a port is the system's choice if 0 was asked for.
    pub fn local_addrs(&self) -> std::io::Result<Vec<SocketAddr>> {
        self.listeners.local_addrs()
    }

    /// Serves until `stop` is done, then answers what is in flight.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let (alive, mut ended) = mpsc::channel(1);
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = self.listeners.accept() => accepted,
                () = &mut stop => break,
            };
            match accepted {
                Ok((stream, peer)) => match self.seats.take(peer, &alive) {
                    Some(seat) => self.start(stream, peer, seat),
                    None => turn_away(&stream),
                },
                Err(error) => {
                    // Out of file descriptors, most likely: let some connections end first.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop((self.listeners, alive));
        self.stop.send_replace(true);
        // Nothing is ever sent: the channel ends with the last connection.
        if tokio::time::timeout(STOP_GRACE, ended.recv()).await.is_err() {
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
    fn start(&self, stream: TcpStream, peer: SocketAddr, seat: Seat) {
        let app = self.app.clone();
        let near = if seat.crowded.is_none() { self.near() } else { None };
        let Some(near) = near else {
            tokio::spawn(serve(app, stream, peer, seat, None));
            return;
        };
        tokio::spawn(async move {
            if begins_with_probe(&app, &stream).await {
                drop(near);
                return serve(app, stream, peer, seat, None).await;
            }
            let engine = app.engine.clone();
            // Whichever thread serves it is to hear of what it receives.
            let moved = stream.into_std();
            engine.spawn_near(async move {
                match moved.and_then(TcpStream::from_std) {
                    Ok(stream) => serve(app, stream, peer, seat, Some(near)).await,
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
    let method = words.next().and_then(|method| Method::from_bytes(method).ok());
    let path = words.next().and_then(|path| std::str::from_utf8(path).ok());
    let route = method.zip(path).map(|(method, path)| Route::of(&method, path));
    route.is_some_and(|route| route.is_ok_and(|route| route.is_probe()))
}

/// Serves the requests of one connection until it ends, or the node stops and its request is answered.
async fn serve(app: Arc<App>, stream: TcpStream, peer: SocketAddr, seat: Seat, near: Near) {
    let Ok(local) = stream.local_addr() else { return };
    stream.set_nodelay(true).ok();
    keep_alive(&stream);
    let mut connection = Connection::new(peer, local, &app.config.trusted_proxies);
    connection.secure = app.guards.tls.is_some();
    connection.crowded = seat.crowded;
    let connection = Arc::new(connection);
    let wire = Wire::new(stream, connection.clone(), app.config.write_timeout);
    match app.guards.tls.clone() {
        None => serve_http1(app, wire, connection, near).await,
        // A handshake takes much more room than a connection that has none.
        Some(tls) => Box::pin(serve_tls(app, wire, connection, &tls)).await,
    }
    drop(seat);
}

/// The handshake, within the time for headers; then whichever protocol both sides speak.
async fn serve_tls(app: Arc<App>, wire: Wire, connection: Arc<Connection>, tls: &Tls) {
    let mut authorities = tls.authorities();
    let handshake = tls.acceptor().accept(wire);
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(app.patience(&connection), handshake) => shaken,
        () = stopped(app.stopping.clone()) => return,
    };
    let peer = connection.peer;
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%peer, %error, "a TLS handshake failed"),
        Err(_) => return tracing::debug!(%peer, "a TLS handshake took too long"),
    };
    let (_, session) = stream.get_ref();
    let certificates = session.peer_certificates();
    if let Some(certificate) = certificates.and_then(<[_]>::first) {
        connection.certificate.set(certificate.as_ref().into()).ok();
    }
    // Whatever can't be read has expired.
    let expiry = |certificate: &CertificateDer<'_>| certificate::expires(certificate).unwrap_or(0);
    let expiry = certificates.and_then(|certificates| certificates.iter().map(expiry).min());
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let removed = async {
        match expiry.is_some() && authorities.changed().await.is_ok() {
            true => {}
            false => std::future::pending().await,
        }
    };
    let serving = async {
        match is_http2 {
            true => http2::serve(app.clone(), stream, connection.clone()).await,
            false => serve_http1(app.clone(), stream, connection.clone(), None).await,
        }
    };
    tokio::select! {
        biased;
        () = serving => {}
        // Open requests and streams end with it.
        () = passed(expiry) => {
            connection.delivery.close();
            tracing::info!(%peer, "a connection ended: its client certificate has expired");
        }
        () = removed => {
            connection.delivery.close();
            app.guards.access.certificate_withdrawn(&connection);
            tracing::info!(%peer, "a connection ended: the authorities of client certificates have changed");
        }
    }
}

/// Returns when this instant of the wall clock has passed, in unix seconds; never, if there is none.
async fn passed(instant: Option<u64>) {
    let Some(instant) = instant else { return std::future::pending().await };
    loop {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        // A certificate is valid through its last second.
        let left = Duration::from_secs(instant.saturating_add(1)).saturating_sub(now);
        if left.is_zero() {
            return;
        }
        // The wall clock may be set meanwhile.
        tokio::time::sleep(left.min(CLOCK_LOOK_EVERY)).await;
    }
}

async fn serve_http1<S>(app: Arc<App>, stream: S, connection: Arc<Connection>, near: Near)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let _counted = Counted::new(&app);
    let stopping = app.stopping.clone();
    // The simulation has no clock of its own for connections.
    let patience = (!cfg!(feature = "sim")).then(|| app.patience(&connection));
    let is_stopping = || !matches!(stopping.has_changed(), Ok(false));
    // An entry has outcomes for connections of several threads once there are more than have a place here. What the others
    // answer is to be under way before this thread sends: clients that go on too early would take the processor from them,
    // and from this thread at the end of its next sync (docs/benchmarks.md).
    let stands_back = || near.as_ref().is_some_and(|near| near.semaphore().available_permits() == 0);
    let answer = |request| {
        connection.delivery.seen();
        answer(&app, &connection, request)
    };
    let http1 = Http1::new(stream, connection.crowded.map(too_many_connections));
    let over = over(&app, &connection);
    let mut stream = http1.serve(patience, over, is_stopping, stands_back, answer).await;
    connection.delivery.close();
    tokio::select! {
        biased;
        () = linger(&mut stream) => {}
        () = stopped(stopping.clone()) => {}
    }
}

/// A connection in the metrics, however it ends.
struct Counted(Arc<App>);

impl Counted {
    fn new(app: &Arc<App>) -> Self {
        app.observer.metrics.connections.fetch_add(1, Ordering::Relaxed);
        Self(app.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.observer.metrics.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One request, counted and traced, whichever protocol it came by.
pub(super) fn answer(
    app: &Arc<App>,
    connection: &Arc<Connection>,
    mut request: Request,
) -> impl Future<Output = Response> {
    request.count_body(connection);
    let route = Route::of(request.method(), request.uri().path());
    let dialect = route.as_ref().map_or_else(Misrouted::dialect, Route::dialect);
    let trace = Trace::of(&request);
    let forwarded = connection.trusted.then(|| connection.client(request.headers()));
    let is_read = route.as_ref().is_ok_and(Route::is_read);
    let crowded = || seats::refusal(connection, &route);
    let answer = match crowded().or_else(|| app.web_origins.refusal(connection, &request)) {
        Some(refusal) => dispatch::refused(app.clone(), request, Dialect::Other, refusal),
        None => dispatch::answer(app.clone(), connection.clone(), request, route),
    };
    async move {
        let mut response =
            counted(app, forwarded.as_ref().unwrap_or(&connection.peer_name), is_read, answer.await);
        if connection.crowded.is_some() {
            response = closing(response);
        }
        app.observer.metrics.answered(dialect, response.status().as_u16());
        trace.answered(&connection.peer_name, &mut response);
        response
    }
}

/// Waits until a connection has to end: the node stops, or the credentials that came over it last were withdrawn.
pub(super) fn over(app: &App, connection: &Arc<Connection>) -> impl Future<Output = ()> + use<> {
    let stopping = stopped(app.stopping.clone());
    let access = app.guards.access.is_on().then(|| (app.guards.access.changes(), connection.clone()));
    async move {
        let Some((mut changes, connection)) = access else { return stopping.await };
        let withdrawn = async {
            while !connection.last_known.is_withdrawn() {
                if changes.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        };
        tokio::select! {
            () = stopping => {}
            () = withdrawn => {}
        }
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
    let _ = leasehold_engine::machine::timeout(LINGER, rest).await;
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
