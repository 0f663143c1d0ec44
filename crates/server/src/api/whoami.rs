//! `GET /v1/whoami`: whom the caller's credentials stand for, and what they may do.
//!
//! In:    a request that `dispatch.rs` has admitted, with a resource or without. Out: JSON.
//! Never: tells anything about anyone else, or whether a resource is held.

use hyper::StatusCode;
use serde_json::json;

use crate::access::Caller;
use crate::access::rules::Verb;
use crate::message::problem::problem;
use crate::message::query::pairs;
use crate::message::request::Request;
use crate::message::{Response, json};

/// `GET /v1/whoami`
pub fn answer(request: &Request, caller: &Caller) -> Result<Response, Response> {
    let mut resource = None;
    for (name, value) in pairs(request.uri().query()) {
        match &*name {
            "resource" => resource = Some(value.into_owned()),
            other => {
                let detail = format!("unknown parameter {other:?}; the only one is 'resource'");
                return Err(problem(StatusCode::BAD_REQUEST, "bad-question", &detail));
            }
        }
    }
    let identity = caller.identity();
    let groups = identity.map(|identity| identity.groups.iter().map(ToString::to_string).collect::<Vec<_>>());
    let body = json!({
        "checked": caller.is_checked(),
        "user": identity.map(|identity| identity.user.to_string()),
        "how": identity.map(|identity| identity.how.as_str()),
        "groups": groups.unwrap_or_default(),
        "may": caller.verbs(resource.as_deref()).into_iter().map(Verb::as_str).collect::<Vec<_>>(),
    });
    Ok(json(StatusCode::OK, format!("{body}\n")))
}
