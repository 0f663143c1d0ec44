//! The shapes of bodies.
//!
//! In:    the statuses and kinds that the code has. Out: JSON schemas by name.
//! Never: lists by hand what the code lists already.

use leasehold_core::{Status, limits};
use serde_json::{Map, Value, json};

use super::operation::schema;
use crate::api::events::KINDS;
use crate::observe::metrics::MODES;

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
    let groups = [common(), claims(), locks(), dss(), looking(), operating()];
    for (name, schema) in groups.into_iter().flatten() {
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
    let [patch, put] = claim_changes();
    let [renewed, ended] =
        [renewed(), ended()].map(|item| whole(json!({ "claims": { "type": "array", "items": item } })));
    let ids = json!({ "type": "array", "items": { "type": "string" } });
    vec![
        ("NewClaim", new_claim(&resource)),
        ("ClaimPatch", patch),
        ("ClaimPut", put),
        ("Claim", claim()),
        ("Claims", json!({ "type": "array", "items": schema("Claim") })),
        ("Renewals", closed(&["ids"], json!({ "ids": ids, "ttl": seconds() }))),
        ("Renewed", renewed),
        ("Watched", closed(&["ids"], json!({ "ids": ids }))),
        ("Ended", ended),
    ]
}

/// What PATCH and PUT of a claim may ask for.
fn claim_changes() -> [Value; 2] {
    let endings = Status::ALL.into_iter().filter(|status| *status == Status::Active || status.is_final());
    let endings: Vec<&str> =
        endings.filter(|status| *status != Status::Expired).map(Status::as_str).collect();
    let ttl = closed(&["ttl"], json!({ "ttl": seconds() }));
    let status = closed(&["status"], json!({ "status": { "type": "string", "enum": endings } }));
    let revoke = closed(
        &["status", "when"],
        json!({ "status": { "type": "string", "enum": ["revoked"] }, "when": { "type": "string", "enum": ["now", "gone"] } }),
    );
    let both = closed(
        &["ttl", "status"],
        json!({ "ttl": seconds(), "status": { "type": "string", "enum": ["active"] } }),
    );
    [json!({ "oneOf": [ttl, status, revoke] }), json!({ "oneOf": [ttl, status, revoke, both] })]
}

/// A claim, as answers show it. A plain claim has no session and no items.
fn claim() -> Value {
    let step =
        whole(json!({ "status": statuses(), "timestamp": { "type": "string", "format": "date-time" } }));
    let mut claim = whole(json!({
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
    claim["properties"]["session"] = nullable("string");
    claim["properties"]["items"] = json!({
        "type": "array", "items": item(),
        "description": "if the claim was made with mode, take, resources or session: what it wants or holds",
    });
    claim
}

fn renewed() -> Value {
    whole(json!({
        "id": { "type": "string" }, "renewed": { "type": "boolean" }, "status": nullable("string"), "token": nullable("integer"),
        "waiters": nullable("integer"), "revoking": { "type": "boolean" }, "reason": nullable("string"),
    }))
}

fn ended() -> Value {
    whole(json!({
        "id": { "type": "string" }, "status": nullable("string"), "revoking": { "type": "boolean" }, "reason": nullable("string"),
    }))
}

/// One resource exclusively, shared or in slots; or several, all of them at once.
fn new_claim(resource: &Value) -> Value {
    let mode = json!({ "type": "string", "enum": ["exclusive", "shared"] });
    let [take, of] = [(1, 8), (8, limits::SLOTS_MAX)]
        .map(|(least, most)| json!({ "type": "integer", "minimum": least, "maximum": most }));
    let mut session = resource.clone();
    session["pattern"] = json!("^[a-z0-9._-]+(/[a-z0-9._-]+)*$");
    session["description"] =
        json!("the worker that the claim belongs to, a path: it never waits for itself or its ancestors");
    let with = |required: &[&str], own: Value| {
        let mut properties = json!({
            "ttl": seconds(), "user_data": { "description": "any JSON up to 64 KiB" }, "session": session,
        });
        for (name, schema) in own.as_object().into_iter().flatten() {
            properties[name] = schema.clone();
        }
        closed(required, properties)
    };
    let one = closed(&["resource"], json!({ "resource": resource, "mode": mode }));
    let some = closed(&["resource", "take", "of"], json!({ "resource": resource, "take": take, "of": of }));
    let names =
        json!({ "type": "array", "minItems": 1, "maxItems": 20, "uniqueItems": true, "items": resource });
    let list = json!({ "type": "array", "minItems": 1, "maxItems": 1, "items": { "oneOf": [one, some] } });
    let about = format!("1 to {} resources, each a name or an object, each resource once", limits::ITEMS_MAX);
    let resources = json!({ "oneOf": [names, list], "description": about });
    json!({ "oneOf": [
        with(&["resource", "ttl"], json!({ "resource": resource })),
        with(&["resource", "ttl", "mode"], json!({ "resource": resource, "mode": mode })),
        with(&["resource", "ttl", "take", "of"], json!({ "resource": resource, "take": take, "of": of })),
        with(&["resources", "ttl"], json!({ "resources": resources })),
    ] })
}

/// An item of a claim, as answers show it.
fn item() -> Value {
    let slots = json!({ "type": ["array", "null"], "items": { "type": "integer", "minimum": 1 } });
    whole(json!({
        "resource": { "type": "string" },
        "mode": { "type": "string", "enum": MODES },
        "take": nullable("integer"),
        "of": nullable("integer"),
        "slots": slots,
        "token": nullable("integer"),
        "position": nullable("integer"),
    }))
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

/// The resources and who has them, as the dashboard's API shows them.
fn looking() -> Named {
    let holder = json!({ "type": ["object", "null"], "description": "the first holder" });
    let holders =
        json!({ "type": "array", "items": { "type": "object" }, "description": "the first of all holders" });
    let mode = json!({ "enum": [null, "exclusive", "shared", "slots"] });
    let slots = json!({
        "type": ["object", "null"],
        "properties": { "of": { "type": "integer" }, "held": { "type": "integer" } },
    });
    let row = whole(json!({
        "name": { "type": "string" }, "holder": holder, "holders": holders, "holder_count": { "type": "integer" },
        "mode": mode, "slots": slots, "waiting": { "type": "integer" }, "longest_wait": nullable("number"), "finished": { "type": "integer" },
    }));
    let detail = whole(json!({
        "name": { "type": "string" }, "now": { "type": "string" }, "holder": holder, "holders": holders,
        "holder_count": { "type": "integer" }, "mode": mode, "slots": slots, "waiting": { "type": "integer" }, "queue": { "type": "array", "items": { "type": "object" } },
        "finished": { "type": "integer" }, "history": { "type": "array", "items": { "type": "object" } },
    }));
    let rows_of = |items: &Value| json!({ "type": "array", "items": items });
    let contention = whole(json!({
        "complete": { "type": "boolean", "description": "false: there are more names than were looked at" },
        "looked_at": { "type": "integer" }, "resources": { "type": "integer" }, "held": { "type": "integer" }, "waiting": { "type": "integer" },
        "mean_wait": { "type": ["number", "null"], "description": "so far, of those who wait; long queues are sampled" },
        "namespaces": { "type": "array", "items": { "type": "object" } }, "more_namespaces": { "type": "integer" },
        "resources_here": { "type": "integer" }, "longest_queue": rows_of(&row), "longest_wait": rows_of(&row),
        "longest_hold": rows_of(&row),
    }));
    let rows = json!({ "resources": { "type": "array", "items": row }, "next": nullable("string") });
    vec![
        ("Resources", whole(rows)),
        ("Resource", detail),
        ("Overview", overview()),
        ("Contention", contention),
        ("Event", event()),
        ("Whoami", whoami()),
    ]
}

fn overview() -> Value {
    let counts = json!({ "type": "integer", "description": "only for those who may read every resource" });
    object(
        &["version", "node", "you"],
        json!({
            "version": { "type": "string" }, "node": { "type": "object" }, "you": { "type": "object" },
            "held": counts, "waiting": counts, "resources": counts, "last_token": counts,
            "series": { "type": "object" },
        }),
    )
}

fn event() -> Value {
    object(
        &["id", "kind", "resource", "claim", "owner", "token", "time"],
        json!({
            "id": { "type": "string" }, "kind": { "type": "string", "enum": KINDS }, "resource": { "type": "string" },
            "claim": { "type": "string" }, "owner": { "type": "string" }, "token": nullable("integer"),
            "waited": { "type": "number" }, "held": { "type": "number" }, "time": { "type": "string" },
            "who": { "type": "object", "description": "host, user, pid and command, as the claim tells them" },
        }),
    )
}

fn whoami() -> Value {
    object(
        &["checked", "may"],
        json!({
            "checked": { "type": "boolean" }, "user": nullable("string"), "how": nullable("string"),
            "groups": { "type": "array", "items": { "type": "string" } },
            "may": { "type": "array", "items": { "type": "string" } },
        }),
    )
}

/// The cluster, its limits and its version.
fn operating() -> Named {
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
    let new_node = json!({ "id": { "type": "integer", "minimum": 1 }, "address": { "type": "string" } });
    let budget = json!({
        "scope": { "type": "string", "enum": ["total", "finished", "owner", "namespace"] },
        "prefix": { "type": "string" },
        "bytes": { "type": ["integer", "null"], "minimum": 0 },
    });
    vec![
        ("Cluster", whole(cluster)),
        ("NewNode", closed(&["id", "address"], new_node)),
        ("NewLeader", closed(&["id"], json!({ "id": { "type": "integer", "minimum": 1 } }))),
        ("Override", closed(&["scope"], budget)),
        ("Version", object(&["version"], json!({ "version": { "type": "string" } }))),
    ]
}
