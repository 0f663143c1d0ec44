//! Leasehold's native dialect over raw HTTP/1.1.
//!
//! In:    a connection to a node, or to the bare responder that shows the ceiling.
//! Out:   claims made, waited for, renewed one by one or many at once, and released.
//! Never: takes an unexpected status for success.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};

use super::wire::Wire;

/// A client and the claim it holds.
pub(crate) struct Leasehold {
    wire: Wire,
    host: String,
    /// The path of the claim made last.
    path: String,
}

impl Leasehold {
    /// Connects.
    pub(crate) async fn connect(addr: SocketAddr) -> Result<Self> {
        Ok(Self { wire: Wire::connect(addr).await?, host: addr.to_string(), path: String::new() })
    }

    /// Claims `name`; with `wait`, the answer comes once the claim is active.
    pub(crate) async fn acquire(&mut self, name: &str, wait: bool) -> Result<()> {
        let target = if wait { "/v1/claims/?wait=60" } else { "/v1/claims/" };
        let body = format!("{{\"resource\":\"{name}\",\"ttl\":600.0}}");
        let answer = self.ask("POST", target, &body, 201).await?;
        let head = String::from_utf8_lossy(&answer);
        let location = header(&head, "location").context("a claim without Location")?;
        let path = location.find("/v1/").context("an odd Location")?;
        self.path.clear();
        self.path.push_str(&location[path..]);
        Ok(())
    }

    /// Releases the claim made last.
    pub(crate) async fn release(&mut self) -> Result<()> {
        let path = std::mem::take(&mut self.path);
        self.ask("PATCH", &path, "{\"status\":\"released\"}", 204).await.map(drop)
    }

    /// The id of the claim made last.
    pub(crate) fn held(&self) -> String {
        self.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
    }

    /// Renews one claim.
    pub(crate) async fn renew(&mut self, id: &str) -> Result<()> {
        self.ask("PATCH", &format!("/v1/claims/{id}/"), "{\"ttl\":600.0}", 200).await.map(drop)
    }

    /// Renews many claims in one request.
    pub(crate) async fn renew_many(&mut self, ids: &[String]) -> Result<()> {
        let body = format!("{{\"ids\":[\"{}\"],\"ttl\":600.0}}", ids.join("\",\""));
        self.ask("POST", "/v1/renewals", &body, 200).await.map(drop)
    }

    /// The body of a page.
    pub(crate) async fn get(&mut self, path: &str) -> Result<String> {
        let answer = self.ask("GET", path, "", 200).await?;
        let text = String::from_utf8_lossy(&answer);
        Ok(text.split_once("\r\n\r\n").context("an answer without a body")?.1.to_owned())
    }

    async fn ask(&mut self, method: &str, path: &str, body: &str, expected: u16) -> Result<Vec<u8>> {
        use std::io::Write as _;
        write!(
            self.wire.out,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        )?;
        self.wire.flush().await?;
        let head_len = loop {
            if let Some(at) = self.wire.input.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            self.wire.fill().await?;
        };
        let head = std::str::from_utf8(&self.wire.input[..head_len])?;
        let status: u16 = head.get(9..12).context("no status")?.parse()?;
        let length: usize = header(head, "content-length").map_or(Ok(0), str::parse)?;
        self.wire.need(head_len + length).await?;
        let answer = self.wire.input[..head_len + length].to_vec();
        self.wire.take(head_len + length);
        if status != expected {
            bail!("{method} {path}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(answer)
    }
}

/// The value of a header, whatever its letters' case.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).take_while(|line| !line.is_empty()).find_map(|line| {
        let (given, value) = line.split_once(':')?;
        given.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}
