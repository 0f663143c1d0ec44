//! The cluster and what happens to it.
//!
//! In:    a seed's dice. Out: nodes that crash, stand still, lose their disks, leave and come; links that fail; clocks
//!        that jump and drift.
//! Never: takes more than a majority can bear for good: one disk at a time, and only while all members are there.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_engine::EngineError;
use leasehold_engine::machine::simulated::{self, files, net, runtime};
use leasehold_engine::membership::{Change, ChangeError};

use super::world::{self, Running, count, count_of, violate, with};
use super::{DRIFT_PPM_MAX, start_node};
use super::{clients, serving};
use crate::random::Random;

/// Numbers of nodes go up to this.
pub(super) const NODES_MAX: u64 = 5;
/// Fewer members are never left.
const MEMBERS_MIN: usize = 3;
/// How long a node may take to come (back) once everything is well.
const MEND_US: u64 = 60_000_000;
/// Starts in a hundred, of a machine that was off, with another address.
const MOVES: u64 = 20;
/// Claims with which a disk's last room is filled, at the most.
const UNHEARD_MAX: u64 = 60;
/// The longest time for which nothing passes.
const LONG_CUT_US_MAX: u64 = 35_000_000;
/// How long a node may take to refuse to start.
const REFUSE_US: u64 = 3_000_000;

/// The nodes, as an operator sees them.
pub(super) struct Cluster {
    random: Random,
    /// The first members.
    first: u64,
    /// Those that are meant to run.
    members: BTreeSet<u64>,
    /// One that is being taken out.
    leaving: Option<u64>,
    /// One that comes, or comes back without its data.
    coming: Option<u64>,
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

    fn drift(&mut self) -> i64 {
        self.random.below(2 * DRIFT_PPM_MAX) as i64 - DRIFT_PPM_MAX as i64
    }

    fn start(&mut self, id: u64) {
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

    fn any(&mut self) -> u64 {
        let members: Vec<u64> = self.members.iter().copied().collect();
        *self.random.pick(&members)
    }

    fn is_up(id: u64) -> bool {
        with(|world| world.nodes.contains_key(&id))
    }

    /// Ends a node: its process alone, or its machine's power with it.
    fn crash(&mut self, id: u64) {
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

    fn restart_all(&mut self) {
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
    fn is_mended(&mut self) -> bool {
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

    /// One more fault.
    pub(super) fn fault(&mut self) {
        let mended = self.is_mended();
        let (one, other) = (self.any(), self.any());
        match self.random.below(37) {
            0 | 1 if Self::is_up(one) => self.crash(one),
            2 => {
                let up: Vec<u64> = self.members.iter().copied().filter(|id| Self::is_up(*id)).collect();
                up.into_iter().for_each(|id| self.crash(id));
            }
            0..=5 => self.restart_all(),
            6 => {
                runtime::pause(one);
                count_of(one, "pause");
            }
            7 => self.wake_all(),
            8 => {
                let links = (1..=NODES_MAX).flat_map(|id| [(one, id), (id, one)]);
                with(|world| world.cut.extend(links));
                count_of(one, "isolate");
            }
            9 => {
                with(|world| world.cut.insert((one, other)));
                count_of(one, "cut-one-way");
            }
            10 => {
                let (loss, delay_us) = (self.random.below(15), self.random.between(500, 40_000));
                with(|world| (world.loss, world.delay_us) = (loss, delay_us));
                count("bad-network");
            }
            11 => {
                let sync_us = self.random.between(1_000, 120_000);
                with(|world| world.sync_us.insert(one, sync_us));
                count_of(one, "slow-disk");
            }
            12 | 13 => {
                let ahead_us = self.random.below(86_400_000_000);
                with(|world| world.wall_us.insert(one, ahead_us));
                count_of(one, "clock-jump");
            }
            14 => {
                let fast_ppm = self.drift();
                runtime::set_crystal(one, 0, fast_ppm);
                count("clock-drift");
            }
            15 => {
                files::set_full(one, true);
                count_of(one, "disk-full");
            }
            16 => (1..=NODES_MAX).for_each(|id| files::set_full(id, false)),
            17 | 18 if mended => self.lose_disk(one),
            19 | 20 if mended => self.flip_bit(one),
            21 | 22 if mended => self.grow_or_shrink(one),
            23 => self.transfer(one, other),
            24..=31 => self.hurt_network(one),
            32 if self.random.percent(50) => self.fill_unheard(other),
            _ => with(|world| world.cut.clear()),
        }
    }

    fn wake_all(&mut self) {
        for id in 1..=NODES_MAX {
            net::set_still(id, false);
            runtime::resume(id);
        }
    }

    /// What can happen to a node's connections.
    fn hurt_network(&mut self, id: u64) {
        match self.random.below(8) {
            0 => {
                runtime::pause(id);
                net::set_still(id, true);
                count_of(id, "machine-still");
            }
            1 | 2 => self.flap(id),
            3 => {
                net::break_connections(id);
                net::set_refusing(id, true);
                count_of(id, "port-refuses");
            }
            4 | 5 => (1..=NODES_MAX).for_each(|id| net::set_refusing(id, false)),
            6 => {
                let bytes_per_ms = self.random.between(5, 500);
                with(|world| world.slow.insert(id, bytes_per_ms));
                count_of(id, "slow-line");
            }
            _ => with(|world| world.slow.clear()),
        }
    }

    /// Something on the way breaks a node's connections, once or again and again. A full disk's node is picked on: what it
    /// took and what it refuses must not be mixed up.
    fn flap(&mut self, id: u64) {
        let id = self.members.iter().copied().find(|id| files::is_full(*id)).unwrap_or(id);
        for _ in 0..self.random.between(1, 25) {
            let broken = net::break_connections(id);
            with(|world| *world.counts.entry("connection-reset").or_default() += broken / 2);
            runtime::run_until(runtime::now_us() + self.random.between(2_000, 40_000));
        }
    }

    /// Nothing passes for a long time: between any two nodes, to and from one, or one way. TCP waits longer and longer
    /// between its tries. Then everything is healed at once, and the leader may be killed in the same moment.
    pub(super) fn long_cut(&mut self) {
        let (one, kind) = (self.any(), self.random.below(4));
        let cuts = |from: u64, to: u64| match kind {
            0 | 1 => true,
            2 => from == one || to == one,
            _ => from == one,
        };
        let pairs = (1..=NODES_MAX).flat_map(|from| (1..=NODES_MAX).map(move |to| (from, to)));
        with(|world| world.cut.extend(pairs.filter(|(from, to)| cuts(*from, *to))));
        count_of(one, "long-cut");
        let length_us = self.random.between(3_000_000, LONG_CUT_US_MAX);
        runtime::run_until(runtime::now_us() + length_us);
        if let Some(leader) = self.leader().filter(|_| self.random.percent(30)) {
            self.crash(leader);
        }
    }

    fn leader(&self) -> Option<u64> {
        let leads = |id: &u64| world::node(*id).is_some_and(|node| node.engine.known_leader() == Some(*id));
        self.members.iter().copied().find(leads)
    }

    /// All disks fill up while one node does not hear its leader; then the node loses its connections and hears the leader
    /// again. What the leader took before, it refuses when the node sends it again.
    fn fill_unheard(&mut self, deaf: u64) {
        let Some(leader) = self.leader().filter(|leader| *leader != deaf) else { return };
        count_of(deaf, "full-unheard");
        self.members.iter().for_each(|id| files::set_full(*id, true));
        with(|world| world.cut.insert((leader, deaf)));
        let is_full = |node: Running| node.engine.ready() == Err(EngineError::DiskFull);
        for _ in 0..UNHEARD_MAX {
            clients::claim_once(leader);
            if self.random.percent(20) {
                clients::claim_once(deaf);
            }
            runtime::run_until(runtime::now_us() + self.random.between(5_000, 30_000));
            if world::node(leader).is_some_and(is_full) {
                break;
            }
        }
        with(|world| world.cut.remove(&(leader, deaf)));
        net::break_connections(deaf);
        runtime::run_until(runtime::now_us() + self.random.between(50_000, 800_000));
    }

    /// The members that must serve: all but one that is on its way in or out.
    pub(super) fn serving(&self) -> Vec<u64> {
        let passing = [self.coming, self.leaving];
        self.members.iter().copied().filter(|id| !passing.contains(&Some(*id))).collect()
    }

    /// A node's disk is replaced by an empty one.
    fn lose_disk(&mut self, id: u64) {
        self.crash(id);
        files::wipe(id);
        self.coming = Some(id);
        self.start(id);
        count_of(id, "disk-lost");
    }

    /// A bit of what a node once synced is wrong when it comes back: it must notice, and say so.
    fn flip_bit(&mut self, id: u64) {
        self.crash(id);
        let random = &mut self.random;
        let Some(flipped) = files::flip_bit(id, |sides| random.below(sides)) else {
            return self.start(id);
        };
        let file = flipped.path.display();
        count_of(id, "bit-flip");
        tracing::info!("in {file}");
        files::set_full(id, false);
        self.coming = Some(id);
        self.start(id);
        let end_us = runtime::now_us() + REFUSE_US;
        let decided = || with(|world| world.refused.contains_key(&id) || world.nodes.contains_key(&id));
        while runtime::now_us() < end_us && !decided() {
            runtime::run_until(runtime::now_us() + 50_000);
        }
        let why = with(|world| world.refused.get(&id).cloned());
        match (flipped.needed, why) {
            (true, Some(why)) if why.contains("damaged") => {}
            (_, Some(why)) => {
                violate(format!(
                    "bit flip: node {id} does not start, but should, or does not say why: {why}"
                ));
            }
            (true, None) => violate(format!("bit flip: node {id} started although a bit of {file} is wrong")),
            // A file that a newer one has replaced is nobody's business: it is removed unread.
            (false, None) if Self::is_up(id) && files::is_gone(&flipped.path) => {
                count("bit-flip-in-old-file");
                return;
            }
            (false, None) => violate(format!("bit flip: node {id} keeps {file}, which it does not need")),
        }
        runtime::kill(id);
        let running = with(|world| world.nodes.remove(&id));
        drop(running);
        files::wipe(id);
        self.start(id);
    }

    fn grow_or_shrink(&mut self, one: u64) {
        let absent: Vec<u64> = (1..=NODES_MAX).filter(|id| !self.members.contains(id)).collect();
        if self.members.len() > MEMBERS_MIN && (absent.is_empty() || self.random.percent(50)) {
            self.leaving = Some(one);
            count_of(one, "node-leaves");
            let random = self.random.fork();
            runtime::spawn_on(0, take_out(one, self.members.clone(), random));
        } else {
            let id = *self.random.pick(&absent);
            self.members.insert(id);
            self.coming = Some(id);
            self.start(id);
            count_of(id, "node-joins");
        }
    }

    fn transfer(&mut self, asked: u64, to: u64) {
        let Some(node) = world::node(asked) else { return };
        count_of(to, "transfer");
        runtime::spawn_on(asked, async move {
            node.engine.change_members(Change::Transfer { to }).await.ok();
        });
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
            let state = world::node(*id).map(|node| (node.engine.members(), node.engine.observed()));
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

/// An operator takes a node out, and goes on until it is out.
async fn take_out(id: u64, members: BTreeSet<u64>, mut random: Random) {
    let members: Vec<u64> = members.into_iter().collect();
    loop {
        runtime::sleep_us(200_000).await;
        let asked = *random.pick(&members);
        let Some(node) = world::node(asked) else { continue };
        let (reply, answer) = tokio::sync::oneshot::channel();
        runtime::spawn_on(asked, async move {
            reply.send(node.engine.change_members(Change::Remove { id }).await).ok();
        });
        let answer = simulated::runtime::timeout(std::time::Duration::from_secs(8), answer).await;
        let out = match answer {
            Ok(Ok(Ok(()))) => true,
            Ok(Ok(Err(ChangeError::Refused(why)))) => why.contains("is not a member"),
            _ => false,
        };
        // A leader may say so before it is agreed on: all the others must know.
        let known = |other: &u64| {
            *other == id || world::node(*other).is_some_and(|node| !node.engine.members().contains_key(&id))
        };
        if out && members.iter().all(known) {
            with(|world| world.left.insert(id));
            return;
        }
    }
}
