//! The calls of the claims dialect.
//!
//! In:    nothing. Out: OpenAPI paths. Never: leaves out a status that a client can meet.

use leasehold_core::Status;
use serde_json::json;

use super::super::operation::{Operation, schema};
use super::super::schemas::{bound, seconds};
use super::{Calls, JSON, hex_id};

/// What `?wait=` does.
const WAIT: &str = "hold the answer until the claim is active, so many seconds at the most";

fn new(id: &'static str, summary: &'static str) -> Operation {
    Operation::new("claims", id, summary)
}

pub(super) fn calls() -> Calls {
    vec![
        ("/v1/claims/", "post", claim()),
        ("/v1/claims/", "get", list()),
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

fn claim() -> Operation {
    new("claim", "Claim a resource, or several at once: hold them, or wait in their queues")
        .query("wait", seconds(), WAIT)
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
        .problem(
            409,
            "It would wait for its own session for ever (`deadlock`, with the `cycle`), or the resource has another number \
             of slots (`capacity`).",
        )
        .problem(422, "The idempotency key was used for another request.")
        .engine()
}

fn list() -> Operation {
    let statuses = json!({ "type": "string", "enum": Status::ALL.map(Status::as_str) });
    let limit = json!({ "type": "integer", "minimum": 1, "maximum": 1000 });
    let mut list = new("listClaims", "Claims in order of creation, filtered")
        .query("resource", json!({ "type": "string", "minLength": 1 }), "on this resource")
        .query("status", statuses, "in this status")
        .query("limit", limit, "at most so many; 100 unless said")
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
    list.query("minimum_created", created.clone(), "created then or later: RFC 3339 or unix seconds")
        .query("maximum_created", created, "created then or earlier")
        .answer(200, "Claims; `Link` has the next page.", JSON, schema("Claims"))
        .mistakes()
        .engine()
}

fn update(id: &'static str, summary: &'static str, body: &'static str) -> Operation {
    new(id, summary)
        .path("id", hex_id(), "the claim")
        .query("wait", seconds(), WAIT)
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
}
