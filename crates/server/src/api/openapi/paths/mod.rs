//! The calls there are.
//!
//! In:    nothing. Out: OpenAPI paths.
//! Never: leaves out a status that a client can meet.
//!
//! - `claims.rs`, `locks.rs`, `leases.rs`, `dss.rs`  a dialect each
//! - `inspect.rs`                                    who holds what, contention, events, who asks
//! - `operating.rs`                                  the cluster, backups, limits, probes and metrics

mod claims;
mod dss;
mod inspect;
mod leases;
mod locks;
mod operating;

use serde_json::{Map, Value, json};

use super::operation::Operation;

const JSON: &str = "application/json";
const HAL: &str = "application/hal+json";
const TEXT: &str = "text/plain";

/// Path, method and what the call is.
type Calls = Vec<(&'static str, &'static str, Operation)>;

pub(super) fn all() -> Value {
    let groups = [
        claims::calls(),
        locks::calls(),
        leases::calls(),
        dss::calls(),
        inspect::calls(),
        operating::calls(),
    ];
    let mut paths = Map::new();
    for (path, method, operation) in groups.into_iter().flatten() {
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[method] = operation.build();
    }
    Value::Object(paths)
}

fn hex_id() -> Value {
    json!({ "type": "string", "pattern": "^[0-9a-f]{32}$" })
}

fn text() -> Value {
    json!({ "type": "string" })
}
