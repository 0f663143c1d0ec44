//! The server: accepts connections, has them served, stops in order.
//!
//! In:    TCP connections (`listeners.rs`). Out: each with a seat (`connection_limit.rs`), on a thread (`placement.rs`), to
//!        `connection.rs`.
//! Never: lets one connection, or too many of them, keep the others from being served.

pub mod connection;
pub mod connection_limit;
mod listeners;
mod placement;
mod redis;
pub mod trace;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_engine::Engine;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use self::connection::{Speaks, serve};
use self::connection_limit::{Seat, Seats, farewell, turn_away};
use self::listeners::Listeners;
use self::placement::{NearPlaces, begins_with_probe};
use crate::api::redis::Scripts;
use crate::app::pool::Pool;
use crate::app::{App, Guards};
use crate::config::Config;
use crate::observe::Observer;
use crate::withdrawal;

/// How long requests in flight may take to be answered once the node stops.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// Bound listeners: clients can connect, but no request is answered yet.
pub struct Server {
    listeners: Listeners,
    /// For Redis clients.
    redis_listeners: Listeners,
    scripts: Arc<Scripts>,
    app: Arc<App>,
    stop: watch::Sender<bool>,
    near: NearPlaces,
    /// Places for connections.
    seats: Seats,
    /// What a connection without a place is told over HTTP, and what a Redis client is told. Nothing where they expect TLS: text
    /// would look like a service without it.
    farewells: [Vec<u8>; 2],
}

/// Tells what `/readyz` would.
#[derive(Clone)]
pub struct Readiness(Arc<App>);

impl Readiness {
    /// Why the node can't take commands; `None`: it can.
    pub fn problem(&self) -> Option<String> {
        crate::api::probes::unready(&self.0)
    }
}

impl Server {
    /// What `/readyz` tells, for the log.
    pub fn readiness(&self) -> Readiness {
        Readiness(self.app.clone())
    }

    /// Binds the configured addresses: all of them, or none.
    pub fn bind(
        engine: Arc<Engine>,
        config: Config,
        guards: Arc<Guards>,
        observer: Arc<Observer>,
    ) -> std::io::Result<Self> {
        let (listeners, redis_listeners) =
            (Listeners::bind(&config.listen)?, Listeners::bind(&config.redis_listen)?);
        let (stop, stopping) = watch::channel(false);
        observer.metrics.started(&engine);
        let app = App::new(engine, config, guards, observer, stopping, Pool::here());
        if app.guards.access.is_on() {
            tokio::spawn(withdrawal::follow(app.engine.clone(), app.guards.access.clone()));
        }
        let seats = Seats::new(&app.config);
        let (scripts, near) = (Arc::default(), NearPlaces::default());
        let farewells = match app.guards.tls {
            None => [farewell(), redis::TOO_MANY.to_vec()],
            Some(_) => Default::default(),
        };
        Ok(Self { listeners, redis_listeners, scripts, app: Arc::new(app), stop, near, seats, farewells })
    }

    /// The addresses, in the order of the configuration. For port 0 the system has chosen one.
    pub fn local_addrs(&self) -> std::io::Result<Vec<SocketAddr>> {
        self.listeners.local_addrs()
    }

    /// The same for Redis clients.
    pub fn redis_addrs(&self) -> std::io::Result<Vec<SocketAddr>> {
        self.redis_listeners.local_addrs()
    }

    /// Serves until `stop` is done, then answers the requests in flight.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let (alive, mut ended) = mpsc::channel(1);
        let [over_http, over_redis] = &self.farewells;
        tokio::pin!(stop);
        loop {
            let (accepted, speaks) = tokio::select! {
                accepted = self.listeners.accept() => (accepted, Speaks::Http),
                accepted = self.redis_listeners.accept() => (accepted, Speaks::Redis(self.scripts.clone())),
                () = &mut stop => break,
            };
            match accepted {
                Ok((stream, peer)) => match (self.seats.take(peer, &alive), speaks) {
                    (Some(Seat { crowded: Some(_), .. }) | None, Speaks::Redis(_)) => {
                        turn_away(&stream, over_redis);
                    }
                    (None, Speaks::Http) => turn_away(&stream, over_http),
                    (Some(seat), speaks) => self.start(stream, peer, seat, speaks),
                },
                Err(error) => {
                    // Probably out of file descriptors: wait for some connections to end.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop((self.listeners, self.redis_listeners, alive));
        self.stop.send_replace(true);
        // Nothing is ever sent: the channel ends with the last connection.
        if tokio::time::timeout(STOP_GRACE, ended.recv()).await.is_err() {
            tracing::warn!("some connections did not end in time and are cut");
        }
    }

    /// Serves a connection on the engine's thread if there is a place, and on the pool otherwise.
    fn start(&self, stream: TcpStream, peer: SocketAddr, seat: Seat, speaks: Speaks) {
        let app = self.app.clone();
        let near = if seat.crowded.is_none() { self.near.take(&app) } else { None };
        let Some(near) = near else {
            tokio::spawn(serve(app, stream, peer, seat, None, speaks));
            return;
        };
        tokio::spawn(async move {
            if matches!(speaks, Speaks::Http) && begins_with_probe(&app, &stream).await {
                drop(near);
                return serve(app, stream, peer, seat, None, speaks).await;
            }
            let engine = app.engine.clone();
            // Registers the socket with the thread that serves it.
            let moved = stream.into_std();
            engine.spawn_near(async move {
                match moved.and_then(TcpStream::from_std) {
                    Ok(stream) => serve(app, stream, peer, seat, Some(near), speaks).await,
                    Err(error) => tracing::warn!(%error, "a connection could not be served"),
                }
            });
        });
    }
}
