//! The calls there are, dialect by dialect.
//!
//! In:    nothing. Out: OpenAPI paths.
//! Never: leaves out a status that a client can meet.

use leasehold_core::Status;
use serde_json::{Map, Value, json};

use super::operation::{Operation, schema};
use super::schemas::{bound, seconds};
use crate::api::dss::TYPES;
use crate::api::events::KINDS;

const JSON: &str = "application/json";
const HAL: &str = "application/hal+json";
const TEXT: &str = "text/plain";

pub(super) fn all() -> Value {
    let mut paths = Map::new();
    for (path, method, operation) in
        claims().into_iter().chain(locks()).chain(leases()).chain(dss()).chain(see())
    {
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[method] = operation.build();
    }
    Value::Object(paths)
}

type Calls = Vec<(&'static str, &'static str, Operation)>;

fn hex_id() -> Value {
    json!({ "type": "string", "pattern": "^[0-9a-f]{32}$" })
}

fn node_id() -> Value {
    json!({ "type": "integer", "minimum": 1 })
}

fn claims() -> Calls {
    let new = |id, summary| Operation::new("claims", id, summary);
    let wait = "hold the answer until the claim is active, so many seconds at the most";
    let statuses = json!({ "type": "string", "enum": Status::ALL.map(Status::as_str) });
    let mut list = new("listClaims", "Claims in order of creation, filtered")
        .query("resource", json!({ "type": "string", "minLength": 1 }), "on this resource")
        .query("status", statuses, "in this status")
        .query(
            "limit",
            json!({ "type": "integer", "minimum": 1, "maximum": 1000 }),
            "at most so many; 100 unless said",
        )
        .query("offset", json!({ "type": "integer", "minimum": 0 }), "without the first so many");
    for (name, about) in [
        ("minimum_ttl", "active, with at least this much left of its ttl"),
        ("maximum_ttl", "active, with at most this much left of its ttl"),
        ("minimum_active_duration", "active for at least so long"),
        ("maximum_active_duration", "active for at most so long"),
        ("minimum_waiting_duration", "waited for at least so long"),
        ("maximum_waiting_duration", "waited for at most so long"),
    ] {
        list = list.query(name, bound(), about);
    }
    let created = json!({ "type": "number", "minimum": -1e12, "maximum": 1e12 });
    list = list
        .query("minimum_created", created.clone(), "created then or later: RFC 3339 or unix seconds")
        .query("maximum_created", created, "created then or earlier");
    let update = |id, summary, body| {
        new(id, summary)
            .path("id", hex_id(), "the claim")
            .query("wait", seconds(), wait)
            .header(
                "Leasehold-Reason",
                json!({ "type": "string", "pattern": "^[ -~]{0,100}$" }),
                "why it is ended; kept with the claim",
            )
            .json(body)
            .answer(200, "The claim is active.", JSON, schema("Claim"))
            .empty(204, "The claim is over, as asked.")
            .mistakes()
            .problem(404, "There is no such claim.")
            .answer(202, "It is to let go.", JSON, schema("Claim"))
            .answer(409, "It waits behind a holder, or is being revoked.", JSON, schema("Claim"))
            .engine()
    };
    vec![
        (
            "/v1/claims/",
            "post",
            new("claim", "Claim a resource: hold it, or wait in its queue")
                .query("wait", seconds(), wait)
                .header(
                    "Idempotency-Key",
                    json!({ "type": "string", "pattern": "^[!-~]{1,100}$" }),
                    "a retry with the same key finds the first claim",
                )
                .json("NewClaim")
                .answer(200, "A retry found its claim over.", JSON, schema("Claim"))
                .answer(201, "It holds the resource.", JSON, schema("Claim"))
                .answer(202, "It waits in the queue.", JSON, schema("Claim"))
                .mistakes()
                .problem(422, "The idempotency key was used for another request.")
                .engine(),
        ),
        (
            "/v1/claims/",
            "get",
            list.answer(200, "Claims; `Link` has the next page.", JSON, schema("Claims")).mistakes().engine(),
        ),
        (
            "/v1/claims/{id}/",
            "get",
            new("getClaim", "One claim")
                .path("id", hex_id(), "the claim")
                .answer(200, "The claim.", JSON, schema("Claim"))
                .mistakes()
                .problem(404, "There is no such claim.")
                .engine(),
        ),
        ("/v1/claims/{id}/", "patch", update("updateClaim", "Renew, activate or end a claim", "ClaimPatch")),
        (
            "/v1/claims/{id}/",
            "put",
            update("refreshClaim", "The same; ttl and status at once too", "ClaimPut"),
        ),
        (
            "/v1/renewals",
            "post",
            new("renewMany", "Start the ttls of many claims anew")
                .json("Renewals")
                .answer(200, "Claim by claim.", JSON, schema("Renewed"))
                .mistakes()
                .engine(),
        ),
        (
            "/v1/endings",
            "post",
            new("endings", "Those of these claims that are over or are to let go; waits for the first")
                .query("wait", seconds(), "hold the answer until there is one, so many seconds at the most")
                .json("Watched")
                .answer(200, "None when the time is up.", JSON, schema("Ended"))
                .mistakes()
                .engine(),
        ),
    ]
}

fn locks() -> Calls {
    let name = || json!({ "type": "string", "pattern": "^[a-zA-Z0-9]{1,40}$" });
    let new =
        |id, summary| Operation::new("locks", id, summary).path("resource", name(), "letters and digits");
    let acquire = |id| {
        new(id, "Lock a resource; waits for its turn")
            .json("NewLock")
            .empty(201, "You hold the lock; its URL is in Location.")
            .problem(400, "Not a JSON object, or a key is missing or wrong.")
            .problem(404, "That can't be the name of a resource here.")
            .empty(408, "The wait is over.")
            .empty(409, "The waiting request was deleted.")
            .engine()
    };
    let one = |id, summary| {
        new(id, summary).path("uid", hex_id(), "the lock").problem(404, "There is no such lock.")
    };
    let admin = |operation: Operation| operation.problem(403, "Administration is off.").engine();
    vec![
        ("/locks/{resource}", "post", acquire("lock")),
        ("/active_locks/{resource}", "post", acquire("activeLock")),
        (
            "/locks/{resource}/{uid}",
            "get",
            one("getLock", "A lock, held or waiting").answer(200, "The lock.", HAL, schema("Lock")).engine(),
        ),
        (
            "/locks/{resource}/{uid}",
            "delete",
            one("unlock", "Give a lock up").empty(204, "It is given up.").engine(),
        ),
        (
            "/resources",
            "get",
            admin(Operation::new("locks", "lockedResources", "Resources that have locks").answer(
                200,
                "Their names.",
                HAL,
                schema("LockedResources"),
            )),
        ),
        (
            "/resources",
            "delete",
            admin(Operation::new("locks", "unlockAll", "End all locks").empty(204, "They are over.")),
        ),
        (
            "/resources/{resource}",
            "get",
            admin(
                new("locksOf", "The locks of a resource")
                    .answer(200, "The holder, then the queue.", HAL, schema("LocksOfResource"))
                    .problem(404, "That can't be the name of a resource here."),
            ),
        ),
        (
            "/resources/{resource}",
            "delete",
            admin(
                new("unlockResource", "End them")
                    .empty(204, "They are over.")
                    .problem(404, "There are none."),
            ),
        ),
    ]
}

/// A lease answers in what the caller accepts.
fn any_format() -> Value {
    let anything = json!({ "schema": {} });
    let text = json!({ "schema": { "type": "string" } });
    json!({
        "application/octet-stream": text, "application/json": anything, "text/plain": text, "text/html": text,
        "application/problem+json": { "schema": schema("Problem") },
    })
}

fn leases() -> Calls {
    let part =
        || json!({ "type": "string", "pattern": "^[a-z][a-z0-9-]{0,20}$", "not": { "enum": ["list"] } });
    let of_namespace = |id, summary| {
        Operation::new("leases", id, summary).path("namespace", part(), "any; it may have several segments")
    };
    let new = |id, summary| {
        of_namespace(id, summary)
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
    };
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
            new("getLease", "The client data of a lease, or a report").any(200, "It is held.", any_format()),
        ),
        (
            path,
            "post",
            length(new("acquireLease", "Acquire a lease").bytes())
                .any(201, "It is yours.", any_format())
                .any(409, "Somebody else holds it.", any_format()),
        ),
        (
            path,
            "put",
            refused(version(length(new("renewLease", "Renew a lease").bytes()))).any(
                202,
                "It is renewed.",
                any_format(),
            ),
        ),
        (
            path,
            "delete",
            refused(version(new("releaseLease", "Give a lease up"))).empty(204, "It is given up."),
        ),
        (
            "/v1/{namespace}/leases/list",
            "get",
            of_namespace("listLeases", "The leases of a namespace")
                .any(200, "They are.", any_format())
                .problem(400, "The path or the query is wrong.")
                .problem(414, "The path is too long.")
                .engine_or_503(),
        ),
    ]
}

fn dss() -> Calls {
    let call = |id, summary, body| {
        Operation::new("dss", id, summary)
            .path("type", json!({ "type": "string", "enum": TYPES }), "the type of the locks")
            .json(body)
            .answer(200, "All of them.", JSON, schema("TypedAnswer"))
            .answer(400, "EINVAL.", JSON, schema("TypedAnswer"))
            .answer(403, "EACCES.", JSON, schema("TypedAnswer"))
            .answer(404, "ENOLCK.", JSON, schema("TypedAnswer"))
            .answer(409, "EEXIST.", JSON, schema("TypedAnswer"))
            .engine()
    };
    vec![
        ("/v1/dss/{type}/lock", "post", call("typedLock", "Lock all of these, or none", "TypedLock")),
        (
            "/v1/dss/{type}/refresh",
            "post",
            call("typedRefresh", "Refresh as many as possible", "TypedRefresh"),
        ),
        ("/v1/dss/{type}/unlock", "post", call("typedUnlock", "Unlock as many as possible", "TypedUnlock")),
        ("/v1/dss/{type}/status", "post", call("typedStatus", "Who holds these", "TypedStatus")),
        ("/v1/dss/{type}/list", "post", call("typedList", "The locks of a host or process", "TypedList")),
    ]
}

fn see() -> Calls {
    let new = |id, summary| Operation::new("see", id, summary);
    let text = || json!({ "type": "string" });
    let change = |id, summary| {
        new(id, summary)
            .empty(204, "It is done.")
            .problem(403, "The right 'admin' is missing, or administration is off.")
            .problem(409, "It would be wrong, and why.")
            .engine()
    };
    let kinds = format!("some of {}, separated by commas", KINDS.join(", "));
    let probe =
        |id, summary| {
            new(id, summary)
            .answer(200, "Well.", TEXT, text())
            .any(503, "Not well, and why.", json!({
                TEXT: { "schema": text() }, "application/problem+json": { "schema": schema("Problem") },
            }))
            .query("verbose", text(), "check by check")
            .query("exclude", text(), "leave this check out; may be repeated")
        };
    vec![
        (
            "/v1/resources",
            "get",
            new("resources", "Resources in the order of their names: who holds them, how many wait")
                .query("prefix", text(), "names that start so")
                .query("search", text(), "names, or their holders' names, that contain this")
                .query("state", json!({ "type": "string", "enum": ["any", "held", "queued"] }), "only these")
                .query("after", text(), "go on behind this name: `next` of the page before")
                .query("limit", json!({ "type": "integer", "minimum": 1, "maximum": 500 }), "at most so many; 50 unless said")
                .answer(200, "A page.", JSON, schema("Resources"))
                .mistakes()
                .engine(),
        ),
        (
            "/v1/resources/{resource}",
            "get",
            new("resource", "One resource: holder, queue, history")
                .path("resource", json!({ "type": "string", "pattern": "^[a-z0-9._-]{1,40}$", "not": { "enum": [".", ".."] } }), "its name, percent-encoded: one segment")
                .answer(200, "The resource.", JSON, schema("Resource"))
                .problem(404, "No claim names it.")
                .engine(),
        ),
        ("/v1/overview", "get", new("overview", "Counts, and the last half hour in steps").answer(200, "Numbers.", JSON, schema("Overview")).engine()),
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
            change("addNode", "Let a running node without data in").json("NewNode").problem(400, "Not a node."),
        ),
        (
            "/v1/cluster/nodes/{node}",
            "delete",
            change("removeNode", "Take a node out").path("node", node_id(), "its number"),
        ),
        (
            "/v1/cluster/leader",
            "post",
            change("transferLeadership", "Have another node lead").json("NewLeader").problem(400, "Not a node."),
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
            change("setLimit", "Override a byte budget, or take an override back").json("Override").problem(400, "No override."),
        ),
        (
            "/v1/events",
            "get",
            new("events", "What happens, as server-sent events, each with an id to resume from")
                .query("prefix", text(), "resources that start so")
                .query("kind", text(), &kinds)
                .query("heartbeat", json!({ "type": "number", "minimum": 0.1, "maximum": 60 }), "seconds between signs of life; 15 unless said")
                .query("after", text(), "go on behind this id")
                .header("Last-Event-ID", text(), "the same; goes before `after`")
                .answer(200, "A stream that ends when you close it. Each `data:` is an Event.", "text/event-stream", schema("Event"))
                .mistakes()
                .engine(),
        ),
        ("/livez", "get", probe("livez", "Whether the process lives")),
        ("/readyz", "get", probe("readyz", "Whether this node can take commands")),
        ("/v1/health", "get", probe("health", "The same, for clients of the leases dialect")),
        ("/version", "get", new("version", "What runs").answer(200, "The version.", JSON, schema("Version"))),
        ("/metrics", "get", new("metrics", "Prometheus metrics").answer(200, "Text.", TEXT, text())),
    ]
}
