//! `leasehold revoke`: takes a claim away from its holder.
//!
//! In:    an id, a URL or a resource, and why. Out: nothing, or what is wrong.
//! Never: without a reason: the holder and those who wonder later should find one. Ends another claim than the one that it
//!        found.

use anyhow::Context;

use super::connect::{ConnectArgs, block_on};
use super::{output, target};

/// Take a claim away from its holder
///
/// The claim ends at once and the next one is granted in the same moment. The holder may not have heard of it yet, so two programs
/// may work at the same time for a while. With --when-gone the holder is told first, and the next claim is granted when the holder
/// has let go or its ttl is over: two programs never work at the same time.
#[derive(clap::Args)]
pub(crate) struct RevokeArgs {
    /// Id or URL of the claim, or the resource that it holds
    what: String,
    /// Why; kept with the claim, and told to its holder
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Let the holder stop first: the next claim waits until it has let go, or its ttl is over
    #[arg(long)]
    when_gone: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) fn run(args: &RevokeArgs) -> anyhow::Result<()> {
    block_on(async {
        let api = args.connect.api()?;
        let claim = target::claim(&api, &args.what).await?;
        let revoked = match args.when_gone {
            true => api.revoke_when_gone(claim.id(), &args.reason).await,
            false => api.end(claim.id(), "revoked", Some(&args.reason)).await,
        };
        revoked.with_context(|| format!("the claim of {} can't be revoked", output::holder(&claim)))
    })
}
