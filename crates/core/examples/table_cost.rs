//! What the table costs with a million live claims: time, memory, and the worst single call.
//!
//! In:    nothing, or the number of claims as the first argument. Run it in release:
//!        `cargo run --release -p leasehold-core --example table_cost`.
//! Out:   a table on standard output, with the target of each line.
//! Never: part of the table: it reads a clock and the process's memory, which the table must not.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement reads clocks and prints"
)]

use std::time::{Duration, Instant};

use leasehold_core::limits::EXPIRIES_PER_ENTRY;
use leasehold_core::table::{ListFilter, ListPage, Restorer};
use leasehold_core::{
    Batch, ClaimId, Command, Ending, Guard, Item, Mode, NewClaim, NewSet, OnBusy, Settings, Stamp, Status,
    Table, Target,
};

/// How long each of many entries took. Other work on the machine shows in the worst ones, not in the median.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    /// The median for one of the `len` things an entry does, in nanoseconds.
    fn median_ns(&mut self, len: u64) -> u64 {
        self.0.sort_unstable();
        self.0[self.0.len() / 2].as_nanos() as u64 / len
    }

    /// The median for one of the `len` things an entry does, and the worst entries.
    fn print(mut self, what: &str, len: u64, target_ns: Option<u64>, target_us: Option<u64>) {
        self.0.sort_unstable();
        let at = |place: usize| self.0[place.min(self.0.len() - 1)];
        let median = at(self.0.len() / 2).as_nanos() as u64 / len;
        print(&format!("{what}, ns (median)"), median, target_ns);
        let p999 = at(self.0.len() * 999 / 1_000).as_micros();
        let what = format!("{what}: worst entry, us (99.9 % within {p999})");
        print(&what, at(self.0.len()).as_micros() as u64, target_us);
    }
}

/// Far away: nothing expires by itself.
const HOUR_US: u64 = 3_600_000_000;
/// Commands in an entry under load.
const BATCH_LEN: u64 = 64;

fn main() {
    let count: u64 = std::env::args().nth(1).map_or(1_000_000, |text| text.parse().unwrap());
    println!("{count} live claims, one a resource, names of 34 bytes, {BATCH_LEN} commands an entry\n");
    print("this machine now: one cache miss, ns", cache_miss_ns(), None);
    let mut load = Load { table: Table::default(), stamp: Stamp { now_us: 1, wall_us: 1 }, next: 0 };
    fill(&mut load, count);
    cycles(&mut load, count);
    kinds(&mut load);
    hand_overs();
    renewals(&mut load, count).print("renew", BATCH_LEN, Some(3_000), None);
    lists(&load, count);
    snapshots(&mut load, count);
    mass_expiry(&mut load, count);
    long_resource(&mut load);
}

/// A table under load, and where the load has come.
struct Load {
    table: Table,
    stamp: Stamp,
    /// The number of the next new claim.
    next: u64,
}

impl Load {
    fn apply(&mut self, commands: Vec<Command>) -> Duration {
        self.stamp.now_us += 1;
        let batch = Batch { stamp: self.stamp, commands };
        let start = Instant::now();
        let applied = self.table.apply(&batch);
        let took = start.elapsed();
        assert_eq!(applied.outcomes.len(), batch.commands.len());
        took
    }

    fn new_claim(&mut self) -> Command {
        self.next += 1;
        let new = NewClaim::new(id(self.next), &name(self.next), "owner-1", Some(HOUR_US), OnBusy::Queue);
        Command::Claim(new)
    }
}

impl Load {
    /// A set under the number that was given out last.
    fn new_set(&self, items: Vec<Item>) -> Command {
        Command::ClaimSet(Box::new(NewSet {
            id: id(self.next),
            items,
            owner: "owner-1".into(),
            ttl_us: Some(HOUR_US),
            on_busy: OnBusy::Queue,
            data: None,
            idempotency: None,
            session: None,
            lapses: false,
        }))
    }
}

/// Spread like the random ids of production.
fn id(i: u64) -> ClaimId {
    ClaimId::from_u128(u128::from(scatter(i)) << 64 | u128::from(scatter(!i)))
}

fn name(i: u64) -> String {
    format!("tenant-{:03}/resource-{:014x}", i % 500, scatter(i) >> 8)
}

fn scatter(i: u64) -> u64 {
    let mixed = (i ^ (i >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)
}

fn fill(load: &mut Load, count: u64) {
    assert_eq!(name(7).len(), 34);
    let before = resident_bytes();
    let start = Instant::now();
    for _ in 0..count / 1_000 {
        let commands = (0..1_000).map(|_| load.new_claim()).collect();
        load.apply(commands);
    }
    let each = start.elapsed().as_nanos() as u64 / count;
    let bytes = (resident_bytes() - before) / count;
    print("fill: claim, ns (with making the command)", each, None);
    // A name is one allocation of its bytes, two counters and the allocator's word, rounded up to 16.
    let names = (34 + 16 + 8u64).next_multiple_of(16);
    print("memory: bytes a claim, names included", bytes, None);
    print("memory: bytes a claim beyond its name", bytes.saturating_sub(names), Some(300));
}

fn cycles(load: &mut Load, count: u64) {
    cycle(load, Load::new_claim).print("cycle: claim + release", BATCH_LEN, Some(3_000), None);
    assert_eq!(load.table.live(), count);
}

/// Claims of one kind, made and released.
fn cycle(load: &mut Load, mut new: impl FnMut(&mut Load) -> Command) -> Times {
    let mut times = Times::default();
    for _ in 0..3_000 {
        let mut ids = Vec::new();
        let mut claim = || {
            let command = new(load);
            ids.push(id(load.next));
            command
        };
        let claims: Vec<Command> = (0..BATCH_LEN).map(|_| claim()).collect();
        let claim = load.apply(claims);
        let release = load.apply(ids.into_iter().map(release).collect());
        times.0.push(claim + release);
    }
    times
}

fn release(id: ClaimId) -> Command {
    Command::Finish {
        target: Target::Claim(id),
        guard: Guard::default(),
        ending: Ending::Released,
        reason: None,
        purge_data: false,
    }
}

/// Shared claims, slots and sets beside the plain claim.
fn kinds(load: &mut Load) {
    load.apply(vec![Command::Upgrade { version: 3 }]);
    let set = |load: &mut Load, modes: &[Mode]| {
        let items = modes.iter().map(|mode| {
            load.next += 1;
            Item { resource: name(load.next).into(), mode: *mode }
        });
        let items = items.collect();
        load.new_set(items)
    };
    let plain_ns = cycle(load, Load::new_claim).median_ns(BATCH_LEN);
    print("kinds: plain claim + release, ns (median)", plain_ns, None);
    let slots = Mode::Slots { take: 1, of: 5 };
    let three = [Mode::Exclusive; 3];
    let mixed = [Mode::Exclusive, Mode::Shared, slots];
    for (what, modes, target) in [
        ("shared", &[Mode::Shared][..], None),
        ("slots", &[slots], None),
        ("set of three", &three, Some(2 * plain_ns)),
        ("set of three kinds", &mixed, Some(2 * plain_ns)),
    ] {
        let ns = cycle(load, |load| set(load, modes)).median_ns(BATCH_LEN);
        print(&format!("kinds: {what}: claim + release, ns (median)"), ns, target);
    }
    let readers = |load: &mut Load| {
        load.next += 1;
        load.new_set(vec![Item { resource: name(0).into(), mode: Mode::Shared }])
    };
    let ns = cycle(load, readers).median_ns(BATCH_LEN);
    print("kinds: 64 readers of one resource: claim + release, ns (median)", ns, None);
}

/// One resource goes from hand to hand among claims of all kinds: the length of its queue must not matter.
fn hand_overs() {
    let slots = Mode::Slots { take: 1, of: 2 };
    let kinds = [Mode::Exclusive, Mode::Shared, Mode::Shared, slots, slots, slots];
    for waiting in [2, 1_000, 50_000] {
        let mut load = Load { table: Table::default(), stamp: Stamp { now_us: 1, wall_us: 1 }, next: 0 };
        load.apply(vec![Command::Upgrade { version: 3 }]);
        let claim = |load: &mut Load| {
            load.next += 1;
            let mut items =
                vec![Item { resource: "mixed".into(), mode: kinds[load.next as usize % kinds.len()] }];
            if load.next.is_multiple_of(7) {
                items.push(Item { resource: name(load.next).into(), mode: Mode::Exclusive });
            }
            load.new_set(items)
        };
        let commands = (0..=waiting).map(|_| claim(&mut load)).collect();
        load.apply(commands);
        let (mut times, mut oldest) = (Times::default(), 1);
        for _ in 0..2_000 {
            let mut commands = Vec::new();
            for _ in 0..BATCH_LEN / 2 {
                commands.extend([release(id(oldest)), claim(&mut load)]);
                oldest += 1;
            }
            times.0.push(load.apply(commands));
        }
        let ns = times.median_ns(BATCH_LEN / 2);
        print(&format!("hand-over, {waiting} waiting: release + claim, ns (median)"), ns, None);
    }
}

fn renew(id: ClaimId) -> Command {
    Command::Renew { target: Target::Claim(id), guard: Guard::default(), ttl_us: None, data: None }
}

/// Renewals of claims all over the table.
fn renewals(load: &mut Load, count: u64) -> Times {
    let mut times = Times::default();
    for round in 0..5_000 {
        let ids = (0..BATCH_LEN).map(|i| id(scatter(round * BATCH_LEN + i) % count + 1));
        times.0.push(load.apply(ids.map(renew).collect()));
    }
    times
}

fn lists(load: &Load, count: u64) {
    let all = ListFilter::default();
    let active = ListFilter { status: Some(Status::Active), ..all.clone() };
    let waiting = ListFilter { status: Some(Status::Waiting), ..all.clone() };
    let nothing = ListFilter { left_us: (Some(2 * HOUR_US.cast_signed()), None), ..all.clone() };
    let resource = ListFilter { resource: Some(name(7).as_str().into()), ..all.clone() };
    let far = count - 100;
    list(load, "offset 0", &all, 0);
    list(load, "last page", &all, far);
    list(load, "active, offset 0", &active, 0);
    list(load, "active, last page", &active, far);
    list(load, "waiting (none)", &waiting, 0);
    list(load, "one resource", &resource, 0);
    list(load, "a ttl that nobody has", &nothing, 0);
}

fn list(load: &Load, what: &str, filter: &ListFilter, offset: u64) {
    let mut page = ListPage::new(offset, 100);
    let (mut calls, mut worst, start) = (0, Duration::ZERO, Instant::now());
    while !page.done {
        let call = Instant::now();
        load.table.list(filter, &mut page, load.stamp.now_us, 4096);
        worst = worst.max(call.elapsed());
        calls += 1;
    }
    let total = start.elapsed().as_micros() as u64;
    let what = format!("list: {what}: worst call, us ({calls} calls, {total} us in all)");
    print(&what, worst.as_micros() as u64, Some(5_000));
}

fn snapshots(load: &mut Load, count: u64) {
    let start = Instant::now();
    let frozen = load.table.freeze();
    print("freeze, us", start.elapsed().as_micros() as u64, Some(2_000));
    renewals(load, count).print("renew while a frozen copy lives", BATCH_LEN, None, Some(5_000));
    let start = Instant::now();
    let chunks: Vec<Vec<u8>> = frozen.chunks().collect();
    let bytes: usize = chunks.iter().map(Vec::len).sum();
    print("snapshot: encode, ms", start.elapsed().as_millis() as u64, None);
    print("snapshot: bytes a claim", bytes as u64 / count, None);
    let start = Instant::now();
    drop(frozen);
    print("drop the frozen copy, us", start.elapsed().as_micros() as u64, None);
    let (start, processor) = (Instant::now(), processor_ms());
    let mut restorer = Restorer::default();
    chunks.iter().for_each(|chunk| restorer.push(chunk).unwrap());
    let restored = restorer.finish().unwrap();
    let what = format!("restore, ms of processor time ({} ms in all)", start.elapsed().as_millis());
    print(&what, processor_ms() - processor, Some(2_000));
    assert_eq!(restored.live(), count);
}

fn mass_expiry(load: &mut Load, count: u64) {
    load.stamp.now_us += 2 * HOUR_US;
    let mut times = Times::default();
    while load.table.live() > 0 {
        times.0.push(load.apply(vec![Command::Tick]));
    }
    assert_eq!(times.0.len() as u64, count.div_ceil(EXPIRIES_PER_ENTRY as u64));
    times.print("mass expiry: a claim", EXPIRIES_PER_ENTRY as u64, None, Some(5_000));
}

/// One resource with as many finished and waiting claims as there may be.
fn long_resource(load: &mut Load) {
    load.apply(vec![Command::Configure(Settings { finished_max: 100_000, ..Settings::default() })]);
    let claim =
        |i: u64, ttl| Command::Claim(NewClaim::new(id(1 << 40 | i), "long", "owner-1", ttl, OnBusy::Queue));
    let withdraw = |i: u64| Command::Finish {
        target: Target::Claim(id(1 << 40 | i)),
        guard: Guard::default(),
        ending: Ending::Withdrawn,
        reason: None,
        purge_data: false,
    };
    for first in (0..100_000).step_by(1_000) {
        load.apply((first..first + 1_000).map(|i| claim(i, None)).collect());
    }
    let mut worst = Duration::ZERO;
    for i in 0..1_000 {
        worst = worst.max(load.apply(vec![withdraw(scatter(i) % 100_000)]));
    }
    print("queue of 100,000: worst withdrawal from the middle, us", worst.as_micros() as u64, None);
    for first in (0..100_000).step_by(1_000) {
        load.apply((first..first + 1_000).rev().map(withdraw).collect());
    }
    for first in (100_000..200_000).step_by(1_000) {
        load.apply((first..first + 1_000).map(|i| claim(i, None)).collect());
    }
    let long = ListFilter { resource: Some("long".into()), ..ListFilter::default() };
    let nothing = ListFilter { left_us: (Some(2 * HOUR_US.cast_signed()), None), ..long.clone() };
    list(load, "a resource of 200,000 claims", &long, 0);
    list(load, "a resource of 200,000 claims, last page", &long, 199_900);
    list(load, "a resource of 200,000 claims, nothing matches", &nothing, 0);
}

fn print(what: &str, value: u64, target: Option<u64>) {
    let verdict = match target {
        Some(target) if value > target => format!("(target {target}: MISSED)"),
        Some(target) => format!("(target {target})"),
        None => String::new(),
    };
    println!("{what:<84} {value:>9} {verdict}");
}

/// What everything below is made of: a walk through 256 MB in random order. A busy machine shows here first.
fn cache_miss_ns() -> u64 {
    let len: u64 = 1 << 25;
    let mut next: Vec<u64> = (0..len).collect();
    // Sattolo's shuffle makes one cycle of them all.
    for i in (1..len).rev() {
        next.swap(i as usize, (scatter(i) % i) as usize);
    }
    let (mut at, steps) = (0, 1_000_000);
    let start = Instant::now();
    for _ in 0..steps {
        at = next[at as usize];
    }
    let took = start.elapsed().as_nanos() as u64 / steps;
    took + u64::from(at == len)
}

/// How long this thread has been running, without the times when others had its processor.
fn processor_ms() -> u64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns: u64 = schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
    ns / 1_000_000
}

/// What the process has in memory.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}
