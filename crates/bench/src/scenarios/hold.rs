//! `hold`: a server full of claims, and what a bystander feels meanwhile.
//!
//! In:    a number of claims, a million by default.
//! Out:   resident bytes per claim, renewals a second, list latencies, restart times, and, in each phase, the latencies of
//!        a one-connection probe: a stall by a snapshot, a list or mass expiry shows in its max. Beside it those of the bare
//!        disk, since what stalls there stalls every server, and how often the probe waited for longer than that explains.
//! Never: leaves its claims on a server that it did not start.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::held::{Fill, Held, Probe, counted};
use super::{SECONDS, timed};
use crate::args::{Common, HoldArgs};
use crate::disk::{Disk, Watch};
use crate::http::Request;
use crate::load::{Plan, Span};
use crate::names::{NAME_LEN, Paths};
use crate::output::Outcome;
use crate::process::resident_bytes;
use crate::session::{self, Session};
use crate::stats::{Op, STALL};
use crate::target::Target;

/// Claims looked at after a restart and after the expiry.
const SPOT_CHECKS: usize = 100;
/// How long the probe runs before all claims expire, to show what is normal.
const BEFORE_EXPIRY: Duration = Duration::from_secs(1);

/// What the phases share.
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
pub(super) fn run(common: &Common, args: &HoldArgs, disk: Disk) -> Result<Vec<Outcome>> {
    let target = Target::of(common)?;
    let connections = common.connections as usize + 1;
    let mut hold = Hold { target, common, args, disk, connections, outcomes: Vec::new() };
    let (resource, held) = hold.fill()?;
    hold.renew(&held)?;
    if args.list {
        hold.list(&resource)?;
    }
    if hold.target.is_child() {
        hold.restart(&held.0)?;
    }
    if args.expire {
        hold.expire(&held)?;
    } else if !hold.target.is_child() {
        hold.release(&held)?;
    }
    Ok(hold.outcomes)
}

impl Hold<'_> {
    /// Runs one phase and keeps its outcome.
    fn phase(
        &mut self,
        plan: Plan<'_>,
        work: &impl AsyncFn(&mut Session<'_>) -> Result<()>,
    ) -> Result<&mut Outcome> {
        let watch = Watch::start(&self.common.dir)?;
        let stats = session::run(&self.target, self.connections, plan, work)?;
        let bare = watch.stop()?;
        // A request that the disk kept waiting says nothing about the server.
        let own =
            stats.stalls.iter().filter(|stall| stall.end - stall.start > STALL + bare.busy(stall)).count();
        let mut outcome = Outcome::new(&plan, self.connections, stats, self.disk);
        outcome.beside("bare fdatasync", &bare.histogram);
        // Not every phase has a probe.
        if outcome.row(Op::ProbeClaim).is_some() {
            outcome.fact("probe over 10 ms, less what the disk took", own as f64, "requests");
        }
        self.outcomes.push(outcome);
        self.outcomes.last_mut().context("an outcome was just added")
    }

    fn fill(&mut self) -> Result<(String, Held)> {
        let (claims, data) = (u64::from(self.args.claims), self.args.data);
        let before = self.target.pid.map(resident_bytes).transpose()?;
        let fill = Fill::new("hold", self.args.ttl, data as usize, claims);
        let probe = Probe::new(Some(self.connections - 1));
        let work = async |session: &mut Session<'_>| {
            probe.beside(session, &async |session: &mut Session<'_>| fill.work(session).await).await
        };
        let pid = self.target.pid;
        let outcome = self.phase(counted("hold: fill", claims), &work)?;
        let (resource, held) = fill.into_held(claims / 2);
        let count = held.0.len() as f64;
        let per_second = outcome.row(Op::Claim).map_or(0.0, |row| row.per_second);
        outcome.fact("claims per second", per_second, "claims/s");
        if let (Some(pid), Some(before)) = (pid, before) {
            let after = resident_bytes(pid)?;
            let per_claim = (after as f64 - before as f64) / count.max(1.0);
            outcome.fact("claims held", count, "claims");
            outcome.fact("resident before", before as f64, "bytes");
            outcome.fact("resident after", after as f64, "bytes");
            outcome.fact("resident per claim", per_claim, "bytes");
            outcome.fact("without name and data", per_claim - NAME_LEN as f64 - f64::from(data), "bytes");
        }
        Ok((resource, held))
    }

    fn renew(&mut self, held: &Held) -> Result<()> {
        let body = format!("{{\"ttl\":{:?}}}", self.args.ttl);
        let each = held.each(Op::Renew, 200, false, Request::patch("", &body));
        let probe = Probe::new(None);
        let renew = async |session: &mut Session<'_>| each.work(session).await;
        let work = async |session: &mut Session<'_>| probe.beside(session, &renew).await;
        let outcome = self.phase(timed("hold: renew", self.common), &work)?;
        let per_second = outcome.row(Op::Renew).map_or(0.0, |row| row.per_second);
        outcome.fact("renewals per second", per_second, "renewals/s");
        Ok(())
    }

    /// One client lists in turn the active claims and those of one resource; more would be another scenario.
    fn list(&mut self, resource: &str) -> Result<()> {
        let of_resource = format!("?resource={resource}");
        let queries =
            [(Op::ListActive, "?status=active&limit=100"), (Op::ListResource, of_resource.as_str())];
        let probe = Probe::new(None);
        let list = async |session: &mut Session<'_>| {
            let mut turn = queries.iter().cycle();
            while session.number == 1
                && let (Some((op, query)), Some(started)) = (turn.next(), session.next().await?)
            {
                session.ask(*op, started, &Request::get("/v1/claims/", query), &[200]).await?;
            }
            Ok(())
        };
        let plan = Plan { rate: None, ..timed("hold: list", self.common) };
        self.phase(plan, &async |session: &mut Session<'_>| probe.beside(session, &list).await).map(drop)
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
    fn expire(&mut self, held: &Held) -> Result<()> {
        let renewals =
            self.outcomes.iter().filter_map(|outcome| outcome.row(Op::Renew)).map(|row| row.per_second);
        let slowest = renewals.fold(f64::MAX, f64::min).clamp(1000.0, 1e6);
        let count = held.0.len();
        // Twice the time that the pass should take: all of it has to be over before the moment comes.
        let pass = Duration::from_secs_f64(2.0 + 2.0 * count as f64 / slowest);
        let moment = Instant::now() + pass + BEFORE_EXPIRY;
        let each = held.each(Op::Renew, 200, true, Request::patch("", ""));
        let work = async |session: &mut Session<'_>| each.expire_at(session, moment).await;
        self.phase(counted("hold: set the moment of expiry", count as u64), &work)?;
        if let Some(early) = moment.checked_duration_since(Instant::now() + BEFORE_EXPIRY) {
            std::thread::sleep(early);
        }
        let span = Span::Timed(BEFORE_EXPIRY + self.common.measured(SECONDS));
        let plan = timed("hold: all expire at once", self.common);
        let probe = Probe::new(None);
        let nothing = async |_: &mut Session<'_>| Ok(());
        self.phase(
            Plan { warmup: Duration::ZERO, span, rate: None, ..plan },
            &async |session: &mut Session<'_>| probe.beside(session, &nothing).await,
        )?;
        let mut outcome = Outcome::of_facts("hold: after the expiry", self.disk);
        self.spot_check(&held.0, "expired", &mut outcome);
        self.outcomes.push(outcome);
        Ok(())
    }

    fn release(&mut self, held: &Held) -> Result<()> {
        let each = held.each(Op::Release, 204, true, Request::release(""));
        let work = async |session: &mut Session<'_>| each.work(session).await;
        self.phase(counted("hold: release", held.0.len() as u64), &work).map(drop)
    }

    /// Looks at claims spread over all of them; one in another status is an error. An expired claim may be gone.
    fn spot_check(&self, paths: &Paths, expected: &str, outcome: &mut Outcome) {
        let count = SPOT_CHECKS.min(paths.len());
        for number in 0..count {
            let Some(path) = paths.cyclic(number * paths.len() / count) else { continue };
            let seen = match self.target.get(path) {
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
