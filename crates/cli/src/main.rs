//! The `leasehold` command: reads the command line and hands over to a subcommand.
//!
//! In:    the command line. Out: the exit code of the subcommand; errors on stderr, once.

mod commands;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tikv_jemallocator::Jemalloc;

/// What one thread allocates here another one frees, a hundred thousand times a second: the system's allocator takes a lock
/// for that, and a sixth of all processor time (docs/benchmarks.md).
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

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
    Run(Box<commands::run::RunArgs>),
    /// Claim a resource, and leave the claim to its ttl
    Claim(commands::claim::ClaimArgs),
    /// Release a claim, by its id or the resource that it holds
    Release(commands::release::ReleaseArgs),
    /// Start a claim's ttl anew
    Renew(commands::renew::RenewArgs),
    /// Show a claim, or who holds a resource and who waits for it
    Show(commands::show::ShowArgs),
    /// List claims
    List(commands::list::ListArgs),
    /// Tell of every change on a resource
    Watch(commands::watch::WatchArgs),
    Revoke(commands::revoke::RevokeArgs),
    Keychain(commands::keychain::KeychainArgs),
    /// Measure a service: throughput, latency, and how much of the machine's limit it reaches
    Bench(commands::bench::BenchArgs),
    /// Look at the nodes of a cluster, and change who belongs to it
    Cluster(commands::cluster::ClusterArgs),
    /// Show what claims may take and what they take, and change byte budgets
    Limits(commands::limits::LimitsArgs),
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
    /// Print a script that completes commands in a shell
    Completions(commands::completions::CompletionsArgs),
    /// Print the manual page
    Man(commands::completions::ManArgs),
    #[command(name = commands::exec::NAME, hide = true)]
    Exec(commands::exec::ExecArgs),
}

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return refuse(&error),
    };
    let success = |()| ExitCode::SUCCESS;
    let result = match command {
        Command::Serve(args) => commands::serve::run(*args).map(success),
        Command::Run(args) => Ok(commands::run::run(&args)),
        Command::Claim(args) => commands::claim::run(&args),
        Command::Release(args) => commands::release::run(&args).map(success),
        Command::Renew(args) => commands::renew::run(&args).map(success),
        Command::Show(args) => commands::show::run(&args).map(success),
        Command::List(args) => commands::list::run(&args).map(success),
        Command::Watch(args) => commands::watch::run(&args).map(success),
        Command::Revoke(args) => commands::revoke::run(&args).map(success),
        Command::Keychain(args) => commands::keychain::run(&args),
        Command::Bench(args) => commands::bench::run(args).map(success),
        Command::Cluster(args) => commands::cluster::run(args).map(success),
        Command::Limits(args) => commands::limits::run(args).map(success),
        Command::Backup(args) => commands::backup::backup(&args).map(success),
        Command::Restore(args) => commands::backup::restore(&args).map(success),
        Command::Access(command) => commands::access::run(command).map(success),
        Command::Dss(command) => commands::dss::run(command).map(success),
        Command::Completions(args) => commands::completions::completions(&args, Cli::command()).map(success),
        Command::Man(args) => commands::completions::man(&args, Cli::command()).map(success),
        Command::Exec(args) => Ok(commands::exec::run(&args)),
    };
    result.unwrap_or_else(|error| {
        // A server's words may be in it.
        commands::complain(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}

/// A command line that makes no sense; or one that asks for help, which is none of that.
fn refuse(error: &clap::Error) -> ExitCode {
    error.print().ok();
    // `run` passes the exit code of its command on; its own failures have one that commands don't use.
    let is_run = std::env::args_os().nth(1).is_some_and(|command| command == "run");
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        _ if is_run => ExitCode::from(commands::exit_code::OWN_FAILURE),
        code => ExitCode::from(code.to_le_bytes()[0]),
    }
}
