//! The calls of the locks dialect.
//!
//! In:    nothing. Out: OpenAPI paths. Never: leaves out a status that a client can meet.

use serde_json::json;

use super::super::operation::{Operation, schema};
use super::{Calls, HAL, hex_id};

pub(super) fn calls() -> Calls {
    let mut calls = of_holders();
    calls.extend(of_administrators());
    calls
}

fn on_resource(id: &'static str, summary: &'static str) -> Operation {
    let name = json!({ "type": "string", "pattern": "^[a-zA-Z0-9]{1,40}$" });
    Operation::new("locks", id, summary).path("resource", name, "letters and digits")
}

/// Take a lock, look at it, give it up.
fn of_holders() -> Calls {
    let acquire = |id| {
        on_resource(id, "Lock a resource; waits for its turn")
            .json("NewLock")
            .empty(201, "You hold the lock; its URL is in Location.")
            .problem(400, "Not a JSON object, or a key is missing or wrong.")
            .problem(404, "That can't be the name of a resource here.")
            .empty(408, "The wait is over.")
            .empty(409, "The waiting request was deleted.")
            .engine()
    };
    let one = |id, summary| {
        on_resource(id, summary).path("uid", hex_id(), "the lock").problem(404, "There is no such lock.")
    };
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
            one("unlock", "Give a lock up")
                .empty(204, "It is given up.")
                .problem(409, "It is shared, in slots or part of a set: use the claim's own URL.")
                .engine(),
        ),
    ]
}

/// All locks, or all of a resource.
fn of_administrators() -> Calls {
    let admin = |operation: Operation| operation.problem(403, "Administration is off.").engine();
    vec![
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
            admin(
                Operation::new("locks", "unlockAll", "End all locks").empty(204, "They are over.").problem(
                    409,
                    "All others are over; some resources are shared, held in slots or part of a set.",
                ),
            ),
        ),
        (
            "/resources/{resource}",
            "get",
            admin(
                on_resource("locksOf", "The locks of a resource")
                    .answer(200, "The holder, then the queue.", HAL, schema("LocksOfResource"))
                    .problem(404, "That can't be the name of a resource here."),
            ),
        ),
        (
            "/resources/{resource}",
            "delete",
            admin(
                on_resource("unlockResource", "End them")
                    .empty(204, "They are over.")
                    .problem(404, "There are none.")
                    .problem(409, "The resource is shared, held in slots or part of a set."),
            ),
        ),
    ]
}
