//! A small HTTP/1.1 client: one request at a time on a blocking socket, against a deadline.
//!
//! In:    a path and a JSON body. Out: status and body, or what failed and whether the server may have seen the request.
//! Never: raises SIGPIPE (the standard library sends with MSG_NOSIGNAL), waits beyond the deadline, or keeps a connection
//!        whose state it does not know.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::Errno;
use crate::config::Config;

/// Longest response head.
const HEAD_LEN_MAX: usize = 64 << 10;
/// Longest response body: 20,000 locks with the longest ids and hostnames.
const BODY_LEN_MAX: usize = 128 << 20;
/// An idle connection is looked at before it is used again after this long.
const TRUST_FOR: Duration = Duration::from_millis(500);
/// An idle connection is not used again after this long: servers and proxies close them at some point.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Why there is none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    /// Whether the server may have received the request.
    pub(crate) sent: bool,
}

/// A connection between two requests.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    used: Instant,
}

impl Connection {
    pub(crate) fn open(config: &Config, deadline: Instant) -> Result<Self, Failure> {
        let failed = |errno| Failure { errno, sent: false };
        let mut last = Errno(libc::EHOSTUNREACH);
        for address in addresses(config).map_err(failed)? {
            let left = left(deadline).map_err(failed)?.min(config.connect_timeout);
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    stream.set_nodelay(true).ok();
                    return Ok(Self { stream, used: Instant::now() });
                }
                Err(error) => last = Errno::of(&error),
            }
        }
        Err(failed(last))
    }

    /// Whether the server has not closed an idle connection, as far as this end can know.
    pub(crate) fn is_alive(&self) -> bool {
        let idle = self.used.elapsed();
        if idle < TRUST_FOR {
            return true;
        }
        let quiet = || {
            self.stream.set_nonblocking(true).ok()?;
            let silent =
                matches!(self.stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
            self.stream.set_nonblocking(false).ok()?;
            Some(silent)
        };
        idle < IDLE_MAX && quiet() == Some(true)
    }

    /// Sends a request and reads its response. The connection comes back if it can be used again.
    pub(crate) fn post(
        mut self,
        config: &Config,
        path: &str,
        body: &[u8],
        deadline: Instant,
    ) -> Result<(Reply, Option<Self>), Failure> {
        let head = head(config, path, body.len());
        let mut request = Vec::new();
        let room = request.try_reserve_exact(head.len() + body.len());
        room.map_err(|_| Failure { errno: Errno(libc::ENOMEM), sent: false })?;
        request.extend_from_slice(head.as_bytes());
        request.extend_from_slice(body);
        let failed = |errno| Failure { errno, sent: true };
        self.write(&request, deadline).map_err(failed)?;
        let (reply, keep) = self.read_reply(deadline).map_err(failed)?;
        self.used = Instant::now();
        Ok((reply, keep.then_some(self)))
    }

    fn write(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<(), Errno> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(left(deadline)?)).map_err(|error| Errno::of(&error))?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(Errno(libc::ECONNRESET)),
                Ok(len) => bytes = &bytes[len..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Errno::of(&error)),
            }
        }
        Ok(())
    }

    fn read_reply(&mut self, deadline: Instant) -> Result<(Reply, bool), Errno> {
        let mut input = Input { stream: &self.stream, buffer: Vec::new(), start: 0, deadline };
        let head = loop {
            let head = Head::parse(&input.head()?).ok_or(Errno(libc::EPROTO))?;
            // 100 Continue and its like are followed by the answer.
            if head.status >= 200 {
                break head;
            }
        };
        let body = match head.length {
            Length::Known(len) => input.take(len)?,
            Length::Chunked => input.chunks()?,
            Length::UntilClosed => input.rest()?,
        };
        let keep = head.keep && input.is_empty() && !matches!(head.length, Length::UntilClosed);
        Ok((Reply { status: head.status, body }, keep))
    }
}

fn head(config: &Config, path: &str, body_len: usize) -> String {
    let authorization = match &config.key {
        Some(key) => format!("Authorization: Bearer {key}\r\n"),
        None => String::new(),
    };
    format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: leasehold-dss/{}\r\n{authorization}\
         Content-Type: application/json\r\nContent-Length: {body_len}\r\n\r\n",
        config.authority,
        env!("CARGO_PKG_VERSION")
    )
}

fn addresses(config: &Config) -> Result<Vec<SocketAddr>, Errno> {
    if let Ok(ip) = config.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, config.port)]);
    }
    match (&*config.host, config.port).to_socket_addrs() {
        Ok(found) => Ok(found.collect()),
        Err(_) => Err(Errno(libc::EHOSTUNREACH)),
    }
}

/// The time until the deadline; nothing takes no time at all.
fn left(deadline: Instant) -> Result<Duration, Errno> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Errno(libc::ETIMEDOUT)) } else { Ok(left) }
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
                head.length = Length::Known(value.parse().ok()?);
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
    stream: &'a TcpStream,
    buffer: Vec<u8>,
    start: usize,
    deadline: Instant,
}

impl Input<'_> {
    fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }

    /// Reads some more; `false` at the end.
    fn fill(&mut self) -> Result<bool, Errno> {
        let mut piece = [0; 16 << 10];
        loop {
            let timeout = self.stream.set_read_timeout(Some(left(self.deadline)?));
            timeout.map_err(|error| Errno::of(&error))?;
            match self.stream.read(&mut piece) {
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
        let mut looked = self.start;
        loop {
            let found = self.buffer[looked..].windows(end.len()).position(|window| window == end);
            if let Some(place) = found {
                let stop = looked + place;
                let bytes = self.buffer[self.start..stop].to_vec();
                self.start = stop + end.len();
                return Ok(bytes);
            }
            looked = self.buffer.len().saturating_sub(end.len() - 1).max(self.start);
            if self.buffer.len() - self.start > max {
                return Err(Errno(libc::EPROTO));
            }
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
        loop {
            let line = self.until(b"\r\n", HEAD_LEN_MAX)?;
            let line = std::str::from_utf8(&line).map_err(|_| Errno(libc::EPROTO))?;
            let digits = line.split(';').next().unwrap_or("").trim();
            let len = usize::from_str_radix(digits, 16).map_err(|_| Errno(libc::EPROTO))?;
            if len == 0 {
                // Trailers, up to an empty line.
                while !self.until(b"\r\n", HEAD_LEN_MAX)?.is_empty() {}
                return Ok(body);
            }
            if len > BODY_LEN_MAX - body.len() {
                return Err(Errno(libc::EPROTO));
            }
            body.try_reserve(len).map_err(|_| Errno(libc::ENOMEM))?;
            body.extend_from_slice(&self.take(len)?);
            self.until(b"\r\n", 2)?;
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::config::Options;

    /// What the client makes of these bytes as a response.
    fn read(response: &'static [u8]) -> Result<(u16, String, bool), Errno> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = listener.local_addr().unwrap().to_string();
        let config = Options { url: Some(url), ..Options::default() }.check().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"{}") {
                let mut piece = [0; 1024];
                let len = stream.read(&mut piece).unwrap();
                request.extend_from_slice(&piece[..len]);
            }
            for byte in response.chunks(3) {
                stream.write_all(byte).unwrap();
            }
        });
        let deadline = Instant::now() + Duration::from_secs(20);
        let connection = Connection::open(&config, deadline).unwrap();
        let answer = connection.post(&config, "/v1/x", b"{}", deadline);
        server.join().unwrap();
        let (reply, kept) = answer.map_err(|failure| failure.errno)?;
        Ok((reply.status, String::from_utf8(reply.body).unwrap(), kept.is_some()))
    }

    #[test]
    fn bodies_come_in_three_ways() {
        let known = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(read(known), Ok((200, "hello".into(), true)));
        let chunked = b"HTTP/1.1 409 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nT: x\r\n\r\n";
        assert_eq!(read(chunked), Ok((409, "hello".into(), true)));
        assert_eq!(read(b"HTTP/1.0 200 OK\r\n\r\nhello"), Ok((200, "hello".into(), false)));
        let closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(read(closing), Ok((200, "hello".into(), false)));
        let interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(read(interim), Ok((200, "ok".into(), true)));
    }

    #[test]
    fn what_breaks_off_is_a_reset_and_what_is_no_http_is_a_protocol_error() {
        for cut in [&b""[..], b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"] {
            assert_eq!(read(cut), Err(Errno(libc::ECONNRESET)));
        }
        for odd in [
            &b"SSH-2.0-x\r\n\r\n"[..],
            b"HTTP/1.1 2x0 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        ] {
            assert_eq!(read(odd), Err(Errno(libc::EPROTO)), "{}", String::from_utf8_lossy(odd));
        }
    }
}
