//! A rolling upgrade on real processes: nodes change from one release to another while clients are at work.
//!
//! In:    the binaries of two releases. Out: nothing if every promise held, else which one did not.
//! Never: disturbs a cluster beyond what an operator does: one node at a time, stopped with SIGTERM.
//!
//! What must hold: no acknowledged claim is lost, none ends early, no request fails for a client that may talk to any live
//! node, and in the end all tables are the same, bit for bit.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use serde_json::Value;

use crate::cluster::{Cluster, PATIENCE};
use crate::http::{Reply, request};
use crate::workload::{Workload, check, check_present};

/// Clients that claim and release all the time, and the resources that they share.
const CLIENTS: u64 = 6;
const RESOURCES: u64 = 12;
/// Holds that must be acknowledged between two steps: the cluster works at every one.
const PROGRESS: u64 = 40;
/// Claims that are held from the first step to the last.
const KEPT: u64 = 40;
/// The table version of the new release.
const NEW_VERSION: u64 = 3;
/// A claim that needs table version 3.
const SET: &str =
    "{\"resources\": [\"set/a\", {\"resource\": \"set/b\", \"mode\": \"shared\"}], \"ttl\": 3600}";
/// A change that needs table version 2.
const OVERRIDE: &str = "{\"scope\": \"owner\", \"prefix\": \"batch\", \"bytes\": 1000}";
/// How long a request may look for a node that answers it.
const REQUEST_MAX: Duration = Duration::from_secs(60);
/// The ttl of claims that are watched until they expire.
const SHORT_TTL: Duration = Duration::from_secs(2);

/// The two releases.
#[derive(Debug, Clone, Copy)]
pub struct Releases<'a> {
    /// The one that the cluster starts with.
    pub old: &'a Path,
    /// The one that it is upgraded to.
    pub new: &'a Path,
}

/// One cluster under load.
struct Trial {
    cluster: Cluster,
    load: Workload,
    kept: Vec<Kept>,
    clocks: Clocks,
}

/// A claim that is never renewed and must be there in the end.
struct Kept {
    path: String,
    token: u64,
}

/// Upgrades all nodes, one after the other. Then the table version rises, and an old node is turned away.
pub fn all_forward(releases: Releases<'_>) -> anyhow::Result<()> {
    let mut trial = Trial::start(releases)?;
    for id in trial.cluster.ids() {
        trial.replace(id, releases.new)?;
        ensure!(id == 3 || trial.names_an_old_node(id)?, "what needs a newer version was not refused");
        ensure!(
            id == 3 || trial.table_version(id)? == 1,
            "the table version rose before node 3 was upgraded"
        );
    }
    trial.wait_for_version(NEW_VERSION)?;
    let claimed = trial.cluster.ask(1, "POST", "/v1/claims/", SET).map_err(|lost| lost.why)?;
    ensure!(claimed.status == 201, "a set was refused: {claimed:?}");
    let changed = trial.cluster.ask(2, "PUT", "/v1/limits", OVERRIDE).map_err(|lost| lost.why)?;
    ensure!(changed.status == 204, "what needs version 2 was refused: {changed:?}");
    turn_old_away(trial.finish()?, releases.old)
}

/// Once the table version has risen, the old release neither starts with the data of a node nor is let in without.
fn turn_old_away(mut cluster: Cluster, old: &Path) -> anyhow::Result<()> {
    cluster.terminate(3)?;
    cluster.use_binary(old);
    ensure!(cluster.spawn(3).is_err(), "the old release started with data that it can't read");
    ensure!(cluster.log(3).contains("start the version that wrote it"), "{}", cluster.log(3));
    cluster.kill(3)?;
    cluster.wipe(3)?;
    cluster.spawn(3)?;
    let start = Instant::now();
    while !(cluster.log(1) + &cluster.log(2)).contains("upgrade node 3") {
        ensure!(start.elapsed() < PATIENCE, "neither node 1 nor node 2 says that node 3 is too old");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Upgrades two nodes of three and takes both back again: nothing new was used, so the old release goes on.
pub fn forward_and_back(releases: Releases<'_>) -> anyhow::Result<()> {
    let mut trial = Trial::start(releases)?;
    for (id, release) in [(1, releases.new), (2, releases.new), (1, releases.old), (2, releases.old)] {
        trial.replace(id, release)?;
    }
    let reply = trial.cluster.ask(1, "GET", "/v1/cluster", "").map_err(|lost| lost.why)?;
    ensure!(reply.json()["table_version"] == Value::Null, "this is not the old release: {}", reply.body);
    trial.finish()?;
    Ok(())
}

impl Trial {
    fn start(releases: Releases<'_>) -> anyhow::Result<Self> {
        let cluster = Cluster::start(releases.old, 3, &["--snapshot-log-mib", "1"])?;
        let nodes: Vec<SocketAddr> = cluster.ids().into_iter().map(|id| cluster.addr(id)).collect();
        let kept = (0..KEPT).map(|number| keep(&nodes, number)).collect::<anyhow::Result<_>>()?;
        let clocks = Clocks::start(nodes.clone());
        let load = Workload::start(&nodes, CLIENTS, RESOURCES);
        let trial = Self { cluster, load, kept, clocks };
        trial.progress()?;
        Ok(trial)
    }

    /// Stops a node as an operator does, and starts it again as another release.
    fn replace(&mut self, id: u64, binary: &Path) -> anyhow::Result<()> {
        self.cluster.terminate(id)?;
        self.progress()?;
        self.cluster.use_binary(binary);
        self.cluster.spawn(id)?;
        self.cluster.settle()?;
        self.progress()
    }

    fn progress(&self) -> anyhow::Result<()> {
        self.load.progress(PROGRESS, PATIENCE)
    }

    fn table_version(&self, id: u64) -> anyhow::Result<u64> {
        let status = self.cluster.status(id).with_context(|| format!("node {id} does not answer"))?;
        status["table_version"].as_u64().with_context(|| format!("no table version in {status:#}"))
    }

    /// Whether requests that need a newer table version are refused with the name of a node that is too old.
    fn names_an_old_node(&self, id: u64) -> anyhow::Result<bool> {
        for (method, path, body) in [("PUT", "/v1/limits", OVERRIDE), ("POST", "/v1/claims/", SET)] {
            let reply = self.cluster.ask(id, method, path, body).map_err(|lost| lost.why)?;
            let named =
                reply.body.contains("runs version 0.1.0, which is too old for this: upgrade that node");
            let old = reply.body.contains("node 2") || reply.body.contains("node 3");
            if reply.status != 503 || !named || !old {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn wait_for_version(&self, version: u64) -> anyhow::Result<()> {
        let start = Instant::now();
        for id in self.cluster.ids() {
            while self.table_version(id)? != version {
                ensure!(start.elapsed() < PATIENCE, "node {id} stays at {}", self.table_version(id)?);
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Ends the load and holds everybody to their promises. The cluster still runs.
    fn finish(self) -> anyhow::Result<Cluster> {
        let Self { cluster, load, kept, clocks } = self;
        load.progress(PROGRESS, PATIENCE)?;
        let odd = load.odd.clone();
        let holds = load.finish();
        clocks.finish()?;
        let odd = odd.lock().map_err(|_| anyhow!("a client panicked"))?.clone();
        ensure!(odd.is_empty(), "requests failed: {odd:#?}");
        check(&holds)?;
        for id in cluster.ids() {
            check_present(cluster.addr(id), &holds)?;
            for claim in &kept {
                let found = cluster.ask(id, "GET", &claim.path, "").map_err(|lost| lost.why)?;
                let held = found.json()["status"] == "active" && found.json()["token"] == claim.token;
                ensure!(held, "node {id} lost a claim that is held: {found:?}");
            }
        }
        cluster.converge()?;
        Ok(cluster)
    }
}

fn keep(nodes: &[SocketAddr], number: u64) -> anyhow::Result<Kept> {
    let body = format!("{{\"resource\": \"kept/{number}\", \"ttl\": 3600, \"user_data\": {number}}}");
    let claim = ask_any(nodes, "POST", "/v1/claims/", &body, 201)?.json();
    let path = path_of(&claim)?;
    Ok(Kept { path, token: claim["token"].as_u64().context("a granted claim has a token")? })
}

fn path_of(claim: &Value) -> anyhow::Result<String> {
    let path = claim["url"].as_str().and_then(|url| url.splitn(4, '/').nth(3));
    Ok(format!("/{}", path.with_context(|| format!("no claim: {claim}"))?))
}

/// Asks one node after the other until one gives this answer.
fn ask_any(nodes: &[SocketAddr], method: &str, path: &str, body: &str, good: u16) -> anyhow::Result<Reply> {
    let start = Instant::now();
    for node in nodes.iter().cycle() {
        match request(*node, method, path, body, Duration::from_secs(5)) {
            Ok(reply) if reply.status == good => return Ok(reply),
            reply => ensure!(start.elapsed() < REQUEST_MAX, "{method} {path} failed: {reply:?}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(anyhow!("there is no node to ask"))
}

/// Claims with a short ttl, one after the other, each watched until it is over.
struct Clocks {
    stop: Arc<AtomicBool>,
    watching: JoinHandle<anyhow::Result<()>>,
}

impl Clocks {
    fn start(nodes: Vec<SocketAddr>) -> Self {
        let stop = Arc::new(AtomicBool::default());
        let stopped = stop.clone();
        let watching = thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                watch_one(&nodes)?;
            }
            Ok(())
        });
        Self { stop, watching }
    }

    fn finish(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Release);
        self.watching.join().map_err(|_| anyhow!("the client that watches ttls panicked"))?
    }
}

/// A claim must not end before its ttl has passed since it was asked for.
fn watch_one(nodes: &[SocketAddr]) -> anyhow::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let start = Instant::now();
    let (asked, claim) = loop {
        // A new name each time: an attempt without an answer may hold the last one.
        let name = NEXT.fetch_add(1, Ordering::Relaxed);
        let body = format!("{{\"resource\": \"clocks/{name}\", \"ttl\": {}}}", SHORT_TTL.as_secs());
        let (asked, node) = (Instant::now(), nodes[name as usize % nodes.len()]);
        match request(node, "POST", "/v1/claims/", &body, Duration::from_secs(5)) {
            Ok(reply) if reply.status == 201 => break (asked, reply.json()),
            _ => ensure!(start.elapsed() < REQUEST_MAX, "no short claim could be made"),
        }
        thread::sleep(Duration::from_millis(100));
    };
    let path = path_of(&claim)?;
    loop {
        let seen = ask_any(nodes, "GET", &path, "", 200)?.json();
        if seen["status"] != "active" {
            ensure!(seen["status"] == "expired" && asked.elapsed() >= SHORT_TTL, "ended early: {seen}");
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
}
