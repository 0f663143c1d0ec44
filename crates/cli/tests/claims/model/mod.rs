//! Claims that share, take slots, take several resources and belong to sessions: each sentence of docs/claims.md about them, over a
//! real socket.
//!
//! - `modes.rs`      who fits together, who is next, fencing tokens
//! - `requests.rs`   what can be asked, what is refused as a mistake, idempotency, lists
//! - `sessions.rs`   deadlocks and capacity: refusals that explain themselves
//! - `dialects.rs`   what other dialects see of such claims, and what they can't change
//! - `observed.rs`   events and metrics: one line for each item, one count for each claim
//! - `cluster.rs`    a leader is killed while a set waits
//! - `crowds.rs`     a resource with as many holders as it may have

mod cluster;
mod crowds;
mod dialects;
mod modes;
mod observed;
mod requests;
mod sessions;

use serde_json::{Value, json};

use crate::common::{Reply, Server};

/// A claim with these words; its ttl is long.
#[allow(clippy::needless_pass_by_value, reason = "bodies are made where they are sent")]
pub(super) fn post(server: &Server, words: Value) -> Reply {
    let mut body = json!({ "ttl": 600 });
    for (name, value) in words.as_object().unwrap() {
        body[name] = value.clone();
    }
    server.post("/v1/claims/", &body.to_string())
}

/// A claim that must hold at once.
pub(super) fn granted(server: &Server, words: Value) -> (String, Value) {
    let reply = post(server, words);
    assert_eq!(reply.status, 201, "{reply:?}");
    (reply.location_path(), reply.json())
}

/// A claim that must wait.
pub(super) fn queued(server: &Server, words: Value) -> (String, Value) {
    let reply = post(server, words);
    assert_eq!(reply.status, 202, "{reply:?}");
    (reply.location_path(), reply.json())
}

/// Ends a claim that holds.
pub(super) fn release(server: &Server, path: &str) {
    let reply = server.patch(path, r#"{"status": "released"}"#);
    assert_eq!(reply.status, 204, "{reply:?}");
}
