//! The listener: accepts connections, serves requests on them, stops in order.
//!
//! In:    TCP connections. Out: hyper's requests to `routes.rs`.
//! Never: lets one connection, or too many of them, keep the others from being served.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::request::Connection;
use super::routes;
use crate::config::Config;
use crate::engine::Engine;

/// How long requests in flight may take to be answered once the node stops.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// Bytes of request line and headers that hyper keeps: far beyond what any client of the dialects sends.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// What every request can reach.
pub struct App {
    /// The lock table.
    pub engine: Arc<Engine>,
    /// How this node is set up.
    pub config: Config,
    /// Turns true when the node stops: long-polls answer then.
    pub stopping: watch::Receiver<bool>,
}

/// A bound listener: clients can connect, nobody answers yet.
pub struct Server {
    listener: TcpListener,
    app: Arc<App>,
    stop: watch::Sender<bool>,
}

impl Server {
    /// Binds the configured address.
    pub async fn bind(engine: Arc<Engine>, config: Config) -> std::io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        let (stop, stopping) = watch::channel(false);
        Ok(Self { listener, app: Arc::new(App { engine, config, stopping }), stop })
    }

    /// Where it listens: the port is the system's choice if 0 was asked for.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is done, then answers what is in flight.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let graceful = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(self.app.config.connections_max));
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut stop => break,
            };
            match accepted {
                Ok((stream, peer)) => match places.clone().try_acquire_owned() {
                    Ok(place) => self.serve(stream, peer, place, &graceful),
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
        if tokio::time::timeout(STOP_GRACE, graceful.shutdown()).await.is_err() {
            tracing::warn!("some connections did not end in time and are cut");
        }
    }

    fn serve(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        place: tokio::sync::OwnedSemaphorePermit,
        graceful: &GracefulShutdown,
    ) {
        let (app, Ok(local)) = (self.app.clone(), stream.local_addr()) else { return };
        stream.set_nodelay(true).ok();
        let connection = Arc::new(Connection::new(peer, local, &app.config.trusted_proxies));
        let header_timeout = app.config.header_timeout;
        let service = service_fn(move |request| {
            let answer = routes::route(app.clone(), connection.clone(), request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            // Names of headers ignore case, but scripts that grep for `Location:` don't.
            .title_case_headers(true)
            .serve_connection(TokioIo::new(stream), service);
        let serving = graceful.watch(serving);
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::debug!(%peer, %error, "a connection ended early");
            }
            drop(place);
        });
    }
}

/// Tells one connection too many to come back.
async fn turn_away(mut stream: TcpStream) {
    const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
        Content-Length: 0\r\n\r\n";
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(BUSY)).await;
}
