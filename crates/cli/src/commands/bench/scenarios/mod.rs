//! The scenarios, one file each, and the way from a subcommand to its figures.
//!
//! In:    a `Scenario` of the command line.
//! Out:   `Outcome`s.
//! Never: prints.

mod cluster;
mod cycle;
mod held;
mod hold;
mod mix;
mod queue;
mod report;

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::args::{Common, Scenario};
use super::disk::Disk;
use super::output::Outcome;
use super::request::{ClaimTemplate, Paths};
use super::run_state::{Plan, Span};
use super::stats::{Op, Stats};
use super::target::Target;
use cycle::Cycle;
use held::{Each, Fill};
use mix::Mix;
use queue::Queue;

/// Measured seconds unless told otherwise.
const SECONDS: f64 = 4.0;

/// Connections that take and give back claims which are not what is measured.
const FILL_CONNECTIONS: usize = 64;

/// The ttl of claims that are only held; no run is that long.
const HELD_TTL: f64 = 3600.0;

/// Runs a scenario.
pub(crate) fn run(scenario: &Scenario, common: &Common, disk: Disk) -> Result<Vec<Outcome>> {
    match scenario {
        Scenario::Cycle => Ok(vec![cycle_on(&Target::of(common)?, "cycle", common, disk)?]),
        Scenario::Ceiling => Ok(vec![cycle_on(&Target::responder()?, "ceiling", common, disk)?]),
        Scenario::Renew { claims } => renew(*claims, common, disk),
        Scenario::Read { claims, stale } => {
            let target = Target::of(common)?;
            let held = Held::take(&target, *claims)?;
            let outcome = held.read_on(&target, *stale, common, disk)?;
            held.release(&target)?;
            Ok(vec![outcome])
        }
        Scenario::Queue { waiters } => {
            ensure!(
                common.rate.is_none(),
                "queue has no open loop: each hand-over starts the next; drop --rate"
            );
            Ok(vec![queue_on(&Target::of(common)?, *waiters, common, disk)?])
        }
        Scenario::Mix { closed } => mix(*closed, common, disk),
        Scenario::Hold(args) => hold::run(common, args, disk),
        Scenario::Report { rounds, at, waiters } => {
            ensure!(at.iter().all(|count| *count > 0), "--at takes numbers above 0");
            report::run(common, &report::Shape { rounds: *rounds, connections: at, waiters }, disk)
        }
        Scenario::Cluster { rounds, at, waiters } => {
            ensure!(at.iter().all(|count| *count > 0), "--at takes numbers above 0");
            cluster::run(common, &report::Shape { rounds: *rounds, connections: at, waiters }, disk)
        }
        Scenario::Responder { listen } => bail!("the responder on {listen} is no measurement"),
    }
}

/// The plan of a timed run.
fn timed<'a>(name: &'a str, common: &Common) -> Plan<'a> {
    let span = Span::Timed(common.measured(SECONDS));
    Plan { name, warmup: common.warmup(), span, rate: common.rate }
}

/// The plan of a run over `count` claims; the limit is what a server at 500 a second would need.
fn counted(name: &str, count: u64) -> Plan<'_> {
    let limit = Duration::from_secs(30 + count / 500);
    Plan { name, warmup: Duration::ZERO, span: Span::Counted { limit }, rate: None }
}

/// Heartbeats on held claims; taking and releasing them is not part of the figures, but its errors are.
fn renew(claims: u32, common: &Common, disk: Disk) -> Result<Vec<Outcome>> {
    let target = Target::of(common)?;
    let (host, connections) = (target.host(), common.connections as usize);
    let mut engine = target.connect(connections)?;
    let mut fill = Fill::new(ClaimTemplate::new(&host, "renw", "", HELD_TTL, 0), claims.into());
    let plan = counted("renew: fill", claims.into());
    let mut outcomes = vec![Outcome::new(&plan, connections, engine.run(&mut fill, &plan)?, disk)];
    let plan = timed("renew", common);
    let stats = engine.run(&mut Each::renew(&host, &fill.paths, HELD_TTL), &plan)?;
    let per_second = stats.per_second(Op::Renew);
    let mut outcome = Outcome::new(&plan, connections, stats, disk);
    outcome.fact("renewals per second", per_second, "renewals/s");
    outcomes.push(outcome);
    let plan = counted("renew: release", claims.into());
    let stats = engine.run(&mut Each::release(&host, &fill.paths), &plan)?;
    outcomes.push(Outcome::new(&plan, connections, stats, disk));
    Ok(outcomes)
}

/// Claims that are only there to be read.
struct Held(Paths);

impl Held {
    fn take(target: &Target, claims: u32) -> Result<Self> {
        let template = ClaimTemplate::new(&target.host(), "read", "", HELD_TTL, 0);
        let mut fill = Fill::new(template, claims.into());
        let stats =
            target.connect(FILL_CONNECTIONS)?.run(&mut fill, &counted("read: fill", claims.into()))?;
        ensure!(stats.errors.is_empty(), "the claims to read could not be taken: {:?}", stats.errors);
        Ok(Self(fill.paths))
    }

    fn read_on(&self, target: &Target, stale: bool, common: &Common, disk: Disk) -> Result<Outcome> {
        let connections = common.connections as usize;
        let plan = timed(if stale { "read, stale" } else { "read" }, common);
        let mut reads = Each::read(&target.host(), &self.0, stale);
        let stats = target.connect(connections)?.run(&mut reads, &plan)?;
        let per_second = stats.per_second(Op::Get);
        let mut outcome = Outcome::new(&plan, connections, stats, disk);
        outcome.fact("reads per second", per_second, "reads/s");
        Ok(outcome)
    }

    fn release(&self, target: &Target) -> Result<()> {
        let plan = counted("read: release", self.0.len() as u64);
        target.connect(FILL_CONNECTIONS)?.run(&mut Each::release(&target.host(), &self.0), &plan)?;
        Ok(())
    }
}

/// Hand-overs with `waiters` waiting behind the holder.
fn queue_on(target: &Target, waiters: u32, common: &Common, disk: Disk) -> Result<Outcome> {
    // One more than wait: the holder. While it requeues there is still somebody to hand over to.
    let connections = waiters as usize + 1;
    let name = format!("queue, {waiters} waiters");
    let plan = timed(&name, common);
    let mut queue = Queue::new(&target.host(), connections);
    let stats = target.connect(connections)?.run(&mut queue, &plan)?;
    let per_second = stats.per_second(Op::Handover);
    let mut outcome = Outcome::new(&plan, connections, stats, disk);
    outcome.fact("hand-overs per second", per_second, "/s");
    Ok(outcome)
}

/// The realistic mixture.
fn mix(closed: bool, common: &Common, disk: Disk) -> Result<Vec<Outcome>> {
    let target = Target::of(common)?;
    let connections = common.connections as usize;
    let rate = (!closed).then(|| common.rate.unwrap_or(1.0) * mix::requests_per_second());
    let plan = Plan { rate, ..timed("mix", common) };
    let stats = target.connect(connections)?.run(&mut Mix::new(&target.host(), connections), &plan)?;
    Ok(vec![Outcome::new(&plan, connections, stats, disk)])
}

/// Claim cycles against any target.
fn cycle_on(target: &Target, name: &str, common: &Common, disk: Disk) -> Result<Outcome> {
    let connections = common.connections as usize;
    let plan = timed(name, common);
    let mut cycle = Cycle::new(&target.host(), connections);
    let stats = target.connect(connections)?.run(&mut cycle, &plan)?;
    let figures = cycle_figures(&stats);
    let mut outcome = Outcome::new(&plan, connections, stats, disk);
    for (name, value, unit) in figures {
        outcome.fact(name, value, unit);
    }
    Ok(outcome)
}

/// The rates of a cycle run.
fn cycle_figures(stats: &Stats) -> [(&'static str, f64, &'static str); 2] {
    let (claims, releases) = (stats.per_second(Op::Claim), stats.per_second(Op::Release));
    [
        ("cycles per second", claims.min(releases), "cycles/s"),
        ("requests per second", claims + releases, "req/s"),
    ]
}
