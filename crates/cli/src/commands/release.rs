//! `leasehold release`: gives a claim up.
//!
//! In:    an id, a URL or a resource. Out: nothing, or what is wrong.
//! Never: ends another claim than the one that it found: if the resource has another holder by then, that one stays.

use anyhow::Context;

use super::connect::{ConnectArgs, block_on};
use super::{output, target};

#[derive(clap::Args)]
pub(crate) struct ReleaseArgs {
    /// Id or URL of the claim, or the resource that it holds
    what: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) fn run(args: &ReleaseArgs) -> anyhow::Result<()> {
    block_on(async {
        let api = args.connect.api()?;
        let claim = target::claim(&api, &args.what).await?;
        // A claim that waits holds nothing to release: it leaves the queue.
        let status = if claim.status == "waiting" { "withdrawn" } else { "released" };
        api.end(claim.id(), status, None)
            .await
            .with_context(|| format!("the claim of {} can't be released", output::holder(&claim)))
    })
}
