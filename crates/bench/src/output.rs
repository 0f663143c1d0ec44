//! What the reader sees: progress on standard error, results as text or as one JSON document.
//!
//! In:    `Outcome`s of the scenarios.
//! Out:   lines. The disk's fdatasync stands beside every figure: without it a figure means nothing.
//! Never: anything but results on standard output.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::disk::Disk;
use crate::histogram::Histogram;
use crate::load::{Plan, Span};
use crate::stats::{OPS, Op, STALL, Stats};

/// The figures of one run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
    /// What ran.
    pub(crate) name: String,
    /// Connections used.
    pub(crate) connections: usize,
    /// Departures a second in the open loop, null in the closed loop.
    pub(crate) rate: Option<f64>,
    /// Length of the measured window.
    pub(crate) seconds: f64,
    /// Single figures: rates, bytes, times.
    pub(crate) facts: Vec<Fact>,
    /// Latencies by operation.
    pub(crate) latencies: Vec<Row>,
    /// Errors by operation and kind.
    pub(crate) errors: BTreeMap<String, u64>,
    /// The first few errors in full.
    pub(crate) error_samples: Vec<String>,
    /// Cores used by the generator.
    pub(crate) generator_cores: f64,
    /// Cores used by the server, where its pid is known.
    pub(crate) server_cores: Option<f64>,
    /// The disk at the time.
    pub(crate) disk: Disk,
    /// A finished Markdown table, where the figures belong side by side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) table: Option<String>,
}

/// One figure.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Fact {
    /// What it is.
    pub(crate) name: String,
    /// How much.
    pub(crate) value: f64,
    /// Of what.
    pub(crate) unit: &'static str,
}

/// The latencies of one operation.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    /// The operation.
    pub(crate) op: &'static str,
    /// How many were counted.
    pub(crate) count: u64,
    /// How many a second.
    pub(crate) per_second: f64,
    /// Median in microseconds.
    pub(crate) p50_us: f64,
    /// 99th percentile in microseconds.
    pub(crate) p99_us: f64,
    /// 99.9th percentile in microseconds.
    pub(crate) p999_us: f64,
    /// Largest, exact, in microseconds.
    pub(crate) max_us: f64,
    /// How many took longer than 10 ms.
    pub(crate) over_10_ms: u64,
}

impl Outcome {
    /// The figures of `stats`.
    pub(crate) fn new(plan: &Plan<'_>, connections: usize, stats: Stats, disk: Disk) -> Self {
        let cores = |used: Duration| used.as_secs_f64() / stats.cpu.over.as_secs_f64().max(1e-9);
        let seen = OPS.into_iter().filter(|op| stats.of(*op).count() > 0);
        let latencies = seen.map(|op| Row::new(op.name(), stats.per_second(op), stats.of(op)));
        let mut outcome = Self {
            name: plan.name.to_owned(),
            connections,
            rate: plan.rate,
            seconds: stats.measured.as_secs_f64(),
            facts: Vec::new(),
            latencies: latencies.collect(),
            errors: BTreeMap::new(),
            error_samples: Vec::new(),
            generator_cores: cores(stats.cpu.generator),
            server_cores: stats.cpu.server.map(cores),
            disk,
            table: None,
        };
        if stats.unsent > 0 {
            outcome.fact(
                "scheduled but never sent: the server does not keep up",
                stats.unsent as f64,
                "requests",
            );
        }
        if matches!(plan.span, Span::Timed(_)) && outcome.latencies.is_empty() && stats.errors.is_empty() {
            outcome.errors.insert("nothing was measured".to_owned(), 1);
        }
        outcome.errors.extend(stats.errors);
        outcome.error_samples = stats.error_samples;
        outcome
    }

    /// An outcome of single figures, without a run of its own.
    pub(crate) fn of_facts(name: &str, disk: Disk) -> Self {
        Self {
            name: name.to_owned(),
            connections: 1,
            rate: None,
            seconds: 0.0,
            facts: Vec::new(),
            latencies: Vec::new(),
            errors: BTreeMap::new(),
            error_samples: Vec::new(),
            generator_cores: 0.0,
            server_cores: None,
            disk,
            table: None,
        }
    }

    /// Adds a figure.
    pub(crate) fn fact(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.facts.push(Fact { name: name.into(), value, unit });
    }

    /// Adds the rate of an operation as a figure.
    pub(crate) fn rate_of(&mut self, op: Op, name: &str, unit: &'static str) {
        self.fact(name, self.row(op).map_or(0.0, |row| row.per_second), unit);
    }

    /// Adds what was measured beside the requests.
    pub(crate) fn beside(&mut self, what: &'static str, seen: &Histogram) {
        self.latencies.push(Row::new(what, seen.count() as f64 / self.seconds.max(1e-3), seen));
    }

    /// The row of one operation.
    pub(crate) fn row(&self, op: Op) -> Option<&Row> {
        self.latencies.iter().find(|row| row.op == op.name())
    }

    fn text(&self) -> String {
        let pace = self.rate.map_or("closed loop".to_owned(), |rate| format!("open loop at {rate:.0}/s"));
        let mut out = self.name.clone();
        if self.seconds > 0.0 {
            out += &format!(": {} connections, {pace}, {:.1} s", self.connections, self.seconds);
        }
        out.push('\n');
        // Writing to a String cannot fail.
        let mut line = |text: std::fmt::Arguments<'_>| writeln!(out, "{text}").ok();
        if let Some(table) = &self.table {
            line(format_args!("{table}"));
        }
        for Fact { name, value, unit } in &self.facts {
            line(format_args!("  {name:<40} {:>12} {unit:<10} | {}", digits(*value), self.disk));
        }
        for row in &self.latencies {
            line(format_args!("  {row} | {}", self.disk));
        }
        if self.generator_cores > 0.0 {
            let server = self.server_cores.map_or(String::new(), |cores| format!(", server {cores:.2}"));
            line(format_args!("  cores used: generator {:.2}{server}", self.generator_cores));
        }
        for (kind, count) in &self.errors {
            line(format_args!("  ERROR {count} x {kind}"));
        }
        for sample in &self.error_samples {
            line(format_args!("    {sample}"));
        }
        out
    }
}

impl Row {
    fn new(op: &'static str, per_second: f64, histogram: &Histogram) -> Self {
        let us = |latency: Duration| latency.as_nanos() as f64 / 1e3;
        Self {
            op,
            count: histogram.count(),
            per_second,
            p50_us: us(histogram.quantile(0.5)),
            p99_us: us(histogram.quantile(0.99)),
            p999_us: us(histogram.quantile(0.999)),
            max_us: us(histogram.max()),
            over_10_ms: histogram.count_over(STALL),
        }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |us: f64| format!("{:.2}", us / 1e3);
        write!(
            f,
            "{:<14} {:>9}/s  p50 {:>6}  p99 {:>6}  p99.9 {:>6}  max {:>7} ms  {:>3} over 10 ms",
            self.op,
            digits(self.per_second),
            ms(self.p50_us),
            ms(self.p99_us),
            ms(self.p999_us),
            ms(self.max_us),
            self.over_10_ms
        )
    }
}

/// Whole numbers where they are large, decimals where they are small.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Prints the results, as text or as one JSON document.
pub(crate) fn results(outcomes: &[Outcome], disk: Disk, json: bool) -> Result<()> {
    if !json {
        print(&outcomes.iter().map(Outcome::text).collect::<String>());
        return Ok(());
    }
    let document = serde_json::json!({ "disk": disk, "outcomes": outcomes });
    print(&(serde_json::to_string_pretty(&document).context("writing JSON")? + "\n"));
    Ok(())
}

/// Writes to standard output. A reader that has enough (`| head`) is no error.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
}

/// One line on standard error.
pub fn progress(text: &str) {
    std::io::stderr().write_all(format!("{text}\n").as_bytes()).ok();
}
