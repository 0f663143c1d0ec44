//! A whole cluster in one thread, from one seed (`make sim`).
//!
//! In:    a seed. Out: a [`Report`]: the history, faults by kind, and what was
//!        violated, if anything was.
//! Never: uses the machine's time, randomness, threads, disk or network.
//!
//! Real: the whole engine of `leasehold-server` (proposer, leadership, reads, clock, membership, log, snapshots, recovery),
//! openraft, the table, HTTP and the claims dialect, and the client library's claim machine. Simulated, below
//! `leasehold_engine::machine`: time, tasks, chance, files; messages between nodes; and connections of clients.

mod clients;
mod faults;
mod http;
mod life;
pub mod many;
mod world;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::{ClaimId, Command, NewClaim, OnBusy, Settings};
pub use leasehold_engine::machine::simulated::Bug;
use leasehold_engine::machine::simulated::{self, files, runtime};
use leasehold_engine::{ClusterConfig, Engine, EngineConfig, Secret};
use leasehold_server::app::App;
use leasehold_server::observe::Observer;

use self::clients::{Client, read_again};
use self::faults::Cluster;
use self::world::Running;
use crate::history::{Answer, History};
use crate::linear;
use crate::random::Random;

/// How a seed went.
#[derive(Debug)]
pub struct Report {
    /// What clients saw.
    pub history: History,
    /// Faults, and other things that happened, by kind.
    pub counts: BTreeMap<&'static str, u64>,
    /// Simulated time.
    pub simulated_us: u64,
    /// What was wrong, the name of the check first.
    pub violation: Option<String>,
}

/// How long faults go on, and how long everything may take to be well again.
const FAULTS_US: u64 = 15_000_000;
const CALM_US: u64 = 6_000_000;
/// Every node acknowledges a write and a read within this, once everything is well.
const SERVE_US: u64 = 5_000_000;
/// Every command is answered within five seconds, and the time that it takes to notice that they are over.
const ANSWER_MAX: Duration = Duration::from_secs(7);
/// Clocks of nodes may be so much too fast or slow, in millionths; the checker allows for twice as much.
const DRIFT_PPM_MAX: u64 = 1_000;
/// A leader shows that it is there so often.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// What is wrong when clients don't come to an end.
const STUCK: &str = "no progress: a client waits for ever although everything is well";

/// Runs one seed.
pub fn run(seed: u64, bug: Option<Bug>) -> Report {
    let mut random = Random::new(seed);
    runtime::reset(random.next());
    files::reset();
    world::reset(Some(random.fork()));
    simulated::enter(Some(Rc::new(world::Around)), bug);
    let violation = play(random);
    let report = world::with(|world| Report {
        history: History { ops: std::mem::take(&mut world.ops) },
        counts: std::mem::take(&mut world.counts),
        simulated_us: runtime::now_us(),
        violation: world.violation.take(),
    });
    // Everything that still runs goes, before the world it lives in.
    for node in 1..=faults::NODES_MAX {
        simulated::close_door(node);
    }
    world::with(|world| std::mem::take(&mut world.nodes));
    runtime::reset(0);
    files::reset();
    simulated::enter(None, None);
    world::reset(None);
    let unlinear = || linear::check(&report.history).err().map(|violation| format!("history: {violation}"));
    let violation = report.violation.clone().or(violation).or_else(unlinear);
    Report { violation, ..report }
}

fn play(mut random: Random) -> Option<String> {
    let first = if random.percent(70) { 3 } else { 5 };
    let mut cluster = Cluster::found(first, random.fork());
    runtime::run_until(2_000_000);
    for number in 0..6 {
        let client = Client { number, random: random.fork() };
        runtime::spawn_on(0, client.run());
    }
    while runtime::now_us() < FAULTS_US && world::with(|world| world.violation.is_none()) {
        runtime::run_until(runtime::now_us() + random.between(30_000, 600_000));
        cluster.fault();
    }
    if let Err(state) = cluster.heal() {
        return Some(format!("no progress: the cluster did not come to be whole: {state}"));
    }
    let before = grants();
    // As a rule the first calm is enough; long leases of clients that are gone can take more.
    for _ in 0..5 {
        runtime::run_until(runtime::now_us() + CALM_US);
        if world::with(|world| world.violation.is_some()) {
            return None;
        }
        if grants() >= before + 10 {
            break;
        }
    }
    if grants() < before + 10 {
        return Some(format!("no progress: {} grants after everything was healed", grants() - before));
    }
    if let Some((node, wait)) = forgotten_command() {
        return Some(format!("never answered: a command on node {node} has waited for {wait:?}"));
    }
    if let Some(node) = idle_node() {
        return Some(format!(
            "a node does not serve: node {node}, {SERVE_US} us after everything was healed"
        ));
    }
    world::with(|world| world.stop = true);
    if !settle() {
        return Some(STUCK.into());
    }
    let claims = world::with(|world| world.claims.clone());
    let reader = Client { number: clients::READER, random: random.fork() };
    runtime::spawn_on(0, read_again(reader, claims));
    if !settle() {
        return Some(STUCK.into());
    }
    cluster.compare()
}

/// A command that nobody has answered in time, if there is one.
fn forgotten_command() -> Option<(u64, Duration)> {
    let waits = world::with(|world| -> Vec<_> {
        world.nodes.iter().map(|(id, running)| (*id, running.engine.longest_wait())).collect()
    });
    waits.into_iter().find(|(_, wait)| *wait > ANSWER_MAX)
}

/// A node that acknowledges no write and no read, though everything is well, if there is one.
fn idle_node() -> Option<u64> {
    let nodes: Vec<(u64, Arc<Engine>)> =
        world::with(|world| world.nodes.iter().map(|(id, running)| (*id, running.engine.clone())).collect());
    nodes.into_iter().find(|(id, engine)| !serves(*id, engine)).map(|(id, _)| id)
}

fn serves(node: u64, engine: &Arc<Engine>) -> bool {
    let (served, engine) = (Arc::new(AtomicBool::new(false)), engine.clone());
    let tell = served.clone();
    runtime::spawn_on(node, async move {
        for round in 0_u128.. {
            let id = ClaimId::from_u128(u128::MAX - (u128::from(node) << 64) - round);
            let new =
                NewClaim::new(id, &format!("served by {node}/{round}"), "check", Some(0), OnBusy::Queue);
            let written = engine.submit(Command::Claim(new)).await.is_ok();
            if written && engine.barrier().await.is_ok() {
                return tell.store(true, Ordering::Release);
            }
            runtime::sleep_us(50_000).await;
        }
    });
    let until_us = runtime::now_us() + SERVE_US;
    while runtime::now_us() < until_us && !served.load(Ordering::Acquire) {
        runtime::run_until(runtime::now_us() + 50_000);
    }
    served.load(Ordering::Acquire)
}

/// Runs until no client waits any more; says whether that came.
fn settle() -> bool {
    for _ in 0..600 {
        runtime::run_until(runtime::now_us() + 100_000);
        if world::with(|world| world.clients_at_work) == 0 {
            return true;
        }
    }
    false
}

fn grants() -> usize {
    world::with(|world| world.ops.iter().filter(|op| matches!(op.answer, Answer::Active { .. })).count())
}

/// Starts a node: one of the first members, or one that joins somebody.
fn start_node(id: u64, peers: BTreeMap<u64, String>, join: Option<String>) {
    let observer = Arc::new(Observer::default());
    let cluster = ClusterConfig {
        node: id,
        listen: ([127, 0, 0, 1], 0).into(),
        advertise: id.to_string(),
        peers,
        join,
        secret: Secret::new("a secret that all simulated nodes know").expect("it is long enough"),
        tls: None,
        heartbeat: HEARTBEAT,
    };
    let config = EngineConfig {
        data_dir: files::home(id),
        settings: Settings::default(),
        budgets: leasehold_core::Budgets::default(),
        memory_max_bytes: None,
        snapshot_log_bytes: 2 << 10,
        listeners: observer.listeners(),
        cluster: Some(cluster),
    };
    runtime::spawn_on(id, async move {
        match Engine::start(config).await {
            Ok(engine) => {
                let app = App::simulated(engine.clone(), observer);
                let running = Running { engine: engine.clone(), app };
                world::with(|world| world.nodes.insert(id, running));
                let why = engine.failed().await;
                // As the service: a node whose log fails stops.
                world::count("node-stopped");
                world::with(|world| {
                    world.refused.insert(id, why);
                    world.nodes.remove(&id)
                });
            }
            Err(error) => {
                world::with(|world| world.refused.insert(id, error.to_string()));
            }
        }
    });
}
