//! Clients that claim, hold and release through any node while faults happen, and write down what they were told.
//!
//! In:    a cluster's addresses. Out: every [`Hold`] that was acknowledged; [`check`] says what must be true of them.
//! Never: calls an unknown outcome a failure: a request whose answer was lost is sent again under the same key.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use serde_json::Value;

use crate::http::{Reply, request, request_with};

/// How long a client tries to have one request answered, at one node after the other.
const REQUEST_MAX: Duration = Duration::from_secs(120);

/// A claim that was granted and released, as its client saw it.
#[derive(Debug, Clone)]
pub struct Hold {
    /// What was held.
    pub resource: String,
    /// The claim.
    pub claim: String,
    /// Its fencing token.
    pub token: u64,
    /// When the client knew that it held.
    pub granted: Instant,
    /// When it began to give it up.
    pub given_up: Instant,
}

/// Clients at work.
pub struct Workload {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<Hold>>>,
    /// How many holds were acknowledged so far.
    pub done: Arc<AtomicU64>,
    /// Answers that should not have been: a 4xx, or a 5xx other than "not now" and "unknown"; and requests that no node answered.
    pub odd: Arc<std::sync::Mutex<Vec<String>>>,
}

impl Workload {
    /// So many clients over so many resources, spread over these nodes.
    pub fn start(nodes: &[SocketAddr], clients: u64, resources: u64) -> Self {
        let (stop, done, odd): (Arc<AtomicBool>, Arc<AtomicU64>, Arc<std::sync::Mutex<Vec<String>>>) =
            Default::default();
        let spawn = |number| {
            let client = Client {
                nodes: nodes.to_vec(),
                place: number as usize % nodes.len(),
                random: 0x9e37_79b9_7f4a_7c15 ^ (number + 1),
                number,
                resources,
                stop: stop.clone(),
                done: done.clone(),
                odd: odd.clone(),
            };
            thread::spawn(move || client.run())
        };
        Self { clients: (0..clients).map(spawn).collect(), stop, done, odd }
    }

    /// Waits until so many more holds have been acknowledged.
    pub fn progress(&self, more: u64, patience: Duration) -> anyhow::Result<()> {
        let (start, goal) = (Instant::now(), self.done.load(Ordering::Acquire) + more);
        while self.done.load(Ordering::Acquire) < goal {
            ensure!(start.elapsed() < patience, "no progress in {patience:?}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Lets everybody finish, and tells what they held.
    pub fn finish(self) -> Vec<Hold> {
        self.stop.store(true, Ordering::Release);
        self.clients.into_iter().flat_map(|client| client.join().unwrap_or_default()).collect()
    }
}

struct Client {
    nodes: Vec<SocketAddr>,
    place: usize,
    random: u64,
    number: u64,
    resources: u64,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    odd: Arc<std::sync::Mutex<Vec<String>>>,
}

impl Client {
    fn run(mut self) -> Vec<Hold> {
        let mut holds = Vec::new();
        let mut round = 0;
        while !self.stop.load(Ordering::Acquire) {
            round += 1;
            let resource = format!("lab/{}", self.roll(self.resources));
            let tail = self.roll(u64::MAX);
            let key = format!("\"{}-{round}-{tail:x}\"", self.number);
            if let Some(hold) = self.hold(&resource, &key) {
                self.done.fetch_add(1, Ordering::AcqRel);
                holds.push(hold);
            }
        }
        holds
    }

    fn hold(&mut self, resource: &str, key: &str) -> Option<Hold> {
        let body = format!("{{\"resource\": \"{resource}\", \"ttl\": 60}}");
        let claim = loop {
            let reply =
                self.send("POST", "/v1/claims/?wait=2", &[("Idempotency-Key", key)], &body, &[200, 201, 202]);
            match reply {
                Some(reply) if reply.status == 201 => break reply.json(),
                // Still waiting. When asked to stop, the claim is taken back, so that others can finish.
                Some(reply) if reply.status == 202 && self.stop.load(Ordering::Acquire) => {
                    self.patch(&reply.json(), "withdrawn");
                    return None;
                }
                Some(reply) if reply.status == 202 => {}
                _ => return None,
            }
        };
        let granted = Instant::now();
        thread::sleep(Duration::from_millis(self.roll(5)));
        let given_up = Instant::now();
        self.patch(&claim, "released")?;
        let id = claim["url"].as_str()?.trim_end_matches('/').rsplit('/').next()?.to_string();
        Some(Hold {
            resource: resource.into(),
            claim: id,
            token: claim["token"].as_u64()?,
            granted,
            given_up,
        })
    }

    fn patch(&mut self, claim: &Value, status: &str) -> Option<Reply> {
        let path = claim["url"].as_str()?.splitn(4, '/').nth(3)?.to_string();
        let body = format!("{{\"status\": \"{status}\"}}");
        // A repeated release finds the claim over (400): that is what the first one wanted.
        self.send("PATCH", &format!("/{path}"), &[], &body, &[204, 400])
    }

    /// Sends until there is an answer of this kind, to one node after the other.
    fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
        good: &[u16],
    ) -> Option<Reply> {
        let start = Instant::now();
        while start.elapsed() < REQUEST_MAX {
            let node = self.nodes[self.place];
            match request_with(node, method, path, headers, body, Duration::from_secs(5)) {
                Ok(reply) if good.contains(&reply.status) => return Some(reply),
                Ok(reply) if matches!(reply.status, 503 | 504) => {}
                Ok(reply) => self.note_odd(format!("{method} {path}: {} {}", reply.status, reply.body)),
                Err(_) => {}
            }
            // As a sensible client does: stay with a node that answers, and leave one that does not.
            self.place = (self.place + 1) % self.nodes.len();
            thread::sleep(Duration::from_millis(20));
        }
        self.note_odd(format!("{method} {path}: no answer in {REQUEST_MAX:?}"));
        None
    }

    fn note_odd(&self, line: String) {
        self.odd.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(line);
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % sides.max(1)
    }
}

/// What must be true of everything that was acknowledged, whatever failed meanwhile.
pub fn check(holds: &[Hold]) -> anyhow::Result<()> {
    let mut tokens = BTreeSet::new();
    let mut by_resource: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in holds {
        ensure!(tokens.insert(hold.token), "token {} was given twice", hold.token);
        by_resource.entry(&hold.resource).or_default().push(hold);
    }
    for (resource, mut holds) in by_resource {
        holds.sort_by_key(|hold| hold.granted);
        for pair in holds.windows(2) {
            let [before, after] = pair else { bail!("windows of two have two") };
            ensure!(
                before.given_up <= after.granted,
                "{resource} was held twice at a time: {before:?}, {after:?}"
            );
            ensure!(before.token < after.token, "tokens on {resource} do not grow: {before:?}, {after:?}");
        }
    }
    Ok(())
}

/// Every acknowledged hold is on record at this node, as released.
pub fn check_present(node: SocketAddr, holds: &[Hold]) -> anyhow::Result<()> {
    for hold in holds {
        let path = format!("/v1/claims/{}/", hold.claim);
        let reply = request(node, "GET", &path, "", Duration::from_secs(30)).map_err(|error| error.why)?;
        ensure!(reply.status == 200, "an acknowledged claim is gone: {hold:?}: {reply:?}");
        let claim = reply.json();
        ensure!(claim["status"] == "released" && claim["token"] == hold.token, "{hold:?} is {claim:#}");
    }
    Ok(())
}
