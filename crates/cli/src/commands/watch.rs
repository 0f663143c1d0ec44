//! `leasehold watch`: tells of every change on a resource until it is interrupted.
//!
//! In:    a resource. Out: a line for each claim that came, changed or went.
//! Never: ends because the service is away for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_client::Error;
use leasehold_client::wire::ClaimInfo;

use super::connect::{ConnectArgs, block_on};
use super::output;
use super::seconds::Seconds;
use super::show::queue;

#[derive(clap::Args)]
pub(crate) struct WatchArgs {
    /// The resource to watch
    resource: String,
    /// Seconds between two looks
    #[arg(long, default_value = "1", value_name = "SECONDS")]
    interval: Seconds,
    /// Print JSON, one claim a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) fn run(args: &WatchArgs) -> anyhow::Result<()> {
    block_on(async {
        let api = args.connect.api()?;
        let mut known: BTreeMap<String, ClaimInfo> = BTreeMap::new();
        let mut trouble = String::new();
        loop {
            match queue(&api, &args.resource).await {
                Ok(claims) => {
                    trouble.clear();
                    let gone: Vec<String> = known
                        .keys()
                        .filter(|id| claims.iter().all(|claim| claim.id() != *id))
                        .cloned()
                        .collect();
                    for id in gone {
                        known.remove(&id);
                        if let Ok(claim) = api.get(&id).await {
                            tell(args, &claim)?;
                        }
                    }
                    for claim in claims {
                        let before = known.insert(claim.id().into(), claim.clone());
                        if before.is_none_or(|before| before.status != claim.status) {
                            tell(args, &claim)?;
                        }
                    }
                }
                Err(error @ (Error::Unreachable(_) | Error::Unknown(_))) => {
                    if trouble != error.to_string() {
                        trouble = error.to_string();
                        super::complain(&format!("{trouble}; trying again"));
                    }
                }
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(args.interval.0.max(Duration::from_millis(20))).await;
        }
    })
}

fn tell(args: &WatchArgs, claim: &ClaimInfo) -> anyhow::Result<()> {
    if args.json {
        output::print(&format!("{}\n", output::json_text(&serde_json::to_string(claim)?)));
        return Ok(());
    }
    let when = claim.status_history.last().and_then(|entry| entry["timestamp"].as_str()).unwrap_or("-");
    let token = claim.token.map_or(String::new(), |token| format!("  token {token}"));
    let line = format!("{when}  {:<9}  {}{token}  {}", claim.status, claim.id(), output::holder(claim));
    output::print(&format!("{}\n", output::plain(&line)));
    Ok(())
}
