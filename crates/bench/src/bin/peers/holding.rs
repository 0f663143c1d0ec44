//! What it takes to hold many claims: their renewals, beside those of the others, and what each costs in memory.
//!
//! In:    running systems, filled with held claims; `leasehold bench hold`. Out: `Row`s, a column of the picture, and numbers
//!        for each count of held claims.
//! Never: compares what others hold in memory: only Leasehold's own binary is asked.

use anyhow::{Context, Result};
use leasehold_bench::reactor::ensure_wanted;
use serde_json::{Value, json};

use crate::clients::Way;
use crate::curve::{Column, Point};
use crate::report::{Measure, Row};
use crate::rounds;
use crate::say;
use crate::scenarios::{Bench, CONNECTIONS};
use crate::systems::{Kind, System};

/// Leases, claims and keys held while they are renewed.
const HELD: usize = 10_000;
/// Claims renewed by one request, where many go into one.
const RENEWAL_BATCH: usize = 100;

pub(crate) fn renewals_name() -> String {
    format!("renewals, {HELD} held, {} connections", CONNECTIONS[0])
}

impl Bench<'_> {
    /// Renewals of many held claims, one by one and many in one request.
    pub(crate) fn renewals(&mut self, systems: &mut Vec<System>) -> Result<()> {
        let scenario = renewals_name();
        if !self.wants(&scenario) {
            return Ok(());
        }
        let batched = format!("Leasehold, {RENEWAL_BATCH} claims a request");
        let kinds = [
            (Way::Leasehold, Way::Leasehold.name(), 1, true),
            (Way::EtcdLock, "etcd, keep-alives (not durable)", 1, false),
            (Way::Leasehold, batched.as_str(), RENEWAL_BATCH, false),
            (Way::RedisSet, "redis, PEXPIRE", 1, false),
            (Way::PostgresRow, "postgresql, UPDATE", 1, false),
        ];
        let mut ready = Vec::new();
        for (way, name, batch, is_ours) in kinds {
            let Some(system) = find(systems, way) else { continue };
            say(&format!("{scenario}: {name}: filling"));
            match rounds::fill(self.target(system, way, CONNECTIONS[0], &[]), HELD) {
                Ok(ids) => ready.push((way, name, batch, ids)),
                Err(error) => {
                    self.failed(Kind::of(way), &format!("{name}: filling: {error:#}"))?;
                    continue;
                }
            }
            let (scenario, system) = (scenario.clone(), name.to_owned());
            self.rows.push(Row { scenario, system, measure: Measure::Rate, rounds: Vec::new(), is_ours });
        }
        let first = self.rows.len() - ready.len();
        for turn in 1..=self.effort.turns {
            for (at, (way, name, batch, ids)) in ready.iter().enumerate() {
                let what = format!("{scenario}: turn {turn} of {}: {name}", self.effort.turns);
                let round =
                    self.repeated(&what, systems, *way, |target| rounds::renew(target, ids, *batch))?;
                self.rows[first + at].rounds.push(round);
            }
        }
        self.compare_batches(first);
        Ok(())
    }

    /// The same rounds once more, the many in one request against everybody's one by one.
    fn compare_batches(&mut self, first: usize) {
        let mut again: Vec<Row> = self.rows[first..].iter().filter(|row| !row.is_ours).cloned().collect();
        for row in &mut again {
            row.scenario += ", ours many in one request";
            row.is_ours = row.system.starts_with("Leasehold");
        }
        let mut at = 0;
        self.rows.retain(|row| {
            at += 1;
            at <= first || row.is_ours || !row.system.starts_with("Leasehold")
        });
        self.rows.extend(again);
    }

    /// `leasehold bench hold`, at growing numbers of claims.
    pub(crate) fn held_claims(&mut self) -> Result<()> {
        let mut points = Vec::new();
        for count in self.effort.held {
            ensure_wanted()?;
            say(&format!("holding {count} claims"));
            let output = std::process::Command::new(self.leasehold)
                .args([
                    "bench",
                    "hold",
                    "--serve",
                    "--json",
                    "--seconds",
                    "2",
                    "--claims",
                    &count.to_string(),
                ])
                .arg("--dir")
                .arg(self.scratch.sub("hold")?)
                .stderr(std::process::Stdio::null())
                .output()
                .context("running `leasehold bench hold`")?;
            ensure_wanted()?;
            let Ok(found) = serde_json::from_slice::<Value>(&output.stdout) else {
                self.failures.push(format!("`leasehold bench hold --claims {count}` gave no JSON"));
                continue;
            };
            let fact = |name: &str| find_fact(&found, name);
            let latency = |phase: &str, op: &str, name: &str| find_latency(&found, phase, op, name);
            let rate = fact("renewals per second");
            let p99_ms = latency("hold: renew", "renew", "p99_us") / 1e3;
            points.push(Point { x: f64::from(*count), rate, p99_ms });
            self.held.push(json!({
                "claims": count,
                "resident_bytes_per_claim": fact("resident per claim"),
                "resident_bytes": fact("resident after"),
                "renewals_per_second": rate,
                "renewal_p99_ms": p99_ms,
                "restart_ms": fact("after SIGTERM"),
                "restart_after_kill_ms": fact("after SIGKILL"),
                // The filling writes snapshots beside it, so their pauses show in the worst request of the probe.
                "worst_probe_while_filling_ms": latency("hold: fill", "probe claim", "max_us") / 1e3,
            }));
        }
        let lines = vec![("Leasehold", points)];
        self.columns.push(Column { title: "held claims, 1 node", unit: "renewals", lines });
        Ok(())
    }
}

/// The system that goes this way, if it runs.
fn find(systems: &[System], way: Way) -> Option<&System> {
    systems.iter().find(|system| system.kind == Kind::of(way))
}

fn find_fact(found: &Value, name: &str) -> f64 {
    let outcomes = found["outcomes"].as_array().into_iter().flatten();
    let mut facts = outcomes.flat_map(|outcome| outcome["facts"].as_array().into_iter().flatten());
    facts.find(|fact| fact["name"] == name).and_then(|fact| fact["value"].as_f64()).unwrap_or(f64::NAN)
}

fn find_latency(found: &Value, phase: &str, op: &str, name: &str) -> f64 {
    let mut outcomes = found["outcomes"].as_array().into_iter().flatten();
    let outcome = outcomes.find(|outcome| outcome["name"] == phase);
    let mut rows = outcome.and_then(|outcome| outcome["latencies"].as_array()).into_iter().flatten();
    rows.find(|row| row["op"] == op).and_then(|row| row[name].as_f64()).unwrap_or(f64::NAN)
}
