//! What happens to the cluster.
//!
//! In:    a seed's dice. Out: nodes that crash, stand still, lose their disks, leave and come; links that fail; clocks
//!        that jump and drift.
//! Never: takes more than a majority can bear for good: one disk at a time, and only while all members are there.

use std::collections::BTreeSet;

use leasehold_engine::EngineError;
use leasehold_engine::machine::simulated::{files, net, runtime};
use leasehold_engine::membership::{ChangeError, MembershipChange};

use super::clients;
use super::cluster::{Cluster, NODES_MAX};
use super::world::{self, Running, count, count_of, violate, with};
use crate::random::Random;

/// Fewer members are never left.
const MEMBERS_MIN: usize = 3;
/// Claims with which a disk's last room is filled, at the most.
const UNHEARD_MAX: u64 = 60;
/// The longest time for which nothing passes.
const LONG_CUT_US_MAX: u64 = 35_000_000;
/// How long a node may take to refuse to start.
const REFUSE_US: u64 = 3_000_000;

impl Cluster {
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

    pub(super) fn transfer(&mut self, asked: u64, to: u64) {
        let Some(node) = world::node(asked) else { return };
        count_of(to, "transfer");
        runtime::spawn_on(asked, async move {
            node.engine.change_members(MembershipChange::Transfer { to }).await.ok();
        });
    }
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
            reply.send(node.engine.change_members(MembershipChange::Remove { id }).await).ok();
        });
        let answer = runtime::timeout(std::time::Duration::from_secs(8), answer).await;
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
