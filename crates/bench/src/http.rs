//! HTTP/1.1 for a load generator: one request in flight, and as little of the protocol as that needs.
//!
//! In:    a `Request` in pieces, which are copied and never formatted.
//! Out:   the status; body and `Location` stay where they came in, until the next request.
//! Never: allocates for a request, or looks at headers other than those that it needs.

use std::ops::Range;

use anyhow::{Context, Result, bail};
use memchr::{memchr, memmem};

use crate::reactor::Seat;
use crate::target::Address;
use crate::wire::{Wire, digits};

/// A request. Targets and bodies are put together from their pieces.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// The request target.
    pub target: [&'a str; 3],
    /// The body, JSON.
    pub body: [&'a str; 5],
    /// The value of `Idempotency-Key`, if there is one.
    pub key: Option<&'a str>,
}

impl<'a> Request<'a> {
    /// Makes a claim on `resource`: `rest` is what follows its name in the body.
    pub fn claim(query: &'a str, resource: &'a str, rest: &'a str) -> Self {
        let body = ["{\"resource\":\"", resource, rest, "", ""];
        Self { method: "POST", target: ["/v1/claims/", query, ""], body, key: None }
    }

    /// Makes a claim with this body.
    pub(crate) fn claim_set(query: &'a str, body: &'a str) -> Self {
        Self { method: "POST", target: ["/v1/claims/", query, ""], body: [body, "", "", "", ""], key: None }
    }

    /// Changes the claim at `path`.
    pub fn patch(path: &'a str, body: &'a str) -> Self {
        Self { method: "PATCH", target: [path, "", ""], body: [body, "", "", "", ""], key: None }
    }

    /// Releases the claim at `path`.
    pub fn release(path: &'a str) -> Self {
        Self::patch(path, "{\"status\":\"released\"}")
    }

    /// Reads `path`; `query` is empty or begins with a question mark.
    pub fn get(path: &'a str, query: &'a str) -> Self {
        Self { method: "GET", target: [path, query, ""], body: [""; 5], key: None }
    }

    /// Appends the bytes of the request; `head` is what every request has behind its target.
    fn put(&self, head: &str, out: &mut Vec<u8>) {
        let put = |out: &mut Vec<u8>, piece: &str| out.extend_from_slice(piece.as_bytes());
        put(out, self.method);
        put(out, " ");
        self.target.iter().for_each(|piece| put(out, piece));
        put(out, head);
        let length = self.body.iter().map(|piece| piece.len()).sum();
        if length > 0 {
            put(out, "Content-Type: application/json\r\nContent-Length: ");
            digits(out, length);
            put(out, "\r\n");
        }
        if let Some(key) = self.key {
            put(out, "Idempotency-Key: ");
            put(out, key);
            put(out, "\r\n");
        }
        put(out, "\r\n");
        self.body.iter().for_each(|piece| put(out, piece));
    }
}

/// A connection with at most one request in flight.
pub struct Http {
    wire: Wire,
    /// What every request has behind its target.
    head: String,
    /// The last answer, which is still in the wire's input.
    answer: Answer,
}

impl Http {
    /// Connects. Every request shows `key`, if there is one.
    pub fn connect(address: &Address, key: Option<&str>, seat: Seat<'_>) -> Result<Self> {
        let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let head = format!(" HTTP/1.1\r\nHost: {}\r\n{key}", address.authority);
        let wire = Wire::connect(address.socket, address.tls.as_ref(), seat)?;
        Ok(Self { wire, head, answer: Answer::default() })
    }

    /// Sends a request and waits for the whole answer. An error means that the connection is lost.
    pub async fn ask(&mut self, request: &Request<'_>) -> Result<u16> {
        self.wire.take(self.answer.whole);
        self.answer = Answer::default();
        request.put(&self.head, &mut self.wire.out);
        self.wire.flush().await?;
        let answer = loop {
            self.wire.fill().await?;
            if let Some(answer) = parse(self.wire.input())? {
                break answer;
            }
        };
        self.wire.need(answer.whole).await?;
        if self.wire.input().len() > answer.whole {
            bail!("bytes behind the answer, with one request in flight");
        }
        self.answer = answer;
        Ok(self.answer.status)
    }

    /// The body of the last answer.
    pub fn body(&self) -> &[u8] {
        &self.wire.input()[self.answer.head..self.answer.whole]
    }

    /// The path of `Location` in the last answer; its host is left out, since the connection is already there.
    pub fn location_path(&self) -> Option<&str> {
        let url = std::str::from_utf8(&self.wire.input()[self.answer.location.clone()?]).ok()?;
        let Some((_, host)) = url.split_once("://") else { return Some(url) };
        host.find('/').map(|slash| &host[slash..])
    }

    /// The whole number of the field `quoted_key` of the last body.
    pub fn number_field(&self, quoted_key: &[u8]) -> Option<u64> {
        number(self.field(quoted_key)?)
    }

    /// The first number of the list behind `key`, which ends with its colon.
    pub(crate) fn first_number_of(&self, key: &[u8]) -> Option<u64> {
        let body = self.body();
        let start = memmem::find(body, key)? + key.len();
        number(body[start..].trim_ascii_start().strip_prefix(b"[")?)
    }

    /// The text of a string field of the last body, without escapes (times, statuses).
    pub fn text_field(&self, quoted_key: &[u8]) -> Option<&[u8]> {
        let rest = self.field(quoted_key)?.strip_prefix(b"\"")?;
        memchr(b'"', rest).map(|end| &rest[..end])
    }

    fn field(&self, quoted_key: &[u8]) -> Option<&[u8]> {
        let body = self.body();
        let start = memmem::find(body, quoted_key)? + quoted_key.len();
        Some(body[start..].strip_prefix(b":")?.trim_ascii_start())
    }

    /// Whether the server ends the connection after the last answer, or has ended it while it was idle.
    pub(crate) fn is_closing(&self, is_idle: bool) -> bool {
        self.answer.closes || is_idle && self.wire.is_closed()
    }
}

/// The number that `text` begins with.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// An answer: its status, the length of its head and of all of it, and where its `Location` is.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    status: u16,
    head: usize,
    whole: usize,
    location: Option<Range<usize>>,
    /// Whether it says `Connection: close`.
    closes: bool,
}

/// The answer that `input` starts with, once its head is whole.
fn parse(input: &[u8]) -> Result<Option<Answer>> {
    let mut answer = Answer::default();
    let mut length = 0;
    let mut start = 0;
    while let Some(line_length) = memchr(b'\n', &input[start..]) {
        let line = input[start..start + line_length].trim_ascii_end();
        if start == 0 {
            answer.status = status_of(line)?;
        } else if line.is_empty() {
            answer.head = start + line_length + 1;
            let has_body = answer.status != 204 && answer.status != 304;
            answer.whole = answer.head.checked_add(if has_body { length } else { 0 }).context("too long")?;
            return Ok(Some(answer));
        } else if let Some(value) = value_of(line, b"content-length:") {
            length = std::str::from_utf8(value)?.parse().context("a Content-Length that is no number")?;
        } else if let Some(value) = value_of(line, b"location:") {
            let end = start + line.len();
            answer.location = Some(end - value.len()..end);
        } else if let Some(value) = value_of(line, b"connection:") {
            answer.closes = value.eq_ignore_ascii_case(b"close");
        } else if value_of(line, b"transfer-encoding:").is_some() {
            bail!("a chunked answer; the generator needs Content-Length");
        }
        start += line_length + 1;
    }
    Ok(None)
}

fn status_of(line: &[u8]) -> Result<u16> {
    let digits = line.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3));
    let status = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    status.with_context(|| format!("no HTTP/1.1 status line: {}", line.escape_ascii()))
}

/// The value in a header's line if it has this name, which is in small letters and ends with its colon.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    // The first letter rules out nearly every header.
    let is_named = line[0] | 0x20 == name[0] && line.get(..name.len())?.eq_ignore_ascii_case(name);
    is_named.then(|| line[name.len()..].trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;
    use crate::reactor::block_on;

    const CREATED: &str = "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\nLOCATION: http://h/v1/claims/7/\r\n\
                           Content-Length: 64\r\nconnection: x\r\n\r\n\
                           {\"status\":\"active\",\"created\":\"2026-01-02T03:04:05Z\",\"token\": 42}";

    #[test]
    fn an_answer_is_whole_exactly_at_its_end() {
        let answer = parse(CREATED.as_bytes()).unwrap().unwrap();
        assert_eq!((answer.status, answer.whole, answer.closes), (201, CREATED.len(), false));
        assert_eq!(&CREATED[answer.location.unwrap()], "http://h/v1/claims/7/");
        for cut in 0..answer.head {
            assert_eq!(parse(&CREATED.as_bytes()[..cut]).unwrap(), None, "cut at {cut}");
        }
    }

    #[test]
    fn no_content_has_no_body_whatever_its_length_says() {
        let text = b"HTTP/1.1 204 No Content\r\ncontent-length: 9\r\nConnection: close\r\n\r\n";
        let answer = parse(text).unwrap().unwrap();
        assert_eq!((answer.whole, answer.closes), (text.len(), true));
    }

    #[test]
    fn what_the_client_does_not_speak_is_named() {
        let error = |text: &[u8]| parse(text).unwrap_err().to_string();
        assert!(error(b"SMTP ready\r\n").contains("SMTP"));
        assert!(error(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").contains("chunked"));
        assert!(error(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n").contains("Content-Length"));
    }

    #[test]
    fn a_request_counts_its_body_and_one_without_has_no_length() {
        let mut out = Vec::new();
        let claim = Request { key: Some("k"), ..Request::claim("?wait=1", "r", "\"}") };
        claim.put(" HTTP/1.1\r\nHost: h\r\n", &mut out);
        let expected = "POST /v1/claims/?wait=1 HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n\
                        Content-Length: 16\r\nIdempotency-Key: k\r\n\r\n{\"resource\":\"r\"}";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        Request::get("/v1/claims/7/", "?stale=true").put(" HTTP/1.1\r\n", &mut out);
        assert_eq!(out, b"GET /v1/claims/7/?stale=true HTTP/1.1\r\n\r\n");
    }

    /// Status, path of `Location`, token and `created` of an answer.
    type Seen = (u16, Option<String>, Option<u64>, Vec<u8>);

    /// Answers one request with these bytes, piece by piece.
    fn answered_with(pieces: &'static [&'static str]) -> Result<Seen> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::plain(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            for piece in pieces {
                stream.write_all(piece.as_bytes()).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        block_on(Duration::from_secs(60), async |seat| {
            let mut http = Http::connect(&address, Some("key"), seat)?;
            let status = http.ask(&Request::release("/x/")).await?;
            let created = http.text_field(b"\"created\"").unwrap_or_default().to_vec();
            Ok((status, http.location_path().map(str::to_owned), http.number_field(b"\"token\""), created))
        })
    }

    #[test]
    fn fields_and_location_are_found_in_an_answer_that_comes_in_pieces() {
        let (head, body) = CREATED.split_at(100);
        let pieces: &'static [&'static str] = Box::leak(Box::new([head, body]));
        let (status, path, token, created) = answered_with(pieces).unwrap();
        assert_eq!((status, path.as_deref(), token), (201, Some("/v1/claims/7/"), Some(42)));
        assert_eq!(created, b"2026-01-02T03:04:05Z");
        let null = "HTTP/1.1 202 A\r\nlocation: /v1/claims/x/\r\ncontent-length: 14\r\n\r\n{\"token\":null}";
        let pieces: &'static [&'static str] = Box::leak(Box::new([null]));
        let (_, path, token, _) = answered_with(pieces).unwrap();
        assert_eq!((path.as_deref(), token), (Some("/v1/claims/x/"), None));
        let error = answered_with(&["HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nmore"]).unwrap_err();
        assert!(error.to_string().contains("bytes behind"), "{error}");
    }
}
