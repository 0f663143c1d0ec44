//! What a run found: rows of rounds, as a table for people and as JSON for programs.
//!
//! In:    `Row`s, from `scenarios.rs` and `holding.rs`. Out: Markdown and JSON.
//! Never: compares rounds of different moments: the ratio of a round is to Leasehold's round of the same turn.

use std::fmt::Write as _;

use leasehold_bench::spread::Spread;
use serde_json::{Value, json};

use crate::rounds::Round;

/// What is compared.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Measure {
    /// More is better.
    Rate,
    /// Less is better.
    P99,
}

/// One system in one scenario, and its rounds in order.
#[derive(Clone)]
pub(crate) struct Row {
    /// The scenario.
    pub(crate) scenario: String,
    /// The system and its way.
    pub(crate) system: String,
    /// What ratios are made of.
    pub(crate) measure: Measure,
    /// Rounds, in the order they were run.
    pub(crate) rounds: Vec<Round>,
    /// Whether the others are compared with this one.
    pub(crate) is_ours: bool,
}

fn spread_json(spread: Spread) -> Value {
    json!({"median": spread.median, "min": spread.min, "max": spread.max})
}

impl Row {
    /// One number of every round.
    pub(crate) fn spread(&self, of: impl Fn(&Round) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(of))
    }

    /// Whether any of its rounds worked.
    fn is_measured(&self) -> bool {
        self.rounds.iter().any(|round| round.per_second.is_finite())
    }

    /// How many times better `ours` was, round by round.
    fn ratio(&self, ours: &Self) -> Spread {
        Spread::of(ours.rounds.iter().zip(&self.rounds).map(|(ours, theirs)| match self.measure {
            Measure::Rate => ours.per_second / theirs.per_second,
            Measure::P99 => theirs.p99_us / ours.p99_us,
        }))
    }
}

/// The row of ours that `row` is compared with.
fn ours<'a>(rows: &'a [Row], row: &Row) -> Option<&'a Row> {
    rows.iter().find(|other| other.is_ours && other.scenario == row.scenario)
}

/// A Markdown table.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| scenario | system | per second | p50 ms | p99 ms | CPU us each | client CPU us each | Leasehold is better by: median (least to most) |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    // A row without a single round that worked is named below the table instead.
    for row in rows.iter().filter(|row| row.is_measured()) {
        let ratio = match ours(rows, row) {
            Some(ours) if !row.is_ours => {
                let ratio = row.ratio(ours);
                format!("**{:.2}x** ({:.2} to {:.2})", ratio.median, ratio.min, ratio.max)
            }
            _ => String::new(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "| {} | {} | {} | {:.2} | {:.2} | {:.1} | {:.1} | {ratio} |",
            row.scenario,
            row.system,
            thousands(row.spread(|round| round.per_second).median),
            row.spread(|round| round.p50_us).median / 1e3,
            row.spread(|round| round.p99_us).median / 1e3,
            row.spread(|round| round.cpu_us).median,
            row.spread(|round| round.client_cpu_us).median,
        );
    }
    out
}

/// The same for programs.
pub(crate) fn json(rows: &[Row]) -> Value {
    rows.iter()
        .filter(|row| row.is_measured())
        .map(|row| {
            json!({
                "scenario": row.scenario,
                "system": row.system,
                "rounds": row.rounds.len(),
                "per_second": spread_json(row.spread(|round| round.per_second)),
                "p50_us": spread_json(row.spread(|round| round.p50_us)),
                "p99_us": spread_json(row.spread(|round| round.p99_us)),
                "cpu_us_each": spread_json(row.spread(|round| round.cpu_us)),
                "client_cpu_us_each": spread_json(row.spread(|round| round.client_cpu_us)),
                "ratio_of": if row.measure == Measure::Rate { "rate" } else { "p99" },
                "leasehold_better_by": ours(rows, row).filter(|_| !row.is_ours).map(|ours| spread_json(row.ratio(ours))),
            })
        })
        .collect()
}

fn thousands(value: f64) -> String {
    if value >= 10_000.0 { format!("{:.1}k", value / 1e3) } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(is_ours: bool, rates: &[f64]) -> Row {
        let rounds = rates.iter().map(|rate| Round { per_second: *rate, p99_us: *rate, ..Round::default() });
        let (scenario, system) = ("s".to_owned(), "x".to_owned());
        Row { scenario, system, measure: Measure::Rate, rounds: rounds.collect(), is_ours }
    }

    #[test]
    fn ratios_are_made_round_by_round() {
        let rows = [row(true, &[10.0, 40.0, 10.0]), row(false, &[5.0, 10.0, 10.0])];
        let ratio = rows[1].ratio(&rows[0]);
        assert_eq!((ratio.median, ratio.min, ratio.max), (2.0, 1.0, 4.0));
        assert!(table(&rows).contains("**2.00x** (1.00 to 4.00)"));
        assert_eq!(json(&rows)[1]["leasehold_better_by"]["median"], 2.0);
        assert!(json(&rows)[0]["leasehold_better_by"].is_null());
    }

    #[test]
    fn tells_what_the_client_used_itself() {
        let mut ours = row(true, &[10.0]);
        ours.rounds[0] = Round { cpu_us: 76.7, client_cpu_us: 23.4, ..ours.rounds[0] };
        let rows = [ours];
        assert!(table(&rows).contains("| 76.7 | 23.4 |"));
        assert_eq!(json(&rows)[0]["client_cpu_us_each"]["median"], 23.4);
        let columns = table(&rows).lines().map(|line| line.matches('|').count()).collect::<Vec<_>>();
        assert_eq!(columns, [9, 9, 9], "every line has every column");
    }

    #[test]
    fn a_peer_without_a_round_that_worked_is_left_out_of_the_table_and_the_rest_counts() {
        let rows =
            [row(true, &[10.0, 10.0]), row(false, &[f64::NAN, 5.0]), row(false, &[f64::NAN, f64::NAN])];
        assert_eq!(table(&rows).lines().count(), 2 + 2);
        assert!(table(&rows).contains("**2.00x** (2.00 to 2.00)"));
        assert_eq!(json(&rows).as_array().unwrap().len(), 2);
    }

    #[test]
    fn of_latencies_less_is_better() {
        let mut theirs = row(false, &[30.0]);
        theirs.measure = Measure::P99;
        assert_eq!(theirs.ratio(&row(true, &[10.0])).median, 3.0);
    }
}
