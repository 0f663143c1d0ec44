//! What the nodes take of the machine, looked at all through a run: resident memory and file descriptors.
//!
//! In:    the processes of a cluster, every few seconds. Out: a table by quarters of the run, and whether it is flat.
//! Never: keeps more than a few numbers a sample: an hour of them is some thousand lines.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::cluster::Cluster;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(5);
/// Shorter runs say nothing about growth: tables are still filling.
const JUDGED_AFTER: Duration = Duration::from_secs(600);
/// How much more a node may take in the last quarter than in the second: a fifth, and some for the allocator.
const GROWTH_MAX_PERCENT: u64 = 20;
const GROWTH_MAX_KIB: u64 = 8 << 10;
/// How many more descriptors: connections come and go.
const GROWTH_MAX_FDS: u64 = 24;

/// One look at one process.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// When, from the begin of the run.
    at: Duration,
    /// The process: another one after a restart.
    pid: u32,
    /// Resident memory.
    pub rss_kib: u64,
    /// Open file descriptors.
    pub fds: u64,
    /// Processor time that it has used up so far, in ticks of 10 ms.
    cpu_ticks: u64,
}

/// Looks at a process; nothing where it is gone.
pub fn look(pid: u32, at: Duration) -> Option<Sample> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let rss_kib = line.split_whitespace().next()?.parse().ok()?;
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = stat.rsplit(')').next()?.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (rest.next()?.parse().ok()?, rest.next()?.parse().ok()?);
    Some(Sample { at, pid, rss_kib, fds, cpu_ticks: user + system })
}

/// Everything that was seen.
#[derive(Debug)]
pub struct Gauge {
    begun: Instant,
    last: Option<Instant>,
    nodes: BTreeMap<u64, Vec<Sample>>,
    /// A node that lived through the whole run: the one that is judged.
    spared: Option<u64>,
}

impl Gauge {
    /// From now on.
    pub fn new(spared: Option<u64>) -> Self {
        Self { begun: Instant::now(), last: None, nodes: BTreeMap::new(), spared }
    }

    /// Looks at every process, if it is time.
    pub fn look(&mut self, cluster: &Cluster) {
        if self.last.is_some_and(|last| last.elapsed() < EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        for id in cluster.ids() {
            let sample = cluster.pid(id).and_then(|pid| look(pid, self.begun.elapsed()));
            self.nodes.entry(id).or_default().extend(sample);
        }
    }

    /// The newest of each node in one line.
    pub fn newest(&self) -> String {
        let newest = self.nodes.iter().filter_map(|(id, samples)| {
            let sample = samples.last()?;
            Some(format!("node {id} {:.1} MiB {} fds", mib(sample.rss_kib), sample.fds))
        });
        newest.collect::<Vec<_>>().join(", ")
    }

    /// The samples of one quarter (0 to 3) of the time that was watched.
    fn quarter(&self, id: u64, quarter: u32) -> Vec<Sample> {
        let end = self.nodes.values().filter_map(|samples| samples.last()).map(|sample| sample.at).max();
        let (from, to) = (end.unwrap_or_default() * quarter / 4, end.unwrap_or_default() * (quarter + 1) / 4);
        let within = |sample: &&Sample| sample.at > from && sample.at <= to;
        self.nodes.get(&id).into_iter().flatten().filter(within).copied().collect()
    }

    /// Whether the node that lived through it all stayed as large as it was.
    pub fn judge(&self) -> anyhow::Result<()> {
        let Some(id) = self.spared.filter(|_| self.begun.elapsed() > JUDGED_AFTER) else { return Ok(()) };
        let (early, late) = (self.quarter(id, 1), self.quarter(id, 3));
        ensure!(!early.is_empty() && !late.is_empty(), "node {id} was not seen");
        ensure!(
            early[0].pid == late[late.len() - 1].pid,
            "node {id} was restarted, although it was to be spared: its log says why"
        );
        let mean = |samples: &[Sample]| samples.iter().map(|s| s.rss_kib).sum::<u64>() / samples.len() as u64;
        let most = mean(&early) * (100 + GROWTH_MAX_PERCENT) / 100 + GROWTH_MAX_KIB;
        ensure!(
            mean(&late) <= most,
            "node {id} grows: {:.1} MiB in the second quarter, {:.1} in the last",
            mib(mean(&early)),
            mib(mean(&late))
        );
        let fds = |samples: &[Sample]| samples.iter().map(|sample| sample.fds).max();
        let (before, after) = (fds(&early).context("samples")?, fds(&late).context("samples")?);
        ensure!(
            after <= before + GROWTH_MAX_FDS,
            "node {id} keeps descriptors: {before} in the second quarter, {after} in the last"
        );
        Ok(())
    }

    /// Processor time of all nodes together, as a part of one core.
    fn cores(&self) -> f64 {
        let of = |samples: &Vec<Sample>| {
            let lives = samples.chunk_by(|one, next| one.pid == next.pid);
            lives
                .filter_map(|life| Some(life.last()?.cpu_ticks.saturating_sub(life.first()?.cpu_ticks)))
                .sum::<u64>()
        };
        let ticks: u64 = self.nodes.values().map(of).sum();
        ticks as f64 / 100.0 / self.begun.elapsed().as_secs_f64()
    }
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// `least mean most` of a number.
fn spread(samples: &[Sample], of: impl Fn(&Sample) -> u64, shown: impl Fn(u64) -> String) -> String {
    let Some(least) = samples.iter().map(&of).min() else { return "-".into() };
    let most = samples.iter().map(&of).max().unwrap_or(least);
    let mean = samples.iter().map(&of).sum::<u64>() / samples.len() as u64;
    format!("{} ({}..{})", shown(mean), shown(least), shown(most))
}

impl fmt::Display for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "mean (least..most) by quarters of the run; all nodes took {:.2} of a core",
            self.cores()
        )?;
        for (id, samples) in &self.nodes {
            let lives = samples.chunk_by(|one, next| one.pid == next.pid).count();
            let kind = if Some(*id) == self.spared { ", one process all along" } else { "" };
            writeln!(f, "node {id}: {} samples, {lives} processes{kind}", samples.len())?;
            for (name, memory) in [("MiB", true), ("fds", false)] {
                let quarters = (0..4).map(|quarter| {
                    let samples = self.quarter(*id, quarter);
                    match memory {
                        true => spread(&samples, |sample| sample.rss_kib, |kib| format!("{:.1}", mib(kib))),
                        false => spread(&samples, |sample| sample.fds, |fds| fds.to_string()),
                    }
                });
                writeln!(f, "  {name}  {}", quarters.collect::<Vec<_>>().join("  |  "))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(rss_kib: impl Fn(u64) -> u64, fds: impl Fn(u64) -> u64) -> Gauge {
        let at = |n: u64| Sample {
            at: Duration::from_secs(n * 5),
            pid: 1,
            rss_kib: rss_kib(n),
            fds: fds(n),
            cpu_ticks: n,
        };
        let begun = Instant::now().checked_sub(JUDGED_AFTER * 2).expect("the machine runs for a while");
        let nodes = BTreeMap::from([(1, (1..=240).map(at).collect())]);
        Gauge { begun, last: None, nodes, spared: Some(1) }
    }

    #[test]
    fn what_stays_as_it_was_passes_and_what_grows_is_caught() {
        let full = |n: u64| 40_000 + 100 * n.min(60);
        watched(full, |n| 50 + n % 9).judge().unwrap();
        let grows = watched(|n| 40_000 + 200 * n, |_| 50).judge().unwrap_err();
        assert!(grows.to_string().contains("grows"), "{grows}");
        let leaks = watched(full, |n| 50 + n / 4).judge().unwrap_err();
        assert!(leaks.to_string().contains("descriptors"), "{leaks}");
    }

    #[test]
    fn one_can_look_at_oneself() {
        let sample = look(std::process::id(), Duration::ZERO).unwrap();
        assert!(sample.rss_kib > 100 && sample.fds > 2, "{sample:?}");
        assert!(look(u32::MAX, Duration::ZERO).is_none());
    }
}
