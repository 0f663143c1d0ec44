//! `leasehold renew`: restarts a claim's ttl.
//!
//! In:    an id or URL. Out: the claim.

use std::time::Duration;

use anyhow::{Context, bail};

use super::connect::{ConnectArgs, block_on};
use super::output;
use super::seconds::Seconds;
use super::target::looks_like_a_claim;

#[derive(clap::Args)]
pub(crate) struct RenewArgs {
    /// Id or URL of the claim
    claim: String,
    /// Seconds that it stays active from now on [default: as long as before]
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<Seconds>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) fn run(args: &RenewArgs) -> anyhow::Result<()> {
    block_on(async {
        if !looks_like_a_claim(&args.claim) {
            let what = output::plain(&args.claim);
            bail!("'{what}' is not the id or URL of a claim: `leasehold show RESOURCE` lists the ids")
        }
        let api = args.connect.api()?;
        let ttl = match args.ttl {
            Some(ttl) => ttl.0,
            None => {
                let claim = api.get(&args.claim).await?;
                let Some(ttl) = claim.length() else {
                    bail!("the claim is {}: only an active one has a ttl", claim.status)
                };
                Duration::try_from_secs_f64(ttl).context("the claim's ttl can't be read")?
            }
        };
        let claim = api
            .renew(&args.claim, ttl)
            .await
            .with_context(|| format!("claim {} can't be renewed", output::plain(&args.claim)))?;
        if args.json {
            return output::print_json(&claim);
        }
        output::print(&output::claim(&claim));
        Ok(())
    })
}
