//! The command line of `leasehold bench`.
//!
//! In:    arguments and `LEASEHOLD_ADDR`.
//! Out:   `BenchArgs`, read by `lib.rs`.
//! Never: more than shape: what a combination means is decided where it is used.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

/// Measure a Leasehold server: throughput and latency, the disk's fdatasync beside every figure.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Flags every scenario takes.
    #[command(flatten)]
    pub(crate) common: Common,
    /// What to measure.
    #[command(subcommand)]
    pub(crate) scenario: Scenario,
}

/// Flags every scenario takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// The server to measure: HOST:PORT, http://HOST:PORT or https://HOST:PORT.
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_ADDR",
        default_value = "127.0.0.1:4080",
        value_name = "ADDRESS"
    )]
    pub(crate) addr: String,
    /// Start a fresh server for the run, with its data under --dir, and end it afterwards.
    #[arg(long, global = true)]
    pub(crate) serve: bool,
    /// Your access key, where the server asks for one.
    #[arg(long, global = true, env = "LEASEHOLD_KEY", value_name = "KEY", hide_env_values = true, value_parser = visible)]
    pub(crate) key: Option<String>,
    /// The server's process, for its memory and CPU use (known with --serve).
    #[arg(long, global = true)]
    pub(crate) pid: Option<u32>,
    /// Connections, each with one request in flight.
    #[arg(long, global = true, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    pub(crate) connections: u32,
    /// Measured seconds [default: 4; `report`: 2 a round].
    #[arg(long, global = true, value_parser = positive)]
    pub(crate) seconds: Option<f64>,
    /// Seconds before anything is counted.
    #[arg(long, global = true, default_value_t = 1.0, value_parser = not_negative)]
    pub(crate) warmup: f64,
    /// Open loop: requests a second on a fixed schedule, latency counted from the scheduled moment.
    /// For `mix`: a multiple of its distribution. Without it: closed loop.
    #[arg(long, global = true, value_parser = positive)]
    pub(crate) rate: Option<f64>,
    /// One JSON document on standard output; progress stays on standard error.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The directory whose disk is measured and where --serve puts its data.
    #[arg(long, global = true, default_value = ".", value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Scenario {
    /// Claim and release resources nobody else wants.
    Cycle,
    /// Renew held claims, as heartbeats do.
    Renew {
        /// Claims held.
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
        claims: u32,
    },
    /// Read held claims one by one, up to date or, with --stale, from the node's own table.
    Read {
        /// Claims held.
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
        claims: u32,
        /// Ask with `?stale=true`.
        #[arg(long)]
        stale: bool,
    },
    /// Hand one resource from holder to holder through a queue of long-polling waiters.
    Queue {
        /// Clients waiting behind the holder.
        #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_000))]
        waiters: u32,
        /// Waiters of all kinds, one after the other: exclusive, shared, slots, sets of two.
        #[arg(long)]
        mixed: bool,
    },
    /// Share one resource: readers come and go beside a rare writer.
    Shared,
    /// Take one of the slots of one resource and give it back: 64 connections, 8 slots unless told otherwise.
    Slots {
        /// Slots of the resource.
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1_000))]
        slots: u16,
    },
    /// Claim one of many resources, and then three of them at once: what does a set cost?
    Sets {
        /// Resources to choose from.
        #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(3..))]
        resources: u32,
    },
    /// The realistic mixture: about 100 activation polls a second among claims, renewals and reads.
    Mix {
        /// Send as fast as answers come instead of on the schedule.
        #[arg(long)]
        closed: bool,
    },
    /// Hold many claims: memory, renewals, restart, and what a bystander feels meanwhile.
    Hold(HoldArgs),
    /// The cycle requests against a bare HTTP responder: what this machine could do at best.
    Ceiling,
    /// Everything in one table, cycle and ceiling in alternating rounds, for docs/notes/benchmarks.md.
    Report(Shape),
    /// Three fresh nodes on this machine in one table: through the leader, through a follower, reads, hand-overs.
    Cluster(Shape),
    /// Two builds in one table, in alternating rounds: what is new worse at than old?
    Compare(CompareArgs),
    /// The bare responder itself; `ceiling` starts it.
    #[command(hide = true)]
    Responder {
        /// Where to listen.
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
    },
}

/// Flags of `hold`.
#[derive(Debug, Clone, Args)]
pub(crate) struct HoldArgs {
    /// Claims held.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) claims: u32,
    /// Their ttl in seconds; long enough for the whole run.
    #[arg(long, default_value_t = 3600.0, value_parser = positive)]
    pub(crate) ttl: f64,
    /// Bytes of `user_data` on each claim.
    #[arg(long, default_value_t = 0)]
    pub(crate) data: u32,
    /// Also measure lists, and a bystander while they run.
    #[arg(long)]
    pub(crate) list: bool,
    /// Also let all claims expire at one moment and measure a bystander around it.
    #[arg(long)]
    pub(crate) expire: bool,
}

/// How much of `report` and `cluster`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Shape {
    /// Rounds of each; the table shows medians.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Numbers of connections.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 256], value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) at: Vec<u32>,
    /// Lengths of the queue for the hand-over rows.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 16, 128])]
    pub(crate) waiters: Vec<u32>,
}

/// Flags of `compare`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CompareArgs {
    /// The binary to compare with.
    #[arg(long, value_name = "BINARY")]
    pub(crate) old: PathBuf,
    /// The binary that should not be worse.
    #[arg(long, value_name = "BINARY")]
    pub(crate) new: PathBuf,
    /// Rounds of each.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Numbers of connections.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 256], value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) at: Vec<u32>,
    /// Clients that wait behind the holder of the hand-over row.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    pub(crate) waiters: u32,
    /// Claims held for the memory row; 0 leaves it out.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) claims: u32,
    /// The share by which a row may be worse, in percent.
    #[arg(long, default_value_t = 3.0, value_parser = not_negative)]
    pub(crate) tolerance: f64,
}

impl Common {
    /// The measured time, where `default` seconds hold unless told otherwise.
    pub(crate) fn measured(&self, default: f64) -> Duration {
        Duration::from_secs_f64(self.seconds.unwrap_or(default))
    }

    /// The warm-up.
    pub(crate) fn warmup(&self) -> Duration {
        Duration::from_secs_f64(self.warmup)
    }
}

fn visible(text: &str) -> Result<String, String> {
    let clean = text.bytes().all(|byte| byte.is_ascii_graphic());
    if clean { Ok(text.to_owned()) } else { Err("a key has no spaces or control characters".to_owned()) }
}

/// The longest time or highest rate that makes sense; beyond it arithmetic on durations could overflow.
const NUMBER_MAX: f64 = 1e7;

fn positive(text: &str) -> Result<f64, String> {
    not_negative(text)
        .and_then(|value| if value > 0.0 { Ok(value) } else { Err("must be above 0".to_owned()) })
}

fn not_negative(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=NUMBER_MAX).contains(&value) { Ok(value) } else { Err(format!("must be in 0..={NUMBER_MAX}")) }
}
