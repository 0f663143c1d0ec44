//! The claims dialect, the native API: `/v1/claims/` and `/v1/renewals`.
//!
//! In:    POST, PATCH, PUT and GET of claims. Out: commands, and the table's answers as JSON.
//! Never: decides about locks; `parse.rs` reads requests, `render.rs` writes responses, `list.rs` pages.

mod list;
mod parse;
mod readable;
mod render;
mod wait;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue, LOCATION};
use hyper::{Method, Request, StatusCode};
use leasehold_core::{
    Claim, ClaimId, Command, Ending, Guard, NewClaim, OnBusy, Outcome, Rejection, Status, Target, View,
};

use self::parse::{ClaimBody, Patch};
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::engine::EngineError;
use crate::http::problem::{engine_problem, method_not_allowed, not_found, problem};
use crate::http::request::{Connection, read_body, reason};
use crate::http::server::App;
use crate::http::{Response, empty, json};

/// Largest body of a request: the largest user data, in JSON, and room for the rest.
const BODY_LEN_MAX: usize = leasehold_core::limits::DATA_LEN_MAX + (16 << 10);
/// Largest body of a request for many renewals: 10,000 ids and then some.
const RENEWALS_BODY_LEN_MAX: usize = 1 << 20;

/// `/v1/claims/`.
pub async fn collection(
    app: &Arc<App>,
    connection: &Connection,
    request: Request<Incoming>,
    caller: &Caller,
) -> Response {
    match *request.method() {
        Method::POST => post(app, connection, request, caller).await.unwrap_or_else(|refusal| refusal),
        Method::GET | Method::HEAD => {
            Box::pin(list::list(app, connection, &request, caller)).await.unwrap_or_else(|refusal| refusal)
        }
        _ => method_not_allowed("GET, HEAD, POST"),
    }
}

/// `/v1/claims/<id>/`. What is no id at all is a claim that does not exist.
pub async fn item(
    app: &Arc<App>,
    connection: &Connection,
    request: Request<Incoming>,
    id: Option<ClaimId>,
    caller: &Caller,
) -> Response {
    let method = request.method();
    if ![Method::GET, Method::HEAD, Method::PATCH, Method::PUT].contains(method) {
        return method_not_allowed("GET, HEAD, PATCH, PUT");
    }
    if let Err(refusal) = caller.require_any(&[Verb::Read, Verb::Claim]) {
        return refusal;
    }
    let Some(id) = id else { return unknown_claim() };
    let answer = match *method {
        Method::GET | Method::HEAD => get(app, connection, &request, id, caller).await,
        _ => update(app, connection, request, id, caller).await,
    };
    answer.unwrap_or_else(|refusal| refusal)
}

async fn post(
    app: &Arc<App>,
    connection: &Connection,
    request: Request<Incoming>,
    caller: &Caller,
) -> Result<Response, Response> {
    let wait = parse::wait_parameter(request.uri().query())?;
    let (head, body) = request.into_parts();
    let owner = caller.owner(connection, &head.headers);
    let body = read_body(app, body, &head.headers, BODY_LEN_MAX).await?;
    let ClaimBody { resource, ttl_us, data } = parse::claim_body(&body)?;
    caller.require(Verb::Claim, &resource)?;
    let idempotency = parse::idempotency(&head.headers, &owner, &resource, ttl_us, data.as_ref())?;
    let id = ClaimId::from_u128(crate::outside::random());
    app.note(id, caller, connection, &head.headers);
    let keyed = idempotency.is_some();
    let new =
        NewClaim { id, resource, owner, ttl_us: Some(ttl_us), on_busy: OnBusy::Queue, data, idempotency };
    let outcome = match wait {
        None => app.engine.submit(Command::Claim(new)).await,
        Some(wait) => {
            let _place = app.long_poll()?;
            Box::pin(wait::claim(app, new, wait, keyed)).await
        }
    };
    let base_url = connection.base_url(&head.headers);
    match outcome.map_err(|error| engine_problem(&error))? {
        Outcome::Granted(view) | Outcome::Queued(view) => Ok(created(&view, &base_url)),
        // A retried request is its client looking at the claim.
        Outcome::Existing(view) => {
            let seen = look_at(app, view.claim.id).await.map_err(|error| engine_problem(&error))?;
            Ok(created(&seen.unwrap_or(*view), &base_url))
        }
        Outcome::Rejected(rejection) => Err(rejected(&rejection, &base_url)),
        other => Err(unexpected(&other)),
    }
}

/// 201 for a claim that holds, 202 for one that waits, 200 for one that a retried request finds over.
fn created(view: &View, base_url: &str) -> Response {
    let status = match view.claim.status {
        Status::Active => StatusCode::CREATED,
        Status::Waiting => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    let mut response = detail(status, view, base_url);
    if let Ok(url) = HeaderValue::from_str(&render::url(base_url, view.claim.id)) {
        response.headers_mut().insert(LOCATION, url);
    }
    response
}

async fn get(
    app: &App,
    connection: &Connection,
    request: &Request<Incoming>,
    id: ClaimId,
    caller: &Caller,
) -> Result<Response, Response> {
    parse::no_parameters(request.uri().query())?;
    let base_url = connection.base_url(request.headers());
    if caller.is_checked() {
        visible(app, id, caller)?;
    }
    let view = look_at(app, id).await.map_err(|error| engine_problem(&error))?;
    Ok(view.map_or_else(unknown_claim, |view| detail(StatusCode::OK, &view, &base_url)))
}

/// A claim that the caller may see. To others it is as if it were not there: its id is all they know.
fn visible(app: &App, id: ClaimId, caller: &Caller) -> Result<View, Response> {
    let view = app.engine.read(|table, now_us| table.claim_view(id, now_us));
    view.filter(|view| caller.may_see(&view.claim.resource, &view.claim.owner)).ok_or_else(unknown_claim)
}

/// A claim that the caller may change. Whose it is never changes, so what is found here still holds later, however old
/// this node's table is.
async fn changeable(app: &App, id: ClaimId, caller: &Caller) -> Result<(), Response> {
    know(app, &[Ok(id)]).await?;
    let Claim { resource, owner, .. } = visible(app, id, caller)?.claim;
    if caller.may_change(&resource, &owner) { Ok(()) } else { Err(caller.refuse(Verb::Revoke, &resource)) }
}

/// Waits until this node's table knows these claims, if any node does: only one that another node made a moment ago
/// can be missing here.
async fn know(app: &App, ids: &[Result<ClaimId, String>]) -> Result<(), Response> {
    let known = |id: &ClaimId| app.engine.read(|table, _| table.knows(*id));
    match ids.iter().flatten().all(known) {
        true => Ok(()),
        false => app.engine.barrier().await.map_err(|error| engine_problem(&error)),
    }
}

/// A claim as it is now. Its client looks at it: a ttl that waited to be picked up starts.
async fn look_at(app: &App, id: ClaimId) -> Result<Option<View>, EngineError> {
    match app.engine.claim_settled(id).await? {
        Some(view) if view.claim.unpicked => match app.engine.submit(Command::Activate { id }).await? {
            Outcome::Active(view) => Ok(Some(*view)),
            Outcome::Rejected(Rejection::Final(view)) => Ok(Some(*view)),
            _ => Ok(Some(view)),
        },
        view => Ok(view),
    }
}

async fn update(
    app: &Arc<App>,
    connection: &Connection,
    request: Request<Incoming>,
    id: ClaimId,
    caller: &Caller,
) -> Result<Response, Response> {
    let wait = parse::wait_parameter(request.uri().query())?;
    if caller.is_checked() {
        changeable(app, id, caller).await?;
    }
    let (head, body) = request.into_parts();
    let body = read_body(app, body, &head.headers, BODY_LEN_MAX).await?;
    let patch = parse::patch(&body, head.method == Method::PUT)?;
    let base_url = connection.base_url(&head.headers);
    if let Patch::Finish(_) = patch {
        app.note(id, caller, connection, &head.headers);
    }
    let outcome = match (&patch, wait) {
        (Patch::Activate | Patch::ActivateWithTtl(_), Some(wait)) => {
            let _place = app.long_poll()?;
            Box::pin(wait::activate(app, id, &patch, wait)).await
        }
        _ => app.engine.submit(command(id, &patch, &head.headers)).await,
    };
    match outcome.map_err(|error| engine_problem(&error))? {
        Outcome::Active(view) | Outcome::Renewed(view) => Ok(detail(StatusCode::OK, &view, &base_url)),
        Outcome::Finished(_) => Ok(empty(StatusCode::NO_CONTENT)),
        Outcome::Rejected(Rejection::Unknown(_)) => Err(unknown_claim()),
        Outcome::Rejected(Rejection::Final(view)) => Err(render::final_status(&patch, &view)),
        Outcome::Rejected(Rejection::Waiting(view)) => {
            Err(still_waiting(app, &patch, &view, &base_url, caller))
        }
        Outcome::Rejected(rejection) => Err(rejected(&rejection, &base_url)),
        other => Err(unexpected(&other)),
    }
}

fn command(id: ClaimId, patch: &Patch, headers: &HeaderMap) -> Command {
    let target = Target::Claim(id);
    let guard = Guard::default();
    let finish = |ending| Command::Finish {
        target: Target::Claim(id),
        guard: Guard::default(),
        ending,
        reason: reason(headers),
        purge_data: false,
    };
    match patch {
        Patch::Activate => Command::Activate { id },
        Patch::Ttl(ttl_us) | Patch::ActivateWithTtl(ttl_us) => {
            Command::Renew { target, guard, ttl_us: Some(*ttl_us), data: None }
        }
        Patch::Finish(ending) => finish(*ending),
    }
}

/// A waiting claim can't be activated while another holds (409), nor renewed or released at all (400).
fn still_waiting(app: &App, patch: &Patch, view: &View, base_url: &str, caller: &Caller) -> Response {
    match patch {
        Patch::Activate | Patch::ActivateWithTtl(_) => {
            let holder = app.engine.read(|table, now_us| table.holder_view(&view.claim.resource, now_us));
            let holder = holder.filter(|holder| caller.may_see(&holder.claim.resource, &holder.claim.owner));
            json(StatusCode::CONFLICT, render::conflict(view, holder.as_ref(), base_url))
        }
        Patch::Ttl(_) => parse::bad("ttl", "only an active claim has a ttl; this one is waiting"),
        Patch::Finish(Ending::Released) => {
            parse::bad("status", "a waiting claim holds nothing to release: use 'withdrawn' or 'aborted'")
        }
        Patch::Finish(_) => unexpected(&Outcome::Done),
    }
}

/// `/v1/renewals`: starts the ttls of many claims anew in one request, answered claim by claim.
pub async fn renewals(
    app: &Arc<App>,
    _connection: &Connection,
    request: Request<Incoming>,
    caller: &Caller,
) -> Response {
    if request.method() != Method::POST {
        return method_not_allowed("POST");
    }
    renew_many(app, request, caller).await.unwrap_or_else(|refusal| refusal)
}

async fn renew_many(app: &App, request: Request<Incoming>, caller: &Caller) -> Result<Response, Response> {
    caller.require_any(&[Verb::Claim])?;
    parse::no_parameters(request.uri().query())?;
    let (head, body) = request.into_parts();
    let body = read_body(app, body, &head.headers, RENEWALS_BODY_LEN_MAX).await?;
    let (mut ids, ttl_us) = parse::renewals(&body)?;
    if caller.is_checked() {
        know(app, &ids).await?;
        hide_others(app, &mut ids, caller);
    }
    let known = ids.iter().flatten().map(|id| Command::Renew {
        target: Target::Claim(*id),
        guard: Guard::default(),
        ttl_us,
        data: None,
    });
    let outcomes = app.engine.submit_many(known.collect()).await.map_err(|error| engine_problem(&error))?;
    Ok(json(StatusCode::OK, render::renewals(&ids, outcomes)))
}

/// Claims that the caller may not change are as good as unknown.
fn hide_others(app: &App, ids: &mut parse::RenewalIds, caller: &Caller) {
    app.engine.read(|table, now_us| {
        let may = |id: ClaimId| {
            let view = table.claim_view(id, now_us);
            view.is_none_or(|view| caller.may_change(&view.claim.resource, &view.claim.owner))
        };
        for id in ids {
            if let Ok(known) = *id
                && !may(known)
            {
                *id = Err(known.to_string());
            }
        }
    });
}

fn detail(status: StatusCode, view: &View, base_url: &str) -> Response {
    let mut body = Vec::with_capacity(640);
    render::detail(&mut body, view, base_url);
    body.push(b'\n');
    let mut response = json(status, body);
    if view.claim.token > 0 {
        response.headers_mut().insert("leasehold-token", HeaderValue::from(view.claim.token));
    }
    response
}

fn unknown_claim() -> Response {
    not_found("there is no such claim, or it has been over for so long that it was forgotten")
}

/// Limits, and keys that were used before.
fn rejected(rejection: &Rejection, base_url: &str) -> Response {
    let (status, kind) = match rejection {
        Rejection::KeyReused(id) => {
            let detail = format!("{rejection}: {}", render::url(base_url, *id));
            return problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused", &detail);
        }
        Rejection::QueueFull(_) => (StatusCode::TOO_MANY_REQUESTS, "queue-full"),
        Rejection::OwnerFull(_) => (StatusCode::TOO_MANY_REQUESTS, "owner-full"),
        Rejection::NamespaceFull(_) => (StatusCode::TOO_MANY_REQUESTS, "namespace-full"),
        Rejection::TableFull(_) => (StatusCode::INSUFFICIENT_STORAGE, "table-full"),
        _ => (StatusCode::CONFLICT, "rejected"),
    };
    let mut response = problem(status, kind, &rejection.to_string());
    response.headers_mut().insert(hyper::header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The table answered with something that no command of this dialect asks for: a bug, said loudly.
fn unexpected(outcome: &Outcome) -> Response {
    tracing::error!(%outcome, "the table gave an answer that the claims dialect can't render");
    problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        "bug",
        "the answer can't be rendered; the change may have happened",
    )
}
