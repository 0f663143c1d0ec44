//! After healing, node by node: each one takes a write and answers a read.
//!
//! In:    a cluster that was healed just now. Out: how long the slowest node took, or which one took too long.
//! Never: asks another node instead: a cluster is healed when all of its nodes are.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::faults::Fault;
use crate::cluster::{Cluster, PATIENCE};
use crate::http::request;

/// What docs/operations.md promises after links were hurt, for however long.
pub const HEALED_WITHIN: Duration = Duration::from_secs(2);

/// What was healed, and when.
pub(super) struct Healed {
    /// The moment.
    pub(super) at: Instant,
    /// What had been done to the cluster.
    pub(super) hurt: Vec<Fault>,
    /// The name of the first thing that is claimed afterwards.
    pub(super) name: String,
}

/// Waits until every node that runs has granted a claim and shown it. Where links alone were hurt, that must not take
/// longer than `bound`.
pub(super) fn all_serve(cluster: &Cluster, healed: &Healed, bound: Duration) -> anyhow::Result<Duration> {
    let nodes = cluster.running().into_iter().map(|id| {
        let (addr, at, name) = (cluster.addr(id), healed.at, format!("{}n{id}", healed.name));
        (id, thread::spawn(move || serves(addr, at, &name)))
    });
    let nodes: Vec<_> = nodes.collect();
    let links_alone = healed.hurt.iter().all(|fault| fault.is_of_links());
    let bound = if links_alone { bound } else { 2 * PATIENCE };
    let mut slowest = Duration::ZERO;
    for (id, node) in nodes {
        let served = node.join().ok().context("a check broke")?;
        let hurt: Vec<String> = healed.hurt.iter().map(ToString::to_string).collect();
        let took = served.with_context(|| format!("node {id}, after {}", hurt.join(", ")))?;
        ensure!(
            took <= bound,
            "VIOLATION: node {id} served {took:?} after all was healed (bound {bound:?}; before: {}): {}",
            hurt.join(", "),
            cluster.log(id)
        );
        slowest = slowest.max(took);
    }
    Ok(slowest)
}

/// Claims on this node until it grants, and then reads there.
fn serves(addr: SocketAddr, healed: Instant, name: &str) -> anyhow::Result<Duration> {
    for round in 0.. {
        let body = format!("{{\"resource\": \"{name}-{round}\", \"ttl\": 2}}");
        let granted = request(addr, "POST", "/v1/claims/", &body, PATIENCE);
        if let Ok(reply) = granted.as_ref()
            && reply.status == 201
        {
            let json = reply.json();
            let id = json["url"].as_str().and_then(|url| url.trim_end_matches('/').rsplit('/').next());
            let path = format!("/v1/claims/{}/", id.context("a claim has an id")?);
            if request(addr, "GET", &path, "", PATIENCE).is_ok_and(|reply| reply.status == 200) {
                return Ok(healed.elapsed());
            }
        }
        ensure!(healed.elapsed() < 2 * PATIENCE, "it does not serve: {granted:?}");
        thread::sleep(Duration::from_millis(10));
    }
    unreachable!("it goes on until it returns")
}
