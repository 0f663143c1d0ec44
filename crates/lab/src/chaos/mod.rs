//! Random faults on a cluster of real processes, under clients of all dialects; then everything is healed and checked.
//!
//! In:    [`Plan`]. Out: [`Summary`], or what was violated.
//! Never: calls a run good that did not get on: at the end every client works again, and the nodes' tables agree.
//!
//! - `clients.rs` what the clients do, and what they write down
//! - `faults.rs`  what is done to the cluster

pub mod clients;
mod faults;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use self::clients::{Client, DIALECTS, Shared};
use self::faults::{Fault, Injector};
use crate::cluster::{Cluster, PATIENCE};
use crate::history::{Answer, History};
use crate::linear;
use crate::random::Random;

/// Claims that are read again at the end, the newest.
const READ_AGAIN_MAX: usize = 3000;

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The `leasehold` to run.
    pub binary: PathBuf,
    /// How long faults go on.
    pub length: Duration,
    /// How many nodes.
    pub nodes: u64,
    /// What the faults and the clients draw from. (Real processes: the same seed is not the same run.)
    pub seed: u64,
    /// Clients of each dialect.
    pub clients: u64,
    /// `libfaketime`, where wall clocks are to jump.
    pub faketime: Option<PathBuf>,
    /// Whether every fault is told when it happens.
    pub verbose: bool,
}

/// How a run went.
#[derive(Debug, Default)]
pub struct Summary {
    /// Operations of clients.
    pub operations: usize,
    /// Those whose outcome nobody knows.
    pub unknown: usize,
    /// Grants that were acknowledged.
    pub grants: usize,
    /// Faults by kind.
    pub faults: BTreeMap<Fault, u64>,
    /// How long it took.
    pub took: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, unknown, grants, faults, took } = self;
        writeln!(f, "{operations} operations in {} s, {unknown} unknown, {grants} grants", took.as_secs())?;
        let all: u64 = faults.values().sum();
        let kinds: Vec<String> = faults.iter().map(|(kind, times)| format!("{kind} {times}")).collect();
        write!(f, "{all} faults: {}", kinds.join(", "))
    }
}

/// Runs a plan to its end.
#[expect(clippy::print_stdout, reason = "whoever asked for it verbosely watches it")]
pub fn run(plan: &Plan) -> anyhow::Result<Summary> {
    let begun = Instant::now();
    let mut random = Random::new(plan.seed);
    let dir = std::env::temp_dir().join(format!("leasehold-chaos-{}-{}", std::process::id(), plan.seed));
    std::fs::create_dir_all(&dir)?;
    let _removed = Removed(&dir);
    let envs = plan.faketime.as_deref().map_or_else(Vec::new, |library| faults::faketime(library, &dir));
    if plan.faketime.is_some() {
        (1..=plan.nodes).try_for_each(|id| std::fs::write(dir.join(format!("clock-{id}")), "+0\n"))?;
    }
    let args = ["--snapshot-log-mib", "1"];
    let mut cluster = Cluster::start_with(&plan.binary, plan.nodes, &args, &envs)?;
    let shared = Arc::new(Shared {
        nodes: cluster.ids().iter().map(|id| cluster.addr(*id)).collect(),
        start: begun,
        stop: AtomicBool::new(false),
        handles: AtomicU64::new(1),
        answered: AtomicU64::new(0),
        odd: std::sync::Mutex::default(),
    });
    let clients: Vec<_> = (0..plan.clients * DIALECTS.len() as u64)
        .map(|number| {
            let client = Client::new(number, shared.clone(), random.fork());
            let dialect = DIALECTS[number as usize % DIALECTS.len()];
            thread::spawn(move || client.run(dialect))
        })
        .collect();
    progress(&shared, 50)?;

    let mut injector = Injector::new(plan.nodes, plan.faketime.is_some().then(|| dir.clone()));
    while begun.elapsed() < plan.length {
        let fault = injector.inject(&mut cluster, &mut random)?;
        if plan.verbose {
            println!("{:>6.1} s  {fault}", begun.elapsed().as_secs_f64());
        }
        thread::sleep(Duration::from_millis(random.between(200, 2500)));
        if random.percent(60) {
            injector.heal(&mut cluster)?;
            progress(&shared, 10).with_context(|| format!("after {fault}"))?;
        }
    }

    injector.heal(&mut cluster)?;
    progress(&shared, 100).context("after everything was healed")?;
    shared.stop.store(true, Ordering::Release);
    let mut history = History::default();
    let mut ids = Vec::new();
    for client in clients {
        let (ops, known) = client.join().ok().context("a client broke")?;
        history.ops.extend(ops);
        ids.extend(known);
    }
    cluster.converge()?;
    ids.sort();
    let newest = &ids[ids.len().saturating_sub(READ_AGAIN_MAX)..];
    history.ops.extend(Client::new(u64::MAX, shared.clone(), random.fork()).read_again(newest));
    judge(&shared, &history)?;
    let grants = history.ops.iter().filter(|op| matches!(op.answer, Answer::Active { .. })).count();
    Ok(Summary {
        operations: history.ops.len(),
        unknown: history.unknown(),
        grants,
        faults: injector.done,
        took: begun.elapsed(),
    })
}

fn judge(shared: &Shared, history: &History) -> anyhow::Result<()> {
    let odd = shared.odd.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    ensure!(odd.is_empty(), "answers that should not have been: {odd:#?}");
    if let Err(violation) = linear::check(history) {
        let kept = std::env::temp_dir().join(format!("leasehold-history-{}.txt", std::process::id()));
        std::fs::write(&kept, history.to_string())?;
        return Err(violation)
            .with_context(|| format!("VIOLATION; the whole history is in {}", kept.display()));
    }
    Ok(())
}

/// Waits until so many more operations were answered.
fn progress(shared: &Shared, more: u64) -> anyhow::Result<()> {
    let (start, goal) = (Instant::now(), shared.answered.load(Ordering::Relaxed) + more);
    while shared.answered.load(Ordering::Relaxed) < goal {
        ensure!(start.elapsed() < PATIENCE, "no progress in {PATIENCE:?}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        std::fs::remove_dir_all(self.0).ok();
    }
}
