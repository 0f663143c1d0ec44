//! The `leasehold` command: reads the command line and hands over to a subcommand.
//!
//! In:    the command line. Out: the exit code of the subcommand; errors on stderr, once.

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// One lock and lease service over plain HTTP: claims, locks, leases, fencing tokens.
#[derive(Parser)]
#[command(name = "leasehold", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the service
    Serve(Box<commands::serve::ServeArgs>),
    /// Measure a service: throughput, latency, and how much of the machine's limit it reaches
    Bench(commands::bench::BenchArgs),
    /// Look at the nodes of a cluster, and change who belongs to it
    Cluster(commands::cluster::ClusterArgs),
    /// Save the table of a running service as one file
    Backup(commands::backup::BackupArgs),
    /// Make a data directory out of a backup
    Restore(commands::backup::RestoreArgs),
    /// Access keys, and what the rules decide
    #[command(subcommand)]
    Access(commands::access::AccessCommand),
    /// Look after typed locks
    #[command(subcommand)]
    Dss(commands::dss::DssCommand),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => commands::serve::run(*args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Cluster(args) => commands::cluster::run(args),
        Command::Backup(args) => commands::backup::backup(args),
        Command::Restore(args) => commands::backup::restore(&args),
        Command::Access(command) => commands::access::run(command),
        Command::Dss(command) => commands::dss::run(command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the one place where an error reaches the person who typed the command"
)]
fn report(error: &anyhow::Error) {
    eprintln!("leasehold: {error:#}");
}
