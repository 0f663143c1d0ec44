//! `leasehold revoke`: takes a claim away from its holder.
//!
//! In:    an id or URL, and why. Out: nothing, or what is wrong.
//! Never: without a reason: whoever wonders later should find one.

use anyhow::Context;

use super::connect::{ConnectArgs, block_on};

#[derive(clap::Args)]
pub(crate) struct RevokeArgs {
    /// Id or URL of the claim
    claim: String,
    /// Why; kept with the claim
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) fn run(args: &RevokeArgs) -> anyhow::Result<()> {
    block_on(async {
        let api = args.connect.api()?;
        api.end(&args.claim, "revoked", Some(&args.reason)).await.context("it can't be revoked")
    })
}
