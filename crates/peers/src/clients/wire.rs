//! A socket with a buffer in each direction: what every client below stands on.
//!
//! In:    an address; bytes put into `out`.
//! Out:   bytes in `input`, taken off by whoever understands them.
//! Never: knows a protocol.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection.
pub(crate) struct Wire {
    stream: TcpStream,
    /// What `flush` sends.
    pub(crate) out: Vec<u8>,
    /// What came and was not taken yet.
    pub(crate) input: Vec<u8>,
}

impl Wire {
    /// Connects without delay of small writes.
    pub(crate) async fn connect(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(addr).await.with_context(|| format!("connecting to {addr}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, out: Vec::with_capacity(1024), input: Vec::with_capacity(4096) })
    }

    /// Sends `out`.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&self.out).await?;
        self.out.clear();
        Ok(())
    }

    /// Reads once; at least one byte has come afterwards.
    pub(crate) async fn fill(&mut self) -> Result<()> {
        if self.stream.read_buf(&mut self.input).await? == 0 {
            bail!("the other side closed the connection");
        }
        Ok(())
    }

    /// Reads until `count` bytes are there.
    pub(crate) async fn need(&mut self, count: usize) -> Result<()> {
        while self.input.len() < count {
            self.fill().await?;
        }
        Ok(())
    }

    /// Forgets the first `count` bytes.
    pub(crate) fn take(&mut self, count: usize) {
        self.input.drain(..count);
    }
}

/// The four bytes at `at`, as a big-endian number.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_be_bytes)
}
