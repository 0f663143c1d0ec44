//! `make sim SEEDS=n FIRST_SEED=m`: so many seeds of the simulation, one after the other.
//!
//! In:    `--seeds N --first-seed N`, and `--history` to print what clients saw. Out: each failed seed with what was
//!        violated, simulated hours and faults by kind, and the line `n seeds, k failed`; status 1 if any did.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it talks to a person")]

use std::collections::BTreeMap;
use std::process::ExitCode;

use leasehold_lab::sim;

fn main() -> ExitCode {
    let (mut seeds, mut first, mut history) = (300, 1, false);
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let mut number = || args.next().and_then(|value| value.parse::<u64>().ok());
        match name.as_str() {
            "--seeds" => seeds = number().unwrap_or(seeds),
            "--first-seed" => first = number().unwrap_or(first),
            "--history" => history = true,
            _ => {
                eprintln!("{name} is unknown: see the head of crates/lab/src/bin/sim.rs");
                return ExitCode::from(2);
            }
        }
    }
    let (mut failed, mut operations, mut simulated_us) = (0, 0, 0);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in first..first + seeds {
        let report = sim::run(seed, None);
        if history {
            print!("{}", report.history);
        }
        if let Some(violation) = report.violation {
            failed += 1;
            println!("seed {seed}: {violation}");
        }
        operations += report.history.ops.len();
        simulated_us += report.simulated_us;
        report.counts.iter().for_each(|(kind, times)| *counts.entry(kind).or_default() += times);
    }
    let counts: Vec<String> = counts.iter().map(|(kind, times)| format!("{kind} {times}")).collect();
    println!(
        "{:.1} simulated hours, {operations} operations: {}",
        simulated_us as f64 / 3.6e9,
        counts.join(", ")
    );
    println!("{seeds} seeds, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
