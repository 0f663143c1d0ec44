//! `leasehold claim`: claims a resource and leaves the claim to its ttl.
//!
//! In:    a resource. Out: the claim; exit code 75 if the server says that it is held, or it was not its turn in time.
//! Never: renews; `leasehold run` does. Waits longer than it is told, whatever the server does.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use leasehold_client::ClaimInfo;
use leasehold_client::internals::{fresh_key, session};
use leasehold_client::{Api, Error};
use serde_json::{Value, json};

use super::connect::{ConnectArgs, block_on};
use super::output;
use super::seconds::Seconds;
use super::wanted::WantedArgs;

/// Longest wait of one request; a longer one asks again. A server that falls silent is noticed after that, and three seconds.
const WAIT_STEP: Duration = Duration::from_secs(5);
/// How long a claim may take to be made if it must not wait.
const NOW_WITHIN: Duration = Duration::from_secs(5);
/// How long the server may take to hear that a claim is given up.
const LET_GO_WITHIN: Duration = Duration::from_secs(1);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
pub(crate) struct ClaimArgs {
    #[command(flatten)]
    wanted: WantedArgs,
    /// Seconds that the claim stays active without renewal
    #[arg(long, default_value = "30", value_name = "SECONDS")]
    ttl: Seconds,
    /// Fail if the resource is held, instead of waiting
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
    let mut body = args.wanted.body()?;
    body["ttl"] = json!(args.ttl.0.as_secs_f64());
    // The claim is the script's, not that of this short process.
    if let Some(session) = session::from_env() {
        body["session"] = json!(session);
    }
    if let Some(data) = &args.data {
        body["user_data"] = serde_json::from_str::<Value>(data).context("--data is not JSON")?;
    }
    let started = Instant::now();
    loop {
        let made = match made(&api, args, &body, started).await {
            Ok(made) => made,
            // The server says that waiting would never end.
            Err(Error::Deadlock { detail, .. }) => {
                super::complain(&format!("not acquired: {}", output::plain(&detail)));
                return Ok(ExitCode::from(args.conflict_exit_code));
            }
            Err(error) => return Err(error.into()),
        };
        let turn = match made.status.as_str() {
            "waiting" => turn(&api, args, &made, started).await,
            _ => Ok(Some(made.clone())),
        };
        match turn {
            Ok(Some(claim)) if claim.status == "active" => return show(args, &claim),
            Ok(Some(claim)) => {
                bail!(
                    "the claim is {}, and was not acquired: its ttl may have been too short (--ttl)",
                    claim.status
                )
            }
            Ok(None) => return Ok(not_acquired(&api, args, &made).await),
            // It was granted and expired before this client heard of it: claim again.
            Err(error) if error.downcast_ref() == Some(&Error::Ended("expired".into())) => {
                super::complain(
                    "the claim was granted and expired before this client heard of it; claiming again",
                );
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Makes the claim. Within a time that was given, failures are retried.
async fn made(api: &Api, args: &ClaimArgs, body: &Value, started: Instant) -> Result<ClaimInfo, Error> {
    let key = fresh_key();
    let within = if args.nonblock { Some(NOW_WITHIN) } else { args.timeout.map(|timeout| timeout.0) };
    let mut last = Error::Unreachable("no answer in time".into());
    let (mut may_be_made, mut has_complained) = (false, false);
    loop {
        let left = within.map_or(Duration::MAX, |within| within.saturating_sub(started.elapsed()));
        let answer = tokio::time::timeout(left, api.post(body, &key)).await;
        may_be_made |= matches!(answer, Err(_) | Ok(Err(Error::Unknown(_))));
        let is_late = answer.is_err();
        match answer {
            Ok(Err(error)) if may_pass(&error) => last = error,
            Ok(answer) => return answer,
            Err(_) => {}
        }
        if is_late || left <= PAUSE || within.is_none() {
            return Err(if may_be_made { taken_back(api, body, &key, last).await } else { last });
        }
        if !std::mem::replace(&mut has_complained, true) {
            super::complain(&format!("{}; retrying", output::plain(&last.to_string())));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Gives up a claim that a POST may have made whose answer did not come: the same POST under the same key finds it. Returns what
/// is known then.
async fn taken_back(api: &Api, body: &Value, key: &str, last: Error) -> Error {
    let found = async {
        let claim = api.post(body, key).await?;
        match claim.status.as_str() {
            "waiting" => api.end(claim.id(), "withdrawn", None).await,
            "active" => api.end(claim.id(), "released", None).await,
            _ => Ok(()),
        }
    };
    match tokio::time::timeout(LET_GO_WITHIN, found).await {
        Ok(Ok(())) => last,
        _ => {
            let why = match last {
                Error::Unreachable(why) | Error::Unknown(why) => why,
                other => other.to_string(),
            };
            Error::Unknown(format!("{why}; the claim may have been made, and ends with its ttl"))
        }
    }
}

/// Waits for the claim's turn; `None`: the time is over. A signal takes it out of the queue.
async fn turn(
    api: &Api,
    args: &ClaimArgs,
    claim: &ClaimInfo,
    started: Instant,
) -> anyhow::Result<Option<ClaimInfo>> {
    if args.nonblock {
        return Ok(None);
    }
    loop {
        let left = args.timeout.map_or(Duration::MAX, |timeout| timeout.0.saturating_sub(started.elapsed()));
        if left.is_zero() {
            return Ok(None);
        }
        let waiting = tokio::time::timeout(left, api.await_turn(claim.id(), left.min(WAIT_STEP)));
        let active = tokio::select! {
            answer = waiting => answer,
            signal = super::run::any_signal() => {
                match let_go(api, claim).await {
                    true => bail!("interrupted by {signal}; the claim has left the queue"),
                    false => bail!("interrupted by {signal}"),
                }
            }
        };
        match active {
            Err(_) => return Ok(None),
            Ok(Ok(None)) => {}
            Ok(Ok(Some(claim))) => return Ok(Some(claim)),
            // The connection broke, or the service has no leader: the place in the queue is still there.
            Ok(Err(error)) if may_pass(&error) => tokio::time::sleep(PAUSE.min(left)).await,
            Ok(Err(error)) => return Err(error.into()),
        }
    }
}

/// Whether the same request may succeed later.
fn may_pass(error: &Error) -> bool {
    matches!(
        error,
        Error::Unreachable(_) | Error::Unknown(_) | Error::Refused { status: 404 | 408 | 429 | 500.., .. }
    )
}

/// Leaves the queue, and says who holds the resource.
async fn not_acquired(api: &Api, args: &ClaimArgs, claim: &ClaimInfo) -> ExitCode {
    let items = args.wanted.items().unwrap_or_default();
    let holder = super::run::holder(api, &items).await;
    let_go(api, claim).await;
    let held = holder.filter(|holder| holder.id() != claim.id());
    let held = held.map_or_else(|| "held by another claim".into(), |holder| output::held_by(&holder));
    super::complain(&format!("not acquired: '{}' is {held}", output::plain(&args.wanted.label())));
    ExitCode::from(args.conflict_exit_code)
}

/// Whether the server knows that the claim has left the queue.
async fn let_go(api: &Api, claim: &ClaimInfo) -> bool {
    let end = tokio::time::timeout(LET_GO_WITHIN, api.end(claim.id(), "withdrawn", None)).await;
    let is_told = matches!(end, Ok(Ok(())));
    if !is_told {
        super::complain("the server could not be told that the claim leaves the queue; it ends with its ttl");
    }
    is_told
}

fn show(args: &ClaimArgs, claim: &ClaimInfo) -> anyhow::Result<ExitCode> {
    if args.json {
        output::print_json(claim)?;
    } else if args.quiet {
        output::print(&format!("{}\n", claim.id()));
    } else {
        output::print(&output::claim(claim));
    }
    Ok(ExitCode::SUCCESS)
}
