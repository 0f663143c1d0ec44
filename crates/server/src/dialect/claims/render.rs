//! Responses of the claims dialect: claims as JSON.
//!
//! In:    views of the table. Out: bytes.
//! Never: leaves a field out: what does not apply is `null`.

use std::io::Write;

use hyper::StatusCode;
use leasehold_core::{Claim, ClaimId, Format, Outcome, Rejection, Status, View};
use serde_json::json;

use super::parse::Patch;
use crate::engine::clock::wall_us;
use crate::http::time::rfc3339;
use crate::http::{Response, json};

/// A claim's URL.
pub(super) fn url(base_url: &str, id: ClaimId) -> String {
    format!("{base_url}/v1/claims/{id}/")
}

/// Writing into memory can't fail; this says so once.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => { write!($out, $($arg)*).expect("a vector takes every write") };
}

/// A claim, all of it.
pub(super) fn detail(out: &mut Vec<u8>, view: &View, base_url: &str) {
    let claim = &view.claim;
    put!(out, "{{\"url\": \"{base_url}/v1/claims/{}/\", \"resource\": ", claim.id);
    text(out, &claim.resource);
    put!(out, ", \"status\": \"{}\", \"status_history\": [", claim.status);
    history(out, claim);
    put!(out, "], \"created\": \"{}\"", rfc3339(claim.created_wall_us));
    let active = claim.status == Status::Active;
    seconds(out, "ttl", claim.ttl_us().filter(|_| active));
    seconds(out, "active_duration", claim.held_us(view.now_us));
    seconds(out, "waiting_duration", Some(claim.waited_us(view.now_us)));
    put!(out, ", \"user_data\": ");
    user_data(out, claim);
    number(out, "token", Some(claim.token).filter(|token| *token > 0));
    put!(out, ", \"owner\": ");
    text(out, &claim.owner);
    number(out, "position", view.position);
    put!(out, ", \"expires\": ");
    match claim.deadline_us().filter(|_| active) {
        Some(deadline_us) => {
            put!(out, "\"{}\"}}", rfc3339(wall_us() + deadline_us.saturating_sub(view.now_us)));
        }
        None => put!(out, "null}}"),
    }
}

/// Always starts with `waiting`, also when the claim was active at once.
fn history(out: &mut Vec<u8>, claim: &Claim) {
    put!(out, "{{\"status\": \"waiting\", \"timestamp\": \"{}\"}}", rfc3339(claim.created_wall_us));
    if claim.activated_us > 0 {
        put!(out, ", {{\"status\": \"active\", \"timestamp\": \"{}\"}}", rfc3339(claim.activated_wall_us));
    }
    if let Some(end) = &claim.end {
        put!(
            out,
            ", {{\"status\": \"{}\", \"timestamp\": \"{}\"}}",
            claim.status,
            rfc3339(end.ended_wall_us)
        );
    }
}

/// As it was sent, if it was JSON; what came as bytes through another dialect is shown as text.
fn user_data(out: &mut Vec<u8>, claim: &Claim) {
    match claim.data.as_deref() {
        None => put!(out, "null"),
        Some(data) if data.format == Format::Json => out.extend_from_slice(&data.bytes),
        Some(data) => text(out, &String::from_utf8_lossy(&data.bytes)),
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a vector takes every write");
}

/// Seconds as a JSON float: `20.0`, never `20`.
fn seconds(out: &mut Vec<u8>, name: &str, micros: Option<u64>) {
    match micros {
        Some(micros) => put!(out, ", \"{name}\": {:?}", micros as f64 / 1e6),
        None => put!(out, ", \"{name}\": null"),
    }
}

fn number(out: &mut Vec<u8>, name: &str, number: Option<u64>) {
    match number {
        Some(number) => put!(out, ", \"{name}\": {number}"),
        None => put!(out, ", \"{name}\": null"),
    }
}

/// A waiting claim that asked to be active, and who is before it.
pub(super) fn conflict(view: &View, holder: Option<&View>, base_url: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    detail(&mut out, view, base_url);
    out.pop();
    put!(out, ", \"holder\": ");
    match holder {
        Some(holder) => detail(&mut out, holder, base_url),
        None => put!(out, "null"),
    }
    out.extend_from_slice(b"}\n");
    out
}

/// A claim that is over can't change; its status tells a client whose response was lost how it ended.
pub(super) fn final_status(patch: &Patch, view: &View) -> Response {
    let status = view.claim.status;
    let detail = format!("the claim is {status}, which is final: nothing can change it any more");
    let body = match patch {
        Patch::Ttl(_) => json!({ "status": status.as_str(), "ttl": detail }),
        _ => json!({ "status": status.as_str(), "detail": detail }),
    };
    json(StatusCode::BAD_REQUEST, format!("{body}\n"))
}

/// Claim by claim, in the order asked: `active` with its token, its final status, or why not.
pub(super) fn renewals(ids: &[Result<ClaimId, String>], outcomes: Vec<Outcome>) -> Vec<u8> {
    let mut outcomes = outcomes.into_iter();
    let answer = |id: &Result<ClaimId, String>| {
        let view = match id.as_ref().ok().and_then(|_| outcomes.next()) {
            Some(Outcome::Renewed(view)) => Some((view, true)),
            Some(Outcome::Rejected(Rejection::Final(view) | Rejection::Waiting(view))) => Some((view, false)),
            _ => None,
        };
        let name = match id {
            Ok(id) => id.to_string(),
            Err(text) => text.clone(),
        };
        match view {
            Some((view, renewed)) => json!({
                "id": name,
                "renewed": renewed,
                "status": view.claim.status.as_str(),
                "token": Some(view.claim.token).filter(|token| *token > 0),
            }),
            None => json!({ "id": name, "renewed": false, "status": null, "token": null }),
        }
    };
    let answers: Vec<_> = ids.iter().map(answer).collect();
    format!("{}\n", json!({ "claims": answers })).into_bytes()
}
