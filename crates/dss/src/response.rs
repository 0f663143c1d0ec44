//! Reads the response to a request: its head, and its body in any of the three ways in which HTTP/1.1 sends one.
//!
//! In:    bytes of a connection, up to a deadline. Out: a [`Reply`], and whether the connection can be used again.
//! Never: keeps more than the longest head and the longest body, whatever the server sends.

use std::io::ErrorKind;
use std::time::Instant;

use crate::Errno;
use crate::http::{Connection, Reply};

/// Longest response head; also the most bytes of trailers, and of chunk extensions, of one response.
const HEAD_LEN_MAX: usize = 64 << 10;
/// Most interim responses (1xx) before the answer.
const INTERIM_MAX: usize = 8;
/// Consumed bytes that are kept in the buffer before it is moved.
const CONSUMED_MAX: usize = 64 << 10;
/// Longest response body: 20,000 locks with the longest ids and hostnames.
const BODY_LEN_MAX: usize = 128 << 20;

/// Reads a response. Says too whether the connection can be used again.
pub(crate) fn read(connection: &mut Connection, deadline: Instant) -> Result<(Reply, bool), Errno> {
    let mut input = Input { connection, buffer: Vec::new(), start: 0, deadline };
    let mut head = Head::parse(&input.head()?).ok_or(Errno(libc::EPROTO))?;
    // 100 Continue and its like are followed by the answer.
    for _ in 0..INTERIM_MAX {
        if head.status >= 200 {
            break;
        }
        head = Head::parse(&input.head()?).ok_or(Errno(libc::EPROTO))?;
    }
    if head.status < 200 {
        return Err(Errno(libc::EPROTO));
    }
    let body = match head.length {
        Length::Known(len) => input.take(len)?,
        Length::Chunked => input.chunks()?,
        Length::UntilClosed => input.rest()?,
    };
    let keep = head.keep && input.is_empty() && !matches!(head.length, Length::UntilClosed);
    Ok((Reply { status: head.status, body }, keep))
}

/// A number of digits alone: no sign, no space.
fn number(digits: &str, radix: u32) -> Option<usize> {
    let plain = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    plain.then(|| usize::from_str_radix(digits, radix).ok()).flatten()
}

/// How long a response's body is.
enum Length {
    Known(usize),
    Chunked,
    UntilClosed,
}

/// What matters of a response's head.
struct Head {
    status: u16,
    length: Length,
    /// Whether the connection can be used again.
    keep: bool,
}

impl Head {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.split("\r\n");
        let line = lines.next()?;
        let (version, rest) = line.split_once(' ')?;
        let status: u16 = rest.get(..3)?.parse().ok()?;
        let mut head = Self { status, length: Length::UntilClosed, keep: version == "HTTP/1.1" };
        if !version.starts_with("HTTP/1.") {
            return None;
        }
        if status == 204 || status == 304 || status < 200 {
            head.length = Length::Known(0);
        }
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") && !matches!(head.length, Length::Chunked) {
                head.length = Length::Known(number(value, 10)?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                head.length =
                    if value.eq_ignore_ascii_case("chunked") { Length::Chunked } else { return None };
            } else if name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close") {
                head.keep = false;
            }
        }
        Some(head)
    }
}

/// What comes in, with what was read too far.
struct Input<'a> {
    connection: &'a mut Connection,
    buffer: Vec<u8>,
    start: usize,
    deadline: Instant,
}

impl Input<'_> {
    fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }

    /// Reads some more; `false` at the end. What was consumed makes room: places in the buffer are not kept.
    fn fill(&mut self) -> Result<bool, Errno> {
        if self.start >= CONSUMED_MAX {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        let mut piece = [0; 16 << 10];
        loop {
            match self.connection.read_some(&mut piece, self.deadline) {
                Ok(0) => return Ok(false),
                Ok(len) => {
                    self.buffer.try_reserve(len).map_err(|_| Errno(libc::ENOMEM))?;
                    self.buffer.extend_from_slice(&piece[..len]);
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Errno::of(&error)),
            }
        }
    }

    /// Everything up to and without `end`.
    fn until(&mut self, end: &[u8], max: usize) -> Result<Vec<u8>, Errno> {
        // Counted from `start`.
        let mut looked = 0;
        loop {
            let come = &self.buffer[self.start..];
            let found = come[looked..].windows(end.len()).position(|window| window == end);
            if let Some(place) = found.filter(|place| looked + place <= max) {
                let bytes = come[..looked + place].to_vec();
                self.start += looked + place + end.len();
                return Ok(bytes);
            }
            if found.is_some() || come.len() > max + end.len() {
                return Err(Errno(libc::EPROTO));
            }
            looked = come.len().saturating_sub(end.len() - 1);
            if !self.fill()? {
                return Err(Errno(libc::ECONNRESET));
            }
        }
    }

    fn head(&mut self) -> Result<Vec<u8>, Errno> {
        self.until(b"\r\n\r\n", HEAD_LEN_MAX)
    }

    fn take(&mut self, len: usize) -> Result<Vec<u8>, Errno> {
        if len > BODY_LEN_MAX {
            return Err(Errno(libc::EPROTO));
        }
        while self.buffer.len() - self.start < len {
            if !self.fill()? {
                return Err(Errno(libc::ECONNRESET));
            }
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| Errno(libc::ENOMEM))?;
        bytes.extend_from_slice(&self.buffer[self.start..self.start + len]);
        self.start += len;
        Ok(bytes)
    }

    fn chunks(&mut self) -> Result<Vec<u8>, Errno> {
        let mut body = Vec::new();
        // What a server may send in addition to the body.
        let mut budget = HEAD_LEN_MAX;
        loop {
            let line = self.until(b"\r\n", budget)?;
            let line = std::str::from_utf8(&line).map_err(|_| Errno(libc::EPROTO))?;
            let (digits, extension) = line.split_once(';').unwrap_or((line, ""));
            budget -= extension.len();
            let len = number(digits.trim_matches([' ', '\t']), 16).ok_or(Errno(libc::EPROTO))?;
            if len == 0 {
                return self.trailers(budget).map(|()| body);
            }
            if len > BODY_LEN_MAX - body.len() {
                return Err(Errno(libc::EPROTO));
            }
            body.try_reserve(len).map_err(|_| Errno(libc::ENOMEM))?;
            body.extend_from_slice(&self.take(len)?);
            if !self.until(b"\r\n", 0)?.is_empty() {
                return Err(Errno(libc::EPROTO));
            }
        }
    }

    /// Passes over trailers, up to an empty line.
    fn trailers(&mut self, mut budget: usize) -> Result<(), Errno> {
        loop {
            match self.until(b"\r\n", budget)?.len() {
                0 => return Ok(()),
                len => budget -= len,
            }
        }
    }

    fn rest(&mut self) -> Result<Vec<u8>, Errno> {
        while self.buffer.len() - self.start <= BODY_LEN_MAX {
            if !self.fill()? {
                return Ok(self.buffer.split_off(self.start));
            }
        }
        Err(Errno(libc::EPROTO))
    }
}
