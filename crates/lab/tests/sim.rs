//! The simulation: no seed finds anything.

use leasehold_lab::sim;

/// Seeds that once failed, with their stories in docs/reliability.md.
const ONCE_FAILED: &[u64] = &[];

#[test]
fn the_same_seed_gives_the_same_history_byte_for_byte() {
    for seed in [7, 8] {
        let (one, two) = (sim::run(seed, None), sim::run(seed, None));
        assert!(one.history.ops.len() > 50, "too little happened: {}", one.history.ops.len());
        assert_eq!(one.history.to_string(), two.history.to_string());
        assert_eq!((one.counts, one.simulated_us), (two.counts, two.simulated_us));
    }
    assert_ne!(sim::run(7, None).history.to_string(), sim::run(8, None).history.to_string());
}

#[test]
fn no_seed_finds_a_violation() {
    let seeds = std::env::var("SEEDS").map_or(20, |seeds| seeds.parse().unwrap());
    for seed in (1..=seeds).chain(ONCE_FAILED.iter().copied()) {
        let report = sim::run(seed, None);
        assert!(report.violation.is_none(), "seed {seed}: {}", report.violation.unwrap_or_default());
    }
}
