//! Responses of the claims dialect: claims as JSON.
//!
//! In:    views of the table. Out: bytes.
//! Never: leaves a field out: what does not apply is `null`.

use std::io::Write;
use std::ops::Range;

use hyper::StatusCode;
use leasehold_core::table::Fate;
use leasehold_core::{Claim, ClaimId, Format, Mode, Outcome, Rejection, SetView, Status, View};
use serde_json::json;

use super::blockers::Blocker;
use super::parse_change::Patch;
use crate::access::Caller;
use crate::api::redact::redacted_data;
use crate::api::refused::told_of;
use crate::api::session_name;
use crate::message::time::write_rfc3339;
use crate::message::{Response, digits, json};
use leasehold_engine::clock::wall_us;

/// Writing into memory can't fail; this says so once.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => { write!($out, $($arg)*).expect("a vector takes every write") };
}

/// A claim, all of it. Written piece by piece: every granted claim passes here, and a formatter costs more than
/// the rest of it.
///
/// Tells where in it the claim's URL is, which an answer has in its head, too.
pub(super) fn detail(out: &mut Vec<u8>, view: &View, base_url: &str) -> Range<usize> {
    let claim = &view.claim;
    raw(out, "{\"url\": \"");
    let start = out.len();
    raw(out, base_url);
    raw(out, "/v1/claims/");
    out.extend_from_slice(&claim.id.hex());
    raw(out, "/");
    let url = start..out.len();
    raw(out, "\", \"resource\": ");
    text(out, &claim.resource);
    raw(out, ", \"status\": \"");
    raw(out, claim.status.as_str());
    raw(out, "\", \"status_history\": [");
    let created = history(out, claim);
    raw(out, "], \"created\": \"");
    out.extend_from_within(created);
    raw(out, "\"");
    let active = claim.status == Status::Active;
    seconds(out, "ttl", claim.left_us(view.now_us));
    seconds(out, "initial_ttl", claim.ttl_us());
    seconds(out, "active_duration", claim.held_us(view.now_us));
    seconds(out, "waiting_duration", Some(claim.waited_us(view.now_us)));
    raw(out, ", \"user_data\": ");
    user_data(out, claim);
    number(out, "token", view.token());
    raw(out, ", \"owner\": ");
    text(out, &claim.owner);
    number(out, "position", view.position);
    raw(out, ", \"expires\": ");
    match claim.deadline_us().filter(|_| active) {
        Some(deadline_us) => {
            raw(out, "\"");
            write_rfc3339(out, wall_us() + deadline_us.saturating_sub(view.now_us));
            raw(out, "\"");
        }
        None => raw(out, "null"),
    }
    number(out, "waiters", Some(view.waiters).filter(|_| active));
    revocation(out, claim.is_revoking(), claim.reason().map(|reason| &**reason));
    if let Some(set) = &view.set {
        set_members(out, set);
    }
    raw(out, "}");
    url
}

/// What a claim has that came with a mode, several resources or a session. Others don't: their bodies are as they always were.
fn set_members(out: &mut Vec<u8>, set: &SetView) {
    raw(out, ", \"session\": ");
    match &set.session {
        Some(session) => text(out, session_name::shown(session)),
        None => raw(out, "null"),
    }
    raw(out, ", \"items\": [");
    for (i, item) in set.items.iter().enumerate() {
        raw(out, if i == 0 { "{\"resource\": " } else { ", {\"resource\": " });
        text(out, &item.resource);
        put!(out, ", \"mode\": \"{}\"", item.mode.as_str());
        let slots = if let Mode::Slots { take, of } = item.mode { Some((take, of)) } else { None };
        number(out, "take", slots.map(|(take, _)| take.into()));
        number(out, "of", slots.map(|(_, of)| of.into()));
        raw(out, ", \"slots\": ");
        match item.slots.is_empty() {
            true => raw(out, "null"),
            false => serde_json::to_writer(&mut *out, &item.slots).expect("a vector takes every write"),
        }
        number(out, "token", Some(item.token).filter(|token| *token > 0));
        number(out, "position", item.position);
        raw(out, "}");
    }
    raw(out, "]");
}

/// Whether a holder is to let go, and why it is or why the claim ended.
fn revocation(out: &mut Vec<u8>, is_revoking: bool, reason: Option<&str>) {
    raw(out, if is_revoking { ", \"revoking\": true" } else { ", \"revoking\": false" });
    raw(out, ", \"reason\": ");
    match reason {
        Some(reason) => text(out, reason),
        None => raw(out, "null"),
    }
}

/// Always starts with `waiting`, also when the claim was active at once. Tells where it wrote when that was.
fn history(out: &mut Vec<u8>, claim: &Claim) -> Range<usize> {
    raw(out, "{\"status\": \"waiting\", \"timestamp\": \"");
    let start = out.len();
    write_rfc3339(out, claim.created_wall_us);
    let created = start..out.len();
    raw(out, "\"}");
    if claim.activated_us > 0 {
        raw(out, ", {\"status\": \"active\", \"timestamp\": \"");
        match claim.activated_wall_us == claim.created_wall_us {
            true => out.extend_from_within(created.clone()),
            false => write_rfc3339(out, claim.activated_wall_us),
        }
        raw(out, "\"}");
    }
    if let Some(end) = &claim.end {
        put!(out, ", {{\"status\": \"{}\", \"timestamp\": \"", claim.status);
        write_rfc3339(out, end.ended_wall_us);
        raw(out, "\"}");
    }
    created
}

/// As it was sent, if it was JSON; what came as bytes through another dialect is shown as text.
fn user_data(out: &mut Vec<u8>, claim: &Claim) {
    match redacted_data(claim).as_deref() {
        None => raw(out, "null"),
        Some(data) if data.format == Format::Json => out.extend_from_slice(&data.bytes),
        Some(data) => text(out, &String::from_utf8_lossy(&data.bytes)),
    }
}

fn raw(out: &mut Vec<u8>, json: &str) {
    out.extend_from_slice(json.as_bytes());
}

fn text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a vector takes every write");
}

/// A member, up to its value.
fn name(out: &mut Vec<u8>, name: &str) {
    raw(out, ", \"");
    raw(out, name);
    raw(out, "\": ");
}

/// Seconds as a JSON float: `20.0`, never `20`.
fn seconds(out: &mut Vec<u8>, member: &str, micros: Option<u64>) {
    name(out, member);
    let Some(micros) = micros else { return raw(out, "null") };
    digits::put(out, micros / 1_000_000);
    raw(out, ".");
    match micros % 1_000_000 {
        0 => raw(out, "0"),
        fraction => {
            digits::put_padded::<6>(out, fraction);
            while out.pop_if(|last| *last == b'0').is_some() {}
        }
    }
}

fn number(out: &mut Vec<u8>, member: &str, number: Option<u64>) {
    name(out, member);
    match number {
        Some(number) => digits::put(out, number),
        None => raw(out, "null"),
    }
}

/// A waiting claim whose client wants it active, and the claims that block it, as far as the caller may see them. Where no claim
/// has a set, `holder` alone says it, as it did before sets.
pub(super) fn conflict(view: &View, found: &[Blocker], caller: &Caller, base_url: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    detail(&mut out, view, base_url);
    out.pop();
    let visible = |found: &&Blocker| caller.may_see_view(&found.by);
    if view.set.is_some() || found.iter().any(|found| found.by.set.is_some()) {
        let blocked = found.iter().map(|found| {
            json!({ "resource": &*found.resource, "by": Some(found).filter(visible).map(|found| told_of(&found.by)) })
        });
        put!(out, ", \"blocked\": {}", blocked.collect::<serde_json::Value>());
    }
    put!(out, ", \"holder\": ");
    match found.first().filter(visible) {
        Some(found) => drop(detail(&mut out, &found.by, base_url)),
        None => raw(&mut out, "null"),
    }
    out.extend_from_slice(b"}\n");
    out
}

/// A claim that is to let go, to a holder who would renew it.
pub(super) fn revoking(view: &View, base_url: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    detail(&mut out, view, base_url);
    out.pop();
    raw(&mut out, ", \"detail\": ");
    let why = view.claim.reason().map(|reason| format!(" ({reason})")).unwrap_or_default();
    text(&mut out, &format!("the claim is being revoked{why}: stop, and release it"));
    raw(&mut out, "}\n");
    out
}

/// The fate of one claim, in the answer to `POST /v1/endings`; `None`: nobody knows it here.
pub(super) fn ending(out: &mut Vec<u8>, id: &str, fate: Option<&Fate<'_>>) {
    raw(out, "{\"id\": ");
    text(out, id);
    raw(out, ", \"status\": ");
    match fate {
        Some(fate) => put!(out, "\"{}\"", fate.status.as_str()),
        None => raw(out, "null"),
    }
    revocation(out, fate.is_some_and(|fate| fate.is_revoking), fate.and_then(|fate| fate.reason));
    raw(out, "}");
}

/// A claim that is over can't change; its status tells a client whose response was lost how it ended.
pub(super) fn final_status(patch: &Patch, view: &View) -> Response {
    let status = view.claim.status;
    let detail = format!("the claim is {status}, which is final: nothing can change it any more");
    let mut body = match patch {
        Patch::Ttl(_) => json!({ "status": status.as_str(), "ttl": detail }),
        _ => json!({ "status": status.as_str(), "detail": detail }),
    };
    if let Some(reason) = view.claim.reason() {
        body["reason"] = (**reason).into();
    }
    json(StatusCode::BAD_REQUEST, format!("{body}\n"))
}

/// Claim by claim, in the order asked: `active` with its token, its final status, or why not.
pub(super) fn renewals(ids: &[Result<ClaimId, String>], outcomes: Vec<Outcome>) -> Vec<u8> {
    let mut outcomes = outcomes.into_iter();
    let mut out = Vec::with_capacity(128 * ids.len() + 64);
    raw(&mut out, "{\"claims\": [");
    for (i, id) in ids.iter().enumerate() {
        raw(&mut out, if i == 0 { "{\"id\": " } else { ", {\"id\": " });
        match id {
            Ok(id) => put!(out, "\"{id}\""),
            Err(unknown) => text(&mut out, unknown),
        }
        let (view, renewed) = match id.as_ref().ok().and_then(|_| outcomes.next()) {
            Some(Outcome::Renewed(view)) => (Some(view), true),
            Some(Outcome::Rejected(
                Rejection::Final(view) | Rejection::Waiting(view) | Rejection::Revoking(view),
            )) => (Some(view), false),
            _ => (None, false),
        };
        put!(out, ", \"renewed\": {renewed}, \"status\": ");
        match &view {
            Some(view) => put!(out, "\"{}\"", view.claim.status.as_str()),
            None => raw(&mut out, "null"),
        }
        let claim = view.as_ref().map(|view| &view.claim);
        number(&mut out, "token", view.as_ref().and_then(|view| view.token()));
        let waiters = view.as_ref().filter(|view| view.claim.status == Status::Active);
        number(&mut out, "waiters", waiters.map(|view| view.waiters));
        let reason = claim.and_then(|claim| claim.reason()).map(|reason| &**reason);
        revocation(&mut out, claim.is_some_and(Claim::is_revoking), reason);
        raw(&mut out, "}");
    }
    raw(&mut out, "]}\n");
    out
}
