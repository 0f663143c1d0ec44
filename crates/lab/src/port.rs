//! A port that stays ours, so that a process can be started on it, killed, and started again.
//!
//! In:    nothing. Out: [`Port`], an address of this machine that only whoever asks for it by number can listen on.
//! Never: listens itself: while no process does, callers are refused.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// A port of the loopback interface. Until it is dropped the system gives it to nobody: to no listener that leaves the
/// choice to the system, and to no outgoing connection.
#[derive(Debug)]
pub struct Port {
    /// Where to listen.
    pub addr: SocketAddr,
    /// Bound but not listening. `SO_REUSEADDR`, here and at the listener (Rust's and tokio's set it), lets both have it.
    _held: Socket,
}

impl Port {
    /// One that nobody uses.
    pub fn reserve() -> io::Result<Self> {
        let held = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        held.set_reuse_address(true)?;
        held.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        let addr = held.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { addr, _held: held })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_port_is_listened_on_again_and_again_and_refuses_in_between() {
        let port = Port::reserve().unwrap();
        for _ in 0..3 {
            assert_eq!(TcpStream::connect(port.addr).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
            let listener = TcpListener::bind(port.addr).unwrap();
            let called = TcpStream::connect(port.addr).unwrap();
            // The listener's end closes first: what is left of the connection is at its port.
            drop(listener.accept().unwrap());
            drop((listener, called));
        }
    }

    #[test]
    fn a_port_is_given_to_nobody_else() {
        let ours: Vec<Port> = (0..200).map(|_| Port::reserve().unwrap()).collect();
        let is_ours = |addr: SocketAddr| ours.iter().any(|port| port.addr == addr);
        let listeners: Vec<TcpListener> =
            (0..200).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        assert!(listeners.iter().all(|listener| !is_ours(listener.local_addr().unwrap())));
        let target = listeners[0].local_addr().unwrap();
        let callers: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(target).unwrap()).collect();
        assert!(callers.iter().all(|caller| !is_ours(caller.local_addr().unwrap())));
    }
}
