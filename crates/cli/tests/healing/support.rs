//! What the tests of healing share.

use std::net::SocketAddr;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use leasehold_lab::cluster::{Cluster, PATIENCE};
use leasehold_lab::http::{NoReply, Reply, request};
use leasehold_lab::turns::Turn;

/// A turn for this test's cluster: few run at a time.
pub(crate) fn alone() -> Turn {
    leasehold_lab::turns::take()
}

pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_leasehold"))
}

pub(crate) fn cluster(nodes: u64, args: &[&str]) -> Cluster {
    Cluster::start(binary(), nodes, args).unwrap()
}

/// The leader, and the others.
pub(crate) fn roles(cluster: &Cluster) -> (u64, Vec<u64>) {
    let leader = cluster.leader().unwrap();
    (leader, cluster.ids().into_iter().filter(|id| *id != leader).collect())
}

/// Asks until the answer is yes.
pub(crate) fn eventually(what: &str, mut question: impl FnMut() -> bool) {
    let start = Instant::now();
    while !question() {
        assert!(start.elapsed() < 2 * PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A request whose answer is waited for elsewhere.
pub(crate) fn in_background(
    addr: SocketAddr,
    method: &'static str,
    path: &str,
    body: &str,
) -> JoinHandle<Result<Reply, NoReply>> {
    let (path, body) = (path.to_string(), body.to_string());
    thread::spawn(move || request(addr, method, &path, &body, PATIENCE))
}

pub(crate) fn claim_body(resource: &str) -> String {
    format!("{{\"resource\": \"{resource}\", \"ttl\": 600}}")
}

/// How many claims on this resource have this status, as this node sees it.
pub(crate) fn count(cluster: &Cluster, node: u64, resource: &str, status: &str) -> usize {
    let path = format!("/v1/claims/?resource={resource}&status={status}");
    let reply = cluster.ask(node, "GET", &path, "").unwrap();
    reply.json().as_array().map_or(0, Vec::len)
}

/// Waits until this node grants a claim of its own name.
pub(crate) fn serves(cluster: &Cluster, node: u64, name: &str) {
    let mut round = 0;
    eventually(&format!("node {node} grants a claim"), || {
        round += 1;
        let body = claim_body(&format!("{name}-{node}-{round}"));
        cluster.ask(node, "POST", "/v1/claims/", &body).is_ok_and(|reply| reply.status == 201)
    });
}

/// Waits until the leader has not heard from this node for so long.
pub(crate) fn missed(cluster: &Cluster, leader: u64, node: u64, ms: u64) {
    eventually(&format!("the leader has missed node {node} for {ms} ms"), || {
        let status = cluster.status(leader).unwrap();
        let mut nodes = status["nodes"].as_array().unwrap().iter();
        let contact = nodes.find(|found| found["id"] == node).unwrap()["last_contact_ms"].as_u64();
        contact.is_none_or(|contact| contact > ms)
    });
}
