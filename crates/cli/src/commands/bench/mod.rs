//! `leasehold bench`: the built-in load generator.
//!
//! In:    a scenario and the address of a server (or `--serve`, which starts one).
//! Out:   throughput, latencies and errors, with the disk's fdatasync beside every figure.
//! Never: more CPU than it must: it shares the machine with the server it measures.
//!
//! The road of one request:
//! 1. `scenarios/*.rs`  a `Workload` puts pre-built bytes (`request.rs`) into a connection's buffer.
//! 2. `engine.rs`       writes them, and waits in one epoll for all connections (`connection.rs`).
//! 3. `response.rs`     finds status, body and `Location` in what came back.
//! 4. `stats.rs`        counts the latency (`histogram.rs`); the workload judges the answer.
//! 5. `output.rs`       prints the figures, `disk.rs` having measured the disk before the run.

mod args;
mod connection;
mod disk;
mod engine;
mod histogram;
mod output;
mod probe;
mod process;
mod request;
mod responder;
mod response;
mod run_state;
mod scenarios;
mod schedule;
mod stats;
mod target;

use anyhow::{Result, bail};

pub(crate) use args::BenchArgs;
use args::Scenario;
use output::Outcome;

/// Runs one scenario and prints its figures. `Err` if it could not run or counted any error.
pub(crate) fn run(args: BenchArgs) -> Result<()> {
    let BenchArgs { common, scenario } = args;
    if let Scenario::Responder { listen } = scenario {
        return responder::run(listen);
    }
    output::progress(&format!("measuring fdatasync in {}", common.dir.display()));
    let disk = disk::measure(&common.dir)?;
    output::progress(&disk.to_string());
    let outcomes = scenarios::run(&scenario, &common, disk)?;
    output::results(&outcomes, disk, common.json)?;
    let errors: u64 = outcomes.iter().flat_map(|outcome: &Outcome| outcome.errors.values()).sum();
    if errors > 0 {
        bail!("{errors} errors; the figures above do not count as a result");
    }
    Ok(())
}
