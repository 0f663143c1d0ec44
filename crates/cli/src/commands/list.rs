//! `leasehold list`: claims, filtered.
//!
//! In:    filters. Out: a table, or JSON.

use super::connect::{ConnectArgs, block_on};
use super::output;

#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Only claims on this resource
    #[arg(long)]
    resource: Option<String>,
    /// Only claims in this status; several separated by commas, or 'all'
    #[arg(long, default_value = "active,waiting", value_delimiter = ',')]
    status: Vec<String>,
    /// At most so many of each status
    #[arg(long, default_value = "1000", value_name = "N")]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) fn run(args: &ListArgs) -> anyhow::Result<()> {
    block_on(async {
        let api = args.connect.api()?;
        let mut claims = Vec::new();
        for status in &args.status {
            let mut filters: Vec<(&str, &str)> = Vec::new();
            filters.extend(args.resource.as_deref().map(|resource| ("resource", resource)));
            if status != "all" {
                filters.push(("status", status));
            }
            claims.append(&mut api.list(&filters, args.limit.max(1)).await?);
        }
        claims.sort_by(|a, b| a.created.cmp(&b.created));
        if args.json {
            return output::print_json(&claims);
        }
        if claims.is_empty() {
            super::complain("no such claims");
            return Ok(());
        }
        output::print(&output::claims(&claims, output::has_colours()));
        Ok(())
    })
}
