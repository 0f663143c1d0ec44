//! The scenarios, one file each, and the way from a subcommand to its figures.
//!
//! In:    a `Scenario` of the command line.
//! Out:   `Outcome`s.
//! Never: prints.

mod cycle;

use anyhow::Result;

use super::args::{Common, Scenario};
use super::disk::Disk;
use super::output::Outcome;
use super::run_state::{Plan, Span};
use super::stats::{Op, Stats};
use super::target::Target;
use cycle::Cycle;

/// Measured seconds unless told otherwise.
const SECONDS: f64 = 4.0;

/// Runs a scenario.
pub(crate) fn run(scenario: &Scenario, common: &Common, disk: Disk) -> Result<Vec<Outcome>> {
    match scenario {
        Scenario::Cycle => Ok(vec![cycle_on(&Target::of(common)?, "cycle", common, disk)?]),
        Scenario::Ceiling => Ok(vec![cycle_on(&Target::responder()?, "ceiling", common, disk)?]),
        _ => Ok(Vec::new()),
    }
}

/// The plan of a timed run.
fn timed<'a>(name: &'a str, common: &Common) -> Plan<'a> {
    let span = Span::Timed(common.measured(SECONDS));
    Plan { name, warmup: common.warmup(), span, rate: common.rate }
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
    [("cycles per second", claims.min(releases), "cycles/s"), ("requests per second", claims + releases, "req/s")]
}
