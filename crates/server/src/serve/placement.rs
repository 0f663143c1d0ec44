//! Which thread serves a connection: the engine's own, or one of the others.
//!
//! In:    a new connection. Out: a place near the engine, for as long as the connection lasts; or none.
//! Never: gives the engine's thread a handshake, a probe, or anything while its disk may hang.
//!
//! The rule: the engine's thread serves [`NEAR`] connections divided by the machine's cores; the others are served by
//! the other threads. A request that stays on one thread takes a fifth less of the processor. The more cores there are,
//! the more is gained by using the others instead.

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use hyper::Method;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::stopped;
use crate::app::App;
use crate::route::Route;

/// Connections near the engine, on a machine with one core; two cores have half of them, and so on. More of them on two
/// cores were slower (docs/notes/speed.md).
const NEAR: usize = 384;
/// How long a new connection is watched for a probe. A probe speaks at once.
const FIRST_BYTES_MAX: Duration = Duration::from_secs(1);

/// A place near the engine.
pub(super) struct Near(OwnedSemaphorePermit);

impl Near {
    /// Whether all places are taken, so that other threads serve connections too.
    pub(super) fn is_last(&self) -> bool {
        self.0.semaphore().available_permits() == 0
    }
}

/// All places near the engine.
pub(super) struct NearPlaces(Arc<Semaphore>);

impl Default for NearPlaces {
    fn default() -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self(Arc::new(Semaphore::new(NEAR / cores)))
    }
}

impl NearPlaces {
    /// A place for another connection, if there is one.
    pub(super) fn take(&self, app: &App) -> Option<Near> {
        // A handshake takes long.
        let plain = app.guards.tls.is_none();
        let place = (plain && !app.engine.may_be_stuck()).then(|| self.0.clone().try_acquire_owned().ok());
        place.flatten().map(Near)
    }
}

/// Whether the first request on a connection is a probe's. Probes must be answered while the engine's thread waits for its
/// disk: they are not given to it.
pub(super) async fn begins_with_probe(app: &App, stream: &TcpStream) -> bool {
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
