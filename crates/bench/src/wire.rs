//! A socket with a buffer in each direction: what every client stands on.
//!
//! In:    an address and a seat at the reactor; bytes that a client puts into `out`.
//! Out:   bytes in `input`, taken off by the client that understands them.
//! Never: knows a protocol above TLS, or reads when nothing can have come.

use std::future::poll_fn;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use mio::net::TcpStream;
use rustls::ClientConnection;

use crate::reactor::Seat;
use crate::target::Tls;

/// Room for any answer but a long list; it grows for those.
const INPUT_BYTES: usize = 4096;
/// A server that has not accepted a connection by then is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection.
pub struct Wire {
    stream: Stream,
    /// What `flush` sends.
    pub out: Vec<u8>,
    /// The bytes that came and were not taken yet are those from `start` to `end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether there may be something to read that no further event tells of.
    may_have_more: bool,
}

impl Wire {
    /// Connects; with `tls`, after a handshake.
    pub fn connect(addr: SocketAddr, tls: Option<&Tls>, seat: Seat<'_>) -> Result<Self> {
        let stream = Stream::connect(addr, tls, seat)?;
        let (out, buffer) = (Vec::with_capacity(1024), vec![0; INPUT_BYTES]);
        Ok(Self { stream, out, buffer, start: 0, end: 0, may_have_more: false })
    }

    /// The bytes that came and were not taken yet.
    pub fn input(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Sends `out`.
    pub async fn flush(&mut self) -> Result<()> {
        let mut sent = 0;
        poll_fn(|_| {
            while sent < self.out.len() {
                match self.stream.write(&self.out[sent..]) {
                    Ok(count) => sent += count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        // The event that ends this wait may have been one for reading.
                        self.may_have_more = true;
                        return Poll::Pending;
                    }
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            match self.stream.flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => Poll::Pending,
                result => Poll::Ready(result),
            }
        })
        .await?;
        self.out.clear();
        Ok(())
    }

    /// Reads once; at least one byte has come afterwards.
    pub async fn fill(&mut self) -> Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.end == self.buffer.len() {
            self.make_room();
        }
        let mut can_read = self.may_have_more;
        let count = poll_fn(|_| {
            // Nothing can be there before the next event: reading would be a system call for nothing.
            if !can_read {
                can_read = true;
                return Poll::Pending;
            }
            loop {
                match self.stream.read(&mut self.buffer[self.end..]) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Poll::Pending,
                    result => return Poll::Ready(result),
                }
            }
        })
        .await?;
        if count == 0 {
            bail!("the other side closed the connection");
        }
        self.end += count;
        // A read that filled its room may have left something; after a shorter one, more would be a new event. TLS may
        // keep bytes of its own.
        self.may_have_more = self.end == self.buffer.len() || self.stream.tls.is_some();
        Ok(())
    }

    /// Reads until `count` bytes are there.
    pub async fn need(&mut self, count: usize) -> Result<()> {
        while self.end - self.start < count {
            self.fill().await?;
        }
        Ok(())
    }

    /// Forgets the first `count` bytes.
    pub fn take(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Whether the other side has closed the connection, which is idle.
    pub(crate) fn is_closed(&self) -> bool {
        let tcp = &self.stream.tcp;
        matches!(tcp.peek(&mut [0]), Ok(0)) || matches!(tcp.take_error(), Ok(Some(_)))
    }

    /// Moves the input to the front of the buffer, or doubles the buffer if it is there already.
    fn make_room(&mut self) {
        if self.start == 0 {
            self.buffer.resize(2 * self.buffer.len(), 0);
        } else {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

/// A nonblocking socket, plain or secure.
struct Stream {
    tcp: TcpStream,
    tls: Option<Box<ClientConnection>>,
}

impl Stream {
    fn connect(addr: SocketAddr, tls: Option<&Tls>, seat: Seat<'_>) -> Result<Self> {
        let mut tcp = std::net::TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT)
            .with_context(|| format!("connecting to {addr}"))?;
        tcp.set_nodelay(true)?;
        let tls = match tls {
            None => None,
            Some(Tls { config, name }) => {
                let mut tls = ClientConnection::new(config.clone(), name.clone())?;
                tcp.set_read_timeout(Some(CONNECT_TIMEOUT))?;
                while tls.is_handshaking() {
                    tls.complete_io(&mut tcp).map_err(|error| anyhow!("no TLS with {addr}: {error}"))?;
                }
                Some(Box::new(tls))
            }
        };
        tcp.set_nonblocking(true)?;
        let mut tcp = TcpStream::from_std(tcp);
        seat.watch(&mut tcp)?;
        Ok(Self { tcp, tls })
    }
}

impl Read for Stream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.tcp.read(room) };
        loop {
            match tls.reader().read(room) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
            if tls.read_tls(&mut self.tcp)? == 0 {
                return Ok(0);
            }
            tls.process_new_packets().map_err(io::Error::other)?;
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.tcp.write(bytes),
            Some(tls) => match tls.writer().write(bytes)? {
                // TLS has no more room until what it has is sent.
                0 => tls.write_tls(&mut self.tcp).map(|_| 0),
                count => Ok(count),
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            tls.write_tls(&mut self.tcp)?;
        }
        Ok(())
    }
}

/// The four bytes at `at`, as a big-endian number.
pub fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// Appends `value` in decimal digits.
pub fn digits(out: &mut Vec<u8>, mut value: usize) {
    let mut text = [0; 20];
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&text[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_decimal() {
        for value in [0, 7, 10, 204, 65_535, usize::MAX] {
            let mut out = b"x".to_vec();
            digits(&mut out, value);
            assert_eq!(out, format!("x{value}").as_bytes());
        }
    }
}
