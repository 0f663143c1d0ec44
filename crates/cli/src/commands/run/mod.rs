//! `leasehold run`: a command that runs while it holds a resource, and not a moment longer.
//!
//! In:    a resource and a command. Out: the command's exit code, or one that says why it was not run or was stopped.
//! Never: leaves the command running when its claim is lost: its whole process group is gone before the ttl is over. Says
//!        that a resource is held unless a server said so, or that all went well unless the claim was held to the end.
//!
//! `wait.rs` shows how the claim waits, `held.rs` watches over command and claim, `child.rs` starts and stops the command,
//! `outcome.rs` has the words and codes of what went wrong, `messages.rs` says them, `signals.rs` hears signals, `panics.rs`
//! stops the command if this program fails.

mod child;
mod held;
mod messages;
mod outcome;
mod panics;
mod signals;
mod wait;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use leasehold_client::{ClaimRequest, Error, LockManager, Wait};
use serde_json::json;
use serde_json::value::RawValue;

use self::signals::Signals;
pub(crate) use self::signals::any_signal;
pub(crate) use self::wait::holder;
use super::connect::{ConnectArgs, block_on};
use super::exit_code::{NOT_ACQUIRED, OWN_FAILURE, SIGNALLED};
use super::output;
use super::seconds::Seconds;
use super::wanted::WantedArgs;

/// What a command gets to stop in, unless told otherwise: a quarter of the ttl, at most this.
const GRACE_MAX: Duration = Duration::from_secs(5);
/// Between the last KILL and the end of the ttl: what the kernel needs.
const KILL_TAKES: Duration = Duration::from_millis(50);
/// How long the server may take to hear that a claim is given up. After that its ttl ends it: `run` ends with its command, and
/// with its time to wait, whatever becomes of the server.
const LET_GO_WITHIN: Duration = Duration::from_secs(1);
/// How long the last lines may take to be written.
const FLUSH_WITHIN: Duration = Duration::from_millis(500);

/// Run a command while holding a resource
///
/// Waits for its turn, runs the command in a process group of its own, renews the claim while it runs, releases it
/// afterwards, and passes signals on and the exit code back. The command finds LEASEHOLD_RESOURCE, LEASEHOLD_CLAIM and
/// LEASEHOLD_TOKEN (the fencing token) in its environment, with --slots also LEASEHOLD_SLOTS (2, or 2,5), and with several
/// resources LEASEHOLD_TOKENS and LEASEHOLD_ITEMS (JSON). LEASEHOLD_SESSION tells a `leasehold run` inside the command what is
/// held already, so that it fails at once instead of waiting for its own parent.
///
/// If the claim is lost (no renewal got through, somebody revoked it) the whole process group gets SIGTERM, and SIGKILL
/// after the grace; both before the ttl is over, so that nobody else holds the resource while the command still runs.
#[derive(clap::Args)]
#[command(after_long_help = EXIT_CODES, override_usage = "leasehold run [OPTIONS] <RESOURCE> -- <COMMAND>...")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    wanted: WantedArgs,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Fail if the resource is held, instead of waiting
    #[arg(short = 'n', long, alias = "nb", conflicts_with = "timeout")]
    nonblock: bool,
    /// Fail after waiting this long [default: wait for ever]
    #[arg(short = 'w', long, alias = "wait", value_name = "SECONDS")]
    timeout: Option<Seconds>,
    /// Exit code if it was not acquired
    #[arg(short = 'E', long, default_value_t = NOT_ACQUIRED, value_name = "CODE")]
    conflict_exit_code: u8,
    /// Seconds until the claim expires if this process dies
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
    /// Print nothing while waiting, nor when the claim was not acquired; losses and failures are still printed
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

const EXIT_CODES: &str = "Exit codes:
  the command's own   the command ended, and the claim was held all the time
  75                  not acquired: the resource is held (-n), the time in the queue is over (-w), or waiting would be a
                      deadlock; -E changes this code
  76                  the claim was lost before the command ended; the command was stopped if it was still running
  125                 leasehold itself failed: no server answers or it refuses, or a flag is wrong. It is not known whether
                      the resource is held
  126, 127            the command can't be run, or does not exist
  128+n               signal n ended the command, or ended leasehold while it waited";

pub(crate) fn run(args: &RunArgs) -> ExitCode {
    signals::keep_the_terminal();
    messages::start();
    panics::stop_the_command();
    let code = block_on(hold_and_run(args)).unwrap_or_else(|error| {
        messages::say(&format!("{error:#}"));
        OWN_FAILURE
    });
    messages::flush(FLUSH_WITHIN);
    ExitCode::from(code)
}

async fn hold_and_run(args: &RunArgs) -> anyhow::Result<u8> {
    let grace = args.grace.map_or((args.ttl.0 / 4).min(GRACE_MAX), |grace| grace.0);
    let request = request(args, grace)?;
    let mut signals = Signals::listen()?;
    let mut options = args.connect.options()?;
    options.end_timeout = LET_GO_WITHIN;
    let urls = options.urls.clone();
    let manager = LockManager::new(options)?;
    let api = manager.api();
    let pending = manager.request(request)?;
    // Kept beyond the select: dropped, the claim would leave the queue on its own, and cross with the abort.
    let items = args.wanted.items()?;
    let waiting = wait::acquired(pending, &api, &items, args.quiet, !args.nonblock);
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
        Err(wait::NotAcquired { error, mut holder }) => {
            if holder.is_none() && matches!(error, Error::Timeout { .. }) {
                holder = wait::holder(&api, &items).await;
            }
            manager.close().await;
            return Ok(outcome::not_acquired(args, &error, holder.as_ref(), &urls));
        }
    };
    let code = held::run(args, claim, grace, &mut signals, &api).await;
    manager.close().await;
    Ok(code)
}

fn request(args: &RunArgs, grace: Duration) -> anyhow::Result<ClaimRequest> {
    let data = match &args.data {
        Some(data) => data.clone(),
        None => about_this(&args.command),
    };
    let data = RawValue::from_string(data).map_err(|error| anyhow::anyhow!("--data is not JSON: {error}"))?;
    let wait = match (args.nonblock, args.timeout) {
        (true, _) => Wait::No,
        (false, Some(Seconds(Duration::ZERO))) => Wait::No,
        (false, Some(timeout)) => Wait::For(timeout.0),
        (false, None) => Wait::Forever,
    };
    let lead = grace + KILL_TAKES.min(args.ttl.0 / 20);
    let request = args.wanted.request()?;
    let mut request = request.ttl(args.ttl.0).wait(wait).data(&data)?.lead(lead);
    request.max_hold = args.max_hold.map(|most| most.0);
    Ok(request)
}

/// Who wonders who holds it should be able to go there.
fn about_this(command: &[OsString]) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let command: String = words.join(" ").chars().take(200).collect();
    let user = std::env::var("USER").ok();
    json!({ "host": host.trim(), "user": user, "pid": std::process::id(), "command": command }).to_string()
}
