//! As much HTTP/2 as one gRPC call at a time needs.
//!
//! In:    a path and a message. Out: the message of the answer.
//! Never: decodes headers: a gRPC call that fails has no message in its answer, and that is enough to know.
//!
//! Windows are opened wide at the start, so that nothing has to be given back later. Header fields are put into the
//! server's table at their first use and named by number from then on, as every client does.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use leasehold_bench::reactor::Seat;
use leasehold_bench::wire::{Wire, be32};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
/// Wide enough for every answer of a run.
const WINDOW: u32 = 1 << 30;
/// Entries of the static table of RFC 7541; own ones follow.
const STATIC_ENTRIES: usize = 61;

/// A connection.
pub(crate) struct Http2 {
    wire: Wire,
    stream: u32,
    authority: String,
    /// Header fields in the server's table, oldest first.
    indexed: Vec<(&'static str, String)>,
    /// The header block being put together.
    block: Vec<u8>,
    /// The message of the answer, as far as it has come, with the five bytes in front of it.
    message: Vec<u8>,
}

impl Http2 {
    /// Connects.
    pub(crate) fn connect(addr: SocketAddr, seat: Seat<'_>) -> Result<Self> {
        let mut wire = Wire::connect(addr, None, seat)?;
        wire.out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        frame(&mut wire.out, SETTINGS, 0, 0, &[&[0, 4], &WINDOW.to_be_bytes()]);
        frame(&mut wire.out, WINDOW_UPDATE, 0, 0, &[&WINDOW.to_be_bytes()]);
        let (authority, indexed) = (addr.to_string(), Vec::new());
        Ok(Self { wire, stream: 1, authority, indexed, block: Vec::new(), message: Vec::new() })
    }

    /// One call: one message there, one back, and the stream is over.
    pub(crate) async fn call(&mut self, path: &'static str, message: &[u8]) -> Result<&[u8]> {
        let stream = self.open(path);
        self.send(stream, message, END_STREAM);
        self.wire.flush().await?;
        let mut has_ended = self.receive(stream, path).await?;
        // The trailers; what comes after them belongs to the next call.
        while !has_ended {
            has_ended = self.one_frame(stream, path).await?;
        }
        Ok(&self.message[5..])
    }

    /// Opens a stream that stays open; returns its number.
    pub(crate) fn open(&mut self, path: &'static str) -> u32 {
        let stream = self.stream;
        self.stream += 2;
        self.block.clear();
        self.block.extend_from_slice(&[0x83, 0x86]); // :method POST, :scheme http
        let authority = std::mem::take(&mut self.authority);
        for (name, value) in [
            (":path", path),
            (":authority", authority.as_str()),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ] {
            self.field(name, value);
        }
        self.authority = authority;
        frame(&mut self.wire.out, HEADERS, END_HEADERS, stream, &[&self.block]);
        stream
    }

    /// One message there and one back on an open stream.
    pub(crate) async fn exchange(&mut self, stream: u32, message: &[u8]) -> Result<&[u8]> {
        self.send(stream, message, 0);
        self.wire.flush().await?;
        self.receive(stream, "an open stream").await?;
        Ok(&self.message[5..])
    }

    fn send(&mut self, stream: u32, message: &[u8], flags: u8) {
        let length = (message.len() as u32).to_be_bytes();
        frame(&mut self.wire.out, DATA, flags, stream, &[&[0], &length, message]);
    }

    fn field(&mut self, name: &'static str, value: &str) {
        if let Some(at) = self.indexed.iter().position(|field| field.0 == name && field.1 == value) {
            self.block.push(0x80 | (STATIC_ENTRIES + self.indexed.len() - at) as u8);
            return;
        }
        self.block.extend_from_slice(&[0x40, name.len() as u8]);
        self.block.extend_from_slice(name.as_bytes());
        self.block.push(value.len() as u8);
        self.block.extend_from_slice(value.as_bytes());
        self.indexed.push((name, value.to_owned()));
    }

    /// Waits for a whole message; returns whether the stream is over with it.
    async fn receive(&mut self, stream: u32, path: &str) -> Result<bool> {
        self.message.clear();
        loop {
            let has_ended = self.one_frame(stream, path).await?;
            if self.message.len() >= 5 && self.message.len() >= 5 + be32(&self.message, 1) as usize {
                return Ok(has_ended);
            }
            if has_ended {
                bail!("{path} failed: an answer without a message");
            }
        }
    }

    /// Reads one frame, keeps what it brings for `stream`, and returns whether the stream is over.
    async fn one_frame(&mut self, stream: u32, path: &str) -> Result<bool> {
        self.wire.need(9).await?;
        let whole = 9 + (be32(self.wire.input(), 0) >> 8) as usize;
        self.wire.need(whole).await?;
        let input = self.wire.input();
        let (kind, flags, id) = (input[3], input[4], be32(input, 5) & 0x7fff_ffff);
        let mut has_ended = false;
        match kind {
            DATA if id == stream => {
                self.message.extend_from_slice(&input[9..whole]);
                has_ended = flags & END_STREAM != 0;
            }
            HEADERS if id == stream => has_ended = flags & END_STREAM != 0,
            SETTINGS if flags & ACK == 0 => {
                frame(&mut self.wire.out, SETTINGS, ACK, 0, &[]);
                self.wire.flush().await?;
            }
            // The server only measures with it, so the answer can wait for the next request and costs nobody a packet.
            PING if flags & ACK == 0 => {
                let mut echo = [0; 8];
                echo.copy_from_slice(input.get(9..17).context("a short ping")?);
                frame(&mut self.wire.out, PING, ACK, 0, &[&echo]);
            }
            RST_STREAM | GOAWAY => bail!("{path}: the server ended the stream or the connection"),
            _ => {}
        }
        self.wire.take(whole);
        Ok(has_ended)
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, body: &[&[u8]]) {
    let length = body.iter().map(|piece| piece.len()).sum::<usize>();
    out.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    body.iter().for_each(|piece| out.extend_from_slice(piece));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_count_their_pieces() {
        let mut out = Vec::new();
        frame(&mut out, DATA, END_STREAM, 3, &[&[0], &[1, 2]]);
        assert_eq!(out, [0, 0, 3, DATA, END_STREAM, 0, 0, 0, 3, 0, 1, 2]);
    }
}
