//! Closed loops: N clients on one thread, one request in flight on each, for a fixed time.
//!
//! In:    a way, an address, a number of clients. Out: a `Round`: rate, latencies, processor time.
//! Never: counts what began in the warm-up, or goes on after an answer that was wrong.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::clients::{Client, Way};
use crate::process::{cpu_between, cpu_times, own_cpu_time};
use crate::reactor::{Crew, Reactor};

/// Clients that connect at the same time; more overflow the shortest backlogs.
const CONNECTING_MAX: usize = 64;
/// Connecting a group takes no longer than this, or something is broken.
const GRACE: Duration = Duration::from_secs(60);
/// How long a round waits for requests that began before its end.
const DRAIN: Duration = Duration::from_secs(4);
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

/// Makes `name` one of 34 bytes that nobody used before.
pub(crate) fn fresh_name(name: &mut String) {
    /// The number of this process is asked for once: it is a system call.
    static PREFIX: LazyLock<String> = LazyLock::new(|| format!("bench/{:010x}/0", std::process::id()));
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    name.clear();
    name.push_str(&PREFIX);
    for shift in (0..64).step_by(4).rev() {
        name.push(char::from(b"0123456789abcdef"[(number >> shift) as usize & 15]));
    }
}

/// The same, where there is no name yet.
pub(crate) fn new_name() -> String {
    let mut name = String::with_capacity(34);
    fresh_name(&mut name);
    name
}

/// Acquire and release, on names of one's own.
pub(crate) fn cycle(target: Target<'_>) -> Result<Round> {
    // The recipe's parent node stays; every other way takes a fresh name.
    let is_name_kept = target.way == Way::ZooKeeperLock;
    run(target, None, &async |client: &mut Client, name: &mut String, now: Instant, latency: &Latency| {
        if !is_name_kept {
            fresh_name(name);
        }
        client.acquire(name, false).await?;
        latency.take(now);
        client.release().await
    })
}

/// One name for all: each holder releases at once and queues again. A hand-over lasts from the release being
/// sent until the next holder has its answer.
pub(crate) fn hand_over(target: Target<'_>) -> Result<Round> {
    let released: Cell<Option<Instant>> = Cell::default();
    let name = new_name();
    run(target, Some(&name), &async |client: &mut Client,
                                     name: &mut String,
                                     asked: Instant,
                                     latency: &Latency| {
        client.acquire(name, true).await?;
        // Asked after the release: it was free, nobody handed anything over.
        if let Some(at) = released.take().filter(|at| asked < *at) {
            latency.take(at);
        }
        released.set(Some(Instant::now()));
        client.release().await
    })
}

/// Renews `ids` round and round, `batch` of them a request.
pub(crate) fn renew(target: Target<'_>, ids: &[String], batch: usize) -> Result<Round> {
    let next = Cell::new(0);
    let mut round = run(target, None, &async |client: &mut Client,
                                              _name: &mut String,
                                              now: Instant,
                                              latency: &Latency| {
        let at = next.get();
        next.set(if at + 2 * batch > ids.len() { 0 } else { at + batch });
        client.renew(&ids[at..at + batch]).await?;
        latency.take(now);
        Ok(())
    })?;
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
    let all = reactor.run(&mut Crew::new(0, work), Instant::now() + GRACE)?;
    ensure!(all, "{}: filling takes too long", target.way.name());
    Ok(ids.take())
}

/// Latencies of what began in the measured time.
struct Latency {
    from: Instant,
    until: Instant,
    samples_us: RefCell<Vec<f32>>,
}

impl Latency {
    /// Something that began at `start` is over now.
    fn take(&self, start: Instant) {
        if start >= self.from && start < self.until {
            self.samples_us.borrow_mut().push(start.elapsed().as_secs_f32() * 1e6);
        }
    }
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
        ensure!(reactor.run(&mut some, Instant::now() + GRACE)?, "connecting takes too long");
        // Each goes on where its socket is registered, whoever was ready first.
        some.done.sort_by_key(|(number, ..)| *number);
        clients.extend(some.done.into_iter().map(|(_, client, name)| (client, name)));
    }
    Ok(clients)
}

/// Repeats `step` on every client until the time is over.
fn run<F>(target: Target<'_>, shared: Option<&str>, step: &F) -> Result<Round>
where
    F: AsyncFn(&mut Client, &mut String, Instant, &Latency) -> Result<()>,
{
    work(target, shared, step)
        .with_context(|| format!("{} with {} clients", target.way.name(), target.clients))
}

fn work<F>(target: Target<'_>, shared: Option<&str>, step: &F) -> Result<Round>
where
    F: AsyncFn(&mut Client, &mut String, Instant, &Latency) -> Result<()>,
{
    let reactor = Reactor::new()?;
    let clients = connect(target, shared, &reactor)?;
    let from = Instant::now() + target.warmup;
    let until = from + target.length;
    let latency = Latency { from, until, samples_us: RefCell::new(Vec::with_capacity(1 << 18)) };
    let latency = &latency;
    let loops = clients.into_iter().map(async |(mut client, mut name)| {
        loop {
            let now = Instant::now();
            if now >= until {
                // Hanging up comes last: PostgreSQL's processes go with their connections, and their time with them.
                return Ok(client);
            }
            step(&mut client, &mut name, now, latency).await?;
        }
    });
    let mut crew = Crew::new(0, loops);
    reactor.run(&mut crew, from)?;
    let before = (cpu_times(target.pids), own_cpu_time());
    reactor.run(&mut crew, until)?;
    let client = own_cpu_time().saturating_sub(before.1);
    let used = Used { system: cpu_between(&before.0, &cpu_times(target.pids)), client };
    // Queueing is what most of them do in a hand-over; everywhere else it is an answer that never came.
    let all = reactor.run(&mut crew, until + DRAIN)?;
    ensure!(all || target.may_queue, "some requests were not answered within {DRAIN:?}");
    drop(crew);
    Ok(summary(latency.samples_us.take(), target.length, &used))
}

/// Processor time used while it was measured.
#[derive(Default)]
struct Used {
    system: Duration,
    client: Duration,
}

fn summary(mut samples_us: Vec<f32>, length: Duration, cpu: &Used) -> Round {
    samples_us.sort_by(f32::total_cmp);
    let count = samples_us.len();
    let quantile = |part: f64| {
        let at = (count as f64 * part) as usize;
        samples_us.get(at.min(count.saturating_sub(1))).map_or(f64::NAN, |us| f64::from(*us))
    };
    let each_us = |used: Duration| used.as_secs_f64() * 1e6 / count.max(1) as f64;
    Round {
        per_second: count as f64 / length.as_secs_f64(),
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        cpu_us: each_us(cpu.system),
        client_cpu_us: each_us(cpu.client),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_up() {
        let samples = (1..=100).map(|us| us as f32).collect();
        let used = Used { system: Duration::from_millis(1), client: Duration::from_millis(3) };
        let round = summary(samples, Duration::from_secs(2), &used);
        assert_eq!((round.per_second, round.p50_us, round.p99_us), (50.0, 51.0, 100.0));
        assert_eq!((round.cpu_us, round.client_cpu_us), (10.0, 30.0));
        assert!(summary(Vec::new(), Duration::from_secs(1), &Used::default()).p50_us.is_nan());
    }

    #[test]
    fn names_are_fresh_and_34_bytes_long() {
        let mut name = new_name();
        let first = name.clone();
        fresh_name(&mut name);
        assert_eq!((first.len(), name.len()), (34, 34));
        assert!(first < name, "{first} {name}");
    }
}
