//! `make sim SEEDS=n FIRST_SEED=m`: so many seeds of the simulation, two at a time where there are two cores.
//!
//! In:    `--seeds N --first-seed N`; without a first seed, seeds that nobody has run, from the date and the time;
//!        `--once-failed` for those that ever failed, besides; `--history` to print what clients saw; `--trace` to
//!        print what nodes log and what is done to them (filtered by `RUST_LOG`); `--bug NAME` to look for a planted one.
//! Out:   each failed seed with what was violated, simulated hours and faults by kind, and the line `n seeds, k failed`;
//!        status 1 if any did.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it talks to a person")]

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_engine::machine::simulated::runtime;
use leasehold_lab::sim::{self, Bug};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Bugs that can be planted, in a build with the feature `planted`.
const BUGS: [Bug; 14] = [
    Bug::AckBeforeFsync,
    Bug::WallClock,
    Bug::StaleRead,
    Bug::GrantTwice,
    Bug::Lifo,
    Bug::TokenReset,
    Bug::ParcelTwice,
    Bug::FalseFreshness,
    Bug::WedgedFollower,
    Bug::RefusedYetDone,
    Bug::StuckLinks,
    Bug::StaleLease,
    Bug::GhostLock,
    Bug::HastyVotes,
];

fn main() -> ExitCode {
    let (mut seeds, mut first, mut history, mut once_failed, mut bug) = (300, None, false, false, None);
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let mut number = || args.next().and_then(|value| value.parse::<u64>().ok());
        match name.as_str() {
            "--seeds" => seeds = number().unwrap_or(seeds),
            "--first-seed" => first = number(),
            "--once-failed" => once_failed = true,
            "--history" => history = true,
            "--trace" => trace(),
            "--bug" => {
                let wanted = args.next().unwrap_or_default();
                bug = BUGS.into_iter().find(|bug| format!("{bug:?}") == wanted);
                if bug.is_none() {
                    eprintln!("--bug takes one of {BUGS:?}");
                    return ExitCode::from(2);
                }
            }
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
    if let Some(bug) = bug {
        return find(bug, &all);
    }
    if history {
        all.iter().for_each(|seed| print!("{}", sim::run(*seed, None).history));
    }
    let summary = sim::many::run_all(&all);
    println!("{summary}");
    if summary.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Simulated time, and the node whose task runs (0: nobody's).
struct SimulatedTime;

impl FormatTime for SimulatedTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        write!(writer, "{:>9.4} s  node {} ", runtime::now_us() as f64 / 1e6, runtime::current_node())
    }
}

/// Prints what the nodes have to say, and each fault.
fn trace() {
    let asked = std::env::var("RUST_LOG").unwrap_or_else(|_| "info,openraft=warn".into());
    let output = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    output.with_env_filter(asked).with_timer(SimulatedTime).init();
}

/// What each seed says about a bug.
fn find(bug: Bug, seeds: &[u64]) -> ExitCode {
    for seed in seeds {
        let found = sim::many::run_caught(*seed, Some(bug)).map(|report| report.violation);
        let found = found.unwrap_or_else(Some).unwrap_or_default();
        println!("{bug:?}: seed {seed}: {}", if found.is_empty() { "nothing" } else { &found });
    }
    ExitCode::SUCCESS
}
