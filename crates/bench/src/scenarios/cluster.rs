//! `cluster`: three nodes on one machine in one table.
//!
//! In:    numbers of connections, lengths of queues, a number of rounds.
//! Out:   one Markdown table: cycles and reads through the leader and through a follower, stale reads beside the
//!        ceiling, hand-overs.
//! Never: compares figures of different minutes: what is compared takes turns in short rounds.

use anyhow::Result;

use super::report::{ROUND_SECONDS, Table, cycles_per_second, spread, us};
use super::{Held, cycle_on, queue_on, read_on};
use crate::args::{Common, Shape};
use crate::disk::{self, Disk};
use crate::output::Outcome;
use crate::stats::Op;
use crate::target::{Cluster, Target};

/// Claims that are read.
const HELD: u32 = 10_000;

/// Runs all measurements; the last outcome carries the table.
pub(super) fn run(common: &Common, shape: &Shape, disk: Disk) -> Result<Vec<Outcome>> {
    let seconds = Some(common.seconds.unwrap_or(ROUND_SECONDS));
    let common = Common { seconds, rate: None, ..common.clone() };
    let cluster = Cluster::start(&common.dir)?;
    let (leader, follower) = cluster.leader_and_follower()?;
    let responder = Target::responder(&common.dir)?;
    let held = Held::take(&leader, HELD)?;
    let mut table = Table::default();
    let mut outcomes = Vec::new();
    for &connections in &shape.at {
        let common = Common { connections, ..common.clone() };
        let near = disk::measure(&common.dir)?;
        let mut of = Rounds::default();
        for _ in 0..shape.rounds {
            of.leader.push(cycle_on(&leader, "cycle through the leader", &common, near)?);
            of.follower.push(cycle_on(&follower, "cycle through a follower", &common, near)?);
            of.ceiling.push(cycle_on(&responder, "ceiling", &common, near)?);
            of.read_leader.push(read_on(&leader, &held, false, &common, near)?);
            of.read_follower.push(read_on(&follower, &held, false, &common, near)?);
            of.read_stale.push(read_on(&follower, &held, true, &common, near)?);
        }
        of.rows(connections, &mut table, near);
        outcomes.extend(of.into_outcomes());
    }
    for &waiters in &shape.waiters {
        let near = disk::measure(&common.dir)?;
        let rounds = (0..shape.rounds).map(|_| queue_on(&leader, waiters, &common, near));
        let mut rounds = rounds.collect::<Result<Vec<_>>>()?;
        table.handovers(waiters, &rounds, near);
        outcomes.append(&mut rounds);
    }
    held.release(&leader)?;
    let mut summary = Outcome::of_facts("cluster", disk);
    summary.table = Some(table.markdown());
    outcomes.push(summary);
    Ok(outcomes)
}

/// The rounds at one number of connections.
#[derive(Default)]
struct Rounds {
    leader: Vec<Outcome>,
    follower: Vec<Outcome>,
    ceiling: Vec<Outcome>,
    read_leader: Vec<Outcome>,
    read_follower: Vec<Outcome>,
    read_stale: Vec<Outcome>,
}

impl Rounds {
    fn rows(&self, connections: u32, table: &mut Table, disk: Disk) {
        let cycles = |rounds: &[Outcome]| spread(rounds, cycles_per_second);
        let claim_ms = |rounds: &[Outcome]| spread(rounds, |outcome| us(outcome, Op::Claim).0).median / 1e3;
        let (leader, follower) = (cycles(&self.leader), cycles(&self.follower));
        let (near, far) = (claim_ms(&self.leader), claim_ms(&self.follower));
        let mut row =
            |what: &str, figure: &str| table.row(&format!("{what}, {connections} connections"), figure, disk);
        row("cycles/s through the leader", &leader.to_string());
        row(
            "cycles/s through a follower",
            &format!("{follower} = {:.2} of the leader's", follower.median / leader.median),
        );
        row("claim p50, leader / follower", &format!("{near:.2} / {far:.2} ms = {:.2} times", far / near));
        let reads = |rounds: &[Outcome]| spread(rounds, reads_per_second);
        let writes = 2.0 * leader.median;
        let ceiling = 2.0 * cycles(&self.ceiling).median;
        for (what, rounds) in
            [("reads/s, leader", &self.read_leader), ("reads/s, follower", &self.read_follower)]
        {
            let reads = reads(rounds);
            row(what, &format!("{reads} = {:.2} times the writes", reads.median / writes));
        }
        let stale = reads(&self.read_stale);
        row("stale reads/s, follower", &format!("{stale} = {:.2} of the ceiling", stale.median / ceiling));
    }

    fn into_outcomes(self) -> impl Iterator<Item = Outcome> {
        let all =
            [self.leader, self.follower, self.ceiling, self.read_leader, self.read_follower, self.read_stale];
        all.into_iter().flatten()
    }
}

fn reads_per_second(outcome: &Outcome) -> f64 {
    outcome.row(Op::Get).map_or(0.0, |row| row.per_second)
}
