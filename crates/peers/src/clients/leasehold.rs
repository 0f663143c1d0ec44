//! Leasehold's native dialect over raw HTTP/1.1.
//!
//! In:    a connection to a node, or to the bare responder that shows the ceiling.
//! Out:   claims made, waited for, renewed one by one or many at once, and released.
//! Never: takes an unexpected status for success.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};
use memchr::{memchr, memmem};

use super::wire::{Wire, digits};
use crate::load::fresh_name;
use crate::reactor::Seat;

/// The access key that every client shows, once there is one.
pub(crate) static KEY: OnceLock<String> = OnceLock::new();

/// A client and the claim it holds.
pub(crate) struct Leasehold {
    wire: Wire,
    /// What every request has behind its target.
    head: String,
    /// The path of the claim made last.
    path: String,
    /// The idempotency key of the claim made last.
    key: String,
}

impl Leasehold {
    /// Connects.
    pub(crate) fn connect(addr: SocketAddr, seat: Seat<'_>) -> Result<Self> {
        let key = KEY.get().map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let head =
            format!(" HTTP/1.1\r\nHost: {addr}\r\nContent-Type: application/json\r\n{key}Content-Length: ");
        Ok(Self { wire: Wire::connect(addr, seat)?, head, path: String::new(), key: String::new() })
    }

    /// Claims `name`; with `wait`, the answer comes once the claim is active.
    pub(crate) async fn acquire(&mut self, name: &str, wait: bool) -> Result<()> {
        // Asked again, it would be the same claim: what a careful client sends.
        fresh_name(&mut self.key);
        let target = if wait { ["/v1/claims/?wait=60"] } else { ["/v1/claims/"] };
        let body = ["{\"resource\":\"", name, "\",\"ttl\":600.0}"];
        let request = Request { method: "POST", target: &target, body: &body, key: Some(&self.key) };
        request.put(&self.head, &mut self.wire.out);
        let answer = self.answer(201).await?;
        let location = answer.location.clone().context("a claim without Location")?;
        let location = std::str::from_utf8(&self.wire.input()[location])?;
        let path = location.find("/v1/").context("an odd Location")?;
        self.path.clear();
        self.path.push_str(&location[path..]);
        self.wire.take(answer.whole);
        Ok(())
    }

    /// Releases the claim made last.
    pub(crate) async fn release(&mut self) -> Result<()> {
        let body = ["{\"status\":\"released\"}"];
        let request = Request { method: "PATCH", target: &[&self.path], body: &body, key: None };
        request.put(&self.head, &mut self.wire.out);
        let answer = self.answer(204).await?;
        self.wire.take(answer.whole);
        Ok(())
    }

    /// The id of the claim made last.
    pub(crate) fn held(&self) -> String {
        self.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
    }

    /// Renews one claim.
    pub(crate) async fn renew(&mut self, id: &str) -> Result<()> {
        let (target, body) = (["/v1/claims/", id, "/"], ["{\"ttl\":600.0}"]);
        let request = Request { method: "PATCH", target: &target, body: &body, key: None };
        request.put(&self.head, &mut self.wire.out);
        let answer = self.answer(200).await?;
        self.wire.take(answer.whole);
        Ok(())
    }

    /// Renews many claims in one request.
    pub(crate) async fn renew_many(&mut self, ids: &[String]) -> Result<()> {
        let ids_text = ids.join("\",\"");
        let body = ["{\"ids\":[\"", &ids_text, "\"],\"ttl\":600.0}"];
        let request = Request { method: "POST", target: &["/v1/renewals"], body: &body, key: None };
        request.put(&self.head, &mut self.wire.out);
        let answer = self.answer(200).await?;
        let renewed =
            memmem::find_iter(&self.wire.input()[answer.head..answer.whole], b"\"renewed\": true").count();
        self.wire.take(answer.whole);
        ensure!(renewed == ids.len(), "{renewed} of {} claims were renewed", ids.len());
        Ok(())
    }

    /// The body of a page.
    pub(crate) async fn get(&mut self, path: &str) -> Result<String> {
        let request = Request { method: "GET", target: &[path], body: &[], key: None };
        request.put(&self.head, &mut self.wire.out);
        let answer = self.answer(200).await?;
        let body = String::from_utf8_lossy(&self.wire.input()[answer.head..answer.whole]).into_owned();
        self.wire.take(answer.whole);
        Ok(body)
    }

    /// Sends the request, and leaves the whole answer in the wire's input.
    async fn answer(&mut self, expected: u16) -> Result<Answer> {
        self.wire.flush().await?;
        let answer = loop {
            self.wire.fill().await?;
            if let Some(answer) = parse(self.wire.input())? {
                break answer;
            }
        };
        self.wire.need(answer.whole).await?;
        if answer.status != expected {
            let found = &self.wire.input()[..answer.whole];
            bail!("instead of {expected}: {}", String::from_utf8_lossy(found));
        }
        Ok(answer)
    }
}

/// A request, in pieces: this client shares the machine with the service it measures.
struct Request<'a> {
    method: &'a str,
    target: &'a [&'a str],
    body: &'a [&'a str],
    /// The idempotency key.
    key: Option<&'a str>,
}

impl Request<'_> {
    /// Writes it; `head` stands between its target and the length of its body.
    fn put(&self, head: &str, out: &mut Vec<u8>) {
        let mut put = |piece: &str| out.extend_from_slice(piece.as_bytes());
        put(self.method);
        put(" ");
        self.target.iter().for_each(|piece| put(piece));
        put(head);
        digits(out, self.body.iter().map(|piece| piece.len()).sum());
        let mut put = |piece: &str| out.extend_from_slice(piece.as_bytes());
        if let Some(key) = self.key {
            put("\r\nIdempotency-Key: ");
            put(key);
        }
        put("\r\n\r\n");
        self.body.iter().for_each(|piece| put(piece));
    }
}

/// An answer: its status, how long its head and all of it are, and where the claim is that it made.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    head: usize,
    whole: usize,
    location: Option<Range<usize>>,
}

/// The answer that `input` starts with, once its head is whole.
fn parse(input: &[u8]) -> Result<Option<Answer>> {
    let mut answer = Answer { status: 0, head: 0, whole: 0, location: None };
    let mut length = 0;
    let mut start = 0;
    while let Some(line_length) = memchr(b'\n', &input[start..]) {
        let line = input[start..start + line_length].trim_ascii_end();
        if start == 0 {
            let digits = line.get(9..12).with_context(|| format!("no status: {}", line.escape_ascii()))?;
            answer.status = std::str::from_utf8(digits)?.parse()?;
        } else if line.is_empty() {
            answer.head = start + line_length + 1;
            answer.whole = answer.head + length;
            return Ok(Some(answer));
        } else if let Some(value) = value_of(line, b"content-length:") {
            length = std::str::from_utf8(value)?.parse()?;
        } else if let Some(value) = value_of(line, b"location:") {
            let end = start + line.len();
            answer.location = Some(end - value.len()..end);
        }
        start += line_length + 1;
    }
    Ok(None)
}

/// The value in a header's line if it has this name, which is in small letters and ends with its colon.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    // The first letter rules out nearly every header.
    let is_named = line[0] | 0x20 == name[0] && line.get(..name.len())?.eq_ignore_ascii_case(name);
    is_named.then(|| line[name.len()..].trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATED: &str = "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\nLocation: http://h/v1/claims/7/\r\n\
                           Content-Length: 12\r\nconnection: x\r\n\r\n{\"token\": 5}";

    #[test]
    fn finds_the_end_of_an_answer_and_where_the_claim_is() {
        let answer = parse(CREATED.as_bytes()).unwrap().unwrap();
        assert_eq!((answer.status, answer.whole), (201, CREATED.len()));
        assert_eq!(&CREATED[answer.head..], "{\"token\": 5}");
        assert_eq!(&CREATED[answer.location.unwrap()], "http://h/v1/claims/7/");
        for cut in 0..answer.head {
            assert_eq!(parse(&CREATED.as_bytes()[..cut]).unwrap(), None, "cut at {cut}");
        }
    }

    #[test]
    fn an_answer_may_have_no_body() {
        let text = b"HTTP/1.1 204 No Content\r\ndate: now\r\n\r\n";
        let whole = text.len();
        let expected = Answer { status: 204, head: whole, whole, location: None };
        assert_eq!(parse(text).unwrap(), Some(expected));
        assert!(parse(b"nonsense\r\n").is_err());
    }

    #[test]
    fn a_request_counts_its_body() {
        let mut out = Vec::new();
        let request = Request { method: "PATCH", target: &["/a/", "7"], body: &["{", "}"], key: Some("k") };
        request.put(" HTTP/1.1\r\nContent-Length: ", &mut out);
        let expected = "PATCH /a/7 HTTP/1.1\r\nContent-Length: 2\r\nIdempotency-Key: k\r\n\r\n{}";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
