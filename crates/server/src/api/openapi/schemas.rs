//! The shapes of bodies.
//!
//! In:    the statuses and kinds that the code has. Out: JSON schemas by name.
//! Never: lists by hand what the code lists already.

use leasehold_core::{Status, limits};
use serde_json::{Map, Value, json};

use super::operation::schema;
use crate::api::events::KINDS;

/// The first of these types or null.
fn nullable(kind: &str) -> Value {
    json!({ "type": [kind, "null"] })
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": required, "properties": properties })
}

/// An object without any member but these.
fn closed(required: &[&str], properties: Value) -> Value {
    let mut schema = object(required, properties);
    schema["additionalProperties"] = json!(false);
    schema
}

/// An object in which every one of its members is always there.
fn whole(properties: Value) -> Value {
    let names: Vec<String> =
        properties.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default();
    json!({ "type": "object", "required": names, "properties": properties })
}

pub(super) fn all() -> Value {
    let mut schemas = Map::new();
    for (name, schema) in common().into_iter().chain(claims()).chain(locks()).chain(dss()).chain(see()) {
        schemas.insert(name.into(), schema);
    }
    Value::Object(schemas)
}

type Named = Vec<(&'static str, Value)>;

fn statuses() -> Value {
    json!({ "type": "string", "enum": Status::ALL.map(Status::as_str) })
}

pub(super) fn seconds() -> Value {
    json!({ "type": "number", "minimum": 0, "maximum": limits::TTL_US_MAX / 1_000_000 })
}

/// A bound of a filter, which may lie below zero.
pub(super) fn bound() -> Value {
    let most = (limits::TTL_US_MAX / 1_000_000).cast_signed();
    json!({ "type": "number", "minimum": -most, "maximum": most })
}

fn common() -> Named {
    let problem = object(
        &["type", "title", "status", "detail"],
        json!({
            "type": { "type": "string", "description": "urn:leasehold:problem:<kind>, stable" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string", "description": "what is wrong and what to do" },
        }),
    );
    let mistakes = json!({ "type": "object", "additionalProperties": { "type": "string" } });
    vec![("Problem", problem), ("Mistakes", mistakes)]
}

fn claims() -> Named {
    let resource =
        json!({ "type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[a-z0-9/._-]+$" });
    let new = closed(
        &["resource", "ttl"],
        json!({ "resource": resource, "ttl": seconds(), "user_data": { "description": "any JSON up to 64 KiB" } }),
    );
    let endings = Status::ALL.into_iter().filter(|status| *status == Status::Active || status.is_final());
    let endings: Vec<&str> =
        endings.filter(|status| *status != Status::Expired).map(Status::as_str).collect();
    let revoke = closed(
        &["status", "when"],
        json!({ "status": { "type": "string", "enum": ["revoked"] }, "when": { "type": "string", "enum": ["now", "gone"] } }),
    );
    let patch = json!({ "oneOf": [
        closed(&["ttl"], json!({ "ttl": seconds() })),
        closed(&["status"], json!({ "status": { "type": "string", "enum": endings } })),
        revoke,
    ] });
    let put = json!({ "oneOf": [
        closed(&["ttl"], json!({ "ttl": seconds() })),
        closed(&["status"], json!({ "status": { "type": "string", "enum": endings } })),
        revoke,
        closed(&["ttl", "status"], json!({ "ttl": seconds(), "status": { "type": "string", "enum": ["active"] } })),
    ] });
    let step =
        whole(json!({ "status": statuses(), "timestamp": { "type": "string", "format": "date-time" } }));
    let claim = whole(json!({
        "url": { "type": "string" },
        "resource": { "type": "string" },
        "status": statuses(),
        "status_history": { "type": "array", "minItems": 1, "items": step },
        "created": { "type": "string", "format": "date-time" },
        "ttl": nullable("number"),
        "initial_ttl": nullable("number"),
        "active_duration": nullable("number"),
        "waiting_duration": nullable("number"),
        "user_data": { "description": "as it was sent" },
        "token": nullable("integer"),
        "owner": { "type": "string" },
        "position": nullable("integer"),
        "expires": nullable("string"),
        "waiters": nullable("integer"),
        "revoking": { "type": "boolean" },
        "reason": nullable("string"),
    }));
    let renewals = closed(
        &["ids"],
        json!({ "ids": { "type": "array", "items": { "type": "string" } }, "ttl": seconds() }),
    );
    let renewed = whole(json!({
        "id": { "type": "string" }, "renewed": { "type": "boolean" }, "status": nullable("string"), "token": nullable("integer"),
        "waiters": nullable("integer"), "revoking": { "type": "boolean" }, "reason": nullable("string"),
    }));
    let watched = closed(&["ids"], json!({ "ids": { "type": "array", "items": { "type": "string" } } }));
    let ended = whole(json!({
        "id": { "type": "string" }, "status": nullable("string"), "revoking": { "type": "boolean" }, "reason": nullable("string"),
    }));
    let ended = whole(json!({ "claims": { "type": "array", "items": ended } }));
    let renewed = whole(json!({ "claims": { "type": "array", "items": renewed } }));
    vec![
        ("NewClaim", new),
        ("ClaimPatch", patch),
        ("ClaimPut", put),
        ("Claim", claim),
        ("Claims", json!({ "type": "array", "items": schema("Claim") })),
        ("Renewals", renewals),
        ("Renewed", renewed),
        ("Watched", watched),
        ("Ended", ended),
    ]
}

fn locks() -> Named {
    let wanted = object(
        &["title", "lifetime", "wait"],
        json!({ "title": { "type": "string", "maxLength": 200 }, "lifetime": seconds(), "wait": seconds() }),
    );
    let lock = object(
        &["uid", "title", "active", "lifetime", "wait", "_links"],
        json!({
            "uid": { "type": "string" }, "title": { "type": "string" }, "active": { "type": "boolean" },
            "lifetime": nullable("number"), "wait": { "type": "number" }, "_links": { "type": "object" },
            "active_since": { "type": "string" }, "active_expires": nullable("string"),
            "wait_since": { "type": "string" }, "wait_expires": nullable("string"),
        }),
    );
    let locks = whole(json!({
        "name": { "type": "string" },
        "_links": { "type": "object" },
        "_embedded": whole(json!({ "locks": { "type": "array", "items": schema("Lock") } })),
    }));
    let name = object(&["name"], json!({ "name": { "type": "string" } }));
    let resources = whole(json!({
        "_links": { "type": "object" },
        "_embedded": whole(json!({ "resources": { "type": "array", "items": name } })),
    }));
    vec![("NewLock", wanted), ("Lock", lock), ("LocksOfResource", locks), ("LockedResources", resources)]
}

fn dss() -> Named {
    let ids = json!({ "type": "array", "minItems": 1, "maxItems": 20, "items": { "type": "string", "minLength": 1, "maxLength": 100 } });
    let pid = json!({ "type": "integer", "minimum": 1, "maximum": i32::MAX });
    let host = json!({ "type": "string", "minLength": 1, "maxLength": 100, "pattern": "^[a-z0-9.-]+$" });
    let call = json!({ "type": "string", "pattern": "^[A-Za-z0-9_-]{16,64}$" });
    let ttl = json!({ "type": "number", "minimum": 0.001, "maximum": 3600 });
    let refresh = json!({ "ids": ids, "hostname": host, "owner": pid, "ttl": ttl });
    let (mut lock, mut unlock) = (refresh.clone(), refresh.clone());
    lock["call"] = call.clone();
    unlock["call"] = call;
    unlock["force"] = json!({ "type": "boolean" });
    unlock["retry"] = json!({ "type": "boolean" });
    let caller = ["ids", "hostname", "owner"];
    let list = closed(
        &["hostname"],
        json!({ "hostname": host, "owner": pid, "after": { "type": "string" }, "limit": { "type": "integer", "minimum": 1, "maximum": 1000 } }),
    );
    let one = object(
        &["id", "errno", "hostname", "owner", "timestamp"],
        json!({ "id": { "type": "string" }, "errno": nullable("string"), "hostname": nullable("string"), "owner": nullable("integer"), "timestamp": nullable("string") }),
    );
    let answer = object(
        &["errno", "locks"],
        json!({
            "errno": { "enum": [null, "EEXIST", "ENOLCK", "EACCES", "EINVAL"] },
            "message": nullable("string"),
            "locks": { "type": "array", "items": one },
        }),
    );
    vec![
        ("TypedLock", closed(&caller, lock)),
        ("TypedRefresh", closed(&caller, refresh)),
        ("TypedUnlock", closed(&caller, unlock)),
        ("TypedStatus", closed(&["ids"], json!({ "ids": ids }))),
        ("TypedList", list),
        ("TypedAnswer", answer),
    ]
}

fn see() -> Named {
    let holder = json!({ "type": ["object", "null"] });
    let row = whole(json!({
        "name": { "type": "string" }, "holder": holder, "waiting": { "type": "integer" },
        "longest_wait": nullable("number"), "finished": { "type": "integer" },
    }));
    let detail = whole(json!({
        "name": { "type": "string" }, "now": { "type": "string" }, "holder": holder,
        "waiting": { "type": "integer" }, "queue": { "type": "array", "items": { "type": "object" } },
        "finished": { "type": "integer" }, "history": { "type": "array", "items": { "type": "object" } },
    }));
    let overview = whole(json!({
        "version": { "type": "string" }, "held": { "type": "integer" }, "waiting": { "type": "integer" },
        "resources": { "type": "integer" }, "last_token": { "type": "integer" }, "series": { "type": "object" },
    }));
    let event = object(
        &["id", "kind", "resource", "claim", "owner", "token", "time"],
        json!({
            "id": { "type": "string" }, "kind": { "type": "string", "enum": KINDS }, "resource": { "type": "string" },
            "claim": { "type": "string" }, "owner": { "type": "string" }, "token": nullable("integer"),
            "waited": { "type": "number" }, "held": { "type": "number" }, "time": { "type": "string" },
        }),
    );
    let rows = json!({ "resources": { "type": "array", "items": row }, "next": nullable("string") });
    let node = object(
        &["id", "address", "role", "lag"],
        json!({
            "id": { "type": "integer" }, "address": { "type": "string" }, "role": { "type": "string" },
            "log": nullable("integer"), "lag": nullable("integer"), "last_contact_ms": nullable("integer"), "url": nullable("string"),
            "version": nullable("string"), "reads_table_version": nullable("integer"),
        }),
    );
    let cluster = json!({
        "node": { "type": "integer" }, "leader": nullable("integer"), "term": { "type": "integer" },
        "table_version": { "type": "integer" }, "nodes": { "type": "array", "items": node },
    });
    vec![
        ("Cluster", whole(cluster)),
        (
            "NewNode",
            closed(
                &["id", "address"],
                json!({
                    "id": { "type": "integer", "minimum": 1 }, "address": { "type": "string" },
                }),
            ),
        ),
        (
            "Override",
            closed(
                &["scope"],
                json!({
                    "scope": { "type": "string", "enum": ["total", "finished", "owner", "namespace"] },
                    "prefix": { "type": "string" },
                    "bytes": { "type": ["integer", "null"], "minimum": 0 },
                }),
            ),
        ),
        ("NewLeader", closed(&["id"], json!({ "id": { "type": "integer", "minimum": 1 } }))),
        ("Resources", whole(rows)),
        ("Resource", detail),
        ("Overview", overview),
        ("Event", event),
        ("Version", object(&["version"], json!({ "version": { "type": "string" } }))),
    ]
}
