//! Single blocking requests, for readiness and spot checks between runs.
//!
//! In:    an address and a path.
//! Out:   the status, and the body where it matters.
//! Never: used while anything is measured.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::response::{self, Parsed, Response};

/// A server that needs longer for one GET is not ready.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The status of `GET path`.
pub(crate) fn status_of(addr: SocketAddr, path: &str) -> io::Result<u16> {
    get(addr, path).map(|(status, _)| status)
}

/// `GET path` on a connection of its own.
pub(crate) fn get(addr: SocketAddr, path: &str) -> io::Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect_timeout(&addr, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\n\r\n").as_bytes())?;
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&piece[..count]);
        match response::parse(&bytes) {
            Parsed::Need(_) => {}
            Parsed::Complete(head) => {
                let response = Response::new(&head, &bytes);
                return Ok((response.status(), response.body().to_vec()));
            }
            Parsed::Broken(why) => return Err(io::Error::new(io::ErrorKind::InvalidData, why)),
        }
    }
}
