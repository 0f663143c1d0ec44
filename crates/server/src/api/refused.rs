//! What the table says no to, as responses: one mapping for all dialects.
//!
//! In:    a rejection, or an outcome that nobody asked for. Out: a status and a kind of problem.
//! Never: has what a dialect's document sets itself: leases have numbers of their own for some limits.

use hyper::StatusCode;
use leasehold_core::{Outcome, Rejection};

use crate::message::Response;
use crate::message::problem::{problem, try_again};

/// The status and kind of a limit; `None` if it is none.
pub fn limit(rejection: &Rejection) -> Option<(StatusCode, &'static str)> {
    let (status, kind) = match rejection {
        Rejection::QueueFull(_) => (StatusCode::TOO_MANY_REQUESTS, "queue-full"),
        Rejection::OwnerFull(_) => (StatusCode::TOO_MANY_REQUESTS, "owner-full"),
        Rejection::NamespaceFull(_) => (StatusCode::TOO_MANY_REQUESTS, "namespace-full"),
        Rejection::TableFull(_) => (StatusCode::INSUFFICIENT_STORAGE, "table-full"),
        Rejection::OwnerBytes(_) => (StatusCode::INSUFFICIENT_STORAGE, "owner-bytes-full"),
        Rejection::NamespaceBytes(_) => (StatusCode::INSUFFICIENT_STORAGE, "namespace-bytes-full"),
        Rejection::TableBytes(_) => (StatusCode::INSUFFICIENT_STORAGE, "table-bytes-full"),
        Rejection::NoMemory => (StatusCode::INSUFFICIENT_STORAGE, "memory-full"),
        _ => return None,
    };
    Some((status, kind))
}

/// A limit was reached. Anything else is an answer that no command of `dialect` asks for.
pub fn limited(rejection: &Rejection, dialect: &'static str) -> Response {
    match limit(rejection) {
        Some((status, kind)) => try_again(problem(status, kind, &rejection.to_string())),
        None => unexpected(&Outcome::Rejected(rejection.clone()), dialect),
    }
}

/// The table answered with something that no command of this dialect asks for: a bug, said loudly.
pub fn unexpected(outcome: &Outcome, dialect: &'static str) -> Response {
    tracing::error!(%outcome, dialect, "the table gave an answer that this dialect can't render");
    let detail = "the answer can't be rendered; the change may have happened";
    problem(StatusCode::INTERNAL_SERVER_ERROR, "bug", detail)
}
