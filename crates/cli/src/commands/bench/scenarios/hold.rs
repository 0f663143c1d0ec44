//! `hold`: a server full of claims, and what a bystander feels meanwhile.
//!
//! In:    a number of claims, a million by default.
//! Out:   resident bytes per claim, renewals a second, list latencies, restart times, and, in each phase, the
//!        latencies of a one-connection probe: a stall by a snapshot, a list or mass expiry shows in its max. Beside
//!        it those of the bare disk, since what stalls there stalls every server, and how often the probe waited for
//!        longer than that explains.
//! Never: leaves its claims on a server it did not start.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::super::args::{Common, HoldArgs};
use super::super::disk::{Disk, Watch};
use super::super::engine::Workload;
use super::super::output::Outcome;
use super::super::probe;
use super::super::process::resident_bytes;
use super::super::request::{ClaimTemplate, NAME_LEN, Paths};
use super::super::run_state::{Plan, Span};
use super::super::stats::{Op, STALL};
use super::super::target::Target;
use super::held::{Each, Fill, Lists, Quiet, WithProbe};
use super::{counted, timed};

/// Claims looked at after a restart and after the expiry.
const SPOT_CHECKS: usize = 100;
/// How long the probe runs before all claims expire, to show what is normal.
const BEFORE_EXPIRY: Duration = Duration::from_secs(1);

/// The phases share these.
struct Hold<'a> {
    target: Target,
    common: &'a Common,
    args: &'a HoldArgs,
    disk: Disk,
    /// Connections of every phase, the probe's included.
    connections: usize,
    outcomes: Vec<Outcome>,
}

/// Runs the phases.
pub(crate) fn run(common: &Common, args: &HoldArgs, disk: Disk) -> Result<Vec<Outcome>> {
    let target = Target::of(common)?;
    let connections = common.connections as usize + 1;
    let mut hold = Hold { target, common, args, disk, connections, outcomes: Vec::new() };
    let (paths, resource) = hold.fill()?;
    hold.renew(&paths)?;
    if args.list {
        hold.list(&resource)?;
    }
    if hold.target.is_child() {
        hold.restart(&paths)?;
    }
    if args.expire {
        hold.expire(&paths)?;
    } else if !hold.target.is_child() {
        hold.release(&paths)?;
    }
    Ok(hold.outcomes)
}

impl Hold<'_> {
    /// Runs one phase and keeps its outcome.
    fn phase<W: Workload>(&mut self, plan: &Plan<'_>, work: &mut W) -> Result<&mut Outcome> {
        let mut connected = self.target.connect(self.connections)?;
        let watch = Watch::start(&self.common.dir)?;
        let stats = connected.run(work, plan)?;
        let bare = watch.stop()?;
        // A request that the disk kept waiting says nothing about the server.
        let own =
            stats.stalls.iter().filter(|stall| stall.end - stall.start > STALL + bare.busy(stall)).count();
        let mut outcome = Outcome::new(plan, self.connections, stats, self.disk);
        outcome.beside("bare fdatasync", &bare.histogram);
        // Not every phase has a probe.
        if outcome.row(Op::ProbeClaim).is_some() {
            outcome.fact("probe over 10 ms, less what the disk took", own as f64, "requests");
        }
        self.outcomes.push(outcome);
        self.outcomes.last_mut().context("an outcome was just added")
    }

    fn fill(&mut self) -> Result<(Paths, String)> {
        let pid = self.target.pid;
        let before = pid.map(resident_bytes).transpose()?;
        let host = self.target.host();
        let claim = ClaimTemplate::new(&host, "hold", "", self.args.ttl, self.args.data as usize);
        let fill = Fill::new(claim, self.args.claims.into());
        let mut work = WithProbe::counted(&host, fill, self.connections);
        let data = f64::from(self.args.data);
        let outcome = self.phase(&counted("hold: fill", self.args.claims.into()), &mut work)?;
        let held = work.work.paths.len() as f64;
        let per_second = outcome.row(Op::Claim).map_or(0.0, |row| row.per_second);
        outcome.fact("claims per second", per_second, "claims/s");
        if let (Some(pid), Some(before)) = (pid, before) {
            let after = resident_bytes(pid)?;
            let per_claim = (after as f64 - before as f64) / held.max(1.0);
            outcome.fact("claims held", held, "claims");
            outcome.fact("resident before", before as f64, "bytes");
            outcome.fact("resident after", after as f64, "bytes");
            outcome.fact("resident per claim", per_claim, "bytes");
            outcome.fact("without name and data", per_claim - NAME_LEN as f64 - data, "bytes");
        }
        let resource = work.work.name(u64::from(self.args.claims) / 2);
        Ok((work.work.paths, resource))
    }

    fn renew(&mut self, paths: &Paths) -> Result<()> {
        let host = self.target.host();
        let mut work = WithProbe::timed(&host, Each::renew(&host, paths, self.args.ttl));
        let plan = timed("hold: renew", self.common);
        let outcome = self.phase(&plan, &mut work)?;
        let per_second = outcome.row(Op::Renew).map_or(0.0, |row| row.per_second);
        outcome.fact("renewals per second", per_second, "renewals/s");
        Ok(())
    }

    fn list(&mut self, resource: &str) -> Result<()> {
        let host = self.target.host();
        let mut work = WithProbe::timed(&host, Lists::new(&host, resource));
        let plan = Plan { rate: None, ..timed("hold: list", self.common) };
        self.phase(&plan, &mut work).map(drop)
    }

    fn restart(&mut self, paths: &Paths) -> Result<()> {
        let mut outcome = Outcome::of_facts("hold: restart until GET /readyz is 200", self.disk);
        for (name, signal) in [("after SIGTERM", Signal::TERM), ("after SIGKILL", Signal::KILL)] {
            let took = self.target.restart(signal)?;
            outcome.fact(name, took.as_secs_f64() * 1e3, "ms");
            self.spot_check(paths, "active", &mut outcome);
        }
        self.outcomes.push(outcome);
        Ok(())
    }

    /// Gives all claims one moment of expiry, then watches the probe before and after that moment.
    fn expire(&mut self, paths: &Paths) -> Result<()> {
        let host = self.target.host();
        let renewals =
            self.outcomes.iter().filter_map(|outcome| outcome.row(Op::Renew)).map(|row| row.per_second);
        let slowest = renewals.fold(f64::MAX, f64::min).clamp(1000.0, 1e6);
        // Twice the time the pass should take: all of it has to be over before the moment comes.
        let pass = Duration::from_secs_f64(2.0 + 2.0 * paths.len() as f64 / slowest);
        let moment = Instant::now() + pass + BEFORE_EXPIRY;
        let mut work = Each::expire_at(&host, paths, moment);
        self.phase(&counted("hold: set the moment of expiry", paths.len() as u64), &mut work)?;
        if let Some(early) = moment.checked_duration_since(Instant::now() + BEFORE_EXPIRY) {
            std::thread::sleep(early);
        }
        let length = BEFORE_EXPIRY + self.common.measured(super::SECONDS);
        let span = Span::Timed(length);
        let plan = Plan { name: "hold: all expire at once", warmup: Duration::ZERO, span, rate: None };
        self.phase(&plan, &mut WithProbe::timed(&host, Quiet))?;
        let mut outcome = Outcome::of_facts("hold: after the expiry", self.disk);
        self.spot_check(paths, "expired", &mut outcome);
        self.outcomes.push(outcome);
        Ok(())
    }

    fn release(&mut self, paths: &Paths) -> Result<()> {
        let mut work = Each::release(&self.target.host(), paths);
        self.phase(&counted("hold: release", paths.len() as u64), &mut work).map(drop)
    }

    /// Looks at claims spread over all of them; one in another status is an error. An expired claim may be
    /// gone altogether.
    fn spot_check(&self, paths: &Paths, expected: &str, outcome: &mut Outcome) {
        let count = SPOT_CHECKS.min(paths.len());
        for number in 0..count {
            let Some(path) = paths.cyclic(number * paths.len() / count) else { continue };
            let path = String::from_utf8_lossy(path);
            let seen = match probe::get(self.target.addr, &path) {
                Ok((200, body)) => status_in(&body),
                Ok((404, _)) if expected == "expired" => expected.to_owned(),
                Ok((status, _)) => format!("HTTP {status}"),
                Err(error) => error.to_string(),
            };
            if seen != expected {
                *outcome.errors.entry(format!("claim is {seen} instead of {expected}")).or_insert(0) += 1;
            }
        }
        outcome.fact(format!("claims looked at, expected {expected}"), count as f64, "claims");
    }
}

fn status_in(body: &[u8]) -> String {
    let value: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let status = value.as_ref().and_then(|value| value["status"].as_str());
    status.unwrap_or("without a status").to_owned()
}
