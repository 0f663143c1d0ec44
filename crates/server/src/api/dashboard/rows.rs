//! Resources and claims as the dashboard's JSON.
//!
//! In:    the table, under its lock. Out: values that outlive it.
//! Never: more than asked: long data is cut, long queues are counted. A reader who may not read all resources of a set
//!        learns neither its owner nor the names of the other resources.

use std::sync::Arc;

use leasehold_core::table::Resource;
use leasehold_core::{Claim, Format, ItemView, Mode, Table, View};
use serde_json::{Value, json};

use super::who::{Person, Who};
use crate::access::Caller;
use crate::api::one_resource_view::conceal;
use crate::api::redact::redacted_data;
use crate::api::session_name;
use crate::message::time::rfc3339;
use leasehold_engine::clock::wall_us;

/// Bytes of a claim's data that are shown whole.
const DATA_SHOWN_MAX: usize = 4096;

/// Holders of a resource that a line of the list names; the others are counted.
const HOLDERS_LISTED: usize = 3;
/// Holders of a resource among which a person is looked for.
const HOLDERS_LOOKED_AT: usize = 1000;

/// Whether one of the first `depth` holders of this resource, or of the first that wait, has outlived its deadline.
pub(super) fn is_due(table: &Table, resource: &Resource, now_us: u64, depth: usize) -> bool {
    let due = |seq: u64| table.view_at(seq, now_us).claim.is_due(now_us);
    resource.holders().take(depth).any(due) || resource.queue().take(depth).any(due)
}

/// A claim, as far as this reader may know of it.
pub(super) fn seen(table: &Table, seq: u64, now_us: u64, caller: &Caller) -> View {
    let mut view = table.view_at(seq, now_us);
    conceal(&mut view, caller);
    view
}

/// A line of the list.
pub(super) fn summary(
    table: &Table,
    name: &str,
    resource: &Resource,
    now_us: u64,
    person: &Person,
    caller: &Caller,
) -> Value {
    // Whoever looks for a person wants to see that one among a thousand readers.
    let named = |seq: &u64| person.is_anybody() || person.made(&seen(table, *seq, now_us, caller).claim);
    let found = resource.holders().take(HOLDERS_LOOKED_AT).filter(named).take(HOLDERS_LISTED);
    let mut holders: Vec<u64> = found.collect();
    if holders.is_empty() {
        holders = resource.holders().take(HOLDERS_LISTED).collect();
    }
    let holder = |seq| {
        let view = seen(table, seq, now_us, caller);
        let claim = &view.claim;
        json!({
            "id": claim.id.to_string(),
            "owner": &*claim.owner,
            "who": who(claim),
            "token": item(&view, name).map_or(claim.token, |item| item.token),
            "since": rfc3339(claim.activated_wall_us),
            "held": seconds(claim.held_us(now_us)),
            "remaining": remaining(claim, now_us),
        })
    };
    let longest = resource.queue().next().map(|seq| table.view_at(seq, now_us).claim.waited_us(now_us));
    json!({
        "name": name,
        "holder": resource.active().map(holder),
        "holders": holders.into_iter().map(holder).collect::<Vec<_>>(),
        "holder_count": resource.holders().count(),
        "mode": mode(table, resource, name, now_us),
        "slots": slots(table, resource, name, now_us),
        "waiting": resource.queue_len(),
        "longest_wait": seconds(longest),
        "finished": resource.finished_len(),
    })
}

/// The item of a claim on this resource; none of a plain claim.
fn item<'a>(view: &'a View, name: &str) -> Option<&'a ItemView> {
    view.items().iter().find(|item| *item.resource == *name)
}

/// How a resource is held at the moment: all of its holders have the same mode.
fn mode(table: &Table, resource: &Resource, name: &str, now_us: u64) -> Option<&'static str> {
    let first = table.view_at(resource.active()?, now_us);
    Some(item(&first, name).map_or(Mode::Exclusive, |item| item.mode).as_str())
}

/// The slots of a resource that has some: how many there are, and how many are held.
fn slots(table: &Table, resource: &Resource, name: &str, now_us: u64) -> Value {
    let Some(of) = resource.capacity() else { return Value::Null };
    let held = |seq| item(&table.view_at(seq, now_us), name).map_or(0, |item| item.slots.len());
    json!({ "of": of, "held": resource.holders().take(usize::from(of)).map(held).sum::<usize>() })
}

fn mode_at(table: &Table, seq: u64, name: &str) -> Mode {
    item(&table.view_at(seq, 0), name).map_or(Mode::Exclusive, |item| item.mode)
}

/// The last of these claims that has to let go before one of this mode gets its turn.
fn last_in_the_way(before: &[(u64, Mode)], mode: Mode) -> Option<u64> {
    let taken = |mode: &Mode| if let Mode::Slots { take, .. } = mode { u32::from(*take) } else { 0 };
    let sum: u32 = before.iter().map(|(_, other)| taken(other)).sum();
    let fits = |other: &Mode| match (mode, other) {
        (Mode::Shared, Mode::Shared) => true,
        (Mode::Slots { take, of }, Mode::Slots { .. }) => sum + u32::from(take) <= u32::from(of),
        _ => false,
    };
    before.iter().rev().find(|(_, other)| !fits(other)).map(|(seq, _)| *seq)
}

/// A resource, with the first of its queue and the newest of its past.
pub(super) fn detail(
    table: &Table,
    name: &str,
    resource: &Resource,
    now_us: u64,
    shown: &Shown<'_>,
) -> Value {
    let show = |seq: u64| claim(table.view_at(seq, now_us), name, shown);
    let reserved = |seq: &u64| resource.reserved().any(|other| other == *seq);
    let mut before: Vec<(u64, Mode)> =
        resource.holders().take(shown.claims).map(|seq| (seq, mode_at(table, seq, name))).collect();
    let queue = resource.queue().take(shown.claims).map(|seq| {
        let mode = mode_at(table, seq, name);
        let mut row = show(seq);
        row["reserves"] = reserved(&seq).into();
        let behind = if reserved(&seq) { None } else { last_in_the_way(&before, mode) };
        row["behind"] =
            behind.map_or(Value::Null, |seq| person(&seen(table, seq, now_us, shown.caller).claim));
        before.push((seq, mode));
        row
    });
    json!({
        "name": name,
        "now": rfc3339(wall_us()),
        "holder": resource.active().map(show),
        "holders": resource.holders().take(shown.claims).map(show).collect::<Vec<_>>(),
        "holder_count": resource.holders().count(),
        "mode": mode(table, resource, name, now_us),
        "slots": slots(table, resource, name, now_us),
        "waiting": resource.queue_len(),
        "queue": queue.collect::<Vec<_>>(),
        "finished": resource.finished_len(),
        "history": resource.finished().rev().take(shown.claims).map(show).collect::<Vec<_>>(),
    })
}

/// To whom a resource is shown, and how much of it.
pub(super) struct Shown<'a> {
    /// Where the reader reaches this service.
    pub(super) base_url: Arc<str>,
    /// Claims of the queue and of the past.
    pub(super) claims: usize,
    /// The reader.
    pub(super) caller: &'a Caller,
}

/// A claim, as it concerns the resource with this name.
fn claim(mut view: View, name: &str, shown: &Shown<'_>) -> Value {
    let may_change = |resource: &Arc<str>| shown.caller.may_change(resource, &view.claim.owner);
    let may_revoke = !view.claim.status.is_final() && view.resources().all(may_change);
    let set = set(&view, shown);
    conceal(&mut view, shown.caller);
    let View { claim, now_us, .. } = &view;
    let granted = claim.token > 0;
    let time = |wall_us: u64| rfc3339(wall_us);
    let here = item(&view, name);
    json!({
        "id": claim.id.to_string(),
        "url": format!("{}/v1/claims/{}/", shown.base_url, claim.id),
        "status": claim.status.as_str(),
        "owner": &*claim.owner,
        "who": who(claim),
        "may_revoke": may_revoke,
        "token": Some(here.map_or(claim.token, |item| item.token)).filter(|_| granted),
        "mode": here.map_or(Mode::Exclusive, |item| item.mode).as_str(),
        "slots": here.map(|item| &item.slots).filter(|slots| !slots.is_empty()),
        "take": here.and_then(|item| if let Mode::Slots { take, .. } = item.mode { Some(take) } else { None }),
        "set": set,
        "session": view.session().map(|session| session_name::shown(session)),
        "created": time(claim.created_wall_us),
        "since": granted.then(|| time(claim.activated_wall_us)),
        "ended": claim.end.as_ref().map(|end| time(end.ended_wall_us)),
        "waited": seconds(Some(claim.waited_us(*now_us))),
        "held": seconds(claim.held_us(*now_us)),
        "ttl": seconds(claim.ttl_us()),
        "remaining": remaining(claim, *now_us),
        "renewals": claim.renewals,
        "position": here.map_or(view.position, |item| item.position),
        "data": data(claim),
        "revoking": claim.is_revoking(),
        "reason": claim.reason().map(|reason| &**reason),
    })
}

/// All items of a claim that has several. The reader learns the names of those that it may read, and the number of the others.
fn set(view: &View, shown: &Shown<'_>) -> Value {
    if view.items().len() < 2 {
        return Value::Null;
    }
    let readable = view.items().iter().filter(|item| shown.caller.may_see(&item.resource, &view.claim.owner));
    let items: Vec<Value> = readable
        .map(|item| {
            json!({ "resource": &*item.resource, "mode": item.mode.to_string(), "position": item.position })
        })
        .collect();
    json!({ "others_hidden": view.items().len() - items.len(), "items": items })
}

/// Whose a claim is, for a line about another one.
fn person(claim: &Claim) -> Value {
    json!({ "owner": &*claim.owner, "who": who(claim) })
}

fn who(claim: &Claim) -> Value {
    Who::of(claim).map_or(Value::Null, |who| who.to_json())
}

fn remaining(claim: &Claim, now_us: u64) -> Value {
    seconds(claim.deadline_us().map(|deadline_us| deadline_us.saturating_sub(now_us)))
}

fn seconds(micros: Option<u64>) -> Value {
    micros.map_or(Value::Null, |micros| json!(micros as f64 / 1e6))
}

fn data(claim: &Claim) -> Value {
    let Some(data) = redacted_data(claim) else { return Value::Null };
    if data.bytes.len() > DATA_SHOWN_MAX {
        let start = String::from_utf8_lossy(&data.bytes[..DATA_SHOWN_MAX]);
        return format!("{start}… ({} bytes)", data.bytes.len()).into();
    }
    let text = || Value::from(String::from_utf8_lossy(&data.bytes));
    match data.format {
        Format::Json => serde_json::from_slice(&data.bytes).unwrap_or_else(|_| text()),
        Format::Bytes | Format::Secret => text(),
    }
}
