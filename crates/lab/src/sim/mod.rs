//! A whole cluster in one thread, from one seed (`make sim`).
//!
//! In:    a seed. Out: a [`Report`]: the history, faults by kind, and what was
//!        violated, if anything was.
//! Never: uses the machine's time, randomness, threads, disk or network.
//!
//! Real: the table (`leasehold-core`), the entries and the memory of parcels (`leasehold-server`), openraft with all
//! its timeouts. Simulated: time (`runtime.rs`), the disk under the log (`disk.rs`), the network (`network.rs`), and in
//! the service's place a smaller node (`node.rs`) and clients without HTTP (`clients.rs`).

mod clients;
mod disk;
mod machine;
mod network;
mod node;
mod runtime;
mod types;
mod watch;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;

use openraft::BasicNode;
use parking_lot::Mutex;

use self::clients::{Client, FAST_PPM_MAX, read_again};
use self::disk::Disk;
use self::machine::{Machine, Node};
use self::network::Network;
use self::node::{Clock, SimNode};
use self::types::{Raft, SimConfig};
use crate::history::{Answer, History};
use crate::linear;
use crate::random::Random;

/// A bug that can be planted: each must be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// An entry counts as written before it is on disk.
    AckBeforeFsync,
    /// Leases end by the wall clock.
    WallClock,
    /// Reads look at the nearest table.
    StaleRead,
    /// After a failover the new leader's first entry grants what is held.
    GrantTwice,
    /// The last of the queue is first.
    Lifo,
    /// A table restored from a snapshot counts its tokens from 1.
    TokenReset,
}

/// How a seed went.
#[derive(Debug)]
pub struct Report {
    /// What clients saw.
    pub history: History,
    /// Faults, and other things that happened, by kind.
    pub counts: BTreeMap<&'static str, u64>,
    /// Simulated time.
    pub simulated_us: u64,
    /// What was wrong.
    pub violation: Option<String>,
}

/// How long faults go on, and how long everything may take to be well again.
const FAULTS_US: u64 = 15_000_000;
const CALM_US: u64 = 12_000_000;

/// What is wrong when clients don't come to an end.
const STUCK: &str = "a client waits for ever although everything is well";

struct Sim {
    random: Random,
    nodes: u64,
    bug: Option<Bug>,
    disks: BTreeMap<u64, Disk>,
    /// Runs of nodes so far: each has a number of its own.
    runs: u64,
}

/// Runs one seed.
pub fn run(seed: u64, bug: Option<Bug>) -> Report {
    let mut random = Random::new(seed);
    runtime::reset(random.fork());
    world::reset(Some(random.fork()));
    let nodes = if random.percent(70) { 3 } else { 5 };
    let disks = (1..=nodes).map(|id| (id, Disk::new(id, random.fork(), bug))).collect();
    let mut sim = Sim { random, nodes, bug, disks, runs: 0 };
    let violation = sim.play();
    let report = world::with(|world| Report {
        history: History { ops: std::mem::take(&mut world.ops) },
        counts: std::mem::take(&mut world.counts),
        simulated_us: runtime::now_us(),
        violation: world.violation.take(),
    });
    // Everything that still runs goes, before the world it lives in.
    runtime::reset(Random::new(0));
    world::reset(None);
    let unlinear = || linear::check(&report.history).err().map(|violation| violation.to_string());
    let violation = report.violation.clone().or(violation).or_else(unlinear);
    Report { violation, ..report }
}

impl Sim {
    fn play(&mut self) -> Option<String> {
        (1..=self.nodes).for_each(|id| self.start(id, true));
        runtime::run_until(1_000_000);
        for number in 0..5 {
            let client = Client { number, random: self.random.fork(), nodes: self.nodes };
            runtime::spawn_on(0, client.run());
        }
        while runtime::now_us() < FAULTS_US && world::with(|world| world.violation.is_none()) {
            runtime::run_until(runtime::now_us() + self.random.between(30_000, 600_000));
            self.fault();
        }
        self.heal();
        let before = grants();
        runtime::run_until(runtime::now_us() + CALM_US);
        if grants() < before + 10 {
            return Some(format!("no progress: {} grants after everything was healed", grants() - before));
        }
        world::with(|world| world.stop = true);
        if !self.settle() {
            return Some(STUCK.into());
        }
        let claims = world::with(|world| world.claims.clone());
        let reader = Client { number: 99, random: self.random.fork(), nodes: self.nodes };
        runtime::spawn_on(0, read_again(reader, claims));
        if !self.settle() {
            return Some(STUCK.into());
        }
        self.compare()
    }

    /// Runs until no client waits any more; says whether that came.
    fn settle(&self) -> bool {
        for _ in 0..600 {
            runtime::run_until(runtime::now_us() + 100_000);
            if world::with(|world| world.clients_at_work) == 0 {
                return true;
            }
        }
        false
    }

    /// The nodes' tables are the same, as soon as the nodes have come equally far.
    fn compare(&self) -> Option<String> {
        let of = |id: u64| {
            world::node(id).map(|node| {
                let shared = node.shared.lock();
                (shared.applied, shared.table.freeze().digest())
            })
        };
        for _ in 0..100 {
            runtime::run_until(runtime::now_us() + 97_000);
            let all: Vec<_> = (1..=self.nodes).map(of).collect();
            if all
                .iter()
                .all(|one| one.is_some_and(|(applied, _)| Some(applied) == all[0].map(|first| first.0)))
            {
                let same = all.iter().all(|one| *one == all[0]);
                return (!same).then(|| format!("after the same entry the tables differ: {all:?}"));
            }
        }
        Some("the nodes do not come together although everything is well".into())
    }

    fn start(&mut self, id: u64, first: bool) {
        self.runs += 1;
        let shared = Arc::new(Mutex::new(Node { run: self.runs, ..Node::default() }));
        let (disk, bug, nodes) = (self.disks[&id].clone(), self.bug, self.nodes);
        let fast_ppm = self.random.below(FAST_PPM_MAX);
        runtime::spawn_on(id, async move {
            let machine = Machine::new(id, shared.clone(), disk.clone(), bug);
            let config = openraft::Config {
                heartbeat_interval: 100,
                election_timeout_min: 400,
                election_timeout_max: 800,
                snapshot_policy: openraft::SnapshotPolicy::LogsSinceLast(40),
                max_in_snapshot_log_to_keep: 10,
                enable_pre_vote: Some(true),
                // As the service: a leader that comes back may have lost what it had already sent (seed 2 found it).
                enable_leader_restore: Some(false),
                ..openraft::Config::default()
            };
            let raft: Raft = match openraft::Raft::<SimConfig, Machine>::new(
                id,
                Arc::new(config),
                Network(id),
                disk,
                machine,
            )
            .await
            {
                Ok(raft) => raft,
                Err(fatal) => return world::violate(format!("node {id} does not start: {fatal}")),
            };
            if first && id == 1 {
                let members: BTreeMap<u64, BasicNode> =
                    (1..=nodes).map(|id| (id, BasicNode::default())).collect();
                raft.initialize(members).await.ok();
            }
            let clock = Mutex::new(Clock::new(fast_ppm));
            let node = Arc::new(SimNode { id, raft, shared, clock, bug });
            world::with(|world| world.nodes.insert(id, node.clone()));
            node.tick().await;
        });
    }

    fn crash(&mut self, id: u64) {
        let node = world::with(|world| world.nodes.remove(&id));
        drop(node);
        runtime::kill(id);
        self.disks[&id].crash();
        world::count("crash");
    }

    fn is_up(id: u64) -> bool {
        world::with(|world| world.nodes.contains_key(&id))
    }

    fn fault(&mut self) {
        let (one, other) = (1 + self.random.below(self.nodes), 1 + self.random.below(self.nodes));
        match self.random.below(12) {
            0 | 1 if Self::is_up(one) => self.crash(one),
            2 => (1..=self.nodes)
                .filter(|id| Self::is_up(*id))
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|id| self.crash(id)),
            0..=4 => self.restart_all(),
            5 => {
                runtime::pause(one);
                world::count("pause");
            }
            6 => (1..=self.nodes).for_each(runtime::resume),
            7 => {
                world::with(|world| world.cut.extend((1..=self.nodes).flat_map(|id| [(one, id), (id, one)])));
                world::count("isolate");
            }
            8 => {
                world::with(|world| world.cut.insert((one, other)));
                world::count("cut-one-way");
            }
            9 => {
                let (loss, delay_us) = (self.random.below(25), self.random.between(500, 40_000));
                world::with(|world| (world.loss, world.delay_us) = (loss, delay_us));
                world::count("bad-network");
            }
            10 => {
                self.disks[&one].set_slow_us(self.random.between(1_000, 120_000));
                world::count("slow-disk");
            }
            11 => {
                let ahead_us = self.random.below(86_400_000_000);
                world::with(|world| world.wall_us.insert(one, ahead_us));
                world::count("clock-jump");
                world::with(|world| world.cut.clear());
            }
            _ => world::with(|world| world.cut.clear()),
        }
    }

    fn restart_all(&mut self) {
        for id in 1..=self.nodes {
            if !Self::is_up(id) {
                // It may be on its way up already.
                runtime::kill(id);
                self.start(id, false);
                world::count("restart");
            }
        }
    }

    fn heal(&mut self) {
        (1..=self.nodes).for_each(runtime::resume);
        world::with(|world| {
            world.cut.clear();
            (world.loss, world.twice, world.delay_us) = (0, 0, 2_000);
        });
        self.disks.values().for_each(|disk| disk.set_slow_us(4_000));
        self.restart_all();
        let lost = self.disks.values().map(Disk::lost).sum();
        world::with(|world| world.counts.insert("unsynced-write-lost", lost));
    }
}

fn grants() -> usize {
    world::with(|world| world.ops.iter().filter(|op| matches!(op.answer, Answer::Active { .. })).count())
}
