//! `leasehold list`: claims, filtered.
//!
//! In:    filters. Out: a table, or JSON; and where it stopped, if there is more.
//! Never: leaves out a claim that was there all the time, because others ended while it read.

use std::collections::HashSet;

use leasehold_client::ClaimInfo;
use leasehold_client::{Api, Error};

use super::connect::{ConnectArgs, block_on};
use super::output;

/// Claims that a page shares with the one before, so that it shows whether claims in front of it have gone.
const OVERLAP: usize = 50;

#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Only claims on this resource
    #[arg(long)]
    resource: Option<String>,
    /// Only claims on resources whose name starts like this
    #[arg(long, conflicts_with = "resource")]
    prefix: Option<String>,
    /// Only claims in this status; several separated by commas, or 'all'
    #[arg(long, default_value = "active,waiting", value_delimiter = ',')]
    status: Vec<String>,
    /// At most this many of each status
    #[arg(long, default_value = "10000", value_name = "N")]
    limit: usize,
    /// Read one node's own table: fast, works without a quorum, but may be out of date
    #[arg(long)]
    stale: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) fn run(args: &ListArgs) -> anyhow::Result<()> {
    block_on(async {
        let api = args.connect.api()?.stale(args.stale);
        let (mut claims, mut is_all) = (Vec::new(), true);
        for status in &args.status {
            let found = find(&api, args, status).await?;
            claims.extend(found.claims);
            is_all &= found.is_all;
        }
        claims.sort_by(|a, b| a.created.cmp(&b.created));
        if args.json {
            output::print_json(&claims)?;
        } else if claims.is_empty() {
            super::complain("no such claims");
        } else {
            output::print(&output::claims(&claims, output::has_colours()));
        }
        if !is_all {
            super::complain(&format!(
                "only the first {} claims of each status are shown; --limit shows more, --prefix selects",
                args.limit
            ));
        }
        Ok(())
    })
}

/// What was found, and whether that is all.
struct Found {
    claims: Vec<ClaimInfo>,
    is_all: bool,
}

/// Page by page. Claims that end while we read move the others towards the front: where a page and the one before it have
/// nothing in common, some may have moved past us, and we go back.
async fn find(api: &Api, args: &ListArgs, status: &str) -> Result<Found, Error> {
    let mut filters: Vec<(&str, &str)> = Vec::new();
    filters.extend(args.resource.as_deref().map(|resource| ("resource", resource)));
    if status != "all" {
        filters.push(("status", status));
    }
    let prefix = args.prefix.as_deref().unwrap_or("");
    let (mut claims, mut seen, mut offset) = (Vec::new(), HashSet::new(), 0);
    loop {
        let page = api.page(&filters, offset).await?;
        let len = page.claims.len();
        let fresh: Vec<ClaimInfo> =
            page.claims.into_iter().filter(|claim| seen.insert(claim.id().to_string())).collect();
        let is_joined = offset == 0 || fresh.len() < len;
        let is_below = |claim: &ClaimInfo| {
            let mut others = claim.items.iter();
            claim.resource.starts_with(prefix) || others.any(|item| item.resource.starts_with(prefix))
        };
        claims.extend(fresh.into_iter().filter(is_below));
        if claims.len() > args.limit || (claims.len() == args.limit && page.has_more) {
            claims.truncate(args.limit);
            return Ok(Found { claims, is_all: false });
        }
        if is_joined && (!page.has_more || len == 0) {
            return Ok(Found { claims, is_all: true });
        }
        offset = match is_joined {
            true => offset + len - OVERLAP.min(len / 2),
            false => offset.saturating_sub(Api::PAGE_LEN),
        };
    }
}
