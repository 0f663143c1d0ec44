//! One connection of `leasehold bench`: sends requests, counts answers and errors, and connects anew when it is lost.
//!
//! In:    a run, a target, requests of a scenario with the statuses that are right.
//! Out:   the status of an answer that is right; `None` for one that is not, which is counted as an error.
//! Never: ends a run because of one wrong answer.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};

use crate::http::{Http, Request};
use crate::load::{Plan, Run};
use crate::process::allow_open_files;
use crate::reactor::{Reactor, Seat};
use crate::stats::{Op, Stats};
use crate::target::Target;

/// Broken connections before a run is given up.
const RECONNECTS_MAX: u32 = 1000;

/// A connection and the run that it is part of.
pub(crate) struct Session<'a> {
    /// From 0 on.
    pub(crate) number: usize,
    http: Http,
    seat: Seat<'a>,
    target: &'a Target,
    run: &'a Run<'a>,
    reconnects: &'a Cell<u32>,
}

impl Session<'_> {
    /// When the next request starts; `None` when time is up, and only what is held is to be given back.
    pub(crate) async fn next(&mut self) -> Result<Option<Instant>> {
        let next = self.run.next(self.number).await;
        // A server may close a connection that was idle for long, which is no error.
        if self.http.is_closing(self.run.is_open_loop()) {
            self.reconnect()?;
        }
        Ok(next)
    }

    /// The start of a request that is sent even when time is up.
    pub(crate) async fn next_or_now(&mut self) -> Result<Instant> {
        Ok(self.next().await?.unwrap_or_else(Instant::now))
    }

    /// Sends a request that counts from `started`. Returns the status if it is one of `right`.
    pub(crate) async fn ask(
        &mut self,
        op: Op,
        started: Instant,
        request: &Request<'_>,
        right: &[u16],
    ) -> Result<Option<u16>> {
        self.run.sent(self.number, op);
        match self.http.ask(request).await {
            Ok(status) => {
                self.run.answered(self.number, op, started);
                if right.contains(&status) {
                    return Ok(Some(status));
                }
                let complaint = match right {
                    [one] => format!("instead of {one}"),
                    _ => "unexpected".to_owned(),
                };
                self.complain(op, status, &complaint);
            }
            Err(error) => {
                self.run.lost(self.number, op, &error);
                self.reconnect()?;
            }
        }
        Ok(None)
    }

    /// Makes a claim and returns its path.
    pub(crate) async fn claim(
        &mut self,
        op: Op,
        started: Instant,
        request: &Request<'_>,
    ) -> Result<Option<String>> {
        let Some(status) = self.ask(op, started, request, &[201]).await? else { return Ok(None) };
        Ok(self.path(op, status))
    }

    /// The path of the claim that the last answer tells of; an answer without one is an error.
    pub(crate) fn path(&self, op: Op, status: u16) -> Option<String> {
        let path = self.http.location_path().map(str::to_owned);
        if path.is_none() {
            self.complain(op, status, "without a Location");
        }
        path
    }

    /// The last answer.
    pub(crate) fn answer(&self) -> &Http {
        &self.http
    }

    /// The run, for latencies that are no request's.
    pub(crate) fn run(&self) -> &Run<'_> {
        self.run
    }

    /// Counts an answer that is wrong in another way than by its status.
    pub(crate) fn complain(&self, op: Op, status: u16, complaint: &str) {
        self.run.error(format!("{op} {status} {complaint}"), self.http.body());
    }

    fn reconnect(&mut self) -> Result<()> {
        let count = self.reconnects.get() + 1;
        self.reconnects.set(count);
        let addr = self.target.address.socket;
        ensure!(count <= RECONNECTS_MAX, "{addr} closed {RECONNECTS_MAX} connections; giving up");
        self.http = Http::connect(&self.target.address, self.target.key.as_deref(), self.seat)
            .with_context(|| format!("{addr} went away during the run; see its log"))?;
        Ok(())
    }
}

/// Runs `work` on `connections` connections to `target`, each with a session of its own.
pub(crate) fn run(
    target: &Target,
    connections: usize,
    plan: Plan<'_>,
    work: &impl AsyncFn(&mut Session<'_>) -> Result<()>,
) -> Result<Stats> {
    allow_open_files();
    let reactor = Reactor::new()?;
    let https = (0..connections)
        .map(|number| Http::connect(&target.address, target.key.as_deref(), reactor.seat(number)))
        .collect::<Result<Vec<_>>>()
        .map_err(|error| unreachable_server(target, error))?;
    let run = Run::new(&reactor, plan, connections)?;
    let reconnects = &Cell::new(0);
    let (run_ref, reactor_ref) = (&run, &reactor);
    run.drive(
        &reactor,
        target.pids(),
        https.into_iter().enumerate().map(async |(number, http)| {
            let seat = reactor_ref.seat(number);
            let mut session = Session { number, http, seat, target, run: run_ref, reconnects };
            work(&mut session).await?;
            Ok(session.http)
        }),
    )?;
    Ok(run.into_stats())
}

/// The message for a server that is not there: what is wrong and what to do.
fn unreachable_server(target: &Target, error: anyhow::Error) -> anyhow::Error {
    let is_refused = |error: &io::Error| error.kind() == ErrorKind::ConnectionRefused;
    if error.downcast_ref::<io::Error>().is_some_and(is_refused) {
        let addr = target.address.socket;
        return anyhow!("nothing listens on {addr}; start one with `leasehold serve` or add --serve");
    }
    error.context("no connection; start a server with `leasehold serve` or add --serve")
}
