//! `leasehold claim`: claims a resource and leaves the claim to its ttl.
//!
//! In:    a resource. Out: the claim; exit code 75 if it was not its turn in time.
//! Never: renews; `leasehold run` does.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use leasehold_client::Api;
use leasehold_client::wire::ClaimInfo;
use serde_json::{Value, json};

use super::connect::{ConnectArgs, block_on};
use super::output;
use super::seconds::Seconds;

/// Longest wait of one request; a longer one asks again.
const WAIT_STEP: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub(crate) struct ClaimArgs {
    /// What to claim
    resource: String,
    /// Seconds that the claim stays active without renewal
    #[arg(long, default_value = "30", value_name = "SECONDS")]
    ttl: Seconds,
    /// Fail if it is held, instead of waiting
    #[arg(short = 'n', long, conflicts_with = "timeout")]
    nonblock: bool,
    /// Fail after waiting this long [default: wait for ever]
    #[arg(short = 'w', long, value_name = "SECONDS")]
    timeout: Option<Seconds>,
    /// Exit code if it was not acquired
    #[arg(short = 'E', long, default_value_t = super::exit_code::NOT_ACQUIRED, value_name = "CODE")]
    conflict_exit_code: u8,
    /// JSON to keep with the claim
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// Print the id alone
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) fn run(args: &ClaimArgs) -> anyhow::Result<ExitCode> {
    block_on(claim(args))
}

async fn claim(args: &ClaimArgs) -> anyhow::Result<ExitCode> {
    let api = args.connect.api()?;
    let mut body = json!({ "resource": args.resource, "ttl": args.ttl.0.as_secs_f64() });
    if let Some(data) = &args.data {
        body["user_data"] = serde_json::from_str::<Value>(data).context("--data is not JSON")?;
    }
    let mut claim = api.post(&body, &leasehold_client::fresh_key()).await?;
    if claim.status == "waiting" {
        claim = match turn(&api, args, &claim).await? {
            Some(claim) => claim,
            None => {
                api.end(claim.id(), "withdrawn", None).await?;
                super::complain(&format!("'{}' is held; not acquired", output::plain(&args.resource)));
                return Ok(ExitCode::from(args.conflict_exit_code));
            }
        };
    }
    if claim.status != "active" {
        bail!("the claim is {}: its ttl may be too short to be picked up", claim.status);
    }
    if args.json {
        output::print_json(&claim)?;
    } else if args.quiet {
        output::print(&format!("{}\n", claim.id()));
    } else {
        output::print(&output::claim(&claim));
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for the claim's turn; a signal takes it out of the queue.
async fn turn(api: &Api, args: &ClaimArgs, claim: &ClaimInfo) -> anyhow::Result<Option<ClaimInfo>> {
    if args.nonblock {
        return Ok(None);
    }
    let started = std::time::Instant::now();
    loop {
        let left = args.timeout.map_or(WAIT_STEP, |timeout| timeout.0.saturating_sub(started.elapsed()));
        if left.is_zero() {
            return Ok(None);
        }
        let waiting = api.await_turn(claim.id(), left.min(WAIT_STEP));
        let active = tokio::select! {
            answer = waiting => answer,
            signal = super::run::any_signal() => {
                api.end(claim.id(), "withdrawn", None).await?;
                bail!("interrupted by {signal}; the claim has left the queue");
            }
        };
        match active {
            Ok(None) => {}
            Ok(claim) => return Ok(claim),
            // The connection broke: the place in the queue is still there.
            Err(leasehold_client::Error::Unknown(_) | leasehold_client::Error::Unreachable(_)) => {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
