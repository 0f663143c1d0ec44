//! The calls for operators: the cluster, backups, limits; and those that machines make: probes, version, metrics.
//!
//! In:    nothing. Out: OpenAPI paths. Never: leaves out a status that a client can meet.

use serde_json::json;

use super::super::operation::{Operation, schema};
use super::{Calls, JSON, TEXT, text};

fn new(id: &'static str, summary: &'static str) -> Operation {
    Operation::new("see", id, summary)
}

/// A call that changes the cluster or its limits.
fn change(id: &'static str, summary: &'static str) -> Operation {
    new(id, summary)
        .empty(204, "It is done.")
        .problem(403, "The right 'admin' is missing, or administration is off.")
        .problem(409, "It would be wrong, and why.")
        .engine()
}

pub(super) fn calls() -> Calls {
    let mut calls = of_operators();
    calls.extend(of_machines());
    calls
}

fn of_operators() -> Calls {
    let node = json!({ "type": "integer", "minimum": 1 });
    vec![
        (
            "/v1/cluster",
            "get",
            new("cluster", "The nodes and how they are")
                .answer(200, "All of them.", JSON, schema("Cluster"))
                .problem(401, "Credentials are needed.")
                .problem(403, "The right 'admin' is missing."),
        ),
        (
            "/v1/cluster/nodes",
            "post",
            change("addNode", "Let a running node without data in")
                .json("NewNode")
                .problem(400, "Not a node."),
        ),
        (
            "/v1/cluster/nodes/{node}",
            "delete",
            change("removeNode", "Take a node out").path("node", node, "its number"),
        ),
        (
            "/v1/cluster/leader",
            "post",
            change("transferLeadership", "Have another node lead")
                .json("NewLeader")
                .problem(400, "Not a node."),
        ),
        (
            "/v1/backup",
            "get",
            new("backup", "The whole table as one file")
                .answer(200, "A snapshot.", "application/octet-stream", text())
                .problem(403, "The right 'admin' is missing.")
                .engine(),
        ),
        (
            "/v1/limits",
            "get",
            new("limits", "What claims may take, and what they take")
                .query("owner", text(), "also what this owner uses")
                .query("namespace", text(), "also what this namespace uses")
                .answer(200, "Limits, byte budgets and their overrides.", JSON, json!({ "type": "object" }))
                .mistakes()
                .engine(),
        ),
        (
            "/v1/limits",
            "put",
            change("setLimit", "Override a byte budget, or take an override back")
                .json("Override")
                .problem(400, "No override."),
        ),
    ]
}

fn of_machines() -> Calls {
    let unwell =
        || json!({ TEXT: { "schema": text() }, "application/problem+json": { "schema": schema("Problem") } });
    let probe = |id, summary| {
        new(id, summary)
            .answer(200, "Well.", TEXT, text())
            .any(503, "Not well, and why.", unwell())
            .query("verbose", text(), "check by check")
            .query("exclude", text(), "leave this check out; may be repeated")
    };
    vec![
        ("/livez", "get", probe("livez", "Whether the process lives")),
        ("/readyz", "get", probe("readyz", "Whether this node can take commands")),
        ("/v1/health", "get", probe("health", "The same, for clients of the leases dialect")),
        ("/version", "get", new("version", "What runs").answer(200, "The version.", JSON, schema("Version"))),
        ("/metrics", "get", new("metrics", "Prometheus metrics").answer(200, "Text.", TEXT, text())),
    ]
}
