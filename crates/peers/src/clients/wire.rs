//! A socket with a buffer in each direction: what every client below stands on.
//!
//! In:    an address and a seat at the loop; bytes put into `out`.
//! Out:   bytes in `input`, taken off by whoever understands them.
//! Never: knows a protocol, or reads where nothing can have come.

use std::future::poll_fn;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::task::Poll;

use anyhow::{Result, bail};
use mio::net::TcpStream;

use crate::reactor::Seat;

/// Room for any answer but a long list; it grows for those.
const INPUT_BYTES: usize = 4096;

/// A connection.
pub(crate) struct Wire {
    stream: TcpStream,
    /// What `flush` sends.
    pub(crate) out: Vec<u8>,
    /// All of it may be written to; what came and was not taken yet is from `start` to `end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether there may be something to read that no further event would tell of.
    may_have_more: bool,
}

impl Wire {
    /// Connects.
    pub(crate) fn connect(addr: SocketAddr, seat: Seat<'_>) -> Result<Self> {
        let (out, buffer) = (Vec::with_capacity(1024), vec![0; INPUT_BYTES]);
        Ok(Self { stream: seat.connect(addr)?, out, buffer, start: 0, end: 0, may_have_more: false })
    }

    /// What came and was not taken yet.
    pub(crate) fn input(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Sends `out`.
    pub(crate) async fn flush(&mut self) -> Result<()> {
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
            Poll::Ready(Ok(()))
        })
        .await?;
        self.out.clear();
        Ok(())
    }

    /// Reads once; at least one byte has come afterwards.
    pub(crate) async fn fill(&mut self) -> Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.end == self.buffer.len() {
            self.make_room();
        }
        let mut can_read = self.may_have_more;
        let count = poll_fn(|_| {
            // Nothing can be there before the next event: asking would be a system call for nothing.
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
        // A read that filled its room may have left something; a shorter one has not, and more would be a new event.
        self.may_have_more = self.end == self.buffer.len();
        Ok(())
    }

    /// Reads until `count` bytes are there.
    pub(crate) async fn need(&mut self, count: usize) -> Result<()> {
        while self.end - self.start < count {
            self.fill().await?;
        }
        Ok(())
    }

    /// Forgets the first `count` bytes.
    pub(crate) fn take(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Moves what is there to the front, or doubles the buffer if it is there already.
    fn make_room(&mut self) {
        if self.start == 0 {
            self.buffer.resize(2 * self.buffer.len(), 0);
        } else {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

/// The four bytes at `at`, as a big-endian number.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// Appends `value` in decimal digits.
pub(crate) fn digits(out: &mut Vec<u8>, mut value: usize) {
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
