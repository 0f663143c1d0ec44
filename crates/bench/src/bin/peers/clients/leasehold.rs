//! Leasehold's native dialect over plain HTTP/1.1.
//!
//! In:    a connection to a node, or to the bare responder that shows the ceiling.
//! Out:   claims made, waited for, renewed one by one or many at once, and released.
//! Never: takes an unexpected status for success.

use std::net::SocketAddr;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};
use leasehold_bench::http::{Http, Request};
use leasehold_bench::reactor::Seat;
use leasehold_bench::target::Address;
use memchr::memmem;

use crate::rounds::fresh_name;

/// The access key that every client shows, once there is one.
pub(crate) static KEY: OnceLock<String> = OnceLock::new();

/// A client and the claim it holds.
pub(crate) struct Leasehold {
    http: Http,
    /// The path of the claim made last.
    path: String,
    /// The idempotency key of the claim made last.
    key: String,
}

impl Leasehold {
    /// Connects.
    pub(crate) fn connect(addr: SocketAddr, seat: Seat<'_>) -> Result<Self> {
        let http = Http::connect(&Address::plain(addr), KEY.get().map(String::as_str), seat)?;
        Ok(Self { http, path: String::new(), key: String::new() })
    }

    /// Claims `name`; with `wait`, the answer comes once the claim is active.
    pub(crate) async fn acquire(&mut self, name: &str, wait: bool) -> Result<()> {
        // Asked again, it would be the same claim: what a careful client sends.
        fresh_name(&mut self.key);
        let request = Request::claim(if wait { "?wait=60" } else { "" }, name, "\",\"ttl\":600.0}");
        ask(&mut self.http, &Request { key: Some(&self.key), ..request }, 201).await?;
        let path = self.http.location_path().context("a claim without Location")?;
        self.path.clear();
        self.path.push_str(path);
        Ok(())
    }

    /// Releases the claim made last.
    pub(crate) async fn release(&mut self) -> Result<()> {
        ask(&mut self.http, &Request::release(&self.path), 204).await
    }

    /// The id of the claim made last.
    pub(crate) fn held(&self) -> String {
        self.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
    }

    /// Renews one claim.
    pub(crate) async fn renew(&mut self, id: &str) -> Result<()> {
        let request = Request { target: ["/v1/claims/", id, "/"], ..Request::patch("", "{\"ttl\":600.0}") };
        ask(&mut self.http, &request, 200).await
    }

    /// Renews many claims in one request.
    pub(crate) async fn renew_many(&mut self, ids: &[String]) -> Result<()> {
        let ids_text = ids.join("\",\"");
        let body = ["{\"ids\":[\"", &ids_text, "\"],\"ttl\":600.0}", "", ""];
        let request = Request { method: "POST", target: ["/v1/renewals", "", ""], body, key: None };
        ask(&mut self.http, &request, 200).await?;
        let renewed = memmem::find_iter(self.http.body(), b"\"renewed\": true").count();
        ensure!(renewed == ids.len(), "{renewed} of {} claims were renewed", ids.len());
        Ok(())
    }

    /// The body of a page.
    pub(crate) async fn get(&mut self, path: &str) -> Result<String> {
        ask(&mut self.http, &Request::get(path, ""), 200).await?;
        Ok(String::from_utf8_lossy(self.http.body()).into_owned())
    }
}

async fn ask(http: &mut Http, request: &Request<'_>, right: u16) -> Result<()> {
    let status = http.ask(request).await?;
    if status != right {
        bail!("{status} instead of {right}: {}", String::from_utf8_lossy(http.body()));
    }
    Ok(())
}
