//! The addresses on which clients are served.
//!
//! In:    addresses. Out: connections of all of them.
//! Never: listens on a part of the addresses, or lets clients of one address keep out those of another.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// One listener for each address.
pub(super) struct Listeners {
    all: Vec<TcpListener>,
    /// The listener that is asked first for the next connection.
    turn: AtomicUsize,
}

impl Listeners {
    /// Binds all addresses before it listens on the first, so that no client connects to a service that does not start.
    pub(super) fn bind(addresses: &[SocketAddr]) -> io::Result<Self> {
        let named = |address: SocketAddr| {
            move |why: io::Error| io::Error::new(why.kind(), format!("can't listen on {address}: {why}"))
        };
        let bound = addresses.iter().map(|address| bind(*address).map_err(named(*address)));
        let bound = bound.collect::<io::Result<Vec<TcpSocket>>>()?;
        let listening = bound.into_iter().zip(addresses);
        let listening = listening.map(|(socket, address)| socket.listen(BACKLOG).map_err(named(*address)));
        Ok(Self { all: listening.collect::<io::Result<_>>()?, turn: AtomicUsize::new(0) })
    }

    /// The addresses, in the order in which they were given.
    pub(super) fn local_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.all.iter().map(TcpListener::local_addr).collect()
    }

    /// The next connection; never, without an address.
    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        std::future::poll_fn(|cx| {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            for offset in 0..self.all.len() {
                let listener = &self.all[turn.wrapping_add(offset) % self.all.len()];
                if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        })
        .await
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted service need not wait for connections of the last process to time out.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
