//! What distance costs: latency of changes and length of fail-overs with slow links between the nodes.
//!
//! In:    the binary, and whether to be brief. Out: a table, one row a delay, for docs/operations.md.

#![allow(clippy::print_stdout, reason = "a table for people")]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use leasehold_lab::cluster::{Cluster, PATIENCE};
use leasehold_lab::http::request;

/// One way delay in milliseconds, the heartbeat that goes with it, and how often the leader is killed.
const ROWS: [(u64, u64, usize); 4] = [(0, 128, 10), (1, 128, 5), (20, 150, 3), (80, 500, 3)];
const CLAIMS: usize = 60;

fn main() -> anyhow::Result<()> {
    let binary = std::env::args().nth(1).context("usage: delays PATH-OF-LEASEHOLD")?;
    println!(
        "one way | heartbeat | through the leader p50 | through a follower p50 | read p50 | fail-over median (worst)"
    );
    for (delay_ms, heartbeat_ms, kills) in ROWS {
        let mut cluster =
            Cluster::start(Path::new(&binary), 3, &["--heartbeat-ms", &heartbeat_ms.to_string()])?;
        cluster.delay_all(Duration::from_millis(delay_ms));
        let leader = cluster.leader()?;
        let follower = cluster.ids().into_iter().find(|id| *id != leader).context("there are three")?;
        let by_leader = claims(&cluster, leader)?;
        let by_follower = claims(&cluster, follower)?;
        let reads = reads(&cluster, follower)?;
        let mut failovers = Vec::new();
        for _ in 0..kills {
            failovers.push(failover(&mut cluster)?);
        }
        println!(
            "{delay_ms} ms | {heartbeat_ms} ms | {:.1?} | {:.1?} | {:.1?} | {:.2?} ({:.2?})",
            median(by_leader),
            median(by_follower),
            median(reads),
            median(failovers.clone()),
            failovers.iter().max().copied().unwrap_or_default()
        );
    }
    Ok(())
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or_default()
}

fn claims(cluster: &Cluster, node: u64) -> anyhow::Result<Vec<Duration>> {
    let claim = |number: usize| {
        let body = format!("{{\"resource\": \"delays/{node}/{number}\", \"ttl\": 60}}");
        let start = Instant::now();
        let reply = request(cluster.addr(node), "POST", "/v1/claims/", &body, PATIENCE);
        let reply = reply.map_err(|error| error.why)?;
        ensure!(reply.status == 201, "{reply:?}");
        Ok(start.elapsed())
    };
    (0..CLAIMS).map(claim).collect()
}

fn reads(cluster: &Cluster, node: u64) -> anyhow::Result<Vec<Duration>> {
    let read = |_| {
        let start = Instant::now();
        let reply = request(cluster.addr(node), "GET", "/v1/claims/?resource=none", "", PATIENCE);
        ensure!(reply.map_err(|error| error.why)?.status == 200, "a read failed");
        Ok(start.elapsed())
    };
    (0..CLAIMS).map(read).collect()
}

/// From the kill of the leader to the first change that is acknowledged by another node.
fn failover(cluster: &mut Cluster) -> anyhow::Result<Duration> {
    let leader = cluster.leader()?;
    cluster.converge()?;
    let other = cluster.ids().into_iter().find(|id| *id != leader).context("there are three")?;
    cluster.kill(leader)?;
    let start = Instant::now();
    let took = loop {
        let body = format!("{{\"resource\": \"failover/{}\", \"ttl\": 60}}", start.elapsed().as_nanos());
        match request(cluster.addr(other), "POST", "/v1/claims/", &body, PATIENCE) {
            Ok(reply) if reply.status == 201 => break start.elapsed(),
            _ => ensure!(start.elapsed() < PATIENCE, "nobody leads"),
        }
    };
    cluster.spawn(leader)?;
    cluster.converge()?;
    Ok(took)
}
