//! Requests to copy: one example of every body, and of every part of a path.
//!
//! In:    the name of a schema or of a parameter. Out: a value that the service takes.
//! Never: a value that no test has sent: `crates/cli/tests/dashboard/docs.rs` sends each.

use serde_json::{Value, json};

const ID: &str = "92096f1a7d3c4e5b8a0b1c2d3e4f5a6b";

/// A body with this schema.
pub(super) fn body(schema: &str) -> Value {
    let tapes = json!({ "ids": ["tape-000017", "tape-000018"], "hostname": "vault", "owner": 4711 });
    match schema {
        "NewClaim" => {
            json!({ "resource": "db/main", "ttl": 60, "user_data": { "host": "alpha", "user": "ada", "pid": 4711 } })
        }
        "ClaimPatch" => json!({ "ttl": 60 }),
        "ClaimPut" => json!({ "ttl": 60, "status": "active" }),
        "Renewals" => json!({ "ids": [ID], "ttl": 60 }),
        "Watched" => json!({ "ids": [ID] }),
        "NewLock" => json!({ "title": "nightly build", "lifetime": 60, "wait": 10 }),
        "TypedLock" | "TypedRefresh" | "TypedUnlock" => tapes,
        "TypedStatus" => json!({ "ids": ["tape-000017", "tape-000018"] }),
        "TypedList" => json!({ "hostname": "vault", "limit": 100 }),
        "NewNode" => json!({ "id": 4, "address": "10.0.7.14:4090" }),
        "NewLeader" => json!({ "id": 2 }),
        "Override" => json!({ "scope": "namespace", "prefix": "ci", "bytes": 1_048_576 }),
        _ => Value::Null,
    }
}

/// A part of a path, or a header that a reader will want to send.
pub(super) fn parameter(name: &str) -> Option<Value> {
    Some(match name {
        "id" | "uid" => json!(ID),
        "resource" => json!("build1"),
        "namespace" => json!("cron"),
        "name" => json!("nightly"),
        "type" => json!("media"),
        "node" => json!(4),
        "X-Quorum-Client-ID" => json!("batch7"),
        _ => return None,
    })
}
