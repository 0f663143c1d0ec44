//! Our HTTP/1.1 against hyper's: the same bytes in, the same requests and refusals out.
//!
//! In:    requests from a seeded generator: pipelined, chunked, cut anywhere, with bytes that were changed.
//! Out:   nothing if both read the same, or if the difference is one of [`DIFFERENCES`], which says why it exists.
//! Never: excuses a difference after which both go on: one of the two readers has to end the connection there. Otherwise a
//!        proxy that reads as one of them could be made to pass on a request that the other sees elsewhere.
//!
//! `LEASEHOLD_SEED` repeats a run, `LEASEHOLD_CASES` sets its length.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that can't go on should say so and stop"
)]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use leasehold_server::http::http1::{
    AnswerBody, Body, BodyError, BodySource, Http1, HttpRefusal, Outgoing, Request,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::Runtime;

/// Cases of a run, unless told otherwise.
const CASES: usize = 20_000;
/// What every answer of the two services has, and no refusal.
const ANSWERED: &str = "x-answered";

/// A difference that is meant to be, and why.
struct Difference {
    why: &'static str,
    is: fn(&Case) -> bool,
}

/// Each of them ends the connection on our side, unless it says otherwise.
const DIFFERENCES: &[Difference] = &[
    Difference {
        why: "We take `Transfer-Encoding: chunked` alone. hyper takes any list that ends in chunked, and several such headers: a \
              coding in front that a proxy undoes and we don't would move the end of the body.",
        is: |case| case.we_stop_with("the only supported Transfer-Encoding is chunked, with HTTP/1.1"),
    },
    Difference {
        why: "hyper does not look at a Content-Length behind a Transfer-Encoding. We refuse one that is no number, or contradicts \
              another: a reader in front may go by it.",
        is: |case| {
            case.we_stop_with("Content-Length is not a number of bytes") && case.has("transfer-encoding")
        },
    },
    Difference {
        why: "The same for two that contradict each other.",
        is: |case| {
            case.we_stop_with("two Content-Lengths contradict each other") && case.has("transfer-encoding")
        },
    },
    Difference {
        why: "We refuse control characters in chunk extensions, and lines of more than 256 bytes: another reader may end the line \
              at a control character, and nobody uses extensions.",
        is: |case| case.we_stop_with("a chunk does not begin with its size in hexadecimal digits"),
    },
    Difference {
        why: "hyper keeps the two largest numbers for itself and answers 431. We take any Content-Length of 64 bits: what is too large \
              is refused by its reader.",
        is: |case| case.they_refuse(431) && case.has("1844674407370955161"),
    },
    Difference {
        why: "A client of HTTP/2 would not understand an answer. hyper tells such a client by its whole opening, we tell it by the first line.",
        is: |case| case.has("pri * http/2.0") && case.they_refuse(400) && case.ours.refused.is_none(),
    },
    Difference {
        why: "hyper does not read a Connection header that is not plain text. We close where one of its words is close.",
        is: |case| {
            let read = case.ours.requests.len();
            let closes = |seen: &Seen| {
                let mut values =
                    seen.headers.iter().filter(|(name, _)| name == "connection").map(|(_, value)| value);
                values.any(|value| {
                    !value.is_ascii() && String::from_utf8_lossy(value).to_ascii_lowercase().contains("close")
                })
            };
            case.theirs.requests.get(..read) == Some(&case.ours.requests)
                && case.ours.requests.last().is_some_and(closes)
        },
    },
    Difference {
        why: "Where a head is too large because of its target, we say 414 at any length; hyper, beyond its buffer, says 431.",
        is: |case| case.ours.refused == Some(414) && case.they_refuse(431),
    },
];

/// What one side made of the bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Read {
    requests: Vec<Seen>,
    /// The status of the refusal that ended the connection.
    refused: Option<u16>,
}

/// A request as its reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    line: String,
    /// In order of the names, which are in lower case.
    headers: Vec<(String, Vec<u8>)>,
    /// `None`: it was no body, or not all of it came.
    body: Option<Vec<u8>>,
}

impl Seen {
    fn new(line: String, mut headers: Vec<(String, Vec<u8>)>) -> Self {
        headers.sort_by(|one, other| one.0.cmp(&other.0));
        // hyper leaves out a Content-Length that a Transfer-Encoding overrides, and the copies of one.
        let chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
        let mut lengths = 0;
        headers.retain(|(name, _)| {
            lengths += usize::from(name == "content-length");
            name != "content-length" || (lengths == 1 && !chunked)
        });
        Self { line, headers, body: None }
    }
}

/// The same bytes, read by both.
struct Case {
    bytes: Vec<u8>,
    ours: Read,
    theirs: Read,
    /// Why we refused the head or the body that ended the connection.
    why: Option<String>,
}

impl Case {
    /// Whether we end the connection for this reason, and had read everything before as hyper did.
    fn we_stop_with(&self, why: &str) -> bool {
        let read = self.ours.requests.iter().take_while(|seen| seen.body.is_some()).count();
        let same =
            self.theirs.requests.len() >= read && self.ours.requests[..read] == self.theirs.requests[..read];
        same && self.ours.requests.len() <= read + 1 && self.why.as_deref() == Some(why)
    }

    /// Whether hyper ends the connection with this status, and had read everything before as we did.
    fn they_refuse(&self, status: u16) -> bool {
        let read = self.theirs.requests.len();
        let same =
            self.ours.requests.len() >= read && self.ours.requests[..read] == self.theirs.requests[..read];
        same && self.theirs.refused == Some(status)
    }

    fn has(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.bytes).to_ascii_lowercase().contains(text)
    }

    /// The difference that excuses this one; none is needed where there is none.
    #[track_caller]
    fn check(&self) -> Option<&'static str> {
        if self.ours == self.theirs {
            return None;
        }
        let known = DIFFERENCES.iter().find(|difference| (difference.is)(self));
        let (bytes, why) = (String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(4_000)]), &self.why);
        let excused = known.map(|difference| difference.why);
        assert!(
            excused.is_some(),
            "{bytes:?}\n\nours {:#?}\n({why:?})\n\nhyper's {:#?}",
            self.ours,
            self.theirs
        );
        excused
    }
}

// ---- the two readers

type Seens = Arc<Mutex<Vec<Seen>>>;

/// Sends the pieces to a server one by one, then nothing more, and gives back what it answered.
async fn talk<F>(pieces: &[&[u8]], serve: impl FnOnce(DuplexStream) -> F) -> Vec<u8>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let serving = tokio::spawn(serve(server));
    for piece in pieces {
        // One that has ended the connection reads no more.
        if client.write_all(piece).await.is_err() {
            break;
        }
        settle().await;
    }
    // All that was asked has been answered before the client closes.
    for _ in 0..10 {
        settle().await;
    }
    client.shutdown().await.ok();
    let mut answers = Vec::new();
    client.read_to_end(&mut answers).await.ok();
    serving.await.unwrap();
    answers
}

/// Lets the server run until it waits.
async fn settle() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

/// The status of the answer that no service gave.
fn refusal(answers: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(answers).to_ascii_lowercase();
    let heads = text.split("http/1.").skip(1).filter(|head| !head.contains(ANSWERED));
    let statuses = heads.filter_map(|head| head.split(' ').nth(1)?.parse().ok());
    statuses.filter(|status| *status != 100).last()
}

/// No answer comes in pieces.
enum Never {}

impl BodySource for Never {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BodyError>> {
        match *self {}
    }

    fn try_next(&mut self) -> Option<Bytes> {
        match *self {}
    }
}

struct NoBody;

impl AnswerBody for NoBody {
    type Source = Never;

    fn into_outgoing(self) -> Outgoing<Never> {
        Outgoing::Whole(Bytes::new())
    }
}

fn answered<B>(status: u16, body: B) -> Response<B> {
    Response::builder().status(status).header(ANSWERED, "1").body(body).unwrap()
}

async fn by_us(pieces: &[&[u8]]) -> (Read, Option<String>) {
    let (seens, why) = (Seens::default(), Arc::new(Mutex::new(None)));
    let answers = {
        let (seens, why) = (seens.clone(), why.clone());
        talk(pieces, move |stream| async move {
            let refuse = |refusal: &HttpRefusal| {
                *why.lock().unwrap() = Some(refusal.detail.to_string());
                let mut response = Response::new(NoBody);
                *response.status_mut() = refusal.status;
                response
            };
            let answer = |request: Request| read_ours(request, seens.clone(), why.clone());
            let never = std::future::pending();
            Http1::new(stream, None).serve(None, never, || false, || false, refuse, answer).await;
        })
        .await
    };
    let requests = std::mem::take(&mut *seens.lock().unwrap());
    let why = why.lock().unwrap().take();
    (Read { requests, refused: refusal(&answers) }, why)
}

async fn read_ours(request: Request, seens: Seens, why: Arc<Mutex<Option<String>>>) -> Response<NoBody> {
    let Request { method, uri, version, head, fields, body } = request;
    let at = |(start, end)| &head[start as usize..end as usize];
    let text = |place| String::from_utf8_lossy(at(place)).to_ascii_lowercase();
    let headers = fields.iter().map(|(name, value)| (text(*name), at(*value).to_vec())).collect();
    let number = note(&seens, Seen::new(format!("{method} {uri} {version:?}"), headers));
    let mut whole = Vec::new();
    match body {
        Body::Whole(bytes) => whole.extend_from_slice(&bytes),
        Body::Coming { mut pieces, .. } => {
            while let Some(piece) = pieces.recv().await {
                match piece {
                    Ok(piece) => whole.extend_from_slice(&piece),
                    Err(broken) => {
                        *why.lock().unwrap() = Some(broken.into());
                        return answered(400, NoBody);
                    }
                }
            }
        }
    }
    seens.lock().unwrap()[number].body = Some(whole);
    answered(404, NoBody)
}

fn note(seens: &Seens, seen: Seen) -> usize {
    let mut seens = seens.lock().unwrap();
    seens.push(seen);
    seens.len() - 1
}

async fn by_hyper(pieces: &[&[u8]]) -> Read {
    let seens = Seens::default();
    let answers = {
        let seens = seens.clone();
        talk(pieces, move |stream| async move {
            let service = service_fn(move |request| read_theirs(request, seens.clone()));
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.header_read_timeout(None).max_buf_size(64 << 10);
            builder.serve_connection(TokioIo::new(stream), service).await.ok();
        })
        .await
    };
    let requests = std::mem::take(&mut *seens.lock().unwrap());
    Read { requests, refused: refusal(&answers) }
}

async fn read_theirs(
    request: hyper::Request<Incoming>,
    seens: Seens,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let headers = head.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
    let line = format!("{} {} {:?}", head.method, head.uri, head.version);
    let number = note(&seens, Seen::new(line, headers.collect()));
    match body.collect().await {
        Ok(whole) => seens.lock().unwrap()[number].body = Some(whole.to_bytes().to_vec()),
        Err(_) => return Ok(answered(400, Empty::new())),
    }
    Ok(answered(404, Empty::new()))
}

fn read_both(runtime: &Runtime, bytes: &[u8], cuts: &[usize]) -> Case {
    let ends = cuts.iter().copied().chain([bytes.len()]);
    let starts = [0].into_iter().chain(cuts.iter().copied());
    let pieces: Vec<&[u8]> = starts.zip(ends).map(|(start, end)| &bytes[start..end]).collect();
    runtime.block_on(async {
        let (ours, why) = by_us(&pieces).await;
        Case { bytes: bytes.into(), ours, theirs: by_hyper(&pieces).await, why }
    })
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

// ---- what is sent

/// Numbers that only look random: the same seed gives the same ones (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % below as u64) as usize
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

const METHODS: &[&str] =
    &["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "CONNECT", "TRACE", "X-ODD!", "get", ""];
const TARGETS: &[&str] = &[
    "/",
    "/a/b?c=d",
    "*",
    "http://h/x",
    "h:80",
    "/%zz",
    "/\u{e9}",
    "/a b",
    "/a#b",
    "//",
    "?",
    "",
    "/\\",
    "/<>",
];
const VERSIONS: &[&str] =
    &["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/1.2", "HTTP/0.9", "http/1.1", ""];
const ENDS: &[&str] = &["\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", "\r\r\n", "\n\r\n"];
const HEADERS: &[&str] = &[
    "Host: x",
    "Connection: close",
    "Connection: keep-alive",
    "Connection: Keep-Alive, close",
    "Connection:",
    "Content-Length: 3",
    "Content-Length: 0",
    "Content-Length: 3, 3",
    "Content-Length: +3",
    "Content-Length: -0",
    "Content-Length: 0x3",
    "Content-Length: 00003",
    "Content-Length: 3 3",
    "Content-Length:",
    "Content-Length: 18446744073709551615",
    "Content-Length: 99999999999999999999",
    "content-length : 3",
    "Content-Length\t: 3",
    " Content-Length: 3",
    "Transfer-Encoding: chunked",
    "transfer-encoding: Chunked",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked, gzip",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding:\tchunked ",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding: identity",
    "Transfer-Encoding:",
    "Transfer-Encoding : chunked",
    "Transfer_Encoding: chunked",
    "Expect: 100-continue",
    "Upgrade: websocket",
    "X: a\tb",
    "X: \u{e9}",
    "X:",
    "X",
    ": x",
    "X: a\r b",
    "X: a\r\n folded: b",
    "X: \u{1}",
    "X\0: y",
    "Very-Long-Name-Of-A-Header-That-Nobody-Uses: and a value that goes with it",
];
const SIZES: &[&str] = &[
    "3",
    "3",
    "3",
    "03",
    "0003",
    "3 ",
    "3\t",
    "3;a=b",
    "3 ;a",
    "3;\"\\\"\"",
    "3;\u{1}",
    "3;a\rb",
    "+3",
    "-3",
    " 3",
    "0x3",
    "3g",
    "",
    "ffffffffffffffff",
    "10000000000000000",
    "3\u{b}",
    "3;",
    "4",
    "2",
];
const TRAILERS: &[&str] = &[
    "",
    "",
    "",
    "A: b\r\n",
    "A: b\r\nC: d\r\n",
    "A\r\n",
    "A: b\rc\r\n",
    "A: b\n",
    " a\r\n",
    "GET / HTTP/1.1\r\n",
    ": x\r\n",
];
/// Bytes that mean something to one reader or another.
const BYTES: &[u8] = b"\r\n \t:;,/0123456789abcdef\"\\\0\x01\x0b\x0c\x7f\x80\xff";

/// A stream of one to four requests.
fn stream(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..=random.below(4) {
        if random.one_in(12) {
            bytes.extend_from_slice(random.pick(&["\r\n", "\n", "\r", "\r\n\r\n"]).as_bytes());
        }
        request(random, &mut bytes);
    }
    for _ in 0..[0, 0, 0, 1, 4][random.below(5)] {
        mutate(random, &mut bytes);
    }
    bytes
}

/// One request, mostly a sound one.
fn request(random: &mut Random, bytes: &mut Vec<u8>) {
    let odd = random.one_in(6);
    let mut pick = |from: &[&'static str], usual: &'static str| {
        if odd && random.one_in(3) { random.pick(from) } else { usual }
    };
    let line = format!(
        "{} {} {}{}",
        pick(METHODS, "POST"),
        pick(TARGETS, "/a"),
        pick(VERSIONS, "HTTP/1.1"),
        pick(ENDS, "\r\n")
    );
    bytes.extend_from_slice(line.as_bytes());
    let body = random.below(4);
    let mut headers = vec!["Host: x"];
    headers.extend(
        ["", "Content-Length: 3", "Transfer-Encoding: chunked", ""]
            .get(body)
            .filter(|header| !header.is_empty()),
    );
    let more = if odd { random.below(4) } else { usize::from(random.one_in(8)) };
    for _ in 0..more {
        let at = random.below(headers.len() + 1);
        headers.insert(at, random.pick(HEADERS));
    }
    for header in headers {
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(if odd && random.one_in(9) { random.pick(ENDS) } else { "\r\n" }.as_bytes());
    }
    bytes.extend_from_slice(if odd && random.one_in(9) { random.pick(ENDS) } else { "\r\n" }.as_bytes());
    match body {
        1 => bytes.extend_from_slice(b"abc"),
        2 => chunks(random, odd, bytes),
        _ => {}
    }
}

fn chunks(random: &mut Random, odd: bool, bytes: &mut Vec<u8>) {
    for _ in 0..random.below(4) {
        let odd = odd && random.one_in(3);
        bytes.extend_from_slice(if odd { random.pick(SIZES) } else { "3" }.as_bytes());
        bytes.extend_from_slice(if odd { random.pick(ENDS) } else { "\r\n" }.as_bytes());
        bytes.extend_from_slice(b"abc");
        bytes.extend_from_slice(if odd { random.pick(ENDS) } else { "\r\n" }.as_bytes());
    }
    let last = if odd { random.pick(&["0", "00", "0;a", "0 ", "0;a\u{1}"]) } else { "0" };
    let trailers = if odd { random.pick(TRAILERS) } else { "" };
    bytes.extend_from_slice(format!("{last}\r\n{trailers}\r\n").as_bytes());
}

/// Changes, takes out, puts in or doubles something.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    let byte = BYTES[random.below(BYTES.len())];
    match random.below(6) {
        0 => bytes[at] = byte,
        1 => bytes.insert(at, byte),
        2 => drop(bytes.remove(at)),
        3 => bytes.truncate(at),
        4 => bytes[at] ^= 1 << random.below(8),
        _ => {
            let end = (at + 1 + random.below(20)).min(bytes.len());
            let copy = bytes[at..end].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, copy);
        }
    }
}

/// Where the bytes are cut: nowhere, everywhere, or here and there.
fn cuts(random: &mut Random, len: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = match random.below(4) {
        0 => Vec::new(),
        1 => (1..len).collect(),
        _ => (0..random.below(6)).map(|_| random.below(len.max(1))).collect(),
    };
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

// ---- the tests

#[test]
fn the_same_bytes_are_the_same_requests_and_refusals() {
    let fresh = || std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
    let seed = std::env::var("LEASEHOLD_SEED").map_or_else(|_| fresh(), |seed| seed.parse().unwrap());
    let cases = std::env::var("LEASEHOLD_CASES").map_or(CASES, |cases| cases.parse().unwrap());
    eprintln!("LEASEHOLD_SEED={seed}");
    let (runtime, mut random, mut read) = (runtime(), Random(seed), [0; 2]);
    for _ in 0..cases {
        let bytes = stream(&mut random);
        let cuts = cuts(&mut random, bytes.len());
        let case = read_both(&runtime, &bytes, &cuts);
        case.check();
        read[0] += case.ours.requests.iter().filter(|seen| seen.body.is_some()).count();
        read[1] += usize::from(case.ours.refused.is_some());
    }
    // A generator of nothing but nonsense, or of none, would prove little.
    assert!(read[0] > cases && read[1] > cases / 10, "{read:?} of {cases}");
}

/// Requests that were read in two ways somewhere, each followed by one that nobody may take for its body.
const SMUGGLERS: &[&str] = &[
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: x\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;a\nb\r\nabc\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\rGET /b HTTP/1.1\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n",
    "POST / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    "GET / HTTP/1.1\nHost: x\n\n",
    "GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
    "\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
];

#[test]
fn a_stream_means_the_same_wherever_it_is_cut() {
    let runtime = runtime();
    for smuggler in SMUGGLERS {
        let bytes = [smuggler.as_bytes(), b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"].concat();
        let whole = read_both(&runtime, &bytes, &[]);
        whole.check();
        let everywhere: Vec<usize> = (1..bytes.len()).collect();
        for cuts in everywhere.chunks(1).chain([&everywhere[..]]) {
            let cut = read_both(&runtime, &bytes, cuts);
            assert_eq!(cut.ours, whole.ours, "{smuggler:?} cut at {cuts:?}");
            cut.check();
        }
    }
}

#[test]
fn heads_that_are_too_large_are_refused_alike() {
    let runtime = runtime();
    for (head, status) in [
        (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(300_000)), 414),
        (format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(300_000)), 431),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(101)), 431),
    ] {
        let case = read_both(&runtime, head.as_bytes(), &[]);
        case.check();
        assert_eq!((case.ours.refused, case.ours.requests.len()), (Some(status), 0));
    }
}

#[test]
fn every_difference_is_met_and_none_is_left_over() {
    let runtime = runtime();
    let examples = [
        "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: x\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;\u{1}\r\nabc\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\nabc",
        "PRI * HTTP/2.0\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nConnection: \u{e9}, close\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        &format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(300_000)),
    ];
    let met = examples.map(|bytes| read_both(&runtime, bytes.as_bytes(), &[]).check());
    let known: Vec<_> = DIFFERENCES.iter().map(|difference| Some(difference.why)).collect();
    assert_eq!(met.to_vec(), known);
}
