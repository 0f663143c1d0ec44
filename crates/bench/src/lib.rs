//! The load generator: `leasehold bench`, and the ground that `make bench-peers` stands on.
//!
//! In:    a scenario and the address of a server (or `--serve`, which starts one).
//! Out:   throughput, latencies and errors, with the disk's fdatasync beside every figure.
//! Never: more of the processor than it must: it shares the machine with the server that it measures.
//!
//! The road of one request:
//! 1. `scenarios/*.rs`  an async function for each connection, which asks its `session.rs` to send a request.
//! 2. `http.rs`         puts the pieces of the request into the buffer of a `wire.rs`, plain or TLS, and parses the answer.
//! 3. `reactor.rs`      waits for all connections in one epoll; in the open loop, `pace.rs` says when requests leave.
//! 4. `load.rs`         is the run: warm-up, measured time, clean-up; `stats.rs` counts latencies (`histogram.rs`) and errors.
//! 5. `output.rs`       prints the figures; `disk.rs` has measured the disk before the run.
//!
//! `bin/peers` drives Leasehold, etcd, Redis, ZooKeeper and PostgreSQL with clients on the same reactor.

mod args;
mod disk;
mod histogram;
pub mod http;
pub mod load;
pub mod names;
pub mod output;
mod pace;
pub mod process;
pub mod reactor;
mod responder;
mod scenarios;
mod session;
pub mod spread;
pub mod stats;
pub mod target;
pub mod wire;

use anyhow::{Result, bail};

pub use args::BenchArgs;
use args::Scenario;
pub use disk::measure as measure_disk;

/// Runs one scenario and prints its figures. `Err` if it could not run or counted any error.
pub fn run(args: BenchArgs) -> Result<()> {
    let BenchArgs { common, scenario } = args;
    if let Scenario::Responder { listen } = scenario {
        return responder::run(listen);
    }
    output::progress(&format!("measuring fdatasync in {}", common.dir.display()));
    let disk = disk::measure(&common.dir)?;
    output::progress(&disk.to_string());
    let outcomes = scenarios::run(&scenario, &common, disk)?;
    output::results(&outcomes, disk, common.json)?;
    let errors: u64 = outcomes.iter().flat_map(|outcome| outcome.errors.values()).sum();
    if errors > 0 {
        bail!("{errors} errors; the figures above do not count as a result");
    }
    Ok(())
}
