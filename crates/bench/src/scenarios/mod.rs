//! The scenarios, one file each, and the way from a subcommand to its figures.
//!
//! In:    a `Scenario` of the command line. Out: `Outcome`s.
//! Never: prints.
//!
//! A scenario is an async function that one connection runs: it asks its session when the next request starts, sends it,
//! and looks at the answer. What the connections share is a value that all of them borrow. A new scenario is such a
//! function, a row in `args.rs` and an arm in [`run`].

mod cluster;
mod compare;
mod cycle;
mod held;
mod hold;
mod mix;
mod queue;
mod report;
mod sharing;

use anyhow::{Result, bail, ensure};

use crate::args::{Common, Scenario};
use crate::disk::Disk;
use crate::http::Request;
use crate::load::{Plan, Span};
use crate::names::Names;
use crate::output::Outcome;
use crate::session::{self, Session};
use crate::stats::Op;
use crate::target::Target;
use cycle::cycle;
use held::{Fill, HELD_TTL, Held, counted};
use mix::Mix;
use queue::Line;

/// Measured seconds unless told otherwise.
const SECONDS: f64 = 4.0;

/// Runs a scenario.
pub(crate) fn run(scenario: &Scenario, common: &Common, disk: Disk) -> Result<Vec<Outcome>> {
    match scenario {
        Scenario::Cycle => Ok(vec![cycle_on(&Target::of(common)?, "cycle", common, disk)?]),
        Scenario::Ceiling => Ok(vec![cycle_on(&Target::responder(&common.dir)?, "ceiling", common, disk)?]),
        Scenario::Renew { claims } => renew(*claims, common, disk),
        Scenario::Read { claims, stale } => {
            let target = Target::of(common)?;
            let held = Held::take(&target, *claims)?;
            let outcome = read_on(&target, &held, *stale, common, disk)?;
            held.release(&target)?;
            Ok(vec![outcome])
        }
        Scenario::Queue { waiters, mixed } => {
            ensure!(
                common.rate.is_none(),
                "queue has no open loop: each hand-over starts the next; drop --rate"
            );
            Ok(vec![queue_of(&Target::of(common)?, (*waiters, *mixed), common, disk)?])
        }
        Scenario::Shared => sharing::shared(common, disk),
        Scenario::Slots { slots } => sharing::slots(*slots, common, disk),
        Scenario::Sets { resources } => sharing::sets(*resources, common, disk),
        Scenario::Mix { closed } => mix(*closed, common, disk),
        Scenario::Hold(args) => hold::run(common, args, disk),
        Scenario::Report(shape) => report::run(common, shape, disk),
        Scenario::Cluster(shape) => cluster::run(common, shape, disk),
        Scenario::Compare(args) => compare::run(common, args, disk),
        Scenario::Responder { listen } => bail!("the responder on {listen} is no measurement"),
    }
}

/// The plan of a timed run.
fn timed<'a>(name: &'a str, common: &Common) -> Plan<'a> {
    let span = Span::Timed(common.measured(SECONDS));
    Plan { name, warmup: common.warmup(), span, rate: common.rate, shows_progress: true }
}

/// Heartbeats on held claims; taking and releasing them is not part of the figures, but its errors are.
fn renew(claims: u32, common: &Common, disk: Disk) -> Result<Vec<Outcome>> {
    let target = Target::of(common)?;
    let connections = common.connections as usize;
    let fill = Fill::new("renw", HELD_TTL, 0, claims.into());
    let plan = counted("renew: fill", claims.into());
    let work = async |session: &mut Session<'_>| fill.work(session).await;
    let mut outcomes =
        vec![Outcome::new(&plan, connections, session::run(&target, connections, plan, &work)?, disk)];
    let held = fill.into_held(0).1;
    outcomes.push(renew_on(&target, &held, common, disk)?);
    let name = "renew: release";
    let stats = held.release_on(&target, connections, name)?;
    outcomes.push(Outcome::new(&counted(name, claims.into()), connections, stats, disk));
    Ok(outcomes)
}

/// Heartbeats on these claims.
fn renew_on(target: &Target, held: &Held, common: &Common, disk: Disk) -> Result<Outcome> {
    let body = format!("{{\"ttl\":{HELD_TTL:?}}}");
    let each = held.each(Op::Renew, 200, false, Request::patch("", &body));
    let work = async |session: &mut Session<'_>| each.work(session).await;
    measure(target, common.connections, &timed("renew", common), disk, &work, |outcome| {
        outcome.rate_of(Op::Renew, "renewals per second", "renewals/s");
    })
}

/// Reads of these claims, up to date or, with `stale`, from the node's own table.
fn read_on(target: &Target, held: &Held, stale: bool, common: &Common, disk: Disk) -> Result<Outcome> {
    let (name, query) = if stale { ("read, stale", "?stale=true") } else { ("read", "") };
    let each = held.each(Op::Get, 200, false, Request::get("", query));
    let work = async |session: &mut Session<'_>| each.work(session).await;
    measure(target, common.connections, &timed(name, common), disk, &work, |outcome| {
        outcome.rate_of(Op::Get, "reads per second", "reads/s");
    })
}

/// Hand-overs with `waiters` waiting behind the holder, all of them exclusive.
fn queue_on(target: &Target, waiters: u32, common: &Common, disk: Disk) -> Result<Outcome> {
    queue_of(target, (waiters, false), common, disk)
}

/// The same, with waiters of all kinds if they are `mixed`.
fn queue_of(target: &Target, (waiters, mixed): (u32, bool), common: &Common, disk: Disk) -> Result<Outcome> {
    let kinds = if mixed { "mixed " } else { "" };
    let name = format!("queue, {waiters} {kinds}waiters");
    let (line, names) = (Line::new(mixed), Names::new("queu"));
    let work = async |session: &mut Session<'_>| line.stand(session, &names).await;
    // One more than wait: the holder. While it requeues there is still somebody to hand over to.
    measure(target, waiters + 1, &timed(&name, common), disk, &work, |outcome| {
        outcome.rate_of(Op::Handover, "hand-overs per second", "/s");
    })
}

/// The realistic mixture.
fn mix(closed: bool, common: &Common, disk: Disk) -> Result<Vec<Outcome>> {
    let target = Target::of(common)?;
    let rate = (!closed).then(|| common.rate.unwrap_or(1.0) * mix::requests_per_second());
    let (plan, mix) = (Plan { rate, ..timed("mix", common) }, Mix::new());
    let work = async |session: &mut Session<'_>| mix.work(session).await;
    Ok(vec![measure(&target, common.connections, &plan, disk, &work, |_| {})?])
}

/// Claim cycles against any target.
fn cycle_on(target: &Target, name: &str, common: &Common, disk: Disk) -> Result<Outcome> {
    let names = Names::new("cycl");
    let work =
        async |session: &mut Session<'_>| cycle(session, &names, (Op::Claim, Op::Release), || true).await;
    measure(target, common.connections, &timed(name, common), disk, &work, |outcome| {
        let of = |op| outcome.row(op).map_or(0.0, |row| row.per_second);
        let (claims, releases) = (of(Op::Claim), of(Op::Release));
        outcome.fact("cycles per second", claims.min(releases), "cycles/s");
        outcome.fact("requests per second", claims + releases, "req/s");
    })
}

/// Runs `work` on every connection and makes an outcome of it.
fn measure(
    target: &Target,
    connections: u32,
    plan: &Plan<'_>,
    disk: Disk,
    work: &impl AsyncFn(&mut Session<'_>) -> Result<()>,
    facts: impl FnOnce(&mut Outcome),
) -> Result<Outcome> {
    let stats = session::run(target, connections as usize, *plan, work)?;
    let mut outcome = Outcome::new(plan, connections as usize, stats, disk);
    facts(&mut outcome);
    Ok(outcome)
}
