//! Places for connections: a share for each address, and some for health pages alone.
//!
//! In:    the address of a new connection. Out: its seat, or none: then the connection is refused.
//! Never: lets one address take every place, or all addresses together those of the health pages.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hyper::StatusCode;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::app::budget::{Budget, Place};
use crate::config::Config;
use crate::message::Response;
use crate::message::connection::Connection;
use crate::message::connection::Full;
use crate::message::problem::{PROBLEM_JSON, problem, problem_body, try_again};
use crate::route::{Misrouted, Route};

/// Connections beyond the limit on which health pages are answered, if they are asked for at once.
pub const HEALTH_PLACES: usize = 32;
/// The kind of the problem.
const TOO_MANY: &str = "too-many-connections";

/// All seats.
pub(super) struct Seats {
    places: Arc<Budget>,
    /// Further seats, for health pages only.
    health_places: Arc<Budget>,
    /// Proxies, which speak for many clients and have no share.
    proxies: Vec<IpAddr>,
}

/// A connection's place, given back when this is dropped.
pub(super) struct Seat {
    _place: Place,
    /// Why the connection has only a place for health pages; `None`: it has an ordinary one.
    pub(super) crowded: Option<Full>,
    _alive: mpsc::Sender<Infallible>,
}

impl Seats {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            places: Budget::new(config.connections_max, config.share),
            health_places: Budget::new(HEALTH_PLACES, config.share),
            proxies: config.trusted_proxies.iter().map(IpAddr::to_canonical).collect(),
        }
    }

    /// A place for a connection: among the others, or where only health pages are answered.
    pub(super) fn take(&self, peer: SocketAddr, alive: &mpsc::Sender<Infallible>) -> Option<Seat> {
        let ip = peer.ip().to_canonical();
        let name: Arc<str> = ip.to_string().into();
        let place = match self.proxies.contains(&ip) {
            true => self.places.take_for_many(),
            false => self.places.take(&name),
        };
        let (place, crowded) = match place {
            Ok(place) => (place, None),
            Err(full) => (self.health_places.take(&name).ok()?, Some(full)),
        };
        Some(Seat { _place: place, crowded, _alive: alive.clone() })
    }
}

/// The answer on a connection without a seat, unless it asks for a health page.
pub(super) fn refusal(connection: &Connection, route: &Result<Route, Misrouted>) -> Option<Response> {
    let is_probe = || route.as_ref().is_ok_and(Route::is_probe);
    connection.crowded.filter(|_| !is_probe()).map(too_many_connections)
}

pub(super) fn too_many_connections(full: Full) -> Response {
    try_again(problem(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY, &too_many(full)))
}

fn too_many(full: Full) -> String {
    let whose = if full == Full::Client { "from this address " } else { "" };
    format!("too many connections {whose}are open already: retry later")
}

/// The bytes of an HTTP answer that a connection beyond all limits gets unread. It has the problem document of every other
/// refusal, since clients believe only that one when it says that nothing happened.
pub(super) fn farewell() -> Vec<u8> {
    let body = problem_body(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY, &too_many(Full::Total));
    let head = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n";
    format!("{head}Content-Type: {PROBLEM_JSON}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Refuses a connection beyond all limits immediately: while it waited it would take a file descriptor from the log.
pub(super) fn turn_away(stream: &TcpStream, farewell: &[u8]) {
    if let Err(error) = SockRef::from(stream).send(farewell) {
        tracing::debug!(%error, "a connection that was turned away was not told so");
    }
}
