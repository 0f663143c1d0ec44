//! What is measured, and in which order: one turn of every system, then the next turn.
//!
//! In:    running systems. Out: `Row`s, with as many rounds each as there were turns.
//! Never: lets one system's rounds stand together: what the machine does meanwhile should hit all alike.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use leasehold_bench::process::Scratch;
use leasehold_bench::reactor::ensure_wanted;
use serde_json::Value;

use crate::clients::Way;
use crate::curve::{Column, Point};
use crate::holding::renewals_name;
use crate::report::{Measure, Row};
use crate::rounds::{self, Round, Target};
use crate::say;
use crate::systems::{Kind, System};

const WAITERS: usize = 100;
/// How often a round is tried.
const ATTEMPTS_MAX: u32 = 3;
/// How many connections work at a time.
pub(crate) const CONNECTIONS: [usize; 2] = [64, 256];

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
    /// Rounds that had to be run again, and why.
    pub(crate) repeats: Vec<String>,
    /// What could not be measured of the peers, and why.
    pub(crate) left_out: Vec<String>,
    /// What did not work of Leasehold itself.
    pub(crate) failures: Vec<String>,
}

impl Bench<'_> {
    /// Everything, in order.
    pub(crate) fn run(&mut self) -> Result<()> {
        if self.wants(&hand_over_of(1)) || self.wants(&renewals_name()) || self.wants_any(cycle_of, 1) {
            self.one_node()?;
        }
        if self.wants(&hand_over_of(3)) || self.wants_any(cycle_of, 3) {
            self.three_nodes()?;
        }
        if self.wants_any(resp_of, 1) || self.wants_any(resp_of, 3) {
            self.resp()?;
        }
        if self.only.is_empty() {
            self.nodes_column();
            self.held_claims()?;
        }
        Ok(())
    }

    /// Whether this scenario was asked for.
    pub(crate) fn wants(&self, scenario: &str) -> bool {
        scenario.contains(&self.only)
    }

    /// Whether this scenario was asked for, with any number of connections.
    fn wants_any(&self, scenario: impl Fn(usize, usize) -> String, nodes: usize) -> bool {
        CONNECTIONS.iter().any(|count| self.wants(&scenario(nodes, *count)))
    }

    fn start(&mut self, kinds: &[Kind], nodes: usize) -> Result<Vec<System>> {
        let mut systems = Vec::new();
        for kind in kinds {
            say(&format!("starting {} ({nodes})", kind.name()));
            match System::start(*kind, nodes, self.leasehold, self.scratch) {
                Ok(system) => systems.push(system),
                Err(error) => self.failed(*kind, &format!("{} ({nodes}): {error:#}", kind.name()))?,
            }
        }
        // One round of each that does not count: Java runs several times faster after it.
        for kind in kinds {
            let what = format!("warming up {}", kind.name());
            self.round(&what, &mut systems, kind.simple_way(), CONNECTIONS[0], Work::Cycle)?;
        }
        Ok(systems)
    }

    fn one_node(&mut self) -> Result<()> {
        use Kind::{Ceiling, Etcd, Leasehold, Postgres, Redis, ZooKeeper};
        let mut systems = self.start(&[Leasehold, Ceiling, Etcd, Redis, ZooKeeper, Postgres], 1)?;
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
            self.turns(&cycle_of(1, clients), &mut systems, &ways, clients, Work::Cycle)?;
        }
        let queues = [Way::Leasehold, Way::EtcdLock, Way::ZooKeeperLock, Way::PostgresAdvisory];
        self.turns(&hand_over_of(1), &mut systems, &queues, WAITERS + 1, Work::HandOver)?;
        self.renewals(&mut systems)?;
        if !self.only.is_empty() {
            return Ok(());
        }
        let cycles =
            [("Leasehold", Way::Leasehold), ("etcd", Way::EtcdTxn), ("ZooKeeper", Way::ZooKeeperNode)];
        self.column(
            "connections, 1 node",
            "cycles",
            &mut systems,
            &cycles,
            &[1, 8, 64, 256, 1024],
            Work::Cycle,
        )?;
        let queues =
            [("Leasehold", Way::Leasehold), ("etcd", Way::EtcdLock), ("ZooKeeper", Way::ZooKeeperLock)];
        self.column(
            "waiters, 1 node",
            "hand-overs",
            &mut systems,
            &queues,
            &[1, 10, 100, 400],
            Work::HandOver,
        )
    }

    fn three_nodes(&mut self) -> Result<()> {
        let mut systems = self.start(&[Kind::Leasehold, Kind::Etcd, Kind::ZooKeeper], 3)?;
        let ways = [Way::Leasehold, Way::EtcdTxn, Way::EtcdLock, Way::ZooKeeperNode, Way::ZooKeeperLock];
        for clients in CONNECTIONS {
            self.turns(&cycle_of(3, clients), &mut systems, &ways, clients, Work::Cycle)?;
        }
        let queues = [Way::Leasehold, Way::EtcdLock, Way::ZooKeeperLock];
        self.turns(&hand_over_of(3), &mut systems, &queues, WAITERS + 1, Work::HandOver)
    }

    /// Redis' own protocol: the same client, the same commands, another address.
    fn resp(&mut self) -> Result<()> {
        let mut systems = self.start(&[Kind::Leasehold, Kind::Redis], 1)?;
        for clients in CONNECTIONS {
            let ways = [Way::LeaseholdResp, Way::RedisLock];
            self.turns(&resp_of(1, clients), &mut systems, &ways, clients, Work::Cycle)?;
        }
        drop(systems);
        let mut systems = self.start(&[Kind::Leasehold], 3)?;
        systems.append(&mut self.start(&[Kind::RedisReplicated], 2)?);
        for clients in CONNECTIONS {
            let ways = [Way::LeaseholdResp, Way::RedisReplicated];
            self.turns(&resp_of(3, clients), &mut systems, &ways, clients, Work::Cycle)?;
        }
        Ok(())
    }

    /// All ways in turn, as often as there are turns. The first is ours.
    fn turns(
        &mut self,
        scenario: &str,
        systems: &mut Vec<System>,
        ways: &[Way],
        clients: usize,
        work: Work,
    ) -> Result<()> {
        if !self.wants(scenario) {
            return Ok(());
        }
        let first = self.rows.len();
        let measure = if matches!(work, Work::Cycle) { Measure::Rate } else { Measure::P99 };
        for (at, way) in ways.iter().enumerate() {
            self.rows.push(Row {
                scenario: scenario.to_owned(),
                system: way.name().to_owned(),
                measure,
                rounds: Vec::new(),
                is_ours: at == 0,
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
        systems: &mut Vec<System>,
        way: Way,
        clients: usize,
        work: Work,
    ) -> Result<Round> {
        self.repeated(what, systems, way, |target| match work {
            Work::Cycle => rounds::cycle(Target { clients, ..target }),
            Work::HandOver => rounds::hand_over(Target { clients, may_queue: true, ..target }),
        })
    }

    pub(crate) fn target<'a>(
        &self,
        system: &System,
        way: Way,
        clients: usize,
        pids: &'a [u32],
    ) -> Target<'a> {
        let Effort { warmup, length, .. } = self.effort;
        Target { way, addr: system.addr_of(way), pids, clients, warmup, length, may_queue: false }
    }

    /// Runs a round. A busy disk can cost a cluster its leader, and with it all connections: then the round is run again
    /// with the new leader. A system that has died takes no further part.
    pub(crate) fn repeated(
        &mut self,
        what: &str,
        systems: &mut Vec<System>,
        way: Way,
        round: impl Fn(Target<'_>) -> Result<Round>,
    ) -> Result<Round> {
        let kind = Kind::of(way);
        let Some(at) = systems.iter().position(|system| system.kind == kind) else {
            return Ok(Round::FAILED);
        };
        for attempt in 1.. {
            let system = &mut systems[at];
            let pids = system.pids();
            let error = match round(self.target(system, way, CONNECTIONS[0], &pids)) {
                Ok(round) => {
                    say(&format!("{what}: {:.0}/s, p99 {:.2} ms", round.per_second, round.p99_us / 1e3));
                    return Ok(round);
                }
                Err(error) => error,
            };
            ensure_wanted()?;
            let gone = system.wait_until_ready().err();
            if gone.is_none() && attempt < ATTEMPTS_MAX {
                say(&format!("{what}: again, since it failed: {error:#}"));
                self.repeats.push(format!("{what}: {error:#}"));
                continue;
            }
            let gone_text = gone.as_ref().map_or(String::new(), |gone| format!("; {gone:#}"));
            self.failed(kind, &format!("{what}: {error:#}{gone_text}"))?;
            if gone.is_some() {
                systems.remove(at);
            }
            return Ok(Round::FAILED);
        }
        Ok(Round::FAILED)
    }

    /// A peer that can't be measured is named and left out; the rest counts. Leasehold's own failure is one of the run.
    pub(crate) fn failed(&mut self, kind: Kind, why: &str) -> Result<()> {
        ensure_wanted()?;
        say(&format!("failed: {why}"));
        let list = if kind.is_ours() { &mut self.failures } else { &mut self.left_out };
        list.push(why.to_owned());
        Ok(())
    }

    fn column(
        &mut self,
        title: &'static str,
        unit: &'static str,
        systems: &mut Vec<System>,
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
}

fn cycle_of(nodes: usize, clients: usize) -> String {
    format!("cycle, {nodes} node{}, {clients} connections", if nodes == 1 { "" } else { "s" })
}

fn resp_of(nodes: usize, clients: usize) -> String {
    format!("cycle over RESP, {nodes} node{}, {clients} connections", if nodes == 1 { "" } else { "s" })
}

fn hand_over_of(nodes: usize) -> String {
    format!("hand-over, {nodes} node{}, {WAITERS} waiters", if nodes == 1 { "" } else { "s" })
}
