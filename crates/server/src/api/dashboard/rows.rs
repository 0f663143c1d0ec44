//! Resources and claims as the dashboard's JSON.
//!
//! In:    the table, under its lock. Out: values that outlive it.
//! Never: more than asked: long data is cut, long queues are counted.

use leasehold_core::table::Resource;
use leasehold_core::{Claim, Format, Table, View};
use serde_json::{Value, json};

use crate::message::time::rfc3339;
use leasehold_engine::clock::wall_us;

/// Bytes of a claim's data that are shown whole.
const DATA_SHOWN_MAX: usize = 4096;

/// Whether the holder of this resource, or one of the first `depth` that wait, has outlived its deadline.
pub(super) fn is_due(table: &Table, resource: &Resource, now_us: u64, depth: usize) -> bool {
    let due = |seq: u64| table.view_at(seq, now_us).claim.is_due(now_us);
    resource.active().is_some_and(due) || resource.queue().take(depth).any(due)
}

/// A line of the list.
pub(super) fn summary(table: &Table, name: &str, resource: &Resource, now_us: u64) -> Value {
    let holder = resource.active().map(|seq| {
        let View { claim, .. } = table.view_at(seq, now_us);
        json!({
            "id": claim.id.to_string(),
            "owner": &*claim.owner,
            "token": claim.token,
            "since": rfc3339(claim.activated_wall_us),
            "held": seconds(claim.held_us(now_us)),
            "remaining": remaining(&claim, now_us),
        })
    });
    let longest = resource.queue().next().map(|seq| table.view_at(seq, now_us).claim.waited_us(now_us));
    json!({
        "name": name,
        "holder": holder,
        "waiting": resource.queue().len(),
        "longest_wait": seconds(longest),
        "finished": resource.finished_len(),
    })
}

/// A resource, with the first of its queue and the newest of its past.
pub(super) fn detail(
    table: &Table,
    name: &str,
    resource: &Resource,
    now_us: u64,
    base_url: &str,
    shown: usize,
) -> Value {
    let show = |seq: u64| claim(&table.view_at(seq, now_us), base_url);
    json!({
        "name": name,
        "now": rfc3339(wall_us()),
        "holder": resource.active().map(show),
        "waiting": resource.queue().len(),
        "queue": resource.queue().take(shown).map(show).collect::<Vec<_>>(),
        "finished": resource.finished_len(),
        "history": resource.finished().rev().take(shown).map(show).collect::<Vec<_>>(),
    })
}

fn claim(view: &View, base_url: &str) -> Value {
    let View { claim, position, now_us, .. } = view;
    let granted = claim.token > 0;
    let time = |wall_us: u64| rfc3339(wall_us);
    json!({
        "id": claim.id.to_string(),
        "url": format!("{base_url}/v1/claims/{}/", claim.id),
        "status": claim.status.as_str(),
        "owner": &*claim.owner,
        "token": Some(claim.token).filter(|_| granted),
        "created": time(claim.created_wall_us),
        "since": granted.then(|| time(claim.activated_wall_us)),
        "ended": claim.end.as_ref().map(|end| time(end.ended_wall_us)),
        "waited": seconds(Some(claim.waited_us(*now_us))),
        "held": seconds(claim.held_us(*now_us)),
        "ttl": seconds(claim.ttl_us()),
        "remaining": remaining(claim, *now_us),
        "renewals": claim.renewals,
        "position": position,
        "data": data(claim),
        "revoking": claim.is_revoking(),
        "reason": claim.reason().map(|reason| &**reason),
    })
}

fn remaining(claim: &Claim, now_us: u64) -> Value {
    seconds(claim.deadline_us().map(|deadline_us| deadline_us.saturating_sub(now_us)))
}

fn seconds(micros: Option<u64>) -> Value {
    micros.map_or(Value::Null, |micros| json!(micros as f64 / 1e6))
}

fn data(claim: &Claim) -> Value {
    let Some(data) = claim.data.as_deref() else { return Value::Null };
    if data.bytes.len() > DATA_SHOWN_MAX {
        let start = String::from_utf8_lossy(&data.bytes[..DATA_SHOWN_MAX]);
        return format!("{start}… ({} bytes)", data.bytes.len()).into();
    }
    let text = || Value::from(String::from_utf8_lossy(&data.bytes));
    match data.format {
        Format::Json => serde_json::from_slice(&data.bytes).unwrap_or_else(|_| text()),
        Format::Bytes => text(),
    }
}
