//! `leasehold show`: one claim, or who holds a resource and who waits for it.
//!
//! In:    an id, a URL or a resource. Out: the claim, or holder and queue.

use anyhow::bail;
use leasehold_client::wire::ClaimInfo;
use leasehold_client::{Api, Error};
use serde_json::json;

use super::connect::{ConnectArgs, block_on};
use super::{output, target};

/// Claims of a queue that are shown.
const QUEUE_LEN_MAX: usize = 100_000;

#[derive(clap::Args)]
pub(crate) struct ShowArgs {
    /// Id or URL of a claim, or a resource
    what: String,
    /// Ask any node, without its cluster: fast, works without a quorum, and may be old
    #[arg(long)]
    stale: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) fn run(args: &ShowArgs) -> anyhow::Result<()> {
    block_on(async {
        let api = args.connect.api()?.stale(args.stale);
        match target::by_id(&api, &args.what).await? {
            Some(claim) if args.json => return output::print_json(&claim),
            Some(claim) => {
                output::print(&output::claim(&claim));
                return Ok(());
            }
            None => {}
        }
        let queue = queue(&api, &args.what).await?;
        if args.json {
            let (held, waiting) = match queue.split_first() {
                Some((first, rest)) if first.status == "active" => (Some(first), rest),
                _ => (None, &queue[..]),
            };
            return output::print_json(&json!({ "resource": args.what, "holder": held, "queue": waiting }));
        }
        if queue.is_empty() {
            if target::looks_like_a_claim(&args.what) {
                bail!("there is no such claim, and no such resource is held or waited for");
            }
            output::print(&format!("{} is free\n", output::plain(&args.what)));
            return Ok(());
        }
        output::print(&output::claims(&queue, output::has_colours()));
        Ok(())
    })
}

/// Who holds a resource, then who waits for it, in order.
pub(crate) async fn queue(api: &Api, resource: &str) -> Result<Vec<ClaimInfo>, Error> {
    let of =
        async |status: &str| api.list(&[("resource", resource), ("status", status)], QUEUE_LEN_MAX).await;
    let mut claims = of("active").await?;
    let mut waiting = of("waiting").await?;
    waiting.sort_by_key(|claim| claim.position);
    claims.append(&mut waiting);
    Ok(claims)
}
