//! A proxy that does to single requests what networks and failing servers do.
//!
//! In:    requests of a client. Out: what the server answers, or a fault: see [`Fault`].
//! Never: touches a request that it was not told about.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::common::{Client, Reply};

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: it is passed on.
    None,
    /// The server never hears of it; the client gets this status.
    Answer(u16),
    /// The same, with a `Retry-After` of so many seconds.
    Later(u16, u64),
    /// The server never hears of it, and the connection breaks.
    Cut,
    /// The server does it, and the connection breaks before the answer.
    Lose,
    /// The server does it, and the client never hears of it.
    Mute,
    /// The server never hears of it, and the client hears nothing.
    Hold,
    /// It is passed on without its query, as if to a server that knows no `?wait=`.
    NoQuery,
    /// It is passed on unless it has words that release 0.1.0 does not know; those are refused as 0.1.0 does it.
    Old,
    /// The same for a node whose cluster has a member of release 0.1.0.
    OldMember,
}

/// What is asked: `register`, `activate`, `renew`, `release`, `withdraw`, `abort`, `renewals`, `other`.
pub type Kind = &'static str;

type Rule = Box<dyn FnMut(Kind) -> Fault + Send>;

struct Inner {
    upstream: Mutex<SocketAddr>,
    rule: Mutex<Rule>,
    seen: Mutex<Vec<Kind>>,
}

/// It listens until the test is over.
pub struct Proxy {
    pub addr: SocketAddr,
    inner: Arc<Inner>,
}

impl Proxy {
    pub fn before(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let inner = Arc::new(Inner {
            upstream: Mutex::new(upstream),
            rule: Mutex::new(Box::new(|_| Fault::None)),
            seen: Mutex::default(),
        });
        let shared = inner.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Self { addr, inner }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Decides from now on.
    pub fn rule(&self, rule: impl FnMut(Kind) -> Fault + Send + 'static) {
        *self.inner.rule.lock().unwrap() = Box::new(rule);
    }

    /// Everything is passed on again.
    pub fn heal(&self) {
        self.rule(|_| Fault::None);
    }

    /// The server is somewhere else now.
    pub fn move_to(&self, upstream: SocketAddr) {
        *self.inner.upstream.lock().unwrap() = upstream;
    }

    /// How many requests of this kind came so far.
    pub fn count(&self, kind: Kind) -> usize {
        self.inner.seen.lock().unwrap().iter().filter(|seen| **seen == kind).count()
    }
}

struct Asked {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Inner {
    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut writer = stream;
        while let Ok(asked) = read(&mut reader) {
            let kind = kind(&asked);
            self.seen.lock().unwrap().push(kind);
            let fault = (self.rule.lock().unwrap())(kind);
            let answer = match fault {
                Fault::None => self.ask(&asked, &asked.path),
                Fault::NoQuery => self.ask(&asked, asked.path.split('?').next().unwrap()),
                Fault::Answer(status) => {
                    Some(Reply { status, headers: Vec::new(), body: b"{\"detail\": \"injected\"}".to_vec() })
                }
                Fault::Later(status, seconds) => Some(Reply {
                    status,
                    headers: vec![("retry-after".into(), seconds.to_string())],
                    body: b"{\"detail\": \"injected\"}".to_vec(),
                }),
                Fault::Old | Fault::OldMember => match refused(&asked, fault == Fault::OldMember) {
                    Some(refusal) => Some(refusal),
                    None => self.ask(&asked, &asked.path),
                },
                Fault::Cut => None,
                Fault::Lose => {
                    self.ask(&asked, &asked.path);
                    None
                }
                Fault::Mute => {
                    self.ask(&asked, &asked.path);
                    hang(&mut reader);
                    None
                }
                Fault::Hold => {
                    hang(&mut reader);
                    None
                }
            };
            match answer {
                Some(reply) if write(&mut writer, &reply).is_ok() => {}
                _ => return,
            }
        }
    }

    fn ask(&self, asked: &Asked, path: &str) -> Option<Reply> {
        let mut client = Client::try_connect(*self.upstream.lock().unwrap()).ok()?;
        let headers: Vec<(&str, &str)> = asked
            .headers
            .iter()
            .filter(|(name, _)| name != "content-length")
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        client.try_request(&asked.method, path, &headers, &asked.body).ok()
    }
}

/// What release 0.1.0, or a cluster with a member of it, answers to a claim with newer words.
fn refused(asked: &Asked, is_member: bool) -> Option<Reply> {
    let body: serde_json::Value = serde_json::from_slice(&asked.body).ok()?;
    let newer = ["mode", "take", "of", "resources", "session"];
    let newer: Vec<&str> = newer.into_iter().filter(|word| body.get(word).is_some()).collect();
    if newer.is_empty() || kind(asked) != "register" {
        return None;
    }
    let body = match is_member {
        true => serde_json::json!({ "type": "urn:leasehold:problem:member-too-old", "status": 503,
            "detail": "node 2 runs version 0.1.0, which is too old for this: upgrade that node" }),
        false => newer
            .into_iter()
            .map(|word| (word, "unknown parameter; a claim takes resource, ttl and user_data"))
            .collect(),
    };
    let status = if is_member { 503 } else { 400 };
    Some(Reply { status, headers: Vec::new(), body: body.to_string().into_bytes() })
}

/// Until the client gives up.
fn hang(reader: &mut BufReader<TcpStream>) {
    reader.fill_buf().ok();
}

fn read(reader: &mut BufReader<TcpStream>) -> std::io::Result<Asked> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let mut words = line.split(' ').map(String::from);
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
    }
    let len =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, len)| len.parse().unwrap());
    let mut body = vec![0; len];
    reader.read_exact(&mut body)?;
    Ok(Asked { method, path, headers, body })
}

fn kind(asked: &Asked) -> Kind {
    let body = String::from_utf8_lossy(&asked.body);
    match (asked.method.as_str(), asked.path.split('?').next().unwrap()) {
        ("POST", "/v1/claims/") => "register",
        ("POST", "/v1/renewals") => "renewals",
        ("PATCH", _) if body.contains("\"active\"") => "activate",
        ("PATCH", _) if body.contains("\"ttl\"") => "renew",
        ("PATCH", _) if body.contains("\"released\"") => "release",
        ("PATCH", _) if body.contains("\"withdrawn\"") => "withdraw",
        ("PATCH", _) if body.contains("\"aborted\"") => "abort",
        _ => "other",
    }
}

fn write(writer: &mut TcpStream, reply: &Reply) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} X\r\nContent-Length: {}\r\n", reply.status, reply.body.len());
    for (name, value) in reply.headers.iter().filter(|(name, _)| name != "content-length") {
        head += &format!("{name}: {value}\r\n");
    }
    if reply.status == 204 {
        head = "HTTP/1.1 204 X\r\n".into();
    }
    writer.write_all(&[head.as_bytes(), b"\r\n", &reply.body].concat())
}
