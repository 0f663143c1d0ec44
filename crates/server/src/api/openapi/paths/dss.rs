//! The calls of typed locks.
//!
//! In:    nothing. Out: OpenAPI paths. Never: leaves out a status that a client can meet.

use serde_json::json;

use super::super::operation::{Operation, schema};
use super::{Calls, JSON};
use crate::api::dss::TYPES;

pub(super) fn calls() -> Calls {
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
