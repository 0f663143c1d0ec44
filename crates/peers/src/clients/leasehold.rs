//! Leasehold's native dialect over raw HTTP/1.1.
//!
//! In:    a connection to a node, or to the bare responder that shows the ceiling.
//! Out:   claims made, waited for, renewed one by one or many at once, and released.
//! Never: takes an unexpected status for success.

use std::net::SocketAddr;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;

use super::wire::Wire;
use crate::load::fresh_name;

/// The access key that every client shows, once there is one.
pub(crate) static KEY: OnceLock<String> = OnceLock::new();

/// A client and the claim it holds.
pub(crate) struct Leasehold {
    wire: Wire,
    /// What every request has behind its target.
    head: String,
    /// The path of the claim made last.
    path: String,
}

impl Leasehold {
    /// Connects.
    pub(crate) async fn connect(addr: SocketAddr) -> Result<Self> {
        let key = KEY.get().map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let head = format!(" HTTP/1.1\r\nHost: {addr}\r\nContent-Type: application/json\r\n{key}");
        Ok(Self { wire: Wire::connect(addr).await?, head, path: String::new() })
    }

    /// Claims `name`; with `wait`, the answer comes once the claim is active.
    pub(crate) async fn acquire(&mut self, name: &str, wait: bool) -> Result<()> {
        let target = if wait { "/v1/claims/?wait=60" } else { "/v1/claims/" };
        let body = ["{\"resource\":\"", name, "\",\"ttl\":600.0}"];
        // Asked again, it would be the same claim: what a careful client sends.
        let answer = self.ask("POST", target, Some(&fresh_name()), &body, 201).await?;
        let location =
            header(&self.wire.input[..answer.head], "location").context("a claim without Location")?;
        let path = location.find("/v1/").context("an odd Location")?;
        self.path.clear();
        self.path.push_str(&location[path..]);
        self.wire.take(answer.whole);
        Ok(())
    }

    /// Releases the claim made last.
    pub(crate) async fn release(&mut self) -> Result<()> {
        let path = std::mem::take(&mut self.path);
        let answer = self.ask("PATCH", &path, None, &["{\"status\":\"released\"}"], 204).await?;
        self.wire.take(answer.whole);
        Ok(())
    }

    /// The id of the claim made last.
    pub(crate) fn held(&self) -> String {
        self.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
    }

    /// Renews one claim.
    pub(crate) async fn renew(&mut self, id: &str) -> Result<()> {
        let path = ["/v1/claims/", id, "/"].concat();
        let answer = self.ask("PATCH", &path, None, &["{\"ttl\":600.0}"], 200).await?;
        self.wire.take(answer.whole);
        Ok(())
    }

    /// Renews many claims in one request.
    pub(crate) async fn renew_many(&mut self, ids: &[String]) -> Result<()> {
        let ids_text = ids.join("\",\"");
        let body = ["{\"ids\":[\"", &ids_text, "\"],\"ttl\":600.0}"];
        let answer = self.ask("POST", "/v1/renewals", None, &body, 200).await?;
        let renewed =
            memmem::find_iter(&self.wire.input[answer.head..answer.whole], b"\"renewed\": true").count();
        self.wire.take(answer.whole);
        ensure!(renewed == ids.len(), "{renewed} of {} claims were renewed", ids.len());
        Ok(())
    }

    /// The body of a page.
    pub(crate) async fn get(&mut self, path: &str) -> Result<String> {
        let answer = self.ask("GET", path, None, &[], 200).await?;
        let body = String::from_utf8_lossy(&self.wire.input[answer.head..answer.whole]).into_owned();
        self.wire.take(answer.whole);
        Ok(body)
    }

    /// Asks, and leaves the answer in the wire's input. Put together from pieces: this client shares the machine with
    /// the service it measures.
    async fn ask(
        &mut self,
        method: &str,
        path: &str,
        idempotency_key: Option<&str>,
        body: &[&str],
        expected: u16,
    ) -> Result<Answer> {
        let out = &mut self.wire.out;
        let length = body.iter().map(|piece| piece.len()).sum::<usize>().to_string();
        for piece in [method, " ", path, &self.head, "Content-Length: ", &length] {
            out.extend_from_slice(piece.as_bytes());
        }
        if let Some(key) = idempotency_key {
            out.extend_from_slice(b"\r\nIdempotency-Key: ");
            out.extend_from_slice(key.as_bytes());
        }
        out.extend_from_slice(b"\r\n\r\n");
        body.iter().for_each(|piece| out.extend_from_slice(piece.as_bytes()));
        self.wire.flush().await?;
        let head = loop {
            if let Some(at) = memmem::find(&self.wire.input, b"\r\n\r\n") {
                break at + 4;
            }
            self.wire.fill().await?;
        };
        let input = &self.wire.input[..head];
        let status: u16 = std::str::from_utf8(input.get(9..12).context("no status")?)?.parse()?;
        let length: usize = header(input, "content-length").map_or(Ok(0), str::parse)?;
        let whole = head + length;
        self.wire.need(whole).await?;
        if status != expected {
            bail!("{method} {path}: {}", String::from_utf8_lossy(&self.wire.input[..whole]));
        }
        Ok(Answer { head, whole })
    }
}

/// How long an answer is: its head, and all of it.
struct Answer {
    head: usize,
    whole: usize,
}

/// The value of a header, whatever its letters' case.
fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    head.split(|byte| *byte == b'\n').skip(1).find_map(|line| {
        let value = line.get(name.len()..)?.strip_prefix(b":")?;
        let named = line[..name.len()].eq_ignore_ascii_case(name.as_bytes());
        named.then(|| std::str::from_utf8(value).ok())?.map(str::trim)
    })
}
