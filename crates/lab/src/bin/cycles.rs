//! `make cycles`: a million claims made and released on three nodes that nobody disturbs; memory and descriptors stay flat.
//!
//! In:    `--binary PATH` and, if you like, `--cycles N --nodes N --connections N`.
//! Out:   a line for every part of it, and a verdict; status 1 if a node has grown.
//!
//! The load is the service's own `leasehold bench cycle`. Tokens count it: every grant in the whole service has the next one.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it talks to a person")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use leasehold_lab::chaos::gauge::look;
use leasehold_lab::cluster::Cluster;

/// Finished claims that the nodes keep: the table is full long before the first look that counts.
const FINISHED_MAX: &str = "100000";
/// How many parts the load comes in.
const PARTS: u64 = 20;
/// What a node may have grown by from the fourth part on: a fifth, and some for the allocator.
const GROWTH_MAX_KIB: u64 = 8 << 10;
/// How many more descriptors: connections come and go.
const GROWTH_MAX_FDS: u64 = 24;

struct Ask {
    binary: PathBuf,
    cycles: u64,
    nodes: u64,
    connections: u64,
}

fn ask() -> anyhow::Result<Ask> {
    let mut ask =
        Ask { binary: "target/release/leasehold".into(), cycles: 1_000_000, nodes: 3, connections: 64 };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().with_context(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().with_context(|| format!("{name} {value}: no number"));
        match name.as_str() {
            "--binary" => ask.binary = value.into(),
            "--cycles" => ask.cycles = number()?,
            "--nodes" => ask.nodes = number()?,
            "--connections" => ask.connections = number()?,
            _ => bail!("{name} is unknown: see the head of crates/lab/src/bin/cycles.rs"),
        }
    }
    Ok(ask)
}

/// The newest token: how many grants there were.
fn granted(cluster: &Cluster, node: u64) -> anyhow::Result<u64> {
    let body = "{\"resource\": \"cycles/count\", \"ttl\": 0}";
    let reply = cluster.ask(node, "POST", "/v1/claims/", body).map_err(|lost| lost.why)?;
    reply.json()["token"].as_u64().with_context(|| format!("no token: {reply:?}"))
}

fn load(binary: &Path, cluster: &Cluster, node: u64, connections: u64) -> anyhow::Result<()> {
    let status = Command::new(binary)
        .args(["bench", "cycle", "--warmup", "0", "--seconds", "3", "--addr"])
        .arg(cluster.addr(node).to_string())
        .args(["--connections", &connections.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    ensure!(status.success(), "the load failed: {status}");
    Ok(())
}

/// (resident KiB, descriptors) of every node.
fn taken(cluster: &Cluster, begun: Instant) -> anyhow::Result<Vec<(u64, u64)>> {
    let looks = cluster.ids().into_iter().map(|id| {
        let sample = cluster.pid(id).and_then(|pid| look(pid, begun.elapsed()));
        sample.map(|sample| (sample.rss_kib, sample.fds)).with_context(|| format!("node {id} is gone"))
    });
    looks.collect()
}

fn run(ask: &Ask) -> anyhow::Result<()> {
    let cluster = Cluster::start(&ask.binary, ask.nodes, &["--finished-max", FINISHED_MAX])?;
    let (leader, begun) = (cluster.leader()?, Instant::now());
    let first = granted(&cluster, leader)?;
    let (mut full, mut done, mut part) = (None, 0, 0);
    while done < ask.cycles {
        load(&ask.binary, &cluster, leader, ask.connections)?;
        done = granted(&cluster, leader)? - first;
        if done < ask.cycles * part / PARTS {
            continue;
        }
        part = done * PARTS / ask.cycles + 1;
        let now = taken(&cluster, begun)?;
        let shown: Vec<String> = now
            .iter()
            .zip(1..)
            .map(|((kib, fds), id)| format!("node {id} {:.1} MiB {fds} fds", *kib as f64 / 1024.0))
            .collect();
        println!("{:>5.0} s  {done:>8} claims  {}", begun.elapsed().as_secs_f64(), shown.join("  "));
        if done * 5 > ask.cycles {
            full.get_or_insert(now);
        }
    }
    let full = full.context("too few claims to say anything")?;
    for (id, (before, after)) in (1..).zip(full.iter().zip(taken(&cluster, begun)?)) {
        let most = before.0 * 6 / 5 + GROWTH_MAX_KIB;
        ensure!(after.0 <= most, "node {id} grew from {} to {} KiB", before.0, after.0);
        let most = before.1 + GROWTH_MAX_FDS;
        ensure!(after.1 <= most, "node {id} keeps descriptors: {} and then {}", before.1, after.1);
    }
    cluster.converge()?;
    println!(
        "{done} claims granted and over in {:.0} s; memory and descriptors are flat, and the tables agree",
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

fn main() -> ExitCode {
    match ask().and_then(|ask| run(&ask)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}
