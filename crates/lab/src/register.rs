//! A register guarded by a lock, with clients that stop for longer than their ttl: why tokens exist.
//!
//! In:    a running server, and whether the register looks at tokens. Out: how many updates it has lost.
//! Never: leaves anything to chance: each step waits for the one before, so that the same thing happens each time.
//!
//! A client takes the lock, reads the register, adds one and writes it back. In every second round it stops in
//! between (a garbage collection, a suspended machine) until its claim has expired and somebody else has done a whole
//! round; then it writes what it computed, as no lock service can keep it from doing. A register that takes any write
//! loses the other's update. One that remembers the largest token it has seen, and refuses smaller ones, loses none:
//! the late writer is told so, and starts over.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::cluster::PATIENCE;
use crate::http::request;

/// The resource under the lock: any storage that can compare two numbers.
#[derive(Debug, Default)]
struct Register {
    value: u64,
    /// The largest token that has written.
    fence: u64,
    /// Whether it looks at tokens.
    fenced: bool,
}

impl Register {
    /// Says whether the write was taken.
    fn write(&mut self, value: u64, token: u64) -> bool {
        if self.fenced && token < self.fence {
            return false;
        }
        self.fence = self.fence.max(token);
        self.value = value;
        true
    }
}

/// How it went.
#[derive(Debug, PartialEq, Eq)]
pub struct Tally {
    /// Updates whose writer was told that they are done.
    pub acknowledged: u64,
    /// Of these, how many are not in the register.
    pub lost: u64,
    /// Writes that the register refused because of their token.
    pub fenced_off: u64,
}

/// Plays so many rounds.
pub fn play(node: SocketAddr, resource: &str, rounds: u64, fenced: bool) -> anyhow::Result<Tally> {
    let mut register = Register { fenced, ..Register::default() };
    let (mut acknowledged, mut fenced_off) = (0, 0);
    for round in 0..rounds {
        let slow = acquire(node, resource, if round % 2 == 1 { 0.05 } else { 60.0 })?;
        let read = register.value;
        if round % 2 == 1 {
            // The slow client stops here. Its claim runs out, and another client has its turn.
            until_over(node, &slow)?;
            let quick = acquire(node, resource, 60.0)?;
            ensure!(quick.token > slow.token, "tokens grow: {} after {}", quick.token, slow.token);
            ensure!(register.write(register.value + 1, quick.token), "the holder's own write was refused");
            acknowledged += 1;
            release(node, &quick)?;
        }
        // It wakes up, and knows nothing of all that.
        match register.write(read + 1, slow.token) {
            true => acknowledged += 1,
            false => fenced_off += 1,
        }
        if round % 2 == 0 {
            release(node, &slow)?;
        }
    }
    Ok(Tally { acknowledged, lost: acknowledged - register.value, fenced_off })
}

struct Held {
    path: String,
    token: u64,
}

fn ask(node: SocketAddr, method: &str, path: &str, body: &str) -> anyhow::Result<(u16, Value)> {
    let reply = request(node, method, path, body, PATIENCE).map_err(|lost| lost.why)?;
    Ok((reply.status, reply.json()))
}

fn acquire(node: SocketAddr, resource: &str, ttl: f64) -> anyhow::Result<Held> {
    let body = format!("{{\"resource\": \"{resource}\", \"ttl\": {ttl}}}");
    let (status, claim) = ask(node, "POST", "/v1/claims/?wait=30", &body)?;
    ensure!(status == 201, "{status} {claim}");
    let url = claim["url"].as_str().context("a claim has a url")?;
    let path = url.splitn(4, '/').nth(3).context("a url has a path")?;
    Ok(Held { path: format!("/{path}"), token: claim["token"].as_u64().context("a holder has a token")? })
}

fn until_over(node: SocketAddr, held: &Held) -> anyhow::Result<()> {
    let start = Instant::now();
    while ask(node, "GET", &held.path, "")?.1["status"] != "expired" {
        ensure!(start.elapsed() < PATIENCE, "a claim without renewals never ends");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn release(node: SocketAddr, held: &Held) -> anyhow::Result<()> {
    let (status, answer) = ask(node, "PATCH", &held.path, "{\"status\": \"released\"}")?;
    ensure!(status == 204, "{status} {answer}");
    Ok(())
}
