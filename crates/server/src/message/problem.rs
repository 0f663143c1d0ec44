//! Errors outside the dialects' own formats: `application/problem+json`, RFC 9457.
//!
//! In:    what went wrong. Out: a response that says what to do about it.
//! Never: used where a dialect's document has a format of its own.

use hyper::StatusCode;
use hyper::header::{ACCEPT, ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde_json::{Value, json};

use super::headers::Headers;
use super::{Response, typed};
use leasehold_engine::EngineError;

/// The type of a problem document.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// A problem document.
pub fn problem(status: StatusCode, kind: &str, detail: &str) -> Response {
    typed(status, PROBLEM_JSON, problem_body(status, kind, detail))
}

/// A problem document with further members, for programs.
pub fn problem_with(status: StatusCode, kind: &str, detail: &str, members: Value) -> Response {
    let mut body = problem_members(status, kind, detail);
    if let (Value::Object(body), Value::Object(members)) = (&mut body, members) {
        body.extend(members);
    }
    typed(status, PROBLEM_JSON, body.to_string())
}

/// Its text.
pub fn problem_body(status: StatusCode, kind: &str, detail: &str) -> String {
    problem_members(status, kind, detail).to_string()
}

fn problem_members(status: StatusCode, kind: &str, detail: &str) -> Value {
    json!({
        "type": format!("urn:leasehold:problem:{kind}"),
        "title": status.canonical_reason().unwrap_or("Error"),
        "status": status.as_u16(),
        "detail": detail,
    })
}

/// The engine gave no outcome. 503 and 507: the change certainly did not happen. 504: it is unknown.
pub fn engine_problem(error: &EngineError) -> Response {
    let (status, kind) = match error {
        EngineError::DiskFull => (StatusCode::INSUFFICIENT_STORAGE, "disk-full"),
        EngineError::MemoryFull => (StatusCode::INSUFFICIENT_STORAGE, "memory-full"),
        EngineError::Unknown => (StatusCode::GATEWAY_TIMEOUT, "outcome-unknown"),
        EngineError::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
        EngineError::NotLeader => (StatusCode::SERVICE_UNAVAILABLE, "no-leader"),
        EngineError::TooSlow => (StatusCode::SERVICE_UNAVAILABLE, "too-slow"),
        EngineError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "shutting-down"),
        EngineError::MemberTooOld { .. } => (StatusCode::SERVICE_UNAVAILABLE, "member-too-old"),
        EngineError::MemberAway { .. } => (StatusCode::SERVICE_UNAVAILABLE, "member-away"),
        EngineError::Upgrading => (StatusCode::SERVICE_UNAVAILABLE, "upgrading"),
    };
    try_again(problem(status, kind, &error.to_string()))
}

/// The change may have happened, or may still happen.
pub fn outcome_unknown(detail: &str) -> Response {
    try_again(problem(StatusCode::GATEWAY_TIMEOUT, "outcome-unknown", detail))
}

/// There is nothing at this path.
pub fn not_found(detail: &str) -> Response {
    problem(StatusCode::NOT_FOUND, "not-found", detail)
}

/// The path exists, the method does not.
pub fn method_not_allowed(allow: &'static str) -> Response {
    let detail = format!("this path answers {allow}");
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", &detail);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

/// Tells the client to retry in one second.
pub fn try_again(mut response: Response) -> Response {
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The same document as `application/json`, for a client that accepts no other type.
pub fn as_json(mut response: Response) -> Response {
    if response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == PROBLEM_JSON) {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    response
}

/// Whether a client takes `application/json` and not `application/problem+json`.
pub fn accepts_only_json(headers: &Headers) -> bool {
    let mut takes_json = false;
    for value in headers.get_all(ACCEPT) {
        let Ok(value) = std::str::from_utf8(value.as_bytes()) else { return false };
        for range in value.split(',') {
            let range = range.split(';').next().unwrap_or_default().trim();
            match range.to_ascii_lowercase().as_str() {
                "application/json" => takes_json = true,
                "*/*" | "application/*" | PROBLEM_JSON => return false,
                _ => {}
            }
        }
    }
    takes_json
}

/// Closes the connection behind this response: the next bytes may not be the start of a request.
pub fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
