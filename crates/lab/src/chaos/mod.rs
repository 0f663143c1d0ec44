//! Random faults on a cluster of real processes, under clients of all dialects; then everything is healed and checked.
//!
//! In:    [`Plan`]. Out: [`Summary`], or what was violated.
//! Never: calls a run good that did not get on: at the end every client works again, and the nodes' tables agree.
//!
//! A run has rounds, each with resources of its own. At the end of a round everything is healed, everybody finishes,
//! the tables are compared, and the round's history is checked and forgotten: so an hour needs no more memory than a
//! round. From one round to the next only tokens are carried: they must have grown.
//!
//! - `plan.rs`    what to run, and how fast
//! - `summary.rs` how it went
//! - `clients.rs` what the clients of the dialects do
//! - `mixed.rs`   claims that share, take slots or several resources, and sessions
//! - `holders/`   the client library, the keychain and `leasehold run`
//! - `notes.rs`   what all of them write down
//! - `faults.rs`  what is done to the cluster
//! - `by_node.rs` whether every node serves after healing
//! - `honesty.rs` whether nodes admit how old their tables are, and what was called undone was not done
//! - `gauge.rs`   memory and descriptors of the nodes, all through the run

pub mod by_node;
pub mod clients;
mod faults;
pub mod gauge;
pub mod holders;
mod honesty;
mod mixed;
pub mod notes;
mod plan;
mod summary;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use self::by_node::Healed;
use self::clients::{Client, DIALECTS};
pub use self::faults::Fault;
use self::faults::Injector;
use self::gauge::Gauge;
use self::holders::KINDS;
use self::notes::{Known, Notebook, SharedRound};
pub use self::plan::{Pace, Plan};
pub use self::summary::Summary;
use crate::cluster::{Cluster, PATIENCE, Setup};
use crate::history::History;
use crate::linear;
use crate::random::Random;

/// Claims that are read again at the end of a round, the newest.
const READ_AGAIN_MAX: usize = 3000;
/// How long a round goes on.
const ROUND: Duration = Duration::from_secs(180);
/// How often a long run says how it goes.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Runs a plan to its end.
pub fn run(plan: &Plan) -> anyhow::Result<Summary> {
    let dir = std::env::temp_dir().join(format!("leasehold-chaos-{}-{}", std::process::id(), plan.seed));
    std::fs::create_dir_all(&dir)?;
    let _removed = Removed(&dir);
    let mut run = ChaosRun::start(plan, &dir)?;
    while run.begun.elapsed() < plan.length {
        run.round()?;
    }
    run.finish()
}

/// A run under way.
struct ChaosRun<'a> {
    plan: &'a Plan,
    begun: Instant,
    random: Random,
    cluster: Cluster,
    injector: Injector,
    gauge: Gauge,
    summary: Summary,
    /// Faults that are still to come before any others.
    first: std::vec::IntoIter<Fault>,
    handles: u64,
    told: Instant,
}

/// Everybody who works in a round.
type Workers = Vec<thread::JoinHandle<Notebook>>;

impl<'a> ChaosRun<'a> {
    fn start(plan: &'a Plan, dir: &Path) -> anyhow::Result<Self> {
        let envs = plan.faketime.as_deref().map_or_else(Vec::new, |library| faults::faketime(library, dir));
        if plan.faketime.is_some() {
            (1..=plan.nodes).try_for_each(|id| std::fs::write(dir.join(format!("clock-{id}")), "+0\n"))?;
        }
        let cluster = Cluster::start_as(&Setup {
            binary: &plan.binary,
            nodes: plan.nodes,
            args: plan.pace.args(),
            envs: &envs,
            proxies: true,
            small_disk: Some(plan.nodes),
        })?;
        // The worst that TCP can do: a connection from before a cut never delivers anything again.
        cluster.network.cuts_last();
        let (spared, clocks) = (plan.pace.spared(), plan.faketime.is_some().then(|| dir.to_owned()));
        Ok(Self {
            plan,
            begun: Instant::now(),
            random: Random::new(plan.seed),
            cluster,
            injector: Injector::new(plan.nodes, spared, plan.without.clone(), clocks),
            gauge: Gauge::new(spared),
            summary: Summary::default(),
            first: plan.first.clone().into_iter(),
            handles: 1,
            told: Instant::now(),
        })
    }

    fn round(&mut self) -> anyhow::Result<()> {
        let shared = Arc::new(SharedRound {
            nodes: self.cluster.ids().iter().map(|id| self.cluster.addr(*id)).collect(),
            start: self.begun,
            round: self.summary.rounds,
            rest_ms: self.plan.pace.rest_ms(),
            stop: AtomicBool::new(false),
            handles: AtomicU64::new(self.handles),
            answered: AtomicU64::new(0),
            odd: std::sync::Mutex::default(),
            undone: std::sync::Mutex::default(),
            behind: AtomicU64::new(0),
        });
        let workers = self.workers(&shared);
        let worked = self.storm(&shared);
        shared.stop.store(true, Ordering::Release);
        let mut history = History::default();
        let mut ids: Vec<Known> = Vec::new();
        for worker in workers {
            let book = worker.join().ok().context("a client broke")?;
            self.count(&book);
            history.ops.extend(book.ops);
            ids.extend(book.ids);
        }
        // What clients saw comes first: it may be why nobody got on.
        let judged = check_odd(&shared);
        worked.and(judged)?;
        self.cluster.converge()?;
        ids.sort();
        let newest = &ids[ids.len().saturating_sub(READ_AGAIN_MAX)..];
        let reader = Client::new(Notebook::new(u64::MAX, shared.clone()), self.random.fork());
        history.ops.extend(reader.read_again(newest));
        judge(&shared, &history)?;
        self.summary.undone += honesty::find_undone(&shared, shared.nodes[0])?;
        self.summary.behind += shared.behind.load(Ordering::Relaxed);
        self.sum_up(&shared, &history)
    }

    fn workers(&mut self, shared: &Arc<SharedRound>) -> Workers {
        let mut workers = Vec::new();
        for number in 0..self.plan.clients * DIALECTS.len() as u64 {
            let client = Client::new(Notebook::new(number, shared.clone()), self.random.fork());
            let dialect = DIALECTS[number as usize % DIALECTS.len()];
            workers.push(thread::spawn(move || client.run(dialect)));
        }
        for number in 0..self.plan.holders * KINDS.len() as u64 {
            let book = Notebook::new(HOLDERS_FROM + number, shared.clone());
            let (kind, random) = (KINDS[number as usize % KINDS.len()], self.random.fork());
            let binary = self.plan.binary.clone();
            workers.push(thread::spawn(move || holders::work(kind, &binary, book, random)));
        }
        workers
    }

    /// The faults of a round, until everything is well again.
    fn storm(&mut self, shared: &SharedRound) -> anyhow::Result<()> {
        let (plan, begun) = (self.plan, Instant::now());
        progress(shared, 50)?;
        while self.first.len() > 0 || (begun.elapsed() < ROUND && self.begun.elapsed() < plan.length) {
            let wanted = self.first.next();
            let fault = self.injector.inject(&mut self.cluster, &mut self.random, wanted)?;
            self.tell(format_args!("{fault}"));
            self.sleep(plan.pace.fault_ms());
            if self.random.percent(plan.pace.healed_percent()) {
                self.heal()?;
                progress(shared, 10).with_context(|| format!("after {fault}"))?;
                self.sleep(plan.pace.quiet_ms());
            }
            self.tell_progress(shared);
        }
        self.heal()?;
        progress(shared, 100).context("after everything was healed")
    }

    /// Heals everything, and has every node show that it serves.
    fn heal(&mut self) -> anyhow::Result<()> {
        let (at, hurt) = (Instant::now(), self.injector.hurt.clone());
        self.injector.heal(&mut self.cluster)?;
        self.summary.healings += 1;
        let name = format!("healing-{}", self.summary.healings);
        let links_alone = hurt.iter().all(|fault| fault.is_of_links());
        let healed = Healed { at, hurt, name };
        let took = by_node::all_serve(&self.cluster, &healed, self.plan.healed_within)?;
        if links_alone {
            self.summary.slowest = self.summary.slowest.max(took);
        }
        self.tell(format_args!("healed: every node served after {took:.2?}"));
        Ok(())
    }

    fn sleep(&mut self, (least, most): (u64, u64)) {
        let end = Instant::now() + Duration::from_millis(self.random.between(least, most));
        while Instant::now() < end {
            self.gauge.look(&self.cluster);
            thread::sleep((end - Instant::now()).min(Duration::from_secs(1)));
        }
    }

    #[expect(clippy::print_stdout, reason = "whoever asked for it verbosely watches it")]
    fn tell(&self, what: fmt::Arguments<'_>) {
        if self.plan.verbose {
            println!("{:>6.1} s  {what}", self.begun.elapsed().as_secs_f64());
        }
    }

    fn tell_progress(&mut self, shared: &SharedRound) {
        if self.told.elapsed() > TELL_EVERY {
            self.told = Instant::now();
            let answered = self.summary.operations + shared.answered.load(Ordering::Relaxed) as usize;
            let claims = shared.handles.load(Ordering::Relaxed);
            self.tell(format_args!("{claims} claims, {answered} answers, {}", self.gauge.newest()));
        }
    }

    fn count(&mut self, book: &Notebook) {
        if book.number >= HOLDERS_FROM {
            let kind = ["library", "keychain", "run"][(book.number - HOLDERS_FROM) as usize % KINDS.len()];
            *self.summary.held.entry(kind).or_default() += book.ids.len();
        }
    }

    /// Adds a round that was good to the whole, and carries the tokens over.
    fn sum_up(&mut self, shared: &SharedRound, history: &History) -> anyhow::Result<()> {
        let granted: BTreeSet<u64> = history.ops.iter().flat_map(|op| op.answer.tokens()).collect();
        if let (Some(first), Some(last)) = (granted.first(), granted.last()) {
            let before = self.summary.token;
            ensure!(*first > before, "VIOLATION: token {first} was given after {before}, a round earlier");
            self.summary.token = *last;
        }
        self.summary.operations += history.ops.len();
        self.summary.unknown += history.unknown();
        self.summary.grants += granted.len();
        self.summary.rounds += 1;
        self.handles = shared.handles.load(Ordering::Relaxed);
        self.tell(format_args!(
            "round {}: {} operations, {} claims granted, {} faults, no violation",
            self.summary.rounds,
            history.ops.len(),
            granted.len(),
            self.injector.done.values().sum::<u64>()
        ));
        if self.plan.pace == Pace::Soak {
            self.tell(format_args!("so far: {}", self.gauge));
        }
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<Summary> {
        self.gauge.look(&self.cluster);
        for id in self.cluster.ids() {
            let log = self.cluster.log(id);
            ensure!(!log.contains("panicked"), "node {id} panicked: {log}");
        }
        let judged = self.gauge.judge();
        self.summary.faults = self.injector.done;
        self.summary.full = (self.injector.filled, self.injector.stopped_when_full);
        self.summary.took = self.begun.elapsed();
        self.summary.gauge = Some(self.gauge);
        judged.with_context(|| format!("VIOLATION\n{}", self.summary))?;
        Ok(self.summary)
    }
}

/// Numbers of those who hold for others begin here.
const HOLDERS_FROM: u64 = 1000;

fn check_odd(shared: &SharedRound) -> anyhow::Result<()> {
    let odd = shared.odd.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    ensure!(odd.is_empty(), "answers that should not have been: {odd:#?}");
    Ok(())
}

fn judge(shared: &SharedRound, history: &History) -> anyhow::Result<()> {
    check_odd(shared)?;
    if let Err(violation) = linear::check(history) {
        let kept = std::env::temp_dir().join(format!("leasehold-history-{}.txt", std::process::id()));
        std::fs::write(&kept, history.to_string())?;
        return Err(violation)
            .with_context(|| format!("VIOLATION; the round's whole history is in {}", kept.display()));
    }
    Ok(())
}

/// Waits until so many more operations were answered.
fn progress(shared: &SharedRound, more: u64) -> anyhow::Result<()> {
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
