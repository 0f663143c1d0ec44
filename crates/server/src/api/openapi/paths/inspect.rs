//! The calls that show what is going on: resources, contention, events, and who asks.
//!
//! In:    nothing. Out: OpenAPI paths. Never: leaves out a status that a client can meet.

use serde_json::json;

use super::super::operation::{Operation, schema};
use super::{Calls, JSON, text};
use crate::api::events::KINDS;

fn new(id: &'static str, summary: &'static str) -> Operation {
    Operation::new("see", id, summary)
}

pub(super) fn calls() -> Calls {
    vec![
        ("/v1/resources", "get", resources()),
        ("/v1/resources/{resource}", "get", resource()),
        (
            "/v1/contention",
            "get",
            new("contention", "The longest queues, waits and holds; namespaces one level below a prefix")
                .query("prefix", text(), "names that start so")
                .answer(200, "The first few of each.", JSON, schema("Contention"))
                .mistakes()
                .engine(),
        ),
        (
            "/v1/overview",
            "get",
            new("overview", "Counts, and the last half hour in steps")
                .answer(200, "Numbers.", JSON, schema("Overview"))
                .engine(),
        ),
        ("/v1/events", "get", events()),
        (
            "/v1/whoami",
            "get",
            new("whoami", "Who asks, and what they may do")
                .query("resource", text(), "on this resource; without it, on any")
                .answer(
                    200,
                    "The user that the credentials stand for, and the verbs.",
                    JSON,
                    schema("Whoami"),
                )
                .mistakes(),
        ),
    ]
}

fn resources() -> Operation {
    let state = json!({ "type": "string", "enum": ["any", "held", "queued"] });
    let limit = json!({ "type": "integer", "minimum": 1, "maximum": 500 });
    new("resources", "Resources in the order of their names: who holds them, how many wait")
        .query("prefix", text(), "names that start so")
        .query("search", text(), "names, owners, hosts, users, processes or commands that contain this")
        .query("state", state, "only these")
        .query("owner", text(), "held or waited for by this owner")
        .query("host", text(), "... whose claim says that it is on this host")
        .query("user", text(), "... of this user")
        .query("pid", text(), "... in this process")
        .query("after", text(), "go on behind this name: `next` of the page before")
        .query("limit", limit, "at most so many; 50 unless said")
        .answer(200, "A page.", JSON, schema("Resources"))
        .mistakes()
        .engine()
}

fn resource() -> Operation {
    let name = json!({ "type": "string", "pattern": "^[a-z0-9._-]{1,40}$", "not": { "enum": [".", ".."] } });
    new("resource", "One resource: holder, queue, history")
        .path("resource", name, "its name, percent-encoded: one segment")
        .answer(200, "The resource.", JSON, schema("Resource"))
        .problem(404, "No claim names it.")
        .engine()
}

fn events() -> Operation {
    let kinds = format!("some of {}, separated by commas", KINDS.join(", "));
    let heartbeat = json!({ "type": "number", "minimum": 0.1, "maximum": 60 });
    let last = json!({ "type": "integer", "minimum": 0, "maximum": 1000 });
    let who = json!({ "type": "boolean" });
    new("events", "What happens, as server-sent events, each with an id to resume from")
        .query("prefix", text(), "resources that start so")
        .query("kind", text(), &kinds)
        .query("heartbeat", heartbeat, "seconds between signs of life; 15 unless said")
        .query("after", text(), "go on behind this id")
        .query("last", last, "or begin with so many of the newest")
        .query("who", who, "also say what claims tell of host, user, process and command")
        .header("Last-Event-ID", text(), "the same; goes before `after`")
        .answer(
            200,
            "A stream that ends when you close it. Each `data:` is an Event.",
            "text/event-stream",
            schema("Event"),
        )
        .mistakes()
        .engine()
}
