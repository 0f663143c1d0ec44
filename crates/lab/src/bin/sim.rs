//! `make sim SEEDS=n FIRST_SEED=m`: so many seeds of the simulation, two at a time where there are two cores.
//!
//! In:    `--seeds N --first-seed N`; without a first seed, seeds that nobody has run, from the date and the time;
//!        `--once-failed` for those that ever failed, besides; `--history` to print what clients saw.
//! Out:   each failed seed with what was violated, simulated hours and faults by kind, and the line `n seeds, k failed`;
//!        status 1 if any did.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it talks to a person")]

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_lab::sim;

fn main() -> ExitCode {
    let (mut seeds, mut first, mut history, mut once_failed) = (300, None, false, false);
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let mut number = || args.next().and_then(|value| value.parse::<u64>().ok());
        match name.as_str() {
            "--seeds" => seeds = number().unwrap_or(seeds),
            "--first-seed" => first = number(),
            "--once-failed" => once_failed = true,
            "--history" => history = true,
            _ => {
                eprintln!("{name} is unknown: see the head of crates/lab/src/bin/sim.rs");
                return ExitCode::from(2);
            }
        }
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let first = first.unwrap_or(now * 1_000);
    println!("seeds {first} to {}: the same again with FIRST_SEED={first}", first + seeds.max(1) - 1);
    let mut all: Vec<u64> = (first..first + seeds).collect();
    if once_failed {
        all.extend(sim::many::once_failed());
    }
    if history {
        all.iter().for_each(|seed| print!("{}", sim::run(*seed, None).history));
    }
    let summary = sim::many::run_all(&all);
    println!("{summary}");
    if summary.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
