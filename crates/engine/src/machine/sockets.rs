//! Connections of the machine: byte streams between nodes.
//!
//! In:    addresses. Out: tokio's streams and listeners, and the few options of TCP that the engine sets.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
pub use tokio::net::{TcpListener, TcpStream, lookup_host};

/// An address that is taken: nobody answers there yet.
pub type Bound = std::net::TcpListener;

/// Takes an address. Needs no runtime.
pub fn bind(address: SocketAddr) -> io::Result<Bound> {
    let bound = std::net::TcpListener::bind(address)?;
    bound.set_nonblocking(true)?;
    Ok(bound)
}

/// Accepts connections there, in the runtime that this is called in.
pub fn listen(bound: Bound) -> io::Result<TcpListener> {
    TcpListener::from_std(bound)
}

/// Bytes leave at once. The kernel gives up on the other end when it has acknowledged nothing for `unacknowledged_max`, and
/// asks a silent one every `alive_every` whether it is there.
pub fn tune(tcp: &TcpStream, unacknowledged_max: Duration, alive_every: Duration) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(tcp);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(alive_every).with_interval(alive_every))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(unacknowledged_max))?;
    Ok(())
}
