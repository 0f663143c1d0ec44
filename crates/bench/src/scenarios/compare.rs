//! `compare`: two builds in one table.
//!
//! In:    two binaries of `leasehold`, a number of rounds.
//! Out:   one Markdown table: cycles, renewals, hand-overs and the memory of a million claims, old beside new; an error if
//!        new is worse by more than the tolerance.
//! Never: compares figures of different moments: the builds take turns in short rounds, the first one changes from round
//!        to round, and a ratio is made of two neighbours.

use std::path::Path;

use anyhow::Result;

use super::held::{Fill, HELD_TTL, Held, counted};
use super::report::{ROUND_SECONDS, cycles_per_second, us};
use super::{cycle_on, queue_on, renew_on};
use crate::args::{Common, CompareArgs};
use crate::disk::Disk;
use crate::output::{Outcome, digits};
use crate::process::resident_bytes;
use crate::session::{self, Session};
use crate::spread::Spread;
use crate::stats::Op;
use crate::target::Target;

/// Claims that are renewed.
const HELD: u32 = 10_000;
/// Connections that make the claims of the memory row.
const FILL_CONNECTIONS: usize = 64;

/// Old and new.
type Pair<T> = [T; 2];

/// Runs all measurements; the last outcome carries the table.
pub(super) fn run(common: &Common, args: &CompareArgs, disk: Disk) -> Result<Vec<Outcome>> {
    let seconds = Some(common.seconds.unwrap_or(ROUND_SECONDS));
    let common = Common { seconds, rate: None, ..common.clone() };
    let rounds = Rounds { count: args.rounds, outcomes: Vec::new() };
    let mut rows = Vec::new();
    let outcomes = in_turns(&common, args, disk, rounds, &mut rows)?;
    if args.claims > 0 {
        let bytes = |binary: &Path| bytes_per_claim(binary, &common, args.claims);
        let values = [vec![bytes(&args.old)?], vec![bytes(&args.new)?]];
        rows.push(Row::new(format!("bytes a claim, {} held", args.claims), Better::Less, values));
    }
    let mut summary = Outcome::of_facts("compare", disk);
    summary.table = Some(table(&rows, args.tolerance));
    for row in rows.iter().filter(|row| row.is_worse(args.tolerance)) {
        summary.errors.insert(format!("{}: worse by more than {} %", row.what, args.tolerance), 1);
    }
    Ok(outcomes.into_iter().chain([summary]).collect())
}

/// What has both builds running at the same time, one of them idle.
fn in_turns(
    common: &Common,
    args: &CompareArgs,
    disk: Disk,
    mut rounds: Rounds,
    rows: &mut Vec<Row>,
) -> Result<Vec<Outcome>> {
    let targets = [Target::serve(&args.old, &common.dir)?, Target::serve(&args.new, &common.dir)?];
    for &connections in &args.at {
        let common = Common { connections, ..common.clone() };
        let pairs = rounds.take(|side| cycle_on(&targets[side], "cycle", &common, disk))?;
        let what = format!("cycles/s, {connections} connections");
        rows.push(Row::new(what, Better::More, pairs.map(|side| figures(&side, cycles_per_second))));
    }
    let held = [Held::take(&targets[0], HELD)?, Held::take(&targets[1], HELD)?];
    let renewals = |outcome: &Outcome| outcome.row(Op::Renew).map_or(0.0, |row| row.per_second);
    let pairs = rounds.take(|side| renew_on(&targets[side], &held[side], common, disk))?;
    let what = format!("renewals/s, {} connections", common.connections);
    rows.push(Row::new(what, Better::More, pairs.map(|side| figures(&side, renewals))));
    let pairs = rounds.take(|side| queue_on(&targets[side], args.waiters, common, disk))?;
    for (name, better, figure) in [
        ("p50", Better::Less, (|outcome| us(outcome, Op::Handover).0) as fn(&Outcome) -> f64),
        ("p99", Better::LessButNoisy, |outcome| us(outcome, Op::Handover).1),
    ] {
        let what = format!("hand-over {name} in us, {} waiters", args.waiters);
        rows.push(Row::new(what, better, pairs.each_ref().map(|side| figures(side, figure))));
    }
    Ok(rounds.outcomes)
}

/// Runs both sides in turn.
struct Rounds {
    count: u32,
    /// Every round, for the errors in them.
    outcomes: Vec<Outcome>,
}

impl Rounds {
    fn take(&mut self, one: impl Fn(usize) -> Result<Outcome>) -> Result<Pair<Vec<Outcome>>> {
        let mut pairs: Pair<Vec<Outcome>> = Pair::default();
        for round in 0..self.count as usize {
            for side in [round % 2, 1 - round % 2] {
                pairs[side].push(one(side)?);
            }
        }
        self.outcomes.extend(pairs.iter().flatten().cloned());
        Ok(pairs)
    }
}

fn figures(rounds: &[Outcome], figure: impl Fn(&Outcome) -> f64) -> Vec<f64> {
    rounds.iter().map(figure).collect()
}

/// Resident bytes that each of `claims` held claims takes on a fresh server.
fn bytes_per_claim(binary: &Path, common: &Common, claims: u32) -> Result<f64> {
    let target = Target::serve(binary, &common.dir)?;
    let resident = || target.pid.map_or(Ok(0), resident_bytes);
    let before = resident()?;
    let fill = Fill::new("hold", HELD_TTL, 0, claims.into());
    let work = async |session: &mut Session<'_>| fill.work(session).await;
    session::run(&target, FILL_CONNECTIONS, counted("memory: fill", claims.into()), &work)?;
    Ok(resident()?.saturating_sub(before) as f64 / f64::from(claims))
}

/// What is better.
#[derive(Clone, Copy, PartialEq)]
enum Better {
    More,
    Less,
    /// Less, but the figure moves too much from round to round to judge by it.
    LessButNoisy,
}

/// One figure of both builds.
struct Row {
    what: String,
    better: Better,
    /// By round.
    values: Pair<Vec<f64>>,
}

impl Row {
    fn new(what: String, better: Better, values: Pair<Vec<f64>>) -> Self {
        Self { what, better, values }
    }

    /// How many times better new is, round by round.
    fn ratio(&self) -> Spread {
        let pairs = self.values[0].iter().zip(&self.values[1]);
        let ratios = pairs.map(|(old, new)| if self.better == Better::More { new / old } else { old / new });
        Spread::of(ratios)
    }

    fn is_worse(&self, tolerance: f64) -> bool {
        self.better != Better::LessButNoisy && self.ratio().median < 1.0 - tolerance / 100.0
    }
}

fn table(rows: &[Row], tolerance: f64) -> String {
    let mut out =
        String::from("| what | old | new | new / old: median (least to most) | |\n|---|---|---|---|---|");
    for row in rows {
        let [old, new] =
            row.values.each_ref().map(|values| digits(Spread::of(values.iter().copied()).median));
        let verdict = if row.is_worse(tolerance) { "**worse**" } else { "" };
        out += &format!("\n| {} | {old} | {new} | {} | {verdict} |", row.what, row.ratio());
    }
    out + "\n\nRatios above 1 mean that new is better."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_worse_beyond_the_tolerance_only_and_noise_is_not_judged() {
        let row = |better, old: f64, new: f64| Row::new("x".into(), better, [vec![old; 3], vec![new; 3]]);
        assert!(row(Better::More, 100.0, 96.0).is_worse(3.0));
        assert!(!row(Better::More, 100.0, 98.0).is_worse(3.0));
        assert!(row(Better::Less, 100.0, 104.0).is_worse(3.0));
        assert!(!row(Better::LessButNoisy, 100.0, 200.0).is_worse(3.0));
        let text = table(&[row(Better::More, 100.0, 50.0)], 3.0);
        assert!(text.contains("| x | 100 | 50.0 | 0.50 (0.50 to 0.50) | **worse** |"), "{text}");
    }

    #[test]
    fn the_builds_take_turns_and_the_first_one_changes() {
        let order = std::cell::RefCell::new(Vec::new());
        let mut rounds = Rounds { count: 3, outcomes: Vec::new() };
        let disk = Disk { fdatasync_p50_us: 1.0, fdatasync_p99_us: 1.0 };
        let one = |side| {
            order.borrow_mut().push(side);
            Ok(Outcome::of_facts("round", disk))
        };
        let pairs = rounds.take(one).unwrap();
        assert_eq!(order.into_inner(), [0, 1, 1, 0, 0, 1]);
        assert_eq!((pairs[0].len(), pairs[1].len(), rounds.outcomes.len()), (3, 3, 6));
    }
}
