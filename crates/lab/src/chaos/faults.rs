//! What is done to a cluster.
//!
//! In:    a cluster and a source of numbers. Out: one fault more; and all of them undone.
//! Never: takes away more than a minority for good: what was acknowledged lives on a majority.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::ensure;

use crate::cluster::Cluster;
use crate::random::Random;

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
            Self::Delay => "delay",
            Self::RollingRestart => "rolling-restart",
            Self::Replace => "replace",
            Self::Transfer => "transfer",
            Self::ClockJump => "clock-jump",
        })
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
    clocks: Option<PathBuf>,
    /// How often each kind was done.
    pub(super) done: BTreeMap<Fault, u64>,
}

impl Injector {
    pub(super) fn new(nodes: u64, clocks: Option<PathBuf>) -> Self {
        Self { nodes, clocks, done: BTreeMap::new() }
    }

    fn draw(&self, random: &mut Random) -> Fault {
        let kinds = [
            (Fault::KillLeader, 3),
            (Fault::Kill, 3),
            (Fault::KillAll, 1),
            (Fault::Pause, 3),
            (Fault::Isolate, 3),
            (Fault::CutOneWay, 3),
            (Fault::Delay, 2),
            (Fault::RollingRestart, 1),
            (Fault::Replace, 1),
            (Fault::Transfer, 2),
            (Fault::ClockJump, if self.clocks.is_some() { 3 } else { 0 }),
        ];
        let mut place = random.below(kinds.iter().map(|(_, weight)| weight).sum());
        for (kind, weight) in kinds {
            if place < weight {
                return kind;
            }
            place -= weight;
        }
        Fault::Kill
    }

    /// Does one thing more.
    pub(super) fn inject(&mut self, cluster: &mut Cluster, random: &mut Random) -> anyhow::Result<Fault> {
        let fault = self.draw(random);
        *self.done.entry(fault).or_default() += 1;
        let any = 1 + random.below(self.nodes);
        let other = 1 + random.below(self.nodes);
        match fault {
            Fault::KillLeader => {
                let running = cluster.running();
                let known = running.iter().find_map(|id| cluster.status(*id)?["leader"].as_u64());
                cluster.kill(known.unwrap_or(any))?;
            }
            Fault::Kill => cluster.kill(any)?,
            Fault::KillAll => cluster.ids().into_iter().try_for_each(|id| cluster.kill(id))?,
            Fault::Pause => {
                if cluster.running().contains(&any) {
                    cluster.pause(any)?;
                }
            }
            Fault::Isolate => cluster.isolate(&[any]),
            Fault::CutOneWay => cluster.cut(any, other),
            Fault::Delay => cluster.delay_all(Duration::from_millis(random.below(60))),
            Fault::RollingRestart => self.roll(cluster)?,
            Fault::Replace => self.replace(cluster, any)?,
            Fault::Transfer => {
                let running = cluster.running();
                if let Some(asked) = running.first() {
                    let body = format!("{{\"id\": {other}}}");
                    // May be refused, when the other one is down.
                    cluster.ask_briefly(*asked, "POST", "/v1/cluster/leader", &body).ok();
                }
            }
            Fault::ClockJump => self.jump(any, random)?,
        }
        Ok(fault)
    }

    fn roll(&mut self, cluster: &mut Cluster) -> anyhow::Result<()> {
        self.heal(cluster)?;
        for id in cluster.ids() {
            cluster.terminate(id)?;
            cluster.spawn(id)?;
            cluster.converge()?;
        }
        Ok(())
    }

    /// The safe way to bring back a node whose disk is gone: it leaves first, so that its vote counts no more.
    fn replace(&mut self, cluster: &mut Cluster, id: u64) -> anyhow::Result<()> {
        self.heal(cluster)?;
        cluster.converge()?;
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
        cluster.converge()
    }

    fn jump(&self, id: u64, random: &mut Random) -> anyhow::Result<()> {
        let Some(dir) = &self.clocks else { return Ok(()) };
        let seconds = random.below(86_400);
        let sign = if random.percent(50) { '+' } else { '-' };
        Ok(std::fs::write(dir.join(format!("clock-{id}")), format!("{sign}{seconds}\n"))?)
    }

    /// Everything runs and everybody reaches everybody. (Clocks stay where they are: nobody promised to set them.)
    pub(super) fn heal(&mut self, cluster: &mut Cluster) -> anyhow::Result<()> {
        cluster.network.heal();
        for id in cluster.ids() {
            if cluster.pid(id).is_none() {
                cluster.spawn(id)?;
            } else if !cluster.running().contains(&id) {
                cluster.resume(id)?;
            }
        }
        Ok(())
    }
}
