//! The server: accepts connections, has them served, stops in order.
//!
//! In:    TCP connections (`listeners.rs`). Out: each with a seat (`seats.rs`), on a thread (`near.rs`), to `connection.rs`.
//! Never: lets one connection, or too many of them, keep the others from being served.

pub mod connection;
mod listeners;
mod near;
pub mod seats;
pub mod trace;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_engine::Engine;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use self::connection::serve;
use self::listeners::Listeners;
use self::near::{NearPlaces, begins_with_probe};
use self::seats::{Seat, Seats, turn_away};
use crate::app::aside::Aside;
use crate::app::{App, Guards};
use crate::config::Config;
use crate::observe::Observer;
use crate::withdrawal;

/// How long requests in flight may take to be answered once the node stops.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// Bound listeners: clients can connect, nobody answers yet.
pub struct Server {
    listeners: Listeners,
    app: Arc<App>,
    stop: watch::Sender<bool>,
    near: NearPlaces,
    /// Places for connections.
    seats: Seats,
}

impl Server {
    /// Binds the configured addresses: all of them, or none.
    pub fn bind(
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
        let seats = Seats::new(&app.config);
        Ok(Self { listeners, app: Arc::new(app), stop, near: NearPlaces::default(), seats })
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

    /// Has a connection served near the engine while there is a place, and elsewhere otherwise.
    fn start(&self, stream: TcpStream, peer: SocketAddr, seat: Seat) {
        let app = self.app.clone();
        let near = if seat.crowded.is_none() { self.near.take(&app) } else { None };
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
