//! One connection, from its first byte to its last.
//!
//! In:    a TCP stream. Out: requests to `dispatch.rs`, by HTTP/1.1 or HTTP/2, with TLS or without; their answers back,
//!        counted and traced.
//! Never: outlives its certificate, its credentials, or the node.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_engine::machine;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::connection_limit::{self, Seat, too_many_connections};
use super::placement::Near;
use super::redis;
use super::trace::Trace;
use crate::access::{ConnectionCache, certificate};
use crate::api::redis::Scripts;
use crate::app::App;
use crate::app::long_answer::counted;
use crate::dispatch;
use crate::http::http1::Http1;
use crate::http::tls::Tls;
use crate::http::wire::Wire;
use crate::http::{adapt, http2};
use crate::message::Response;
use crate::message::connection::Connection;
use crate::message::problem::{accepts_only_json, as_json, closing};
use crate::message::request::Request;
use crate::route::{Dialect, Misrouted, Route};

/// After the last answer, bytes of the client are read and discarded for this long ...
const LINGER: Duration = Duration::from_secs(5);
/// ... and up to this many.
const LINGER_BYTES_MAX: u64 = 64 << 20;
/// How often the wall clock is looked at while a client certificate is valid.
const CLOCK_LOOK_EVERY: Duration = Duration::from_secs(10);

/// What the clients of an address speak.
#[derive(Clone)]
pub(super) enum Speaks {
    /// HTTP/1.1 or HTTP/2.
    Http,
    /// The protocol of Redis, with the scripts that this node knows.
    Redis(Arc<Scripts>),
}

/// Serves the requests of one connection until it ends, or the node stops and its request is answered.
pub(super) async fn serve(
    app: Arc<App>,
    stream: TcpStream,
    peer: SocketAddr,
    seat: Seat,
    near: Option<Near>,
    speaks: Speaks,
) {
    let Ok(local) = stream.local_addr() else { return };
    stream.set_nodelay(true).ok();
    keep_alive(&stream);
    let mut connection = Connection::new(peer, local, &app.config.trusted_proxies);
    connection.secure = app.guards.tls.is_some();
    connection.crowded = seat.crowded;
    let connection = Arc::new(connection);
    let wire = Wire::new(stream, connection.clone(), app.config.write_timeout);
    match (app.guards.tls.clone(), speaks) {
        (None, Speaks::Http) => serve_http1(app, wire, connection, near).await,
        // In a box: the task of every connection has the room of the largest branch.
        (None, Speaks::Redis(scripts)) => Box::pin(redis::talk(app, wire, connection, near, scripts)).await,
        // A handshake takes much more room than a connection that has none.
        (Some(tls), speaks) => Box::pin(serve_tls(app, wire, connection, &tls, speaks)).await,
    }
    drop(seat);
}

/// The TLS handshake, within the time for headers; then the protocol that both sides speak.
async fn serve_tls(app: Arc<App>, wire: Wire, connection: Arc<Connection>, tls: &Tls, speaks: Speaks) {
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
    // A certificate that can't be read counts as expired.
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
        match speaks {
            Speaks::Redis(scripts) => {
                redis::talk(app.clone(), stream, connection.clone(), None, scripts).await;
            }
            Speaks::Http if is_http2 => serve_http2(app.clone(), stream, connection.clone()).await,
            Speaks::Http => serve_http1(app.clone(), stream, connection.clone(), None).await,
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

async fn serve_http1<S>(app: Arc<App>, stream: S, connection: Arc<Connection>, near: Option<Near>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let _counted = Counted::new(&app);
    let stopping = app.stopping.clone();
    // The simulation has no clock of its own for connections.
    let patience = (!cfg!(feature = "sim")).then(|| app.patience(&connection));
    let is_stopping = || !matches!(stopping.has_changed(), Ok(false));
    // When all near places are taken, an entry has outcomes for connections on other threads too. Those answers go first:
    // clients that are answered too early would take the processor from the other threads, and from this one at the end of
    // its next sync (docs/notes/speed.md).
    let stands_back = || near.as_ref().is_some_and(Near::is_last);
    let connection_cache = Arc::new(ConnectionCache::default());
    let answer = |request| {
        connection.delivery.seen();
        answer(&app, &connection, &connection_cache, adapt::request(request))
    };
    let http1 = Http1::new(stream, connection.crowded.map(too_many_connections));
    let over = over(&app, &connection_cache);
    let mut stream = http1.serve(patience, over, is_stopping, stands_back, adapt::refusal, answer).await;
    connection.delivery.close();
    tokio::select! {
        biased;
        () = linger(&mut stream) => {}
        () = stopped(stopping.clone()) => {}
    }
}

async fn serve_http2<S>(app: Arc<App>, stream: S, connection: Arc<Connection>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Several answers are on their way at once, and a write can't be assigned to one of them.
    connection.delivery.share();
    let connection_cache = Arc::new(ConnectionCache::default());
    let over = over(&app, &connection_cache);
    let (patience, write_timeout, peer) =
        (app.patience(&connection), app.config.write_timeout, connection.peer);
    let answer = move |request| {
        let (app, connection, connection_cache) = (app.clone(), connection.clone(), connection_cache.clone());
        async move { answer(&app, &connection, &connection_cache, request).await }
    };
    if let Err(error) = http2::serve(stream, patience, write_timeout, over, answer).await {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

/// A connection in the metrics, however it ends.
pub(super) struct Counted(Arc<App>);

impl Counted {
    pub(super) fn new(app: &Arc<App>) -> Self {
        app.observer.metrics.connections.fetch_add(1, Ordering::Relaxed);
        Self(app.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.observer.metrics.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers one request, counted and traced, for both protocols.
pub(super) fn answer(
    app: &Arc<App>,
    connection: &Arc<Connection>,
    connection_cache: &ConnectionCache,
    mut request: Request,
) -> impl Future<Output = Response> {
    request.count_body(connection);
    let route = Route::of(request.method(), request.uri().path());
    let dialect = route.as_ref().map_or_else(Misrouted::dialect, Route::dialect);
    let trace = Trace::of(&request, &route, app.observer.exporter.get());
    let forwarded = connection.trusted.then(|| connection.client(request.headers()));
    let is_read = route.as_ref().is_ok_and(Route::is_read);
    let only_json = dialect == Dialect::Claims && accepts_only_json(request.headers());
    let crowded = || connection_limit::refusal(connection, &route);
    let answer = match crowded().or_else(|| app.web_origins.refusal(connection, &request)) {
        Some(refusal) => dispatch::refused(app.clone(), request, Dialect::Other, refusal),
        None => trace
            .follow(|| dispatch::answer(app.clone(), connection.clone(), connection_cache, request, route)),
    };
    async move {
        let mut response =
            counted(app, forwarded.as_ref().unwrap_or(&connection.peer_name), is_read, answer.await);
        if connection.crowded.is_some() {
            response = closing(response);
        }
        if only_json {
            response = as_json(response);
        }
        app.observer.metrics.answered(dialect, response.status().as_u16());
        trace.answered(&connection.peer_name, &mut response);
        response
    }
}

/// Waits until a connection has to end: the node stops, or the last credentials on this connection were withdrawn.
/// In a box, so that a connection without access control has no room for credentials.
pub(super) fn over(
    app: &App,
    connection_cache: &Arc<ConnectionCache>,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let stopping = stopped(app.stopping.clone());
    if !app.guards.access.is_on() {
        return Box::pin(stopping);
    }
    let (mut changes, connection_cache) = (app.guards.access.changes(), connection_cache.clone());
    Box::pin(async move {
        let withdrawn = async {
            while !connection_cache.is_withdrawn() {
                if changes.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        };
        tokio::select! {
            () = stopping => {}
            () = withdrawn => {}
        }
    })
}

pub(super) async fn stopped(mut stopping: watch::Receiver<bool>) {
    stopping.wait_for(|stopping| *stopping).await.ok();
}

/// Reads on for a moment: closing a socket with unread bytes resets the connection, and the client loses its answer.
async fn linger(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let rest = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
    };
    let _ = machine::timeout(LINGER, rest).await;
}

/// TCP keep-alive: ends a connection half a minute after its client's machine or network has gone.
fn keep_alive(stream: &TcpStream) {
    let probes = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    if let Err(error) = SockRef::from(stream).set_tcp_keepalive(&probes) {
        tracing::debug!(%error, "TCP keep-alive could not be set");
    }
}

/// For the simulation: the same road, without a socket.
#[cfg(feature = "sim")]
pub async fn serve_simulated(app: Arc<App>, stream: tokio::io::DuplexStream) {
    let [peer, local] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let connection = Arc::new(Connection::new(peer, local, &[]));
    serve_http1(app, stream, connection, None).await;
}
