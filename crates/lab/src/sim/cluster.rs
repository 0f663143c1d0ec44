//! The cluster, as an operator runs it.
//!
//! In:    a seed's dice; `faults.rs`, which hurts it. Out: nodes that are started, crashed and mended; whether they agree.
//! Never: leaves a node down once everything is well.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_engine::EngineError;
use leasehold_engine::machine::simulated::{files, net, runtime};

use super::serving;
use super::world::{self, count_of, violate, with};
use super::{DRIFT_PPM_MAX, start_node};
use crate::random::Random;

/// Numbers of nodes go up to this.
pub(super) const NODES_MAX: u64 = 5;
/// How long a node may take to come (back) once everything is well.
const MEND_US: u64 = 60_000_000;
/// Starts in a hundred, of a machine that was off, with another address.
const MOVES: u64 = 20;

/// The nodes, as an operator sees them.
pub(super) struct Cluster {
    pub(super) random: Random,
    /// The first members.
    first: u64,
    /// Those that are meant to run.
    pub(super) members: BTreeSet<u64>,
    /// One that is being taken out.
    pub(super) leaving: Option<u64>,
    /// One that comes, or comes back without its data.
    pub(super) coming: Option<u64>,
}

impl Cluster {
    /// A new cluster.
    pub(super) fn found(first: u64, random: Random) -> Self {
        let members = (1..=first).collect();
        let mut cluster = Self { random, first, members, leaving: None, coming: None };
        for id in 1..=NODES_MAX {
            // Where a node's clock begins means nothing; how fast it runs does.
            let (begin_us, fast_ppm) = (cluster.random.below(1 << 40), cluster.drift());
            runtime::set_crystal(id, begin_us, fast_ppm);
            let skew_us = cluster.random.below(10_000_000);
            with(|world| world.wall_us.insert(id, skew_us));
        }
        (1..=first).for_each(|id| cluster.start(id));
        cluster
    }

    pub(super) fn drift(&mut self) -> i64 {
        self.random.below(2 * DRIFT_PPM_MAX) as i64 - DRIFT_PPM_MAX as i64
    }

    pub(super) fn start(&mut self, id: u64) {
        let others: Vec<u64> = self.members.iter().copied().filter(|other| *other != id).collect();
        let seed = net::advertised(*self.random.pick(&others));
        let (peers, join) = match id <= self.first {
            true => ((1..=self.first).map(|id| (id, net::advertised(id))).collect(), None),
            false => (BTreeMap::new(), Some(seed)),
        };
        let moved = self.random.percent(MOVES);
        net::power_on(id, moved);
        with(|world| {
            let refused = world.refused.remove(&id).map(|why| (id, why));
            world.last_refusals.extend(refused);
        });
        start_node(id, peers, join);
    }

    pub(super) fn any(&mut self) -> u64 {
        let members: Vec<u64> = self.members.iter().copied().collect();
        *self.random.pick(&members)
    }

    pub(super) fn is_up(id: u64) -> bool {
        with(|world| world.nodes.contains_key(&id))
    }

    /// Ends a node: its process alone, or its machine's power with it.
    pub(super) fn crash(&mut self, id: u64) {
        let power = self.random.percent(60);
        let running = with(|world| world.nodes.remove(&id));
        if power {
            files::begin_crash(id);
            if let Some(running) = running.as_ref().filter(|_| self.random.percent(70)) {
                running.engine.lose_power();
            }
            net::power_off(id);
        }
        net::set_still(id, false);
        drop(running);
        runtime::kill(id);
        if power {
            let random = &mut self.random;
            let hurt = files::crash(id, || random.below(100));
            with(|world| *world.counts.entry("write-lost-or-torn").or_default() += hurt);
        }
        count_of(id, if power { "power-loss" } else { "process-killed" });
    }

    pub(super) fn restart_all(&mut self) {
        for id in self.members.clone() {
            if !Self::is_up(id) {
                // It may be on its way up already.
                runtime::kill(id);
                self.start(id);
                count_of(id, "restart");
            }
        }
    }

    /// Whether the log of a member has failed: its process ends in a moment, and has to be started again.
    fn is_stopping(&self) -> bool {
        let mut running = self.members.iter().filter_map(|id| world::node(*id));
        running.any(|node| node.engine.ready() == Err(EngineError::Stopping))
    }

    /// Whether every member is up and takes exactly the members for voters.
    fn is_whole(&self) -> bool {
        let all = |id: &u64| {
            world::node(*id).is_some_and(|node| {
                let members = node.engine.members();
                members.keys().eq(self.members.iter()) && members.values().all(|(_, voter)| *voter)
            })
        };
        self.members.iter().all(all)
    }

    /// Goes on with what was begun; says whether nothing is under way.
    pub(super) fn is_mended(&mut self) -> bool {
        if let Some(id) = self.leaving
            && with(|world| world.left.remove(&id))
        {
            self.leaving = None;
            self.members.remove(&id);
            if Self::is_up(id) {
                self.crash(id);
            }
            runtime::kill(id);
            files::wipe(id);
        }
        // One that is on its way in asks again, also if it is taken out meanwhile.
        let has_come = |id| files::is_gone(&files::home(id).join("JOINING"));
        if self.coming.is_some_and(has_come) && self.is_whole() {
            self.coming = None;
        }
        self.leaving.is_none() && self.coming.is_none() && self.is_whole()
    }

    pub(super) fn wake_all(&mut self) {
        for id in 1..=NODES_MAX {
            net::set_still(id, false);
            runtime::resume(id);
        }
    }

    pub(super) fn leader(&self) -> Option<u64> {
        let leads = |id: &u64| world::node(*id).is_some_and(|node| node.engine.known_leader() == Some(*id));
        self.members.iter().copied().find(leads)
    }

    /// Whether somebody leads, and all others serve as its followers.
    pub(super) fn agrees(&self) -> bool {
        let leader = self.leader();
        let follows = |id: &u64| {
            world::node(*id)
                .is_some_and(|node| node.engine.ready().is_ok() && node.engine.known_leader() == leader)
        };
        leader.is_some() && self.members.iter().all(follows)
    }

    /// The members that must serve: all but one that is on its way in or out.
    pub(super) fn serving(&self) -> Vec<u64> {
        let passing = [self.coming, self.leaving];
        self.members.iter().copied().filter(|id| !passing.contains(&Some(*id))).collect()
    }

    /// Everything is well from now on; says whether the cluster came to be whole.
    pub(super) fn heal(&mut self) -> Result<(), String> {
        self.wake_all();
        with(|world| {
            world.cut.clear();
            world.slow.clear();
            world.sync_us.clear();
            (world.loss, world.delay_us) = (0, 2_000);
        });
        for id in 1..=NODES_MAX {
            files::set_full(id, false);
            net::set_refusing(id, false);
        }
        self.restart_all();
        serving::watch(&self.serving());
        let end_us = runtime::now_us() + MEND_US;
        while !self.is_mended() || self.is_stopping() {
            if runtime::now_us() > end_us {
                return Err(self.describe());
            }
            runtime::run_until(runtime::now_us() + 200_000);
            let stopped = |id: &u64| with(|world| world.refused.contains_key(id));
            if let Some(why) = self.members.iter().find_map(|id| damage(*id)) {
                violate(format!("damaged by nobody: no bit was flipped, and a node says: {why}"));
                return Ok(());
            }
            if self.members.iter().any(stopped) {
                runtime::run_until(runtime::now_us() + 1_000_000);
                self.restart_all();
            }
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let (leaving, coming) = (self.leaving, self.coming);
        let mut text = format!("members {:?}, leaving {leaving:?}, coming {coming:?}", self.members);
        for id in &self.members {
            let state = world::node(*id).map(|node| (node.engine.members(), node.engine.node_state()));
            let refused = with(|world| world.last_refusals.get(id).cloned());
            text += &format!("\n  node {id}:  {state:?} {}", refused.unwrap_or_default());
        }
        text
    }

    /// The nodes' tables are the same, as soon as the nodes have come equally far.
    pub(super) fn compare(&self) -> Option<String> {
        let of = |id: &u64| {
            world::node(*id).map(|node| {
                let applied = node.engine.applied();
                (applied, node.engine.read(|table, _| table.freeze().digest()))
            })
        };
        for _ in 0..100 {
            runtime::run_until(runtime::now_us() + 97_000);
            let all: Vec<_> = self.members.iter().map(of).collect();
            if all
                .iter()
                .all(|one| one.is_some_and(|(applied, _)| Some(applied) == all[0].map(|first| first.0)))
            {
                let same = all.iter().all(|one| *one == all[0]);
                return (!same).then(|| format!("digests differ: after the same entry: {all:?}"));
            }
        }
        Some("no progress: the nodes do not come together although everything is well".into())
    }
}

/// What a node says that refuses to start because of what is on its disk, if it does.
fn damage(id: u64) -> Option<String> {
    with(|world| world.refused.get(&id).filter(|why| why.contains("damaged")).cloned())
}
