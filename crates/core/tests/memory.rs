//! What a held claim costs in memory, without a clock or an operating system: bytes that the table has allocated.
//!
//! In:    tables that grow to 50,000 held claims, looked at all the way up, so that the worst moment of every part's
//!        growth is seen; names of 34 bytes, owners of 20, as the benchmark makes them.
//! Out:   what each part takes, and a failure when a claim costs more than a tenth above its budget.
//! Never: depends on the machine, or on the allocator but for what every allocation costs beside its bytes.
//!
//! A budget that is exceeded for a good reason is raised in the commit that exceeds it, where a reader sees it.
#![allow(clippy::print_stdout, reason = "the account is for a reader")]

use std::alloc::System;
use std::fmt::Write;

use leasehold_core::{Batch, ClaimId, Command, Guard, Idempotency, NewClaim, OnBusy, Stamp, Table, Target};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const CLAIMS: u64 = 50_000;
/// How often the growing table is looked at.
const STEP: u64 = 1_000;
/// From here on; below, what any table costs counts for too much.
const SMALLEST: u64 = 20_000;
const NAME_LEN: u64 = 34;
const OWNER_LEN: u64 = 20;
/// What an allocation costs beside its bytes: the allocator's own word, and half of the sixteen bytes it rounds up to.
const ALLOCATION: f64 = 16.0;

/// One test, since the counter counts what all threads do.
#[test]
fn a_held_claim_takes_no_more_than_its_budget() {
    let mut report = String::new();
    let ascending = |i| format!("bench/hold/7f3a21/{i:016x}");
    let scattered = |i| format!("tenant-{:03}/resource-{:014x}", i % 500, scatter(i) >> 8);
    let one_owner = |_| "owner-of-twenty-byte".to_string();
    let own_owner = |i| format!("owner-{i:014x}");
    let cases: [(&str, Name<'_>, Name<'_>, bool, f64); 4] = [
        ("names in ascending order, one owner", &ascending, &one_owner, false, 174.0),
        ("names in any order, one owner", &scattered, &one_owner, false, 176.0),
        ("names in ascending order, an owner each", &ascending, &own_owner, false, 262.0),
        ("the same with one owner, and idempotency keys", &ascending, &one_owner, true, 346.0),
    ];
    let mut within = true;
    for (what, name, owner, keyed, budget) in cases {
        let own = NAME_LEN + if owner(1) == owner(2) { 0 } else { OWNER_LEN };
        let worst = worst_while_growing(name, owner, keyed) - own as f64;
        within &= worst <= 1.1 * budget;
        writeln!(
            report,
            "{what}: {worst:.1} bytes a claim beyond the caller's own at worst, budget {budget}"
        )
        .ok();
        account(name, owner, keyed, &mut report);
    }
    println!("{report}");
    assert!(within, "beyond a budget by more than a tenth:\n{report}");
}

type Name<'a> = &'a dyn Fn(u64) -> String;

fn worst_while_growing(name: Name<'_>, owner: Name<'_>, keyed: bool) -> f64 {
    let empty = allocated();
    let mut table = Table::default();
    let mut worst: f64 = 0.0;
    for first in (0..CLAIMS).step_by(STEP as usize) {
        apply(&mut table, (first..first + STEP).map(|i| claim(i, name, owner, keyed)).collect());
        let held = first + STEP;
        if held >= SMALLEST {
            worst = worst.max((allocated() - empty) / held as f64);
        }
    }
    worst
}

/// What each part takes in a full table: new, and with every claim renewed in another order.
fn account(name: Name<'_>, owner: Name<'_>, keyed: bool, report: &mut String) {
    for renewed in [false, true] {
        let mut table = Table::default();
        for first in (0..CLAIMS).step_by(STEP as usize) {
            apply(&mut table, (first..first + STEP).map(|i| claim(i, name, owner, keyed)).collect());
        }
        for i in (0..CLAIMS).filter(|_| renewed) {
            apply(&mut table, vec![renew(i * 7_919 % CLAIMS)]);
        }
        let mut before = allocated();
        write!(report, "  {}:", if renewed { "renewed" } else { "new" }).ok();
        table.dismantle(|part| {
            let now = allocated();
            write!(report, " {part} {:.1};", (before - now) / CLAIMS as f64).ok();
            before = allocated();
        });
        writeln!(report).ok();
    }
}

/// Bytes in use, with what their allocations cost.
fn allocated() -> f64 {
    let stats = ALLOCATOR.stats();
    let bytes = stats.bytes_allocated as f64 - stats.bytes_deallocated as f64;
    bytes + ALLOCATION * (stats.allocations as f64 - stats.deallocations as f64)
}

fn apply(table: &mut Table, commands: Vec<Command>) {
    let stamp = Stamp { now_us: table.clock().now_us + 1, wall_us: 1_700_000_000_000_000 };
    table.apply(&Batch { stamp, commands });
}

fn claim(i: u64, name: Name<'_>, owner: Name<'_>, keyed: bool) -> Command {
    let (name, owner) = (name(i), owner(i));
    assert_eq!((name.len(), owner.len()), (NAME_LEN as usize, OWNER_LEN as usize));
    let mut new = NewClaim::new(id(i), &name, &owner, Some(3_600_000_000), OnBusy::Queue);
    let key = u128::from(scatter(i + 7)) << 64 | u128::from(scatter(!i - 7));
    new.idempotency = keyed.then_some(Idempotency { key, fingerprint: i });
    Command::Claim(new)
}

fn renew(i: u64) -> Command {
    Command::Renew { target: Target::Claim(id(i)), guard: Guard::default(), ttl_us: None, data: None }
}

/// Spread like the random ids of production.
fn id(i: u64) -> ClaimId {
    ClaimId::from_u128(u128::from(scatter(i)) << 64 | u128::from(scatter(!i)))
}

fn scatter(i: u64) -> u64 {
    let mixed = (i ^ (i >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)
}
