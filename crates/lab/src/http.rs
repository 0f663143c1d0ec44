//! A plain HTTP client for one request at a time.
//!
//! In:    method, path, body. Out: status, headers and body; or why there are none, and whether the request may have
//!        happened all the same.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its headers, as they came.
    pub head: String,
    /// Its body.
    pub body: String,
}

impl Reply {
    /// The body as JSON; null where it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub struct NoReply {
    /// What went wrong.
    pub why: io::Error,
    /// Whether the request was sent: then nobody knows what became of it.
    pub sent: bool,
}

/// Sends one request on a connection of its own.
pub fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
    patience: Duration,
) -> Result<Reply, NoReply> {
    request_with(addr, method, path, &[], body, patience)
}

/// The same, with more headers.
pub fn request_with(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
    patience: Duration,
) -> Result<Reply, NoReply> {
    let unsent = |why| NoReply { why, sent: false };
    let mut stream = TcpStream::connect_timeout(&addr, patience).map_err(unsent)?;
    stream.set_read_timeout(Some(patience)).map_err(unsent)?;
    stream.set_nodelay(true).ok();
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    let answer = stream.write_all(head.as_bytes()).and_then(|()| {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    let lost = |why| NoReply { why, sent: true };
    let text = String::from_utf8_lossy(&answer.map_err(lost)?).into_owned();
    let parsed = text.split_once("\r\n\r\n").and_then(|(head, body)| {
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Reply { status, head: head.into(), body: unchunked(head, body) })
    });
    parsed.ok_or_else(|| lost(io::ErrorKind::UnexpectedEof.into()))
}

/// A body without its chunk sizes, where it has some.
fn unchunked(head: &str, body: &str) -> String {
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return body.into();
    }
    let mut out = String::new();
    let mut rest = body;
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || more.len() < size {
            break;
        }
        out += &more[..size];
        rest = more[size..].trim_start_matches("\r\n");
    }
    out
}
