//! Bodies of the locks dialect: locks and resources as HAL.
//!
//! In:    views of the table. Out: JSON objects with `_links` and `_embedded`; hrefs are paths.
//! Never: shows what is over.

use leasehold_core::{Claim, Format, Status, View};
use serde_json::{Value, json};

use super::parse::seconds;
use crate::message::time::rfc3339;
use leasehold_engine::clock::wall_us;

/// A lock, held or waiting. What another dialect claimed is shown as a lock too.
pub(super) fn lock(view: &View) -> Value {
    let claim = &view.claim;
    let Claim { id, resource, .. } = claim;
    let (title, wait) = asked(claim);
    let active = claim.status == Status::Active;
    let expires = claim.deadline_us().map(|deadline_us| {
        // The table clock counts; the wall clock only says when that will be.
        rfc3339(wall_us() + deadline_us.saturating_sub(view.now_us))
    });
    let mut lock = json!({
        "uid": id.to_string(),
        "title": title,
        "active": active,
        "lifetime": claim.ttl_us().map(seconds),
        "wait": wait,
        "_links": {
            "self": { "href": format!("/locks/{resource}/{id}") },
            "resource": { "href": format!("/resources/{resource}") },
        },
    });
    let (since, until) =
        if active { ("active_since", "active_expires") } else { ("wait_since", "wait_expires") };
    let since_wall_us = if active { claim.activated_wall_us } else { claim.created_wall_us };
    lock[since] = rfc3339(since_wall_us).into();
    lock[until] = expires.into();
    lock
}

/// Title and wait, as they were sent along; of a claim of another dialect: its owner, and none.
fn asked(claim: &Claim) -> (String, Value) {
    let data = claim.data.as_deref().filter(|data| data.format == Format::Json);
    let data: Value = data.and_then(|data| serde_json::from_slice(&data.bytes).ok()).unwrap_or_default();
    let title = data["title"].as_str().unwrap_or(&claim.owner).to_string();
    let wait = if data["wait"].is_number() { data["wait"].clone() } else { json!(0) };
    (title, wait)
}

/// The start of a resource's body; its locks follow, with commas between them, and `END`.
pub(super) fn resource_start(name: &str) -> String {
    let links = json!({ "self": { "href": format!("/resources/{name}") } });
    format!("{{\"_links\":{links},\"name\":{},\"_embedded\":{{\"locks\":[", json!(name))
}

/// The start of the list of resources; they follow, with commas between them, and `END`.
pub(super) const RESOURCES_START: &str =
    "{\"_links\":{\"self\":{\"href\":\"/resources\"}},\"_embedded\":{\"resources\":[";

/// The end of both.
pub(super) const END: &str = "]}}\n";

/// A resource that has locks.
pub(super) fn resource(name: &str) -> Value {
    json!({ "name": name, "_links": { "self": { "href": format!("/resources/{name}") } } })
}
