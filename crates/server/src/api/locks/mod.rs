//! The locks dialect: blocking locks with a URL of their own, under `/locks/`, `/active_locks/` and `/resources`.
//!
//! In:    POST that waits for its turn, GET and DELETE of lock URLs, administration. Out: commands, and the table's
//!        answers as status codes and HAL bodies.
//! Never: decides about locks; `parse.rs` reads paths and bodies, `wait.rs` holds requests open, `orphans.rs` ends
//!        those whose node is gone, `render.rs` writes
//!        bodies, `admin.rs` is for administrators.
//!
//! A lock is a claim with a `lifetime` (its ttl) and a longest `wait`; a lock's uid is the claim's id.

pub mod admin;
mod orphans;
mod parse;
mod render;
mod wait;

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{HeaderValue, LOCATION};
use leasehold_core::{
    ClaimId, Command, Ending, Guard, NewClaim, OnBusy, Outcome, Rejection, Status, Target, View,
};

pub use self::orphans::{withdraw_of_silent_nodes, withdraw_orphans};
pub use self::parse::is_name;
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::api::one_resource_view::{is_alone, on_resource};
use crate::api::refused::{not_alone_on, unexpected};
use crate::app::App;
use crate::app::receive::read_body;
use crate::audit::Noted;
use crate::message::connection::Connection;
use crate::message::headers::Headers;
use crate::message::problem::{engine_problem, not_found};
use crate::message::request::{Request, reason};
use crate::message::{Response, empty, typed};

/// Largest body of a request: three short fields, and whatever else old clients put beside them.
const BODY_LEN_MAX: usize = 16 << 10;
/// The media type of every body of this dialect that is not an error.
const HAL: &str = "application/hal+json";

/// `POST /locks/<resource>` and `/active_locks/<resource>`: waits for its turn.
pub async fn make(
    app: &Arc<App>,
    connection: &Connection,
    request: Request,
    resource: Arc<str>,
    caller: &Caller,
) -> Result<Response, Response> {
    // A request may stand open for hours, ten thousand of them at a time: what it is read with goes before it waits.
    let (url, new, noted) = Box::pin(read(app, connection, request, resource, caller)).await?;
    let _place = match new.on_busy {
        OnBusy::QueueFor { .. } => Some(app.long_poll(&new.owner)?),
        _ => None,
    };
    match wait::acquire(app, connection, new, caller).await {
        Ok(view) => {
            noted.settled();
            Ok(created(&view, &url))
        }
        Err(refusal) => {
            if !matches!(refusal, wait::NotAcquired::Failed(_)) {
                noted.settled();
            }
            Err(refusal.into_response())
        }
    }
}

/// The claim that a POST asks for, what its lock's URL will start with, and the audit's note of it.
async fn read(
    app: &App,
    connection: &Connection,
    request: Request,
    resource: Arc<str>,
    caller: &Caller,
) -> Result<(Box<str>, NewClaim, Noted), Response> {
    let (head, body) = request.into_parts();
    let body = read_body(app, body, &head.headers, BODY_LEN_MAX, caller).await?;
    let wanted = parse::wanted(&body)?;
    let url = format!("{}/locks/{resource}/", connection.base_url(&head.headers));
    let owner = caller.owner(connection, &head.headers);
    let new = wanted.into_claim(app.engine.passing_claim_id(), resource, owner);
    let noted = app.note(new.id, caller, connection, &head.headers);
    Ok((url.into(), new, noted))
}

/// 201, an empty body, and where the lock is.
fn created(view: &View, url: &str) -> Response {
    let mut response = empty(StatusCode::CREATED);
    if let Ok(location) = HeaderValue::from_str(&format!("{url}{}", view.claim.id)) {
        response.headers_mut().insert(LOCATION, location);
    }
    with_token(response, view)
}

/// `GET /locks/<resource>/<uid>`
pub async fn get(
    app: &App,
    resource: &str,
    uid: Option<ClaimId>,
    caller: &Caller,
) -> Result<Response, Response> {
    let view = on_resource(find(app, resource, uid, caller).await?, resource, caller);
    let body = format!("{}\n", render::lock(&view));
    Ok(with_token(typed(StatusCode::OK, HAL, body), &view))
}

/// `DELETE /locks/<resource>/<uid>`
pub async fn delete(
    app: &App,
    connection: &Connection,
    headers: &Headers,
    resource: &str,
    uid: Option<ClaimId>,
    caller: &Caller,
) -> Result<Response, Response> {
    let view = find(app, resource, uid, caller).await?;
    if !caller.may_change(resource, &view.claim.owner) {
        return Err(caller.refuse(Verb::Revoke, resource).into());
    }
    if !is_alone(&view) {
        return Err(not_alone_on(caller, resource, &view));
    }
    // Only its own client knows a held lock's URL from its answer: that is a release. A waiting request's URL stands
    // in nobody's answer: who deletes it takes it away from a client that still waits.
    let (ending, reason) = match view.claim.status {
        // Unless it is known that it was somebody else.
        Status::Active if caller.owns(&view.claim.owner) => (Ending::Released, None),
        Status::Active => (Ending::Revoked, reason(headers).or_else(|| Some("deleted by its URL".into()))),
        _ => (
            Ending::Revoked,
            reason(headers).or_else(|| Some("the waiting request was deleted by its URL".into())),
        ),
    };
    let target = Target::Claim(view.claim.id);
    let (by, from) = (caller.owner(connection, headers), connection.client(headers));
    let noted = app.note_end(view.claim.id, ending, None, by, from);
    let finish = Command::Finish { target, guard: Guard::default(), ending, reason, purge_data: false };
    let outcome = app.engine.submit(finish).await.map_err(|error| engine_problem(&error))?;
    noted.settled();
    match outcome {
        Outcome::Finished(_) => Ok(empty(StatusCode::NO_CONTENT)),
        Outcome::Rejected(Rejection::Final(_) | Rejection::Unknown(_)) => Err(no_lock()),
        other => Err(unexpected(&other, "locks")),
    }
}

/// The held or waiting lock with this URL.
async fn find(app: &App, resource: &str, uid: Option<ClaimId>, caller: &Caller) -> Result<View, Response> {
    // Who may not read learns nothing, not even that there is no such lock; but everyone finds their own.
    let none = || {
        if caller.may(Verb::Read, resource) { no_lock() } else { caller.refuse(Verb::Read, resource).into() }
    };
    let Some(uid) = uid else { return Err(none()) };
    let view = app.engine.claim_settled(uid).await.map_err(|error| engine_problem(&error))?;
    let is_on = |view: &View| view.resources().any(|own| **own == *resource);
    let view = view.filter(|view| is_on(view) && !view.claim.status.is_final());
    view.filter(|view| caller.may_see_view(view)).ok_or_else(none)
}

fn with_token(mut response: Response, view: &View) -> Response {
    if let Some(token) = view.token() {
        response.headers_mut().insert("leasehold-token", HeaderValue::from(token));
    }
    response
}

fn no_lock() -> Response {
    not_found("there is no such lock on this resource: it is over, or never was")
}
