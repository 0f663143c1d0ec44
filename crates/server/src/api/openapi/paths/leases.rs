//! The calls of the leases dialect.
//!
//! In:    nothing. Out: OpenAPI paths. Never: leaves out a status that a client can meet.

use serde_json::{Value, json};

use super::super::operation::{Operation, schema};
use super::Calls;

/// A lease answers in what the caller accepts.
fn any_format() -> Value {
    let anything = json!({ "schema": {} });
    let text = json!({ "schema": { "type": "string" } });
    json!({
        "application/octet-stream": text, "application/json": anything, "text/plain": text, "text/html": text,
        "application/problem+json": { "schema": schema("Problem") },
    })
}

fn in_namespace(id: &'static str, summary: &'static str) -> Operation {
    Operation::new("leases", id, summary).path("namespace", part(), "any; it may have several segments")
}

/// A part of a path.
fn part() -> Value {
    json!({ "type": "string", "pattern": "^[a-z][a-z0-9-]{0,20}$", "not": { "enum": ["list"] } })
}

/// A call on one lease, with what any of them may answer.
fn on_lease(id: &'static str, summary: &'static str) -> Operation {
    in_namespace(id, summary)
        .path("name", part(), "anything but `list`; it may have several segments")
        .header(
            "X-Quorum-Client-ID",
            json!({ "type": "string", "pattern": "^[a-z0-9]{1,20}$" }),
            "who you are; without it, your address",
        )
        .any(400, "The path, the query or a header is wrong.", any_format())
        .any(404, "Nobody holds it.", any_format())
        .any(405, "It is yours already: renew with PUT.", any_format())
        .problem(414, "The path is too long.")
        .problem(500, "A bug.")
        .problem(501, "Another method.")
        .problem(509, "Too many leases in this namespace.")
        .engine_or_503()
}

pub(super) fn calls() -> Calls {
    let length = |operation: Operation| {
        operation.header(
            "X-Quorum-Lease-Length",
            json!({ "type": "integer", "minimum": 1, "maximum": 100_000 }),
            "seconds",
        )
    };
    let version = |operation: Operation| {
        operation.header(
            "X-Quorum-Lease-Version",
            json!({ "type": "integer", "minimum": 0 }),
            "only if this still is the version",
        )
    };
    let refused = |operation: Operation| {
        operation.any(403, "Somebody else holds it.", any_format()).any(
            409,
            "It changed since.",
            any_format(),
        )
    };
    let path = "/v1/{namespace}/leases/{name}";
    vec![
        (
            path,
            "get",
            on_lease("getLease", "The client data of a lease, or a report").any(
                200,
                "It is held.",
                any_format(),
            ),
        ),
        (
            path,
            "post",
            length(on_lease("acquireLease", "Acquire a lease").bytes())
                .any(201, "It is yours.", any_format())
                .any(409, "Somebody else holds it.", any_format()),
        ),
        (
            path,
            "put",
            refused(version(length(on_lease("renewLease", "Renew a lease").bytes()))).any(
                202,
                "It is renewed.",
                any_format(),
            ),
        ),
        (
            path,
            "delete",
            refused(version(on_lease("releaseLease", "Give a lease up"))).empty(204, "It is given up."),
        ),
        (
            "/v1/{namespace}/leases/list",
            "get",
            in_namespace("listLeases", "The leases of a namespace")
                .any(200, "They are.", any_format())
                .problem(400, "The path or the query is wrong.")
                .problem(414, "The path is too long.")
                .engine_or_503(),
        ),
    ]
}
