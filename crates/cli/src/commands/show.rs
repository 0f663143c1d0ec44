//! `leasehold show`: one claim, or who holds a resource and who waits for it.
//!
//! In:    an id, a URL or a resource. Out: the claim, or holder and queue.

use anyhow::bail;
use leasehold_client::{Api, Error};
use leasehold_client::{ClaimInfo, ItemInfo};
use serde_json::json;

use super::connect::{ConnectArgs, block_on};
use super::{output, target};

/// Claims of a queue that are shown.
const QUEUE_LEN_MAX: usize = 100_000;

#[derive(clap::Args)]
pub(crate) struct ShowArgs {
    /// Id or URL of a claim, or a resource
    what: String,
    /// Read one node's own table: fast, works without a quorum, but may be out of date
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
            let holders = queue.iter().take_while(|claim| claim.status == "active").count();
            let (held, waiting) = queue.split_at(holders);
            return output::print_json(
                &json!({ "resource": args.what, "holder": held.first(), "holders": held,
                "queue": waiting }),
            );
        }
        if queue.is_empty() {
            if target::looks_like_a_claim(&args.what) {
                bail!("there is no such claim, and no such resource is held or waited for");
            }
            output::print(&format!("{} is free\n", output::plain(&args.what)));
            return Ok(());
        }
        output::print(&table(&args.what, &queue));
        Ok(())
    })
}

/// Who holds a resource, then who waits for it, in order.
pub(crate) async fn queue(api: &Api, resource: &str) -> Result<Vec<ClaimInfo>, Error> {
    let of =
        async |status: &str| api.list(&[("resource", resource), ("status", status)], QUEUE_LEN_MAX).await;
    let mut claims = of("active").await?;
    let mut waiting = of("waiting").await?;
    waiting.sort_by_key(|claim| item(claim, resource).map_or(claim.position, |item| item.position));
    claims.append(&mut waiting);
    Ok(claims)
}

/// What a claim holds or wants of a resource, if it is not the plain claim that needs no such words.
fn item<'a>(claim: &'a ClaimInfo, resource: &str) -> Option<&'a ItemInfo> {
    claim.items.iter().find(|item| item.resource == resource)
}

/// The queue of a resource. Where claims share it, have slots of it, or hold others with it, it shows who waits behind whom.
fn table(resource: &str, queue: &[ClaimInfo]) -> String {
    let is_plain = |claim: &ClaimInfo| match &claim.items[..] {
        [] => true,
        [item] => !is_shared(item) && item.take.is_none(),
        _ => false,
    };
    if queue.iter().all(is_plain) {
        return output::claims(queue, output::has_colours());
    }
    let rows: Vec<[String; 9]> = queue
        .iter()
        .enumerate()
        .map(|(at, claim)| {
            let here = item(claim, resource);
            let number = |number: Option<u64>| number.map_or("-".into(), |number| number.to_string());
            [
                claim.id().to_string(),
                output::resources(claim),
                output::status(claim).to_string(),
                number(here.map_or(claim.position, |item| item.position)),
                if claim.status == "waiting" { behind(resource, queue, at) } else { "-".into() },
                number(here.map_or(claim.token, |item| item.token)),
                output::span(claim),
                claim.initial_ttl.and(claim.ttl).map_or("-".into(), output::seconds),
                output::holder(claim),
            ]
        })
        .collect();
    let head = ["CLAIM", "RESOURCE", "STATUS", "PLACE", "BEHIND", "TOKEN", "FOR", "LEFT", "OWNER"];
    output::table(head, &rows, output::has_colours())
}

/// The nearest claim on this resource with which a waiting claim does not fit: the beginning of its id. A claim that fits here waits
/// for another of its resources.
fn behind(resource: &str, queue: &[ClaimInfo], at: usize) -> String {
    let own = item(&queue[at], resource);
    let before = &queue[..at];
    let taken = |claim: &ClaimInfo| item(claim, resource).and_then(|item| item.take).unwrap_or(0);
    let has_room = own.and_then(|own| own.take.zip(own.of)).is_none_or(|(take, of)| {
        let used: u64 = before.iter().map(|claim| u64::from(taken(claim))).sum();
        used + u64::from(take) <= u64::from(of)
    });
    let fits = |claim: &ClaimInfo| match (own, item(claim, resource)) {
        (Some(own), Some(other)) if own.take.is_some() => other.take.is_some() && has_room,
        (Some(own), Some(other)) => is_shared(own) && is_shared(other),
        _ => false,
    };
    let nearest = before.iter().rev().find(|claim| !fits(claim));
    nearest.map_or("elsewhere".into(), |claim| claim.id().chars().take(8).collect())
}

fn is_shared(item: &ItemInfo) -> bool {
    item.mode.as_deref() == Some("shared")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(id: &str, status: &str, items: &serde_json::Value) -> ClaimInfo {
        let url = format!("http://h/v1/claims/{id}/");
        serde_json::from_value(json!({ "url": url, "resource": "r", "status": status, "items": items }))
            .unwrap()
    }

    #[test]
    fn a_waiter_is_behind_the_nearest_claim_that_it_does_not_fit_with() {
        let shared = json!([{ "resource": "r", "mode": "shared" }]);
        let queue = [
            claim("reader", "active", &shared),
            claim("writer", "waiting", &json!([{ "resource": "r", "mode": "exclusive" }])),
            claim("late", "waiting", &shared),
            claim("plain", "waiting", &json!([])),
        ];
        let behind = |at| behind("r", &queue, at);
        assert_eq!([behind(1), behind(2), behind(3)], ["reader", "writer", "late"]);
    }

    #[test]
    fn slots_are_summed_and_a_set_may_wait_elsewhere() {
        let slots = |take: u32| json!([{ "resource": "r", "take": take, "of": 5 }]);
        let set = json!([{ "resource": "r", "take": 1, "of": 5 }, { "resource": "other" }]);
        let queue = [
            claim("two", "active", &slots(2)),
            claim("set", "waiting", &set),
            claim("more", "waiting", &slots(3)),
        ];
        let behind = |at| behind("r", &queue, at);
        assert_eq!([behind(1), behind(2)], ["elsewhere", "set"]);
    }
}
