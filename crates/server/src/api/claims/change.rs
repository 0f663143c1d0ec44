//! PATCH and PUT of a claim: renews it, activates it or ends it.
//!
//! In:    a request about one claim. Out: a command, and the table's answer as JSON.
//! Never: tells a caller who may not see a claim that it exists.

use std::sync::Arc;

use hyper::StatusCode;
use leasehold_core::{ClaimId, Command, Ending, Guard, Outcome, Rejection, Target, View};

use super::blockers::blockers;
use super::parse_change::Patch;
use super::{RequestHead, detail, parse, parse_change, rejected, render, unknown_claim, wait, withdrawn};
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::api::refused::unexpected;
use crate::app::App;
use crate::app::receive::{collect_body, drain};
use crate::audit::Noted;
use crate::message::body::RequestBody;
use crate::message::connection::Connection;
use crate::message::problem::engine_problem;
use crate::message::request::{Request, reason};
use crate::message::{Response, ResponseFuture, at_once, empty, json};

/// Largest body of an update.
const BODY_LEN_MAX: usize = leasehold_core::limits::DATA_LEN_MAX + (16 << 10);

/// What a PATCH or PUT is about, besides its body.
struct Change {
    id: ClaimId,
    is_put: bool,
    reason: Option<Arc<str>>,
}

/// `PATCH` and `PUT /v1/claims/<id>/`
pub fn update(
    app: Arc<App>,
    connection: &Connection,
    request: Request,
    id: Option<ClaimId>,
    is_put: bool,
    caller: Caller,
) -> ResponseFuture {
    let Some(id) = id else { return at_once(unknown_claim()) };
    let (head, body) = request.into_parts();
    let change = Change { id, is_put, reason: reason(&head.headers) };
    match RequestHead::of(connection, &head, &body, &caller, BODY_LEN_MAX) {
        Ok(head) => Box::pin(make_change(app, head, change, body, caller)),
        Err(refusal) => at_once(refusal),
    }
}

async fn make_change(
    app: Arc<App>,
    head: RequestHead,
    change: Change,
    body: RequestBody,
    caller: Caller,
) -> Response {
    let Change { id, is_put, reason } = change;
    if caller.is_checked()
        && let Err(refusal) = changeable(&app, id, &caller).await
    {
        drain(&app, body).await;
        return refusal;
    }
    let patch = match collect_body(&app, body, BODY_LEN_MAX, &caller).await {
        Ok(body) => parse_change::patch(&body, is_put),
        Err(refusal) => return refusal,
    };
    let patch = match patch {
        Ok(patch) => patch,
        Err(refusal) => return refusal,
    };
    let RequestHead { base_url, owner, client, wait } = head;
    let noted = match patch {
        Patch::Finish(ending) => app.note_end(id, ending, None, owner.clone(), client),
        Patch::RevokeWhenGone => {
            if let Err(error) = app.engine.reach_table_version(2).await {
                return engine_problem(&error);
            }
            app.note_end(id, Ending::Revoked, None, owner.clone(), client)
        }
        _ => Noted::default(),
    };
    let outcome = match (&patch, wait) {
        (Patch::Activate | Patch::ActivateWithTtl(_), Some(wait)) => match app.long_poll(&owner) {
            Ok(_place) => Box::pin(wait::activate(&app, id, &patch, wait, &caller)).await,
            Err(refusal) => return refusal,
        },
        _ => app.engine.submit(command(id, &patch, reason)).await,
    };
    if outcome.is_ok() {
        noted.settled();
    }
    if matches!(outcome, Ok(Outcome::Rejected(Rejection::Waiting(_))))
        && let Some(refusal) = withdrawn(wait, &caller)
    {
        return refusal;
    }
    match outcome {
        Ok(Outcome::Active(view) | Outcome::Renewed(view)) => detail(StatusCode::OK, &view, &base_url),
        Ok(Outcome::Finished(_)) => empty(StatusCode::NO_CONTENT),
        // It will be revoked.
        Ok(Outcome::Revoking(view)) => detail(StatusCode::ACCEPTED, &view, &base_url),
        Ok(Outcome::Rejected(rejection)) => match rejection {
            Rejection::Unknown(_) => unknown_claim(),
            Rejection::Revoking(view) => json(StatusCode::CONFLICT, render::revoking(&view, &base_url)),
            Rejection::Final(view) => render::final_status(&patch, &view),
            Rejection::Waiting(view) => still_waiting(&app, &patch, &view, &base_url, &caller),
            rejection => rejected(&app, &caller, &rejection, &base_url),
        },
        Ok(other) => unexpected(&other, "claims"),
        Err(error) => engine_problem(&error),
    }
}

/// Whether the caller may change a claim. The owner of a claim never changes, so the answer stays true, however old this
/// node's table is. Only a claim that another node made a moment ago can be missing in it.
async fn changeable(app: &App, id: ClaimId, caller: &Caller) -> Result<(), Response> {
    let look = || {
        app.engine.read(|table, _| {
            table.whose(id).map(|claim| match caller.first_unchangeable(&claim) {
                None => Ok(()),
                Some(resource) if caller.may_see_all(&claim) => {
                    Err(caller.refuse(Verb::Revoke, resource).into())
                }
                Some(_) => Err(unknown_claim()),
            })
        })
    };
    if let Some(found) = look() {
        return found;
    }
    // Boxed: few requests have to wait, and only they pay for the room that it takes.
    Box::pin(app.engine.barrier()).await.map_err(|error| engine_problem(&error))?;
    look().unwrap_or_else(|| Err(unknown_claim()))
}

pub(super) fn command(id: ClaimId, patch: &Patch, reason: Option<Arc<str>>) -> Command {
    let (target, guard) = (Target::Claim(id), Guard::default());
    match *patch {
        Patch::Activate => Command::Activate { id },
        Patch::Ttl(ttl_us) | Patch::ActivateWithTtl(ttl_us) => {
            Command::Renew { target, guard, ttl_us: Some(ttl_us), data: None }
        }
        Patch::Finish(ending) => Command::Finish { target, guard, ending, reason, purge_data: false },
        Patch::RevokeWhenGone => Command::RevokeWhenGone { id, reason },
    }
}

/// A waiting claim can't be activated while another holds (409), nor renewed or released at all (400).
fn still_waiting(app: &App, patch: &Patch, view: &View, base_url: &str, caller: &Caller) -> Response {
    match patch {
        Patch::Activate | Patch::ActivateWithTtl(_) => {
            let found = app.engine.read(|table, now_us| blockers(table, view, now_us));
            json(StatusCode::CONFLICT, render::conflict(view, &found, caller, base_url))
        }
        Patch::Ttl(_) => parse::bad("ttl", "only an active claim has a ttl; this one is waiting"),
        Patch::Finish(Ending::Released) => {
            parse::bad("status", "a waiting claim holds nothing to release: use 'withdrawn' or 'aborted'")
        }
        Patch::Finish(_) | Patch::RevokeWhenGone => unexpected(&Outcome::Done, "claims"),
    }
}
