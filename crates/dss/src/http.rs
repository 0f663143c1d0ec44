//! A small HTTP/1.1 client: one request at a time on a blocking socket, against a deadline.
//!
//! In:    a path and a JSON body. Out: status and body, or what failed and whether the server may have seen the request.
//! Never: raises SIGPIPE (the standard library sends with MSG_NOSIGNAL), waits beyond the deadline, or keeps a connection
//!        whose state it does not know.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use zeroize::Zeroizing;

use crate::Errno;
use crate::config::{Config, Server};
use crate::response;

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
    /// What makes it secure. It writes nothing when it is dropped: a forked child does not end its parent's.
    tls: Option<Box<ClientConnection>>,
    /// Which of the servers it leads to.
    pub(crate) at: usize,
    used: Instant,
}

impl Connection {
    /// To one of the servers.
    pub(crate) fn open(config: &Config, at: usize, deadline: Instant) -> Result<Self, Failure> {
        let failed = |errno| Failure { errno, sent: false };
        let server = &config.servers[at];
        let mut last = Errno(libc::EHOSTUNREACH);
        for address in addresses(server).map_err(failed)? {
            let left = left(deadline).map_err(failed)?.min(config.connect_timeout);
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    stream.set_nodelay(true).ok();
                    let mut connection = Self { stream, tls: None, at, used: Instant::now() };
                    if let Some(tls) = config.tls.as_ref().filter(|_| server.is_https) {
                        let deadline = deadline.min(Instant::now() + config.connect_timeout);
                        connection.secure(tls.clone(), &server.host, deadline).map_err(failed)?;
                    }
                    return Ok(connection);
                }
                Err(error) => last = Errno::of(&error),
            }
        }
        Err(failed(last))
    }

    fn secure(&mut self, tls: Arc<ClientConfig>, host: &str, deadline: Instant) -> Result<(), Errno> {
        let name = ServerName::try_from(host.to_string()).map_err(|_| Errno(libc::EINVAL))?;
        let tls = ClientConnection::new(tls, name).map_err(|_| Errno(libc::EINVAL))?;
        let tls = self.tls.insert(Box::new(tls));
        let mut stream = Timed { stream: &self.stream, deadline };
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).map_err(|error| Errno::of(&error))?;
        }
        Ok(())
    }

    pub(crate) fn read_some(&mut self, piece: &mut [u8], deadline: Instant) -> std::io::Result<usize> {
        let mut stream = Timed { stream: &self.stream, deadline };
        match &mut self.tls {
            None => stream.read(piece),
            Some(tls) => rustls::Stream::new(&mut **tls, &mut stream).read(piece),
        }
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
        let head = head(config, &config.servers[self.at], path, body.len());
        // It has the access key.
        let mut request = Zeroizing::new(Vec::new());
        let room = request.try_reserve_exact(head.len() + body.len());
        room.map_err(|_| Failure { errno: Errno(libc::ENOMEM), sent: false })?;
        request.extend_from_slice(head.as_bytes());
        request.extend_from_slice(body);
        let failed = |errno| Failure { errno, sent: true };
        self.write(&request, deadline).map_err(failed)?;
        let (reply, keep) = response::read(&mut self, deadline).map_err(failed)?;
        self.used = Instant::now();
        Ok((reply, keep.then_some(self)))
    }

    fn write(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), Errno> {
        let mut stream = Timed { stream: &self.stream, deadline };
        let written = match &mut self.tls {
            None => stream.write_all(bytes),
            Some(tls) => {
                let mut stream = rustls::Stream::new(&mut **tls, &mut stream);
                stream.write_all(bytes).and_then(|()| stream.flush())
            }
        };
        written.map_err(|error| Errno::of(&error))
    }
}

fn head(config: &Config, server: &Server, path: &str, body_len: usize) -> Zeroizing<String> {
    let authorization = match &config.key {
        Some(key) => Zeroizing::new(format!("Authorization: Bearer {}\r\n", key.as_str())),
        None => Zeroizing::default(),
    };
    let authorization = authorization.as_str();
    Zeroizing::new(format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: leasehold-dss/{}\r\n{authorization}\
         Content-Type: application/json\r\nContent-Length: {body_len}\r\n\r\n",
        server.authority,
        env!("CARGO_PKG_VERSION")
    ))
}

/// A socket whose every read and write ends at the deadline.
struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn left(&self) -> std::io::Result<Option<Duration>> {
        left(self.deadline).map(Some).map_err(|_| ErrorKind::TimedOut.into())
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, piece: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(piece)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn addresses(server: &Server) -> Result<Vec<SocketAddr>, Errno> {
    if let Ok(ip) = server.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, server.port)]);
    }
    match (&*server.host, server.port).to_socket_addrs() {
        Ok(found) => Ok(found.collect()),
        Err(_) => Err(Errno(libc::EHOSTUNREACH)),
    }
}

/// The time until the deadline; nothing takes no time at all.
fn left(deadline: Instant) -> Result<Duration, Errno> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Errno(libc::ETIMEDOUT)) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::config::Options;

    /// What the client makes of these bytes as a response.
    fn read(response: &[u8]) -> Result<(u16, String, bool), Errno> {
        let response = response.to_vec();
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
            let (small, rest) = response.split_at(response.len().min(1000));
            for bytes in small.chunks(3).chain(rest.chunks(10_000)) {
                // A client that has seen enough hangs up.
                if stream.write_all(bytes).is_err() {
                    return;
                }
            }
        });
        let deadline = Instant::now() + Duration::from_secs(20);
        let connection = Connection::open(&config, 0, deadline).unwrap();
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
            b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n0\r\n\r\n",
        ] {
            assert_eq!(read(odd), Err(Errno(libc::EPROTO)), "{}", String::from_utf8_lossy(odd));
        }
    }

    #[test]
    fn a_server_that_never_comes_to_the_point_is_a_protocol_error() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let interim = "HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let trailers = format!("{chunked}0\r\n{}\r\n", "T: xxxxxxxxxxxxxxxx\r\n".repeat(10_000));
        let extensions =
            format!("{chunked}{}0\r\n\r\n", format!("1;{}\r\nx\r\n", "e".repeat(500)).repeat(1000));
        let one_extension = format!("{chunked}1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(1 << 20));
        for endless in [interim + ok, trailers, extensions, one_extension] {
            assert_eq!(read(endless.as_bytes()), Err(Errno(libc::EPROTO)), "{}", &endless[..100]);
        }
        // Many small chunks are a body like any other, and what was read of them is not kept.
        let many = format!("{chunked}{}0\r\n\r\n", "1\r\nx\r\n".repeat(100_000));
        assert_eq!(read(many.as_bytes()).map(|(_, body, _)| body.len()), Ok(100_000));
    }
}
