//! Simulated connections: TCP between simulated machines, over wires that a seed decides about.
//!
//! In:    the same calls as `sockets.rs` takes; faults from the simulation. A machine's name is `node<number>`.
//! Out:   streams of bytes that are refused, reset, silent, half-open, slow, or end inside a frame.
//! Never: tells a process more than its kernel would.
//!
//! - `socket.rs`  one end: what is sent again and when, what is given up and when
//! - `kernel.rs`  all ends, and the wires

mod kernel;
mod socket;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::kernel::{End, act, act_or_wait};
use super::runtime::current_node;
use super::{Bug, is_planted};

/// The port that every node listens on.
const PORT: u16 = 4090;

/// The address that a node tells others.
pub fn advertised(node: u64) -> String {
    format!("node{node}:{PORT}")
}

/// Where a node listens.
pub fn listen_address(node: u64) -> SocketAddr {
    (kernel::address_of(node), PORT).into()
}

/// Forgets everything.
pub fn reset() {
    kernel::reset();
}

/// A machine loses its power. Its peers are not told: their connections are half-open from now on.
pub fn power_off(node: u64) {
    kernel::power_off(node);
}

/// Its power is back; `moved`: and it has another address.
pub fn power_on(node: u64, moved: bool) {
    kernel::power_on(node, moved);
}

/// A machine stands still with its kernel, or goes on. (A paused process has a kernel that goes on.)
pub fn set_still(node: u64, still: bool) {
    kernel::set_still(node, still);
}

/// A machine's port refuses calls, or takes them again.
pub fn set_refusing(node: u64, refusing: bool) {
    kernel::set_refusing(node, refusing);
}

/// All connections of a machine are reset at once, wherever their bytes are. Says how many ends that were.
pub fn break_connections(node: u64) -> u64 {
    kernel::break_connections(node)
}

/// See `sockets.rs`. Names are looked up each time; numbers of machines that have moved are still numbers.
pub async fn lookup_host(address: &str) -> io::Result<std::vec::IntoIter<SocketAddr>> {
    let named = address.strip_prefix("node").and_then(|rest| rest.split_once(':'));
    let found = match named.and_then(|(node, port)| Some((node.parse().ok()?, port.parse().ok()?))) {
        Some((node, port)) => Ok((kernel::address_of(node), port).into()),
        None => address.parse().map_err(io::Error::other),
    };
    found.map(|address| vec![address].into_iter())
}

/// An address that is taken.
pub type Bound = TcpListener;

/// See `sockets.rs`.
pub fn bind(_: SocketAddr) -> io::Result<Bound> {
    let node = current_node();
    match kernel::listen(node) {
        true => Ok(TcpListener { node }),
        false => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// See `sockets.rs`.
pub fn listen(bound: Bound) -> io::Result<TcpListener> {
    Ok(bound)
}

/// See `sockets.rs`.
pub fn tune(tcp: &TcpStream, unacknowledged_max: Duration, alive_every: Duration) -> io::Result<()> {
    let us = |length: Duration| length.as_micros() as u64;
    let limit_us = (!is_planted(Bug::StuckLinks)).then_some(us(unacknowledged_max));
    act(tcp.end, |socket, _, _| socket.tune(limit_us, Some(us(alive_every))));
    Ok(())
}

/// As tokio's.
#[derive(Debug)]
pub struct TcpListener {
    node: u64,
}

impl TcpListener {
    /// The next connection, and where it comes from.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accept = |context: &mut Context<'_>| match kernel::accept(self.node, context.waker()) {
            Some(accepted) => Poll::Ready(accepted),
            None => Poll::Pending,
        };
        let (end, address) = poll_fn(accept).await;
        Ok((TcpStream { end }, (address, PORT).into()))
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        kernel::stop_listening(self.node);
    }
}

/// As tokio's.
#[derive(Debug)]
pub struct TcpStream {
    end: End,
}

/// What a process hears of a connection that its machine does not know: it was there before the power went.
fn unknown() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl TcpStream {
    /// Calls an address, and waits until it answers or refuses.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let peer = match address.ip() {
            std::net::IpAddr::V4(v4) => u64::from(v4.octets()[3]),
            std::net::IpAddr::V6(_) => return Err(io::ErrorKind::AddrNotAvailable.into()),
        };
        let stream = Self { end: kernel::call(current_node(), peer, address.ip()) };
        let connected = |context: &mut Context<'_>| match act_or_wait(
            stream.end,
            context.waker(),
            false,
            |socket, _, _| socket.connected(),
        ) {
            Some(Some(connected)) => Poll::Ready(connected.map_err(io::Error::from)),
            Some(None) => Poll::Pending,
            None => Poll::Ready(Err(unknown())),
        };
        poll_fn(connected).await?;
        Ok(stream)
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let max = buffer.remaining();
        match act_or_wait(self.end, context.waker(), true, |socket, _, out| socket.read(max, out)) {
            Some(Some(Ok(bytes))) => {
                buffer.put_slice(&bytes);
                Poll::Ready(Ok(()))
            }
            Some(Some(Err(error))) => Poll::Ready(Err(error.into())),
            Some(None) => Poll::Pending,
            None => Poll::Ready(Err(unknown())),
        }
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let write = |socket: &mut socket::Socket, now_us, out: &mut Vec<_>| socket.write(bytes, now_us, out);
        match act_or_wait(self.end, context.waker(), false, write) {
            Some(Some(written)) => Poll::Ready(written.map_err(io::Error::from)),
            Some(None) => Poll::Pending,
            None => Poll::Ready(Err(unknown())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        act(self.end, socket::Socket::finish);
        Poll::Ready(Ok(()))
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        act(self.end, socket::Socket::close);
    }
}
