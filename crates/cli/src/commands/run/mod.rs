//! `leasehold run`: a command that runs while it holds a resource, and not a moment longer.
//!
//! In:    a resource and a command. Out: the command's exit code, or one that says why it was not run or was stopped.
//! Never: leaves the command running when its claim is lost: its whole process group is gone before the ttl is over.
//!
//! `wait.rs` shows how the claim waits, `child.rs` starts and stops the command, `signals.rs` hears signals.

mod child;
mod signals;
mod wait;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use leasehold_client::clock::BootInstant;
use leasehold_client::{Claim, ClaimRequest, Error, LockManager, Lost, Wait};
use serde_json::json;
use serde_json::value::RawValue;

use self::child::Child;
use self::signals::Signals;
pub(crate) use self::signals::any_signal;
use super::connect::{ConnectArgs, block_on};
use super::exit_code::{CANNOT_RUN, LOST, NOT_ACQUIRED, NOT_FOUND, OWN_FAILURE, SIGNALLED};
use super::seconds::Seconds;
use super::{complain, output};

/// What a command gets to stop in, unless told otherwise: a quarter of the ttl, at most this.
const GRACE_MAX: Duration = Duration::from_secs(5);
/// Between the last KILL and the end of the ttl: what the kernel needs.
const KILL_TAKES: Duration = Duration::from_millis(50);

/// Run a command while holding a resource
///
/// Waits for its turn, runs the command in a process group of its own, renews the claim while it runs, releases it
/// afterwards, and passes signals on and the exit code back. The command finds LEASEHOLD_RESOURCE, LEASEHOLD_CLAIM and
/// LEASEHOLD_TOKEN (the fencing token) in its environment.
///
/// If the claim is lost (no renewal got through, somebody revoked it) the whole process group gets SIGTERM, and SIGKILL
/// after the grace; both before the ttl is over, so that nobody else holds the resource while the command still runs.
#[derive(clap::Args)]
#[command(after_long_help = EXIT_CODES)]
pub(crate) struct RunArgs {
    /// What to hold
    resource: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Fail if it is held, instead of waiting
    #[arg(short = 'n', long, alias = "nb", conflicts_with = "timeout")]
    nonblock: bool,
    /// Fail after waiting this long [default: wait for ever]
    #[arg(short = 'w', long, alias = "wait", value_name = "SECONDS")]
    timeout: Option<Seconds>,
    /// Exit code if it was not acquired
    #[arg(short = 'E', long, default_value_t = NOT_ACQUIRED, value_name = "CODE")]
    conflict_exit_code: u8,
    /// Seconds that the claim outlives this process, if it dies
    #[arg(long, default_value = "30", value_name = "SECONDS")]
    ttl: Seconds,
    /// Seconds between SIGTERM and SIGKILL when the claim is lost [default: a quarter of the ttl, at most 5]
    #[arg(long, value_name = "SECONDS")]
    grace: Option<Seconds>,
    /// Hold it for at most this long; then it counts as lost
    #[arg(long, value_name = "SECONDS")]
    max_hold: Option<Seconds>,
    /// JSON to keep with the claim [default: host, user, pid and command]
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// Say nothing while waiting
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

const EXIT_CODES: &str = "Exit codes:
  the command's own   it ran to its end, and the claim was held all the time
  75                  not acquired: held by another (-n), or not free in time (-w); -E changes it
  76                  the claim was lost while the command ran; the command was stopped
  125                 leasehold itself failed: no server answers, it refuses, a flag makes no sense
  126, 127            the command can't be run, or is not there
  128+n               the command, or leasehold while it waited, was ended by signal n";

pub(crate) fn run(args: &RunArgs) -> ExitCode {
    signals::keep_the_terminal();
    match block_on(hold_and_run(args)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::from(OWN_FAILURE)
        }
    }
}

async fn hold_and_run(args: &RunArgs) -> anyhow::Result<u8> {
    let grace = args.grace.map_or((args.ttl.0 / 4).min(GRACE_MAX), |grace| grace.0);
    let request = request(args, grace)?;
    let mut signals = Signals::listen()?;
    let manager = LockManager::new(args.connect.options()?)?;
    let pending = manager.request(request)?;
    // Kept beyond the select: dropped, the claim would leave the queue on its own, and cross with the abort.
    let waiting = wait::acquired(pending, manager.api(), &args.resource, args.quiet);
    tokio::pin!(waiting);
    let acquired = tokio::select! {
        acquired = &mut waiting => acquired,
        signal = signals.next() => {
            // The claim leaves the queue with this process.
            manager.abort().await;
            return Ok(SIGNALLED + signal);
        }
    };
    let claim = match acquired {
        Ok(claim) => claim,
        Err(error) => {
            manager.close().await;
            return not_acquired(args, error);
        }
    };
    let code = run_held(args, claim, grace, &mut signals).await;
    manager.close().await;
    code
}

fn request(args: &RunArgs, grace: Duration) -> anyhow::Result<ClaimRequest> {
    let data = match &args.data {
        Some(data) => data.clone(),
        None => about_this(&args.command),
    };
    let data = RawValue::from_string(data).map_err(|error| anyhow::anyhow!("--data is not JSON: {error}"))?;
    Ok(ClaimRequest {
        resource: args.resource.clone(),
        ttl: Some(args.ttl.0),
        wait: match (args.nonblock, args.timeout) {
            (true, _) => Wait::No,
            (false, Some(Seconds(Duration::ZERO))) => Wait::No,
            (false, Some(timeout)) => Wait::For(timeout.0),
            (false, None) => Wait::Forever,
        },
        data: Some(data),
        max_hold: args.max_hold.map(|most| most.0),
        lead: grace + KILL_TAKES.min(args.ttl.0 / 20),
        ..ClaimRequest::default()
    })
}

/// Who wonders who holds it should be able to go there.
fn about_this(command: &[OsString]) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let command: String = words.join(" ").chars().take(200).collect();
    let user = std::env::var("USER").ok();
    json!({ "host": host.trim(), "user": user, "pid": std::process::id(), "command": command }).to_string()
}

fn not_acquired(args: &RunArgs, error: Error) -> anyhow::Result<u8> {
    match error {
        Error::Timeout { .. } => {
            if !args.quiet {
                let held = format!("'{}' is held by another", args.resource);
                let why = if args.nonblock { held } else { error.to_string() };
                complain(&format!("not acquired: {}", output::plain(&why)));
            }
            Ok(args.conflict_exit_code)
        }
        error => Err(error.into()),
    }
}

/// Runs the command and keeps an eye on the claim.
async fn run_held(
    args: &RunArgs,
    claim: Claim,
    grace: Duration,
    signals: &mut Signals,
) -> anyhow::Result<u8> {
    let mut child = match Child::start(&args.command, &claim) {
        Ok(child) => child,
        Err(error) => {
            claim.release().await.ok();
            let name = args.command[0].to_string_lossy();
            let is_missing = error.kind() == std::io::ErrorKind::NotFound;
            let why = if is_missing { "there is no such command".into() } else { error.to_string() };
            complain(&format!("{}: {why}", output::plain(&name)));
            return Ok(if is_missing { NOT_FOUND } else { CANNOT_RUN });
        }
    };
    let lost = claim.lost();
    tokio::pin!(lost);
    loop {
        tokio::select! {
            // A claim that is lost in the same moment as the command ends was held to the end, as far as anyone can say.
            biased;
            code = child.exited() => {
                let code = code?;
                child.give_terminal_back();
                if let Err(error) = claim.release().await {
                    complain(&format!("the command is through, but: {error}"));
                }
                return Ok(code);
            }
            why = &mut lost => {
                complain(&format!("'{}' is lost: {why}; stopping the command", output::plain(&args.resource)));
                // The server may have handed it over already (revoked), or will at the end of the ttl.
                let latest = match why {
                    Lost::NotRenewed(_) | Lost::MaxHold => claim.holds_until() + grace,
                    _ => BootInstant::now() + grace,
                };
                child.stop(grace.min(latest.remaining())).await;
                child.give_terminal_back();
                claim.release().await.ok();
                return Ok(LOST);
            }
            signal = signals.next() => child.pass_on(signal),
        }
    }
}
