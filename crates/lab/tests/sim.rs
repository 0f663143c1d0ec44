//! The simulation: no seed finds anything, and every seed finds the same again.
//!
//! 60 seeds that are new with every change (their first number comes from the commit's own source, so that everybody who
//! tests a commit tests the same), and all that ever failed (crates/lab/failed-seeds). `SEEDS=n FIRST_SEED=m` for others; `make test-long` takes 300.

#![allow(clippy::print_stdout, reason = "which seeds were run is worth knowing")]

use std::process::Command;

use leasehold_lab::sim;

const SEEDS: u64 = 60;

/// Where the source does not come with its history.
const FIRST_SEED: u64 = 1;

/// A number that belongs to this commit's source, and to no other's.
fn seed_of_source() -> Option<u64> {
    let git = Command::new("git")
        .args(["rev-parse", "HEAD:crates"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output();
    let hash = git.ok().filter(|output| output.status.success())?.stdout;
    // Short enough to be typed, long enough to be new.
    u64::from_str_radix(std::str::from_utf8(&hash).ok()?.get(..12)?, 16).ok()
}

#[test]
fn the_same_seed_gives_the_same_history_byte_for_byte() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 7..15 {
        let (one, two) = (sim::run(seed, None), sim::run(seed, None));
        assert!(one.history.ops.len() > 50, "too little happened: {}", one.history.ops.len());
        assert_eq!(one.history.to_string(), two.history.to_string());
        assert_eq!((&one.counts, one.simulated_us), (&two.counts, two.simulated_us));
        kinds.extend(one.counts.into_keys());
    }
    assert_ne!(sim::run(7, None).history.to_string(), sim::run(8, None).history.to_string());
    for kind in [
        "power-loss",
        "disk-full",
        "bit-flip",
        "disk-lost",
        "node-joins",
        "clock-drift",
        "connection-reset",
        "port-refuses",
    ] {
        assert!(kinds.contains(kind), "no {kind} in any of these seeds: {kinds:?}");
    }
}

#[test]
fn no_seed_finds_a_violation() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("FIRST_SEED").or_else(seed_of_source).unwrap_or(FIRST_SEED);
    let seeds = number("SEEDS").unwrap_or(SEEDS);
    println!("seeds {first} to {}: the same again with FIRST_SEED={first}", first + seeds - 1);
    let mut all = sim::many::once_failed();
    all.extend(first..first + seeds);
    let summary = sim::many::run_all(&all);
    println!("{summary}");
    assert!(summary.failed.is_empty(), "the same again with FIRST_SEED={first}\n{summary}");
}
