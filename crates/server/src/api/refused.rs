//! What the table says no to, as responses: one mapping for all dialects.
//!
//! In:    a rejection, or an outcome that nobody asked for. Out: a status, a kind of problem, and the reason, to callers who
//!        may read the claims and resources in it.
//! Never: has what a dialect's document sets itself: leases have numbers of their own for some limits.

use hyper::StatusCode;
use leasehold_core::{CycleLink, Outcome, Rejection, Status, View, Wait};
use serde_json::{Value, json};

use crate::access::Caller;
use crate::access::rules::Verb;
use crate::api::session_name;
use crate::app::App;
use crate::message::Response;
use crate::message::problem::{problem, problem_with, try_again};
use crate::message::time::rfc3339;

/// The status and kind of a limit, or of a moment at which the table takes no such command; `None` if it is neither.
pub fn limit(rejection: &Rejection) -> Option<(StatusCode, &'static str)> {
    let (status, kind) = match rejection {
        Rejection::QueueFull(_) => (StatusCode::TOO_MANY_REQUESTS, "queue-full"),
        Rejection::OwnerFull(_) => (StatusCode::TOO_MANY_REQUESTS, "owner-full"),
        Rejection::NamespaceFull(_) => (StatusCode::TOO_MANY_REQUESTS, "namespace-full"),
        Rejection::HoldersFull(_) => (StatusCode::TOO_MANY_REQUESTS, "holders-full"),
        Rejection::TableFull(_) => (StatusCode::INSUFFICIENT_STORAGE, "table-full"),
        Rejection::OwnerBytes(_) => (StatusCode::INSUFFICIENT_STORAGE, "owner-bytes-full"),
        Rejection::NamespaceBytes(_) => (StatusCode::INSUFFICIENT_STORAGE, "namespace-bytes-full"),
        Rejection::TableBytes(_) => (StatusCode::INSUFFICIENT_STORAGE, "table-bytes-full"),
        Rejection::NoMemory => (StatusCode::INSUFFICIENT_STORAGE, "memory-full"),
        Rejection::Unsettled(_) => (StatusCode::SERVICE_UNAVAILABLE, "unsettled"),
        Rejection::TooEarly(_) => (StatusCode::SERVICE_UNAVAILABLE, "upgrading"),
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

/// A refusal because of other claims, as a 409. Callers who may not read those are told the kind alone. `None`: it is something
/// else.
pub fn conflict(app: &App, caller: &Caller, rejection: &Rejection) -> Option<Response> {
    let (kind, detail, members) = match rejection {
        Rejection::Busy(by) => held(caller, &by.claim.resource, by),
        Rejection::Blocked { resource, by } => held(caller, resource, by),
        Rejection::NotAlone(by) => not_alone(caller, &by.claim.resource, by),
        Rejection::Capacity { resource, of } => capacity(caller, resource, *of),
        Rejection::Deadlock(cycle) => deadlock(app, caller, cycle),
        _ => return None,
    };
    Some(problem_with(StatusCode::CONFLICT, kind, &detail, members))
}

/// A claim that has this resource, and can't be changed by its name.
pub fn not_alone_on(caller: &Caller, resource: &str, by: &View) -> Response {
    let (kind, detail, members) = not_alone(caller, resource, by);
    problem_with(StatusCode::CONFLICT, kind, &detail, members)
}

/// A kind, a sentence, and what programs read.
type Explained = (&'static str, String, Value);

/// The resource is held, or reserved by a claim that waits for other resources and came first.
fn held(caller: &Caller, resource: &str, by: &View) -> Explained {
    let (kind, verb) = match by.claim.status {
        Status::Waiting => ("reserved", "reserved"),
        _ => ("held", "held"),
    };
    if !caller.may_see_view(by) {
        return (kind, format!("the resource is {verb} by another claim"), json!({}));
    }
    let detail = format!("{resource} is {verb} by {}", in_words(by));
    (kind, detail, json!({ "resource": resource, "by": told_of(by) }))
}

/// The resource is shared, taken in slots or part of a set.
fn not_alone(caller: &Caller, resource: &str, by: &View) -> Explained {
    let how = "held or wanted in a way that only a claim's own URL can change (shared, in slots or as part of a set)";
    if !caller.may_see_view(by) {
        return ("not-alone", format!("the resource is {how}"), json!({}));
    }
    let detail = format!("{resource} is {how}: use /v1/claims/{}/", by.claim.id);
    ("not-alone", detail, json!({ "resource": resource, "by": told_of(by) }))
}

/// The resource has another number of slots.
fn capacity(caller: &Caller, resource: &str, of: u16) -> Explained {
    if !caller.may(Verb::Read, resource) {
        return ("capacity", "the resource has another number of slots".into(), json!({}));
    }
    let detail = format!(
        "{resource} has {of} slots as long as somebody holds or wants some: ask for them `of` {of}, or wait until nobody does"
    );
    ("capacity", detail, json!({ "resource": resource, "of": of }))
}

/// The claim would wait for its own session for ever.
fn deadlock(app: &App, caller: &Caller, cycle: &[Wait]) -> Explained {
    let sees = |wait: &Wait| {
        caller.may_see(&wait.resource, &wait.owner)
            && app
                .engine
                .read(|table, _| table.whose(wait.claim).is_none_or(|claim| caller.may_see_all(&claim)))
    };
    let why = "the claim would wait for its own session for ever";
    if caller.is_checked() && !cycle.iter().all(sees) {
        return ("deadlock", why.into(), json!({}));
    }
    let steps: Vec<String> = cycle.iter().map(step_in_words).collect();
    let steps_json: Vec<Value> = cycle.iter().map(step).collect();
    ("deadlock", format!("{why}: {}", steps.join("; ")), json!({ "cycle": steps_json }))
}

fn step(wait: &Wait) -> Value {
    let link = match wait.link {
        CycleLink::Wants => "wants",
        CycleLink::Holds => "holds",
        CycleLink::Reserves => "reserves",
    };
    json!({
        "claim": wait.claim.to_string(),
        "owner": &*wait.owner,
        "session": wait.session.as_deref().map(session_name::shown),
        "resource": &*wait.resource,
        "link": link,
    })
}

fn step_in_words(wait: &Wait) -> String {
    let Wait { claim, owner, resource, .. } = wait;
    let session = wait.session.as_deref().map(session_name::shown);
    let session = session.map(|session| format!(", session {session}")).unwrap_or_default();
    let who = format!("claim {claim} (owner {owner}{session})");
    match wait.link {
        CycleLink::Wants => format!("{who} wants {resource}"),
        CycleLink::Holds => format!("{resource} is held by {who}"),
        CycleLink::Reserves => format!("{resource} is reserved by {who}, which came first"),
    }
}

/// The claim in the way: whose it is, since when, and for how long still.
pub fn told_of(view: &View) -> Value {
    let claim = &view.claim;
    let active = claim.status == Status::Active;
    let since = if active { claim.activated_wall_us } else { claim.created_wall_us };
    json!({
        "claim": claim.id.to_string(),
        "owner": &*claim.owner,
        "session": view.session().map(|session| session_name::shown(session)),
        "status": claim.status.as_str(),
        "since": rfc3339(since),
        "ttl": claim.left_us(view.now_us).map(|left_us| left_us as f64 / 1e6),
    })
}

fn in_words(view: &View) -> String {
    let claim = &view.claim;
    let (id, owner) = (claim.id, &claim.owner);
    match claim.status {
        Status::Waiting => {
            let since = rfc3339(claim.created_wall_us);
            format!("claim {id} of {owner}, which came first and has waited since {since}")
        }
        _ => {
            let since = rfc3339(claim.activated_wall_us);
            let left = claim
                .left_us(view.now_us)
                .map(|us| format!(", for {:.3} s more unless it is renewed", us as f64 / 1e6));
            format!(
                "claim {id} of {owner} since {since}{}",
                left.unwrap_or_else(|| ", until it is released".into())
            )
        }
    }
}
