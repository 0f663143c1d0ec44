//! Closed loops: N clients on one thread, one request in flight on each, for a fixed time.
//!
//! In:    a way, an address, a number of clients. Out: a `Round`: rate, latencies, processor time.
//! Never: counts what began in the warm-up, or goes on after an answer that was wrong.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leasehold_bench::load::{Plan, Run, Span};
use leasehold_bench::names::Names;
use leasehold_bench::reactor::{Crew, Reactor};
use leasehold_bench::stats::{Op, Stats};

use crate::clients::{Client, Way};

/// Clients that connect at the same time; more overflow the shortest backlogs.
const CONNECTING_MAX: usize = 64;
/// Connecting a group takes no longer than this, or something is broken.
const GRACE: Duration = Duration::from_secs(60);
/// Clients that fill a system with what is renewed later.
const FILLERS: usize = 64;

/// What one round measured.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Round {
    /// Cycles, renewals or hand-overs a second.
    pub(crate) per_second: f64,
    /// Median latency of an acquire, a renewal or a hand-over, in microseconds.
    pub(crate) p50_us: f64,
    /// 99th percentile of the same.
    pub(crate) p99_us: f64,
    /// Processor time of the system, not of the client, for one of them, in microseconds.
    pub(crate) cpu_us: f64,
    /// Processor time of the client, which shares the machine: it tells who was the limit.
    pub(crate) client_cpu_us: f64,
}

impl Round {
    fn of(stats: &Stats, op: Op) -> Self {
        let latencies = stats.of(op);
        let count = latencies.count().max(1) as f64;
        let quantile_us = |part| match latencies.count() {
            0 => f64::NAN,
            _ => latencies.quantile(part).as_secs_f64() * 1e6,
        };
        let each_us = |used: Duration| used.as_secs_f64() * 1e6 / count;
        Self {
            per_second: stats.per_second(op),
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
            cpu_us: each_us(stats.cpu.server.unwrap_or_default()),
            client_cpu_us: each_us(stats.cpu.generator),
        }
    }

    /// What a round that failed counts as: nothing.
    pub(crate) const FAILED: Self = Self {
        per_second: f64::NAN,
        p50_us: f64::NAN,
        p99_us: f64::NAN,
        cpu_us: f64::NAN,
        client_cpu_us: f64::NAN,
    };
}

/// Whom to measure, how long, with how many clients.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    /// The road taken.
    pub(crate) way: Way,
    /// The node spoken to.
    pub(crate) addr: SocketAddr,
    /// All processes of the system.
    pub(crate) pids: &'a [u32],
    /// Clients.
    pub(crate) clients: usize,
    /// Seconds before anything counts.
    pub(crate) warmup: Duration,
    /// Seconds that count.
    pub(crate) length: Duration,
    /// Whether a request may still wait for its turn when the time is over.
    pub(crate) may_queue: bool,
}

thread_local! {
    static NAMES: Names = Names::new("peer");
}

/// Makes `name` one of 34 bytes that nobody used before.
pub(crate) fn fresh_name(name: &mut String) {
    NAMES.with(|names| names.fresh(name));
}

/// The same, where there is no name yet.
pub(crate) fn new_name() -> String {
    NAMES.with(Names::one)
}

/// Acquire and release, on names of one's own.
pub(crate) fn cycle(target: Target<'_>) -> Result<Round> {
    // The recipe's parent node stays; every other way takes a fresh name.
    let is_name_kept = target.way == Way::ZooKeeperLock;
    let op = Op::Claim;
    run(target, op, None, &async |client: &mut Client, name: &mut String, now: Instant, run: &Run<'_>| {
        if !is_name_kept {
            fresh_name(name);
        }
        client.acquire(name, false).await?;
        run.latency(op, now);
        client.release().await
    })
}

/// One name for all: each holder releases at once and queues again. A hand-over lasts from the release being
/// sent until the next holder has its answer.
pub(crate) fn hand_over(target: Target<'_>) -> Result<Round> {
    let released: Cell<Option<Instant>> = Cell::default();
    let name = new_name();
    let op = Op::Handover;
    let step = async |client: &mut Client, name: &mut String, asked: Instant, run: &Run<'_>| {
        client.acquire(name, true).await?;
        // Asked after the release: it was free, nobody handed anything over.
        if let Some(at) = released.take().filter(|at| asked < *at) {
            run.latency(op, at);
        }
        released.set(Some(Instant::now()));
        client.release().await
    };
    run(target, op, Some(&name), &step)
}

/// Renews `ids` round and round, `batch` of them a request.
pub(crate) fn renew(target: Target<'_>, ids: &[String], batch: usize) -> Result<Round> {
    let next = Cell::new(0);
    let op = Op::Renew;
    let step = async |client: &mut Client, _name: &mut String, now: Instant, run: &Run<'_>| {
        let at = next.get();
        next.set(if at + 2 * batch > ids.len() { 0 } else { at + batch });
        client.renew(&ids[at..at + batch]).await?;
        run.latency(op, now);
        Ok(())
    };
    let mut round = run(target, op, None, &step)?;
    round.per_second *= batch as f64;
    round.cpu_us /= batch as f64;
    round.client_cpu_us /= batch as f64;
    Ok(round)
}

/// Takes `count` leases, claims or keys, and returns what renews them.
pub(crate) fn fill(target: Target<'_>, count: usize) -> Result<Vec<String>> {
    let target = Target { clients: FILLERS.min(count), ..target };
    let reactor = Reactor::new()?;
    let left = Cell::new(count);
    let ids = RefCell::new(Vec::with_capacity(count));
    let (left, ids) = (&left, &ids);
    let work = connect(target, None, &reactor)?.into_iter().map(async |(mut client, mut name)| {
        while left.get() > 0 {
            left.set(left.get() - 1);
            fresh_name(&mut name);
            let id = client.hold(&name).await?;
            ids.borrow_mut().push(id);
        }
        Ok(())
    });
    let all = reactor.run(&mut Crew::new(0, work), Instant::now() + GRACE, None)?;
    ensure!(all, "{}: filling takes too long", target.way.name());
    Ok(ids.take())
}

/// Connects all clients of a round, and prepares each one's name: one for all, or one each.
fn connect(target: Target<'_>, shared: Option<&str>, reactor: &Reactor) -> Result<Vec<(Client, String)>> {
    let mut clients = Vec::with_capacity(target.clients);
    while clients.len() < target.clients {
        let first = clients.len();
        let count = CONNECTING_MAX.min(target.clients - first);
        let mut some = Crew::new(
            first,
            (first..first + count).map(async |number| {
                let mut client = Client::connect(target.way, target.addr, reactor.seat(number)).await?;
                let name = shared.map_or_else(new_name, str::to_owned);
                client.prepare(&name).await?;
                Ok((number, client, name))
            }),
        );
        ensure!(reactor.run(&mut some, Instant::now() + GRACE, None)?, "connecting takes too long");
        // Each goes on where its socket is registered, whoever was ready first.
        some.done.sort_by_key(|(number, ..)| *number);
        clients.extend(some.done.into_iter().map(|(_, client, name)| (client, name)));
    }
    Ok(clients)
}

/// Repeats `step` on every client until the time is over. It counts what it measures as `op`.
fn run<F>(target: Target<'_>, op: Op, shared: Option<&str>, step: &F) -> Result<Round>
where
    F: AsyncFn(&mut Client, &mut String, Instant, &Run<'_>) -> Result<()>,
{
    work(target, op, shared, step)
        .with_context(|| format!("{} with {} clients", target.way.name(), target.clients))
}

fn work<F>(target: Target<'_>, op: Op, shared: Option<&str>, step: &F) -> Result<Round>
where
    F: AsyncFn(&mut Client, &mut String, Instant, &Run<'_>) -> Result<()>,
{
    let reactor = Reactor::new()?;
    let clients = connect(target, shared, &reactor)?;
    let span = Span::Timed(target.length);
    let plan = Plan { name: "", warmup: target.warmup, span, rate: None, shows_progress: false };
    let run = Run::new(&reactor, plan, target.clients)?;
    let run_ref = &run;
    let loops = clients.into_iter().enumerate().map(async |(number, (mut client, mut name))| {
        while let Some(now) = run_ref.next(number).await {
            step(&mut client, &mut name, now, run_ref).await?;
        }
        client.close().await?;
        Ok(client)
    });
    let all = run.drive(&reactor, target.pids, loops)?;
    // Most clients of a hand-over wait in the queue at the end; everywhere else it is an answer that never came.
    ensure!(all || target.may_queue, "some requests were not answered seconds after the end of the round");
    Ok(Round::of(&run.into_stats(), op))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fresh() {
        let mut name = new_name();
        let first = name.clone();
        fresh_name(&mut name);
        assert!(first < name, "{first} {name}");
    }
}
