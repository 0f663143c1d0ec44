//! What is measured, and in which order: one turn of every system, then the next turn.
//!
//! In:    running systems. Out: `Row`s, with as many rounds each as there were turns.
//! Never: lets one system's rounds stand together: what the machine does meanwhile should hit all alike.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::clients::Way;
use crate::curve::{Column, Point};
use crate::load::{self, Round, Target};
use crate::process::Scratch;
use crate::report::{Measure, Row};
use crate::say;
use crate::systems::{Kind, System};

/// Leases, claims and keys held while they are renewed.
const HELD: usize = 10_000;
/// Claims renewed by one request, where many go into one.
const RENEWAL_BATCH: usize = 100;
const WAITERS: usize = 100;
const CONNECTIONS: [usize; 2] = [64, 256];

/// How much of everything.
pub(crate) struct Effort {
    /// Turns of each scenario.
    pub(crate) turns: usize,
    /// Before each round.
    pub(crate) warmup: Duration,
    /// Each round.
    pub(crate) length: Duration,
    /// Numbers of held claims.
    pub(crate) held: &'static [u32],
}

/// A scenario's work for one system.
#[derive(Clone, Copy)]
enum Work {
    Cycle,
    HandOver,
}

/// The run so far.
pub(crate) struct Bench<'a> {
    /// The binary under test.
    pub(crate) leasehold: &'a Path,
    /// Where data goes.
    pub(crate) scratch: &'a Scratch,
    /// How much.
    pub(crate) effort: Effort,
    /// A part of the names of the scenarios wanted; all of them if it is empty.
    pub(crate) only: String,
    /// What was found.
    pub(crate) rows: Vec<Row>,
    /// The picture's columns.
    pub(crate) columns: Vec<Column>,
    /// What held claims cost.
    pub(crate) held: Vec<Value>,
    /// What did not work.
    pub(crate) failures: Vec<String>,
}

impl Bench<'_> {
    /// Everything, in order.
    pub(crate) fn run(&mut self) -> Result<()> {
        self.one_node()?;
        if self.wants(&hand_over_of(3)) || CONNECTIONS.iter().any(|count| self.wants(&cycle_of(3, *count))) {
            self.three_nodes()?;
        }
        if self.only.is_empty() {
            self.nodes_column();
            self.held_claims()?;
        }
        Ok(())
    }

    /// Whether this scenario was asked for.
    fn wants(&self, scenario: &str) -> bool {
        scenario.contains(&self.only)
    }

    fn start(&mut self, kinds: &[Kind], nodes: usize) -> Result<Vec<System>> {
        let mut systems = Vec::new();
        for kind in kinds {
            say(&format!("starting {} ({nodes})", kind.name()));
            systems.push(System::start(*kind, nodes, self.leasehold, self.scratch)?);
        }
        // One round of each that does not count: Java runs several times faster after it.
        for kind in kinds {
            let what = format!("warming up {}", kind.name());
            self.round(&what, &systems, kind.simple_way(), CONNECTIONS[0], Work::Cycle)?;
        }
        Ok(systems)
    }

    fn one_node(&mut self) -> Result<()> {
        use Kind::{Ceiling, Etcd, Leasehold, Postgres, Redis, ZooKeeper};
        let systems = self.start(&[Leasehold, Ceiling, Etcd, Redis, ZooKeeper, Postgres], 1)?;
        let ways = [
            Way::Leasehold,
            Way::Ceiling,
            Way::EtcdTxn,
            Way::EtcdLock,
            Way::EtcdLease,
            Way::RedisSet,
            Way::RedisLock,
            Way::ZooKeeperNode,
            Way::ZooKeeperLock,
            Way::PostgresRow,
            Way::PostgresAdvisory,
        ];
        for clients in CONNECTIONS {
            self.turns(&cycle_of(1, clients), &systems, &ways, clients, Work::Cycle)?;
        }
        let queues = [Way::Leasehold, Way::EtcdLock, Way::ZooKeeperLock, Way::PostgresAdvisory];
        self.turns(&hand_over_of(1), &systems, &queues, WAITERS + 1, Work::HandOver)?;
        self.renewals(&systems)?;
        if !self.only.is_empty() {
            return Ok(());
        }
        let cycles =
            [("Leasehold", Way::Leasehold), ("etcd", Way::EtcdTxn), ("ZooKeeper", Way::ZooKeeperNode)];
        self.column("connections, 1 node", "cycles", &systems, &cycles, &[1, 8, 64, 256, 1024], Work::Cycle)?;
        let queues =
            [("Leasehold", Way::Leasehold), ("etcd", Way::EtcdLock), ("ZooKeeper", Way::ZooKeeperLock)];
        self.column("waiters, 1 node", "hand-overs", &systems, &queues, &[1, 10, 100, 400], Work::HandOver)
    }

    fn three_nodes(&mut self) -> Result<()> {
        let systems = self.start(&[Kind::Leasehold, Kind::Etcd, Kind::ZooKeeper], 3)?;
        let ways = [Way::Leasehold, Way::EtcdTxn, Way::EtcdLock, Way::ZooKeeperNode, Way::ZooKeeperLock];
        for clients in CONNECTIONS {
            self.turns(&cycle_of(3, clients), &systems, &ways, clients, Work::Cycle)?;
        }
        let queues = [Way::Leasehold, Way::EtcdLock, Way::ZooKeeperLock];
        self.turns(&hand_over_of(3), &systems, &queues, WAITERS + 1, Work::HandOver)
    }

    /// All ways in turn, as often as there are turns.
    fn turns(
        &mut self,
        scenario: &str,
        systems: &[System],
        ways: &[Way],
        clients: usize,
        work: Work,
    ) -> Result<()> {
        if !self.wants(scenario) {
            return Ok(());
        }
        let first = self.rows.len();
        let measure = if matches!(work, Work::Cycle) { Measure::Rate } else { Measure::P99 };
        for way in ways {
            self.rows.push(Row {
                scenario: scenario.to_owned(),
                system: way.name().to_owned(),
                measure,
                rounds: Vec::new(),
                is_ours: *way == Way::Leasehold,
            });
        }
        for turn in 1..=self.effort.turns {
            for (at, way) in ways.iter().enumerate() {
                let what = format!("{scenario}: turn {turn} of {}: {}", self.effort.turns, way.name());
                let round = self.round(&what, systems, *way, clients, work)?;
                self.rows[first + at].rounds.push(round);
            }
        }
        Ok(())
    }

    fn round(
        &mut self,
        what: &str,
        systems: &[System],
        way: Way,
        clients: usize,
        work: Work,
    ) -> Result<Round> {
        let result = find(systems, way).and_then(|system| {
            let pids = system.pids();
            let target = self.target(system, way, clients, &pids);
            match work {
                Work::Cycle => load::cycle(target),
                Work::HandOver => load::hand_over(Target { may_queue: true, ..target }),
            }
        });
        self.kept(what, result)
    }

    fn target<'a>(&self, system: &System, way: Way, clients: usize, pids: &'a [u32]) -> Target<'a> {
        let Effort { warmup, length, .. } = self.effort;
        Target { way, addr: system.addr, pids, clients, warmup, length, may_queue: false }
    }

    /// Tells what a round found. A failed one counts as none, and is told of once more at the end.
    fn kept(&mut self, what: &str, result: Result<Round>) -> Result<Round> {
        ensure!(!crate::is_interrupted(), "interrupted");
        Ok(match result {
            Ok(round) => {
                say(&format!("{what}: {:.0}/s, p99 {:.2} ms", round.per_second, round.p99_us / 1e3));
                round
            }
            Err(error) => {
                say(&format!("{what}: failed: {error:#}"));
                self.failures.push(format!("{what}: {error:#}"));
                Round::FAILED
            }
        })
    }

    fn renewals(&mut self, systems: &[System]) -> Result<()> {
        let scenario = format!("renewals, {HELD} held, {} connections", CONNECTIONS[0]);
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
            say(&format!("{scenario}: {name}: filling"));
            let filled = find(systems, way)
                .and_then(|system| load::fill(self.target(system, way, CONNECTIONS[0], &[]), HELD));
            match filled {
                Ok(ids) => ready.push((way, name, batch, ids)),
                Err(error) => {
                    self.failures.push(format!("{name}: {error:#}"));
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
                let round = find(systems, *way).and_then(|system| {
                    let pids = system.pids();
                    load::renew(self.target(system, *way, CONNECTIONS[0], &pids), ids, *batch)
                });
                let round = self.kept(&what, round)?;
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

    fn column(
        &mut self,
        title: &'static str,
        unit: &'static str,
        systems: &[System],
        ways: &[(&'static str, Way)],
        steps: &[usize],
        work: Work,
    ) -> Result<()> {
        let mut lines: Vec<(&'static str, Vec<Point>)> = ways.iter().map(|way| (way.0, Vec::new())).collect();
        for step in steps {
            for (line, (_, way)) in lines.iter_mut().zip(ways) {
                let clients = step + usize::from(matches!(work, Work::HandOver));
                let what = format!("curve: {step} {title}: {}", way.name());
                let round = self.round(&what, systems, *way, clients, work)?;
                line.1.push(Point { x: *step as f64, rate: round.per_second, p99_ms: round.p99_us / 1e3 });
            }
        }
        self.columns.push(Column { title, unit, lines });
        Ok(())
    }

    /// Of what was measured already: 64 connections on one node and on three.
    fn nodes_column(&mut self) {
        let ways = [("Leasehold", Way::Leasehold), ("etcd", Way::EtcdTxn), ("ZooKeeper", Way::ZooKeeperNode)];
        let lines = ways.map(|(name, way)| {
            let points = [1, 3].into_iter().filter_map(|nodes| {
                let scenario = cycle_of(nodes, CONNECTIONS[0]);
                let row =
                    self.rows.iter().find(|row| row.scenario == scenario && row.system == way.name())?;
                let p99_ms = row.spread(|round| round.p99_us).median / 1e3;
                Some(Point { x: nodes as f64, rate: row.spread(|round| round.per_second).median, p99_ms })
            });
            (name, points.collect())
        });
        self.columns.push(Column { title: "nodes, 64 connections", unit: "cycles", lines: lines.into() });
    }

    /// `leasehold bench hold`, at growing numbers of claims.
    fn held_claims(&mut self) -> Result<()> {
        let mut points = Vec::new();
        for count in self.effort.held {
            ensure!(!crate::is_interrupted(), "interrupted");
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
            ensure!(!crate::is_interrupted(), "interrupted");
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

fn cycle_of(nodes: usize, clients: usize) -> String {
    format!("cycle, {nodes} node{}, {clients} connections", if nodes == 1 { "" } else { "s" })
}

fn hand_over_of(nodes: usize) -> String {
    format!("hand-over, {nodes} node{}, {WAITERS} waiters", if nodes == 1 { "" } else { "s" })
}

fn find(systems: &[System], way: Way) -> Result<&System> {
    let kind = Kind::of(way);
    systems.iter().find(|system| system.kind == kind).with_context(|| format!("{} does not run", kind.name()))
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
