//! One nonblocking keep-alive connection with at most one request in flight.
//!
//! In:    request bytes in `out`; readiness events, from `engine.rs`.
//! Out:   one whole response at a time.
//! Never: blocks after connecting, or reads twice where one read told all there is to know.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::response::{self, Head, Parsed};
use super::stats::Op;

/// A loopback or LAN server that takes longer than this to accept is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection and the state of its one request.
pub(crate) struct Connection {
    /// The socket, registered for both directions, edge-triggered.
    stream: TcpStream,
    /// The request being written.
    pub(crate) out: Vec<u8>,
    /// How much of `out` the kernel has taken.
    written: usize,
    /// A response that came in more than one piece.
    input: Vec<u8>,
    /// Bytes `input` needs before parsing again makes sense.
    need: usize,
    /// The request in flight: what it is and from when its latency counts.
    pub(crate) in_flight: Option<(Op, Instant)>,
}

/// What a read brought.
pub(crate) enum Received {
    /// No whole response yet.
    Nothing,
    /// A whole response in the first bytes of the scratch buffer.
    InScratch(Head, usize),
    /// A whole response in `Connection::input`.
    InInput(Head),
    /// The peer closed the connection, or it broke.
    Closed(io::Error),
    /// The peer speaks something else.
    Broken(&'static str),
}

impl Connection {
    /// Connects and registers under `token`.
    pub(crate) fn open(addr: SocketAddr, registry: &Registry, token: Token) -> io::Result<Self> {
        let stream = std::net::TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self {
            stream,
            out: Vec::with_capacity(512),
            written: 0,
            input: Vec::new(),
            need: 0,
            in_flight: None,
        })
    }

    /// Writes what the kernel takes; the rest goes when the socket turns writable.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes room for the next request.
    pub(crate) fn clear(&mut self) {
        self.out.clear();
        self.written = 0;
        self.input.clear();
        self.need = 0;
    }

    /// The bytes behind `Received::InInput`.
    pub(crate) fn input(&self) -> &[u8] {
        &self.input
    }

    /// Reads until there is a whole response or nothing left to read.
    pub(crate) fn receive(&mut self, scratch: &mut [u8]) -> Received {
        loop {
            let count = match self.stream.read(scratch) {
                Ok(0) => return Received::Closed(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Received::Nothing,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Received::Closed(error),
            };
            // The common case, a small response in one piece, is parsed where the kernel put it.
            if self.input.is_empty() {
                match response::parse(&scratch[..count]) {
                    Parsed::Complete(head) => return Received::InScratch(head, count),
                    Parsed::Broken(why) => return Received::Broken(why),
                    Parsed::Need(need) => self.need = need,
                }
            }
            self.input.extend_from_slice(&scratch[..count]);
            if self.input.len() >= self.need {
                match response::parse(&self.input) {
                    Parsed::Complete(head) => return Received::InInput(head),
                    Parsed::Broken(why) => return Received::Broken(why),
                    Parsed::Need(need) => self.need = need,
                }
            }
            // A short read emptied the socket: the next byte raises a new edge, so asking again is wasted.
            if count < scratch.len() {
                return Received::Nothing;
            }
        }
    }

    /// Whether the peer has closed, for a connection that waits for nothing.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.stream.peek(&mut [0]), Ok(0)) || matches!(self.stream.take_error(), Ok(Some(_)))
    }
}
