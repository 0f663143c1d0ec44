//! The `leasehold` command: reads the command line and hands over to a subcommand.

mod commands;

use clap::{Parser, Subcommand};

/// One lock and lease service over plain HTTP.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version)]
struct Cli {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
enum Command {
    /// Measure a server.
    Bench(commands::bench::BenchArgs),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Bench(args) => commands::bench::run(args),
    }
}
