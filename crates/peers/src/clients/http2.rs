//! As much HTTP/2 as one gRPC call at a time needs.
//!
//! In:    a path and a message. Out: the message of the answer.
//! Never: decodes headers: a gRPC call that fails has no message in its answer, and that is enough to know.
//!
//! Windows are opened wide at the start, so that nothing has to be given back later. Header fields are put into the
//! server's table at their first use and named by number from then on, as every client does.

use std::net::SocketAddr;

use anyhow::{Result, bail};

use super::wire::{Wire, be32};

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
    /// Bytes of a message that has not come whole.
    partial: Vec<u8>,
}

impl Http2 {
    /// Connects.
    pub(crate) async fn connect(addr: SocketAddr) -> Result<Self> {
        let mut wire = Wire::connect(addr).await?;
        wire.out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut settings = vec![0, 4];
        settings.extend_from_slice(&WINDOW.to_be_bytes());
        frame(&mut wire.out, SETTINGS, 0, 0, &settings);
        frame(&mut wire.out, WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        let authority = addr.to_string();
        Ok(Self { wire, stream: 1, authority, indexed: Vec::new(), partial: Vec::new() })
    }

    /// One call: one message there, one back, and the stream is over.
    pub(crate) async fn call(&mut self, path: &'static str, message: &[u8]) -> Result<Vec<u8>> {
        let stream = self.open(path);
        self.send(stream, message, END_STREAM);
        self.wire.flush().await?;
        let answer = self.receive(stream, path).await?;
        // The trailers; what comes after them belongs to the next call.
        while !self.one_frame(stream, path).await?.1 {}
        Ok(answer)
    }

    /// Opens a stream that stays open; returns its number.
    pub(crate) fn open(&mut self, path: &'static str) -> u32 {
        let stream = self.stream;
        self.stream += 2;
        let mut block = vec![0x83, 0x86]; // :method POST, :scheme http
        self.field(&mut block, ":path", path);
        let authority = self.authority.clone();
        self.field(&mut block, ":authority", &authority);
        self.field(&mut block, "content-type", "application/grpc");
        self.field(&mut block, "te", "trailers");
        frame(&mut self.wire.out, HEADERS, END_HEADERS, stream, &block);
        stream
    }

    /// One message there and one back on an open stream.
    pub(crate) async fn exchange(&mut self, stream: u32, message: &[u8]) -> Result<Vec<u8>> {
        self.send(stream, message, 0);
        self.wire.flush().await?;
        self.receive(stream, "an open stream").await
    }

    fn send(&mut self, stream: u32, message: &[u8], flags: u8) {
        let mut data = vec![0];
        data.extend_from_slice(&(message.len() as u32).to_be_bytes());
        data.extend_from_slice(message);
        frame(&mut self.wire.out, DATA, flags, stream, &data);
    }

    fn field(&mut self, block: &mut Vec<u8>, name: &'static str, value: &str) {
        if let Some(at) = self.indexed.iter().position(|field| field.0 == name && field.1 == value) {
            block.push(0x80 | (STATIC_ENTRIES + self.indexed.len() - at) as u8);
            return;
        }
        block.extend_from_slice(&[0x40, name.len() as u8]);
        block.extend_from_slice(name.as_bytes());
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
        self.indexed.push((name, value.to_owned()));
    }

    async fn receive(&mut self, stream: u32, path: &str) -> Result<Vec<u8>> {
        self.partial.clear();
        loop {
            let (data, ended) = self.one_frame(stream, path).await?;
            self.partial.extend_from_slice(&data);
            if self.partial.len() >= 5 && self.partial.len() >= 5 + be32(&self.partial, 1) as usize {
                return Ok(self.partial[5..].to_vec());
            }
            if ended {
                bail!("{path} failed: an answer without a message");
            }
        }
    }

    /// Reads one frame; returns what it brings for `stream` and whether the stream is over.
    async fn one_frame(&mut self, stream: u32, path: &str) -> Result<(Vec<u8>, bool)> {
        self.wire.need(9).await?;
        let length = (be32(&self.wire.input, 0) >> 8) as usize;
        let (kind, flags) = (self.wire.input[3], self.wire.input[4]);
        let id = be32(&self.wire.input, 5) & 0x7fff_ffff;
        self.wire.need(9 + length).await?;
        let body = self.wire.input[9..9 + length].to_vec();
        self.wire.take(9 + length);
        match kind {
            DATA if id == stream => return Ok((body, flags & END_STREAM != 0)),
            HEADERS if id == stream => return Ok((Vec::new(), flags & END_STREAM != 0)),
            SETTINGS | PING if flags & ACK == 0 => {
                let echo: &[u8] = if kind == PING { &body } else { &[] };
                frame(&mut self.wire.out, kind, ACK, 0, echo);
                self.wire.flush().await?;
            }
            RST_STREAM | GOAWAY => bail!("{path}: the server ended the stream or the connection"),
            _ => {}
        }
        Ok((Vec::new(), false))
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, body: &[u8]) {
    out.extend_from_slice(&(body.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(body);
}
