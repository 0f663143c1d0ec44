//! What access control refuses, as a response.
//!
//! In:    a [`Refusal`]. Out: 401 with a challenge, 403, or 429.
//! Never: decides anything.

use hyper::StatusCode;
use hyper::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};

use crate::access::Refusal;
use crate::message::Response;
use crate::message::problem::problem;

impl From<Refusal> for Response {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TooMany { wait } => {
                let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
                let detail = format!("too many requests: wait {seconds} s");
                let mut response = problem(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", &detail);
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
                response
            }
            Refusal::Forbidden { verb, resource } => {
                let detail = format!("the right '{verb}' on '{resource}' is missing");
                problem(StatusCode::FORBIDDEN, "forbidden", &detail)
            }
            Refusal::Unauthorized { verb, resource, bad_credentials } => {
                let detail = format!("the right '{verb}' on '{resource}' takes valid credentials");
                challenge(problem(StatusCode::UNAUTHORIZED, "unauthorized", &detail), bad_credentials)
            }
            Refusal::Withdrawn => {
                let detail = "the credentials expired or were withdrawn while the request was open";
                problem(StatusCode::UNAUTHORIZED, "unauthorized", detail)
            }
        }
    }
}

/// Says which credentials would do.
fn challenge(mut response: Response, bad_credentials: bool) -> Response {
    let bearer = match bad_credentials {
        true => "Bearer realm=\"leasehold\", error=\"invalid_token\"",
        false => "Bearer realm=\"leasehold\"",
    };
    let basic = "Basic realm=\"leasehold\", charset=\"UTF-8\"";
    for way in [bearer, basic] {
        response.headers_mut().append(WWW_AUTHENTICATE, HeaderValue::from_static(way));
    }
    response
}
