//! `leasehold release`: gives a claim up.
//!
//! In:    an id or URL. Out: nothing, or what is wrong.

use anyhow::Context;

use super::connect::{ConnectArgs, block_on};

#[derive(clap::Args)]
pub(crate) struct ReleaseArgs {
    /// Id or URL of the claim
    claim: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) fn run(args: &ReleaseArgs) -> anyhow::Result<()> {
    block_on(async {
        let api = args.connect.api()?;
        // A claim that waits holds nothing to release: it leaves the queue.
        let claim = api.get(&args.claim).await?;
        let status = if claim.status == "waiting" { "withdrawn" } else { "released" };
        api.end(&args.claim, status, None).await.context("it can't be released")
    })
}
