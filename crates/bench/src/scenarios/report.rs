//! `report`: the table of docs/notes/benchmarks.md in one run.
//!
//! In:    numbers of connections, lengths of queues, a number of rounds.
//! Out:   one Markdown table: cycles beside the ceiling, one client beside the disk, hand-overs.
//! Never: compares figures of different minutes. Cycle and ceiling alternate in short rounds, so that whatever
//!        else the machine does hits both; the table holds medians and their spread.

use anyhow::Result;

use super::{cycle_on, queue_on};
use crate::args::{Common, Shape};
use crate::disk::{self, Disk};
use crate::output::Outcome;
use crate::spread::Spread;
use crate::stats::Op;
use crate::target::Target;

/// Measured seconds of a round unless told otherwise.
pub(super) const ROUND_SECONDS: f64 = 2.0;

/// Runs all measurements; the last outcome carries the table.
pub(super) fn run(common: &Common, shape: &Shape, disk: Disk) -> Result<Vec<Outcome>> {
    let seconds = Some(common.seconds.unwrap_or(ROUND_SECONDS));
    let common = Common { seconds, rate: None, ..common.clone() };
    let server = Target::of(&common)?;
    let responder = Target::responder(&common.dir)?;
    let mut table = Table::default();
    let mut outcomes = Vec::new();
    for &connections in &shape.at {
        let common = Common { connections, ..common.clone() };
        let disk = disk::measure(&common.dir)?;
        let (mut cycles, mut ceilings) = (Vec::new(), Vec::new());
        for _ in 0..shape.rounds {
            cycles.push(cycle_on(&server, "cycle", &common, disk)?);
            ceilings.push(cycle_on(&responder, "ceiling", &common, disk)?);
        }
        table.cycles(connections, &cycles, &ceilings, disk);
        outcomes.append(&mut cycles);
        outcomes.append(&mut ceilings);
    }
    let one = Common { connections: 1, ..common.clone() };
    // The disk is measured before each round: it is what a lone client waits for, and changes from second to second.
    let clients =
        (0..shape.rounds).map(|_| cycle_on(&server, "one client", &one, disk::measure(&common.dir)?));
    let mut clients = clients.collect::<Result<Vec<_>>>()?;
    table.one_client(&clients);
    outcomes.append(&mut clients);
    for &waiters in &shape.waiters {
        let near = disk::measure(&common.dir)?;
        let rounds = (0..shape.rounds).map(|_| queue_on(&server, waiters, &common, near));
        let mut rounds = rounds.collect::<Result<Vec<_>>>()?;
        table.handovers(waiters, &rounds, near);
        outcomes.append(&mut rounds);
    }
    let mut summary = Outcome::of_facts("report", disk);
    summary.table = Some(table.markdown());
    outcomes.push(summary);
    Ok(outcomes)
}

/// The rows of the table.
#[derive(Default)]
pub(super) struct Table(Vec<String>);

impl Table {
    pub(super) fn row(&mut self, what: &str, figure: &str, disk: Disk) {
        let (p50, p99) = (disk.fdatasync_p50_us, disk.fdatasync_p99_us);
        self.0.push(format!("| {what} | {figure} | {p50:.0} / {p99:.0} us |"));
    }

    fn cycles(&mut self, connections: u32, cycles: &[Outcome], ceilings: &[Outcome], disk: Disk) {
        let ours = spread(cycles, cycles_per_second);
        let ceiling = spread(ceilings, cycles_per_second);
        let fraction = ours.median / ceiling.median.max(1.0);
        let claim = |pick: fn(&Outcome) -> f64| spread(cycles, pick).median / 1e3;
        let (p50, p99) =
            (claim(|outcome| us(outcome, Op::Claim).0), claim(|outcome| us(outcome, Op::Claim).1));
        self.row(&format!("cycles/s, {connections} connections"), &ours.to_string(), disk);
        self.row(&format!("ceiling, {connections} connections"), &ceiling.to_string(), disk);
        self.row(&format!("cycle / ceiling, {connections} connections"), &format!("{fraction:.2}"), disk);
        let figure = format!("{p50:.2} / {p99:.2} ms");
        self.row(&format!("claim p50 / p99, {connections} connections"), &figure, disk);
    }

    fn one_client(&mut self, rounds: &[Outcome]) {
        let median = |figure: fn(&Outcome) -> f64| spread(rounds, figure).median;
        let p50 = median(|round| us(round, Op::Claim).0);
        let times = median(|round| us(round, Op::Claim).0 / round.disk.fdatasync_p50_us.max(1.0));
        let disk = Disk {
            fdatasync_p50_us: median(|round| round.disk.fdatasync_p50_us),
            fdatasync_p99_us: median(|round| round.disk.fdatasync_p99_us),
        };
        self.row("claim p50, one client", &format!("{:.2} ms = {times:.1} x fdatasync p50", p50 / 1e3), disk);
    }

    pub(super) fn handovers(&mut self, waiters: u32, rounds: &[Outcome], disk: Disk) {
        let ms = |pick: fn(&Outcome) -> f64| spread(rounds, pick).median / 1e3;
        let (p50, p99) =
            (ms(|outcome| us(outcome, Op::Handover).0), ms(|outcome| us(outcome, Op::Handover).1));
        let p999 = ms(|outcome| outcome.row(Op::Handover).map_or(0.0, |row| row.p999_us));
        let figure = format!("{p50:.2} / {p99:.2} / {p999:.2} ms");
        self.row(&format!("hand-over p50 / p99 / p99.9, {waiters} waiters"), &figure, disk);
    }

    pub(super) fn markdown(&self) -> String {
        let head = "| what | median (lowest to highest round) | fdatasync p50 / p99 |\n|---|---|---|\n";
        format!("{head}{}", self.0.join("\n"))
    }
}

pub(super) fn cycles_per_second(outcome: &Outcome) -> f64 {
    outcome.row(Op::Claim).map_or(0.0, |row| row.per_second)
}

/// Median and 99th percentile of an operation, in microseconds.
pub(super) fn us(outcome: &Outcome, op: Op) -> (f64, f64) {
    outcome.row(op).map_or((0.0, 0.0), |row| (row.p50_us, row.p99_us))
}

/// One figure of all rounds.
pub(super) fn spread(rounds: &[Outcome], figure: fn(&Outcome) -> f64) -> Spread {
    Spread::of(rounds.iter().map(figure))
}
