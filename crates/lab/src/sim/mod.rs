//! A whole cluster in one thread, from one seed (`make sim`).
//!
//! In:    a seed. Out: a [`Report`]: the history, faults by kind, and what was
//!        violated, if anything was.
//! Never: uses the machine's time, randomness, threads, disk or network.
//!
//! Real: the whole engine (proposer, leadership, reads, clock, membership, log, snapshots, recovery), the peer protocol with
//! its handshake, frames, links and reconnections, openraft, the table, HTTP and its dialects, and the client library's
//! claim machine. Simulated, below `leasehold_engine::machine`: time, tasks, chance, files, TCP between nodes; and
//! connections of clients.

mod clients;
mod cluster;
mod elections;
mod faults;
mod ghosts;
mod http;
mod leases;
mod life;
pub mod many;
mod mixed;
mod serving;
mod transfers;
mod world;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use leasehold_core::Settings;
pub use leasehold_engine::machine::simulated::Bug;
use leasehold_engine::machine::simulated::{self, files, net, runtime};
use leasehold_engine::{ClusterConfig, Engine, EngineConfig, Secret};
use leasehold_server::api::locks::{withdraw_of_silent_nodes, withdraw_orphans};
use leasehold_server::app::App;
use leasehold_server::observe::Observer;

use self::clients::{Client, MIXED, read_again};
use self::cluster::Cluster;
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
/// Seeds in a hundred in which nothing passes for a long time before everything is healed.
const LONG_CUTS: u64 = 35;
/// Seeds in a hundred in which leadership changes hands before the first fault.
const TRANSFERS: u64 = 25;
/// Seeds in a hundred in which all links are cut, and nothing else, before the first fault.
const CUTS: u64 = 25;
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
    clear();
    runtime::reset(random.next());
    world::reset(Some(random.fork()));
    simulated::enter(Some(Rc::new(world::Around)), bug);
    let violation = play(random, Random::new(!seed));
    let report = world::with(|world| Report {
        history: History { ops: std::mem::take(&mut world.ops) },
        counts: std::mem::take(&mut world.counts),
        simulated_us: runtime::now_us(),
        violation: world.violation.take(),
    });
    clear();
    // What clients saw names the cause, where it is wrong: what came to a standstill may only be its consequence.
    let unlinear = linear::check(&report.history).err().map(|violation| format!("history: {violation}"));
    let found = report.violation.clone().or(unlinear);
    let violation = match (found, violation) {
        (Some(found), Some(besides)) => Some(format!("{found}\nbesides: {besides}")),
        (found, besides) => found.or(besides),
    };
    Report { violation, ..report }
}

/// Everything that still runs goes, and then the world it lives in.
fn clear() {
    net::reset();
    let nodes = world::take_nodes();
    drop(nodes);
    runtime::reset(0);
    files::reset();
    simulated::enter(None, None);
    world::reset(None);
}

fn play(mut random: Random, mut apart: Random) -> Option<String> {
    let first = if random.percent(70) { 3 } else { 5 };
    let mut cluster = Cluster::found(first, random.fork());
    runtime::run_until(2_000_000);
    for number in 0..MIXED + mixed::CLIENTS {
        let client = Client { number, random: random.fork() };
        runtime::spawn_on(0, client.run());
    }
    runtime::spawn_on(0, leases::use_some(random.fork()));
    runtime::spawn_on(0, ghosts::come_and_go(random.fork()));
    if random.percent(TRANSFERS)
        && let Some(slow) = transfers::in_calm(&mut cluster, &mut random)
    {
        return Some(slow);
    }
    let before_us = runtime::now_us();
    if apart.percent(CUTS)
        && let Some(slow) = elections::after_cuts(&cluster, &mut apart)
    {
        return Some(slow);
    }
    let faults_until_us = FAULTS_US + runtime::now_us() - before_us;
    while runtime::now_us() < faults_until_us && world::with(|world| world.violation.is_none()) {
        runtime::run_until(runtime::now_us() + random.between(30_000, 600_000));
        cluster.fault();
    }
    if random.percent(LONG_CUTS) {
        cluster.long_cut();
    }
    if let Err(state) = cluster.heal() {
        return Some(format!("no progress: the cluster did not come to be whole: {state}"));
    }
    judge(&cluster, &mut random)
}

/// What a cluster that was healed does wrong, if anything: it must grant again, answer everything, and agree.
fn judge(cluster: &Cluster, random: &mut Random) -> Option<String> {
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
    if let Some(node) = serving::idle_node(&cluster.serving()) {
        return Some(format!("a node does not serve: node {node}, long after everything was healed"));
    }
    world::with(|world| world.stop = true);
    if !settle() {
        return Some(STUCK.into());
    }
    if let Some(ghost) = ghosts::left_behind(&cluster.serving()) {
        return Some(format!("ghost lock: {ghost}"));
    }
    let claims = world::with(|world| world.claims.clone());
    let reader = Client { number: clients::READER, random: random.fork() };
    runtime::spawn_on(0, read_again(reader, claims));
    if !settle() {
        return Some(STUCK.into());
    }
    cluster.compare().or_else(|| {
        let node = cluster.serving().into_iter().find_map(world::node)?;
        let id = clients::refused_yet_done(&node.engine)?;
        Some(format!("refused yet done: claim {id} is there although nothing was to have happened"))
    })
}

/// A command that nobody has answered in time, if there is one.
fn forgotten_command() -> Option<(u64, Duration)> {
    let waits = world::with(|world| -> Vec<_> {
        world.nodes.iter().map(|(id, running)| (*id, running.engine.longest_wait())).collect()
    });
    waits.into_iter().find(|(_, wait)| *wait > ANSWER_MAX)
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
    world::with(|world| world.ops.iter().filter(|op| matches!(op.answer, Answer::Active(_))).count())
}

/// What all simulated nodes know. It is stretched once for all of them.
static SECRET: LazyLock<Secret> = LazyLock::new(|| {
    Secret::new("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822c").expect("it is long enough")
});

/// Starts a node: one of the first members, or one that joins somebody.
fn start_node(id: u64, peers: BTreeMap<u64, String>, join: Option<String>) {
    let observer = Arc::new(Observer::default());
    let cluster = ClusterConfig {
        node: id,
        listen: net::listen_address(id),
        advertise: net::advertised(id),
        peers,
        join,
        secret: SECRET.clone(),
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
    world::with(|world| {
        let (starts, at_us) = world.starts.entry(id).or_default();
        (*starts, *at_us) = (*starts + 1, runtime::now_us());
    });
    runtime::spawn_on(id, async move {
        match Engine::start(config).await {
            Ok(engine) => {
                let app = App::simulated(engine.clone(), observer);
                // As the service does.
                runtime::spawn(withdraw_orphans(engine.clone()));
                runtime::spawn(withdraw_of_silent_nodes(engine.clone()));
                let running = Running { engine: engine.clone(), app };
                world::with(|world| world.nodes.insert(id, running));
                let why = engine.failed().await;
                // As the service: a node whose log fails stops.
                world::count("node-stopped");
                world::with(|world| {
                    world.refused.insert(id, why);
                    world.nodes.remove(&id)
                });
                // Its connections and tasks end with the process.
                runtime::spawn_on(0, async move { runtime::kill(id) });
            }
            Err(error) => {
                world::with(|world| world.refused.insert(id, error.to_string()));
            }
        }
    });
}
