//! What is done to a cluster.
//!
//! In:    a cluster and a source of numbers. Out: one fault more; and all of them undone.
//! Never: takes away more than a minority for good: what was acknowledged lives on a majority.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use crate::cluster::{Cluster, PATIENCE};
use crate::proxy::Break;
use crate::random::Random;

/// Long requests that are enough to fill what a node keeps for its log: two segments.
const POURS_MAX: u64 = 400;
/// What is more than the room that is kept for the time when clients are refused.
const POURS_MORE: u64 = 8;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGKILL to whoever leads.
    KillLeader,
    /// SIGKILL to anyone.
    Kill,
    /// SIGKILL to all at once.
    KillAll,
    /// SIGSTOP, and SIGCONT when healed.
    Pause,
    /// A node without links, both ways.
    Isolate,
    /// One link cut one way.
    CutOneWay,
    /// One node's answers to another one's questions stop; all else passes.
    Mute,
    /// A node closes all connections of its peers, and takes no new ones.
    Refuse,
    /// All connections to a node are reset. New ones can be made.
    Reset,
    /// One end of all connections to a node is gone, and the other end is not told.
    HalfOpen,
    /// Everything between the nodes comes later.
    Delay,
    /// SIGTERM and a new start, one node after the other.
    RollingRestart,
    /// A node leaves, loses its disk, and comes back as new.
    Replace,
    /// Another node is asked to lead.
    Transfer,
    /// A wall clock goes forward or back, by up to a day.
    ClockJump,
    /// The disk of one node fills up, and space comes back when healed.
    FullDisk,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KillLeader => "kill-leader",
            Self::Kill => "kill",
            Self::KillAll => "kill-all",
            Self::Pause => "pause",
            Self::Isolate => "isolate",
            Self::CutOneWay => "cut-one-way",
            Self::Mute => "mute",
            Self::Refuse => "refuse",
            Self::Reset => "reset",
            Self::HalfOpen => "half-open",
            Self::Delay => "delay",
            Self::RollingRestart => "rolling-restart",
            Self::Replace => "replace",
            Self::Transfer => "transfer",
            Self::ClockJump => "clock-jump",
            Self::FullDisk => "full-disk",
        })
    }
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::KillLeader,
        Self::Kill,
        Self::KillAll,
        Self::Pause,
        Self::Isolate,
        Self::CutOneWay,
        Self::Mute,
        Self::Refuse,
        Self::Reset,
        Self::HalfOpen,
        Self::Delay,
        Self::RollingRestart,
        Self::Replace,
        Self::Transfer,
        Self::ClockJump,
        Self::FullDisk,
    ];

    /// Whether it hurts links alone: all processes run on.
    pub(super) fn is_of_links(self) -> bool {
        use Fault::{CutOneWay, Delay, HalfOpen, Isolate, Mute, Refuse, Reset};
        matches!(self, Isolate | CutOneWay | Mute | Refuse | Reset | HalfOpen | Delay)
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.to_string() == name)
    }
}

/// The environment under which a node's wall clock follows a file, and its monotonic clock stays what it is.
pub(super) fn faketime(library: &Path, dir: &Path) -> Vec<(String, String)> {
    let file = dir.join("clock-{id}");
    [
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        ("FAKETIME_CACHE_DURATION", "1".into()),
        ("DONT_FAKE_MONOTONIC", "1".into()),
    ]
    .map(|(name, value)| (name.into(), value))
    .to_vec()
}

/// Does things to a cluster, and counts them.
pub(super) struct Injector {
    nodes: u64,
    /// A node whose process is never ended, so that its memory can be watched through the whole run.
    spared: Option<u64>,
    /// Kinds that don't come up.
    without: Vec<Fault>,
    clocks: Option<PathBuf>,
    /// What was done since everything was last healed.
    pub(super) hurt: Vec<Fault>,
    /// How often each kind was done.
    pub(super) done: BTreeMap<Fault, u64>,
    /// How often a node ran out of space and said so.
    pub(super) filled: u64,
    /// How often it stopped for that.
    pub(super) stopped_when_full: u64,
}

impl Injector {
    pub(super) fn new(nodes: u64, spared: Option<u64>, without: Vec<Fault>, clocks: Option<PathBuf>) -> Self {
        let (hurt, done) = Default::default();
        Self { nodes, spared, without, clocks, hurt, done, filled: 0, stopped_when_full: 0 }
    }

    /// Those whose process may be ended.
    fn mortal(&self, cluster: &Cluster) -> Vec<u64> {
        cluster.ids().into_iter().filter(|id| Some(*id) != self.spared).collect()
    }

    fn draw(&self, random: &mut Random) -> Fault {
        let mut kinds = [
            (Fault::KillLeader, 3),
            (Fault::Kill, 3),
            (Fault::KillAll, 1),
            (Fault::Pause, 3),
            (Fault::Isolate, 3),
            (Fault::CutOneWay, 3),
            (Fault::Mute, 2),
            (Fault::Refuse, 2),
            (Fault::Reset, 2),
            (Fault::HalfOpen, 2),
            (Fault::Delay, 2),
            (Fault::RollingRestart, 1),
            (Fault::Replace, 1),
            (Fault::Transfer, 2),
            (Fault::ClockJump, if self.clocks.is_some() { 3 } else { 0 }),
            (Fault::FullDisk, 1),
        ];
        kinds.iter_mut().filter(|(kind, _)| self.without.contains(kind)).for_each(|(_, weight)| *weight = 0);
        let mut place = random.below(kinds.iter().map(|(_, weight)| weight).sum());
        for (kind, weight) in kinds {
            if place < weight {
                return kind;
            }
            place -= weight;
        }
        Fault::Kill
    }

    /// Does one thing more: this, or whatever comes up.
    pub(super) fn inject(
        &mut self,
        cluster: &mut Cluster,
        random: &mut Random,
        wanted: Option<Fault>,
    ) -> anyhow::Result<Fault> {
        self.check_fallen(cluster)?;
        let fault = wanted.unwrap_or_else(|| self.draw(random));
        *self.done.entry(fault).or_default() += 1;
        let any = 1 + random.below(self.nodes);
        let other = 1 + random.below(self.nodes);
        let mortal = self.mortal(cluster);
        let victim = *random.pick(&mortal);
        match fault {
            Fault::KillLeader => {
                let running = cluster.running();
                let known = running.iter().find_map(|id| cluster.status(*id)?["leader"].as_u64());
                cluster.kill(known.filter(|id| mortal.contains(id)).unwrap_or(victim))?;
            }
            Fault::Kill => cluster.kill(victim)?,
            Fault::KillAll => mortal.into_iter().try_for_each(|id| cluster.kill(id))?,
            Fault::Pause => {
                if cluster.running().contains(&any) {
                    cluster.pause(any)?;
                }
            }
            Fault::Isolate => cluster.isolate(&[any]),
            Fault::CutOneWay => cluster.cut(any, other),
            Fault::Mute => cluster.network.mute(any, other),
            Fault::Refuse => cluster.network.refuse(any),
            Fault::Reset => cluster.network.break_all(any, Break::Reset),
            Fault::HalfOpen => {
                let gone = [Break::HalfOpenCaller, Break::HalfOpenCalled];
                cluster.network.break_all(any, *random.pick(&gone));
            }
            Fault::Delay => cluster.delay_all(Duration::from_millis(random.below(60))),
            Fault::RollingRestart => self.roll(cluster)?,
            Fault::Replace => self.replace(cluster, victim)?,
            Fault::Transfer => {
                let running = cluster.running();
                if let Some(asked) = running.first() {
                    let body = format!("{{\"id\": {other}}}");
                    // May be refused, when the other one is down.
                    cluster.ask_briefly(*asked, "POST", "/v1/cluster/leader", &body).ok();
                }
            }
            Fault::ClockJump => self.jump(any, random)?,
            Fault::FullDisk => self.fill_disk(cluster)?,
        }
        self.hurt.push(fault);
        Ok(fault)
    }

    /// A node whose disk is full may stop; any other that does has failed.
    fn check_fallen(&mut self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let full = cluster.small_disk().filter(|(_, disk)| disk.is_filled()).map(|(id, _)| id);
        for id in cluster.fallen() {
            ensure!(Some(id) == full, "node {id} stopped by itself: {}", cluster.log(id));
            self.stopped_when_full += 1;
        }
        Ok(())
    }

    /// Fills the small disk, and then the room that its node had kept for its log: with requests that are long, and that
    /// change nothing.
    fn fill_disk(&mut self, cluster: &mut Cluster) -> anyhow::Result<()> {
        self.heal(cluster)?;
        let Some((id, disk)) = cluster.small_disk() else { return Ok(()) };
        // A follower one time, the leader the next.
        let leads = self.done.get(&Fault::FullDisk).is_some_and(|times| times % 2 == 0);
        let leader = cluster.leader()?;
        let next =
            if leads { id } else { cluster.ids().into_iter().find(|other| *other != id).unwrap_or(id) };
        if (leader == id) != leads {
            let body = format!("{{\"id\": {next}}}");
            cluster.ask_briefly(leader, "POST", "/v1/cluster/leader", &body).ok();
        }
        let leader = cluster.leader()?;
        disk.fill()?;
        let lock = |owner: u64, more: &str| {
            format!("{{\"hostname\": \"chaos\", \"owner\": {owner}, \"ids\": [\"ballast\"{more}]}}")
        };
        cluster.ask_briefly(leader, "POST", "/v1/dss/object/lock", &lock(1, "")).ok();
        let long: String = (0..400).map(|n| format!(", \"{n:0>500}\"")).collect();
        let is_full = |cluster: &Cluster| {
            // Its log, its disk, or it is stopping for that; whether it has a leader is another matter.
            let reply = cluster.ask_briefly(id, "GET", "/readyz?exclude=leader&exclude=engine", "");
            !reply.is_ok_and(|reply| reply.status == 200)
        };
        // Another one holds "ballast": all or nothing is nothing.
        let through = cluster.running().into_iter().find(|other| *other != id).unwrap_or(id);
        let pour = |cluster: &Cluster| {
            cluster.ask_briefly(through, "POST", "/v1/dss/object/lock", &lock(2, &long)).ok();
        };
        for _ in 0..POURS_MAX {
            if is_full(cluster) {
                self.filled += 1;
                // A leader refuses from here on. A follower has to take what its leader takes, until nothing fits any more.
                (0..POURS_MORE).for_each(|_| pour(cluster));
                // Or else it would do so for all of them.
                ensure!(cluster.leader()? != id, "node {id} leads on with a full disk: {}", cluster.log(id));
                return Ok(());
            }
            pour(cluster);
        }
        bail!("{POURS_MAX} long requests did not fill the log of node {id}: {}", cluster.log(id))
    }

    fn roll(&mut self, cluster: &mut Cluster) -> anyhow::Result<()> {
        self.heal(cluster)?;
        for id in self.mortal(cluster) {
            cluster.terminate(id)?;
            cluster.spawn(id)?;
            cluster.settle()?;
        }
        Ok(())
    }

    /// The safe way to bring back a node whose disk is gone: it leaves first, so that its vote counts no more.
    fn replace(&mut self, cluster: &mut Cluster, id: u64) -> anyhow::Result<()> {
        self.heal(cluster)?;
        cluster.settle()?;
        let path = format!("/v1/cluster/nodes/{id}");
        let mut removed = false;
        for _ in 0..200 {
            let asked = cluster.leader()?;
            removed = cluster.ask(asked, "DELETE", &path, "").is_ok_and(|reply| reply.status == 204);
            if removed {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
        ensure!(removed, "node {id} could not be taken out of a healthy cluster");
        cluster.kill(id)?;
        cluster.wipe(id)?;
        cluster.spawn(id)?;
        cluster.settle()
    }

    fn jump(&self, id: u64, random: &mut Random) -> anyhow::Result<()> {
        let Some(dir) = &self.clocks else { return Ok(()) };
        let seconds = random.below(86_400);
        let sign = if random.percent(50) { '+' } else { '-' };
        Ok(std::fs::write(dir.join(format!("clock-{id}")), format!("{sign}{seconds}\n"))?)
    }

    /// Everything runs and everybody reaches everybody. (Clocks stay where they are: nobody promised to set them.)
    pub(super) fn heal(&mut self, cluster: &mut Cluster) -> anyhow::Result<()> {
        self.check_fallen(cluster)?;
        self.hurt.clear();
        cluster.network.heal();
        let full = self.free_disk(cluster)?;
        for id in cluster.ids() {
            if cluster.pid(id).is_none() {
                cluster.spawn(id)?;
            } else if !cluster.running().contains(&id) {
                cluster.resume(id)?;
            }
        }
        full.map_or(Ok(()), |id| self.goes_on(cluster, id))
    }

    /// Space comes back, if it was gone. Says for whom.
    fn free_disk(&mut self, cluster: &mut Cluster) -> anyhow::Result<Option<u64>> {
        if !cluster.small_disk().is_some_and(|(_, disk)| disk.is_filled()) {
            return Ok(None);
        }
        // A node that is about to stop does so first.
        thread::sleep(Duration::from_millis(300));
        self.check_fallen(cluster)?;
        let Some((id, disk)) = cluster.small_disk() else { return Ok(None) };
        disk.free()?;
        Ok(Some(id))
    }

    /// A node that has space again goes on, or is started anew if it had stopped.
    fn goes_on(&mut self, cluster: &mut Cluster, id: u64) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            if cluster.fallen().contains(&id) {
                self.stopped_when_full += 1;
                cluster.spawn(id)?;
            }
            let reply = cluster.ask_briefly(id, "GET", "/readyz", "");
            if reply.is_ok_and(|reply| reply.status == 200) {
                return Ok(());
            }
            if start.elapsed() > 2 * PATIENCE {
                let said = cluster.ask_briefly(id, "GET", "/readyz?verbose", "");
                bail!("node {id} has space again and does not go on: {said:?} {}", cluster.log(id));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}
