//! The `leasehold` command: reads the command line and hands over to a subcommand.
//!
//! In:    the command line. Out: the exit code of the subcommand; errors on stderr, once.

mod commands;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tikv_jemallocator::Jemalloc;

/// What one thread allocates here another one frees, a hundred thousand times a second: the system's allocator takes a lock
/// for that, and a sixth of all processor time (docs/notes/speed.md).
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
    Serve(Box<commands::serve::ServeCommand>),
    Run(Box<commands::run::RunArgs>),
    /// Claim a resource, and leave the claim to its ttl
    Claim(commands::claim::ClaimArgs),
    /// Release a claim, by its id or the resource that it holds
    Release(commands::release::ReleaseArgs),
    /// Restart a claim's ttl
    Renew(commands::renew::RenewArgs),
    /// Show a claim, or who holds a resource and who waits for it
    Show(commands::show::ShowArgs),
    /// List claims
    List(commands::list::ListArgs),
    /// Print every change on a resource as it happens
    Watch(commands::watch::WatchArgs),
    Revoke(commands::revoke::RevokeArgs),
    Keychain(commands::keychain::KeychainArgs),
    /// Measure a service: throughput, latency, and how much of the machine's limit it reaches
    Bench(leasehold_bench::BenchArgs),
    /// Show the nodes of a cluster; add, remove and recover nodes
    Cluster(commands::cluster::ClusterArgs),
    /// Show limits and their use, and change byte budgets
    Limits(commands::limits::LimitsArgs),
    /// Save the table of a running service as one file
    Backup(commands::backup::BackupArgs),
    /// Check a node's machine and settings, or a client's way to the service
    #[command(subcommand)]
    Doctor(commands::doctor::DoctorCommand),
    /// Make a data directory from a backup
    Restore(commands::backup::RestoreArgs),
    /// Manage access keys, and test rules
    #[command(subcommand)]
    Access(commands::access::AccessCommand),
    /// Clean up typed locks
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
        Command::Bench(args) => leasehold_bench::run(args).map(success),
        Command::Cluster(args) => commands::cluster::run(args).map(success),
        Command::Limits(args) => commands::limits::run(args).map(success),
        Command::Backup(args) => commands::backup::backup(&args).map(success),
        Command::Doctor(command) => commands::doctor::run(command),
        Command::Restore(args) => commands::backup::restore(&args).map(success),
        Command::Access(command) => commands::access::run(command).map(success),
        Command::Dss(command) => commands::dss::run(command).map(success),
        Command::Completions(args) => commands::completions::completions(&args, Cli::command()).map(success),
        Command::Man(args) => commands::completions::man(&args, Cli::command()).map(success),
        Command::Exec(args) => Ok(commands::exec::run(&args)),
    };
    result.unwrap_or_else(|error| {
        // A server's words may be in it.
        commands::complain(&format!("{error:#}{}", advice(&error)));
        ExitCode::FAILURE
    })
}

/// What to do about it, where the error does not say.
fn advice(error: &anyhow::Error) -> &'static str {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<leasehold_client::Error>());
    if causes.any(|cause| matches!(cause, leasehold_client::Error::Unreachable(_))) {
        ". Check that the service runs (`leasehold serve` starts one) and that LEASEHOLD_ADDR or --addr names it"
    } else {
        ""
    }
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
