//! Many seeds at a time, and the list of those that ever failed.
//!
//! In:    seeds. Out: what they found, in sum, and each violation.
//! Never: lets one seed see another: each has a thread to itself while it runs, and a thread one seed at a time.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Bug, Report, run};

/// Seeds that once failed, a line each: the number, then its story.
const FAILED_SEEDS: &str = include_str!("../../failed-seeds");

/// What many seeds came to.
#[derive(Debug, Default)]
pub struct Summary {
    /// How many.
    pub seeds: u64,
    /// Simulated time of all.
    pub simulated_us: u64,
    /// Operations of clients.
    pub operations: u64,
    /// Those of which nobody knows the outcome.
    pub unknown: u64,
    /// Faults, and other things that happened, by kind.
    pub counts: BTreeMap<&'static str, u64>,
    /// What was violated, by seed.
    pub failed: BTreeMap<u64, String>,
}

/// The seeds that must be run every time.
pub fn once_failed() -> Vec<u64> {
    let lines = FAILED_SEEDS.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

/// Runs one seed; a part of the service that panics is a violation, too.
pub fn run_caught(seed: u64, bug: Option<Bug>) -> Result<Report, String> {
    catch_unwind(AssertUnwindSafe(|| run(seed, bug))).map_err(|panic| {
        super::clear();
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
        format!("panic: {said}")
    })
}

/// Runs seeds, on as many threads at a time as there are cores.
pub fn run_all(seeds: &[u64]) -> Summary {
    let next = AtomicUsize::new(0);
    let summary = Mutex::new(Summary { seeds: seeds.len() as u64, ..Summary::default() });
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(seeds.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = run_caught(seed, None);
                    if let Ok(mut summary) = summary.lock() {
                        summary.add(seed, report);
                    }
                }
            });
        }
    });
    summary.into_inner().unwrap_or_default()
}

impl Summary {
    fn add(&mut self, seed: u64, report: Result<Report, String>) {
        let report = match report {
            Ok(report) => report,
            Err(panic) => return drop(self.failed.insert(seed, panic)),
        };
        self.simulated_us += report.simulated_us;
        self.operations += report.history.ops.len() as u64;
        self.unknown += report.history.unknown() as u64;
        report.counts.iter().for_each(|(kind, times)| *self.counts.entry(kind).or_default() += times);
        self.failed.extend(report.violation.map(|violation| (seed, violation)));
    }
}

/// A line for people; the last one of a run is `n seeds, k failed`.
impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (seed, violation) in &self.failed {
            writeln!(f, "seed {seed}: {}", violation.trim_end())?;
        }
        let counts: Vec<String> = self.counts.iter().map(|(kind, times)| format!("{kind} {times}")).collect();
        writeln!(
            f,
            "{:.2} simulated hours, {} operations, {} of them with an unknown outcome: {}",
            self.simulated_us as f64 / 3.6e9,
            self.operations,
            self.unknown,
            counts.join(", ")
        )?;
        write!(f, "{} seeds, {} failed", self.seeds, self.failed.len())
    }
}
