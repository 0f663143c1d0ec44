//! The claims dialect, the native API: `/v1/claims/`, `/v1/renewals` and `/v1/endings`.
//!
//! In:    POST, PATCH, PUT and GET of claims. Out: commands, and the table's answers as JSON.
//! Never: decides about locks; `parse.rs` and `parse_change.rs` read requests, `change.rs` has PATCH and PUT, `render.rs` writes
//!        responses, `list.rs` pages.

mod blockers;
mod change;
mod endings;
mod items;
mod json_check;
mod list;
mod parse;
mod parse_change;
mod render;
mod wait;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue, LOCATION};
use leasehold_core::{
    ClaimId, Command, Guard, NewClaim, NewSet, OnBusy, Outcome, Rejection, Status, Table, Target, View,
};

pub use self::change::update;
pub use self::endings::endings;
use self::items::SetBody;
pub use self::list::list;
use self::parse::ClaimBody;
use crate::access::Caller;
use crate::access::Refusal;
use crate::access::rules::Verb;
use crate::api::refused::{conflict, limit, unexpected};
use crate::api::session_name;
use crate::app::App;
use crate::app::receive::{collect_body, expect_body, read_body};
use crate::message::body::{RequestBody, ResponseBody};
use crate::message::connection::Connection;
use crate::message::problem::{engine_problem, not_found, problem, try_again};
use crate::message::request::{Head, Request};
use crate::message::{Response, ResponseFuture, at_once, json};
use leasehold_engine::EngineError;

/// Largest body of a new claim: the largest user data, in JSON, and a thousand items whose names have several hundred bytes each.
const CLAIM_BODY_LEN_MAX: usize = 1 << 20;
/// Largest body of a request about many claims: 20,000 ids of 32 digits, each with quotes and a comma, are 700 kB.
const RENEWALS_BODY_LEN_MAX: usize = 1 << 20;

/// The table version from which on claims share, take slots, take several resources and belong to sessions.
const SETS_SINCE_VERSION: u32 = 3;

/// The fencing token, where nobody wants to read the body.
const TOKEN: HeaderName = HeaderName::from_static("leasehold-token");

/// What is kept of a request's head. The head itself goes before anything is waited for: it is larger than all the rest, and
/// keeps the buffer alive that it was read into.
struct RequestHead {
    base_url: Arc<str>,
    owner: Arc<str>,
    client: Arc<str>,
    wait: Option<Duration>,
}

impl RequestHead {
    /// Or the refusal of what the head alone shows to be wrong.
    fn of(
        connection: &Connection,
        head: &Head,
        body: &RequestBody,
        caller: &Caller,
        body_len_max: usize,
    ) -> Result<Self, Response> {
        let wait = parse::wait_parameter(head.uri.query())?;
        expect_body(body, &head.headers, body_len_max)?;
        Ok(Self {
            wait,
            base_url: connection.base_url(&head.headers),
            owner: caller.owner(connection, &head.headers),
            client: connection.client(&head.headers),
        })
    }
}

/// `POST /v1/claims/`
pub fn make(app: Arc<App>, connection: &Connection, request: Request, caller: Caller) -> ResponseFuture {
    let (head, body) = request.into_parts();
    let key = parse::idempotency_key(&head.headers);
    match RequestHead::of(connection, &head, &body, &caller, CLAIM_BODY_LEN_MAX) {
        Ok(head) => Box::pin(post(app, head, key, body, caller)),
        Err(refusal) => at_once(refusal),
    }
}

/// `GET /v1/claims/<id>/`. What can't be an id is a claim that does not exist.
pub fn get(
    app: Arc<App>,
    connection: &Connection,
    request: &Request,
    id: Option<ClaimId>,
    caller: Caller,
) -> ResponseFuture {
    let Some(id) = id else { return at_once(unknown_claim()) };
    let base_url = connection.base_url(request.headers());
    match parse::no_parameters(request.uri().query()) {
        Ok(()) => Box::pin(look_up(app, base_url, id, caller)),
        Err(refusal) => at_once(refusal),
    }
}

async fn post(
    app: Arc<App>,
    head: RequestHead,
    key: Option<Bytes>,
    body: RequestBody,
    caller: Caller,
) -> Response {
    let body = match collect_body(&app, body, CLAIM_BODY_LEN_MAX, &caller).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let new = match new_request(&head, key, &body, &caller) {
        Ok(new) => new,
        Err(refusal) => return refusal,
    };
    drop(body);
    if matches!(new.command, Command::ClaimSet(_))
        && let Err(error) = app.engine.reach_table_version(SETS_SINCE_VERSION).await
    {
        return engine_problem(&error);
    }
    let RequestHead { base_url, owner, client, wait } = head;
    let (id, keyed) = (new.id, new.keyed);
    let noted = app.note_from(id, owner.clone(), client);
    let outcome = match wait {
        None => app.engine.submit(new.command).await,
        Some(wait) => match app.long_poll(&owner) {
            Ok(_place) => Box::pin(wait::claim(&app, new, wait, &caller)).await,
            Err(refusal) => return refusal,
        },
    };
    if outcome.is_ok() {
        noted.settled();
    }
    if let Some(refusal) = withdrawn(wait, &caller) {
        if !keyed {
            // Its client will never know of it.
            app.engine.withdraw(id, "its client's credentials were withdrawn while it waited");
        }
        return refusal;
    }
    match outcome {
        Ok(Outcome::Granted(view) | Outcome::Queued(view)) => created(&view, &base_url),
        // A retried request is its client asking for the claim.
        Ok(Outcome::Existing(view)) => match Box::pin(told(&app, *view)).await {
            Ok(view) => created(&view, &base_url),
            // The claim is there: nobody may say that nothing happened.
            Err(_) => engine_problem(&EngineError::Unknown),
        },
        Ok(Outcome::Rejected(rejection)) => rejected(&app, &caller, &rejection, &base_url),
        Ok(other) => unexpected(&other, "claims"),
        Err(error) => engine_problem(&error),
    }
}

/// The refusal of a caller whose credentials were withdrawn while it waited.
fn withdrawn(wait: Option<Duration>, caller: &Caller) -> Option<Response> {
    (wait.is_some() && caller.is_withdrawn()).then(|| Refusal::Withdrawn.into())
}

/// A claim that a POST asks for.
struct NewRequest {
    command: Command,
    id: ClaimId,
    /// A retry finds it by its idempotency key.
    keyed: bool,
}

/// The claim that a POST asks for, if its caller may claim every resource of it.
fn new_request(
    head: &RequestHead,
    key: Option<Bytes>,
    body: &[u8],
    caller: &Caller,
) -> Result<NewRequest, Response> {
    let body = parse::claim_body(body)?;
    for resource in body.resources() {
        caller.require(Verb::Claim, resource)?;
    }
    let owner = head.owner.clone();
    let idempotency = match key {
        Some(key) => Some(parse::idempotency(&key, &owner, &body)?),
        None => None,
    };
    let id = ClaimId::from_u128(leasehold_engine::machine::random());
    let ClaimBody { resource, ttl_us, data, set } = body;
    let (ttl_us, on_busy) = (Some(ttl_us), OnBusy::Queue);
    let command = match set {
        None => Command::Claim(NewClaim { id, resource, owner, ttl_us, on_busy, data, idempotency }),
        Some(SetBody { items, session, lapses }) => {
            let session = session.map(|session| session_name::scoped(session, &owner, caller));
            let new = NewSet { id, items, owner, ttl_us, on_busy, data, idempotency, session, lapses };
            Command::ClaimSet(Box::new(new))
        }
    };
    Ok(NewRequest { command, id, keyed: idempotency.is_some() })
}

/// 201 for a claim that holds, 202 for one that waits, 200 for one that a retried request finds over.
fn created(view: &View, base_url: &str) -> Response {
    let status = match view.claim.status {
        Status::Active => StatusCode::CREATED,
        Status::Waiting => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    let (mut response, url) = rendered(status, view, base_url);
    if let ResponseBody::Whole(body) = response.body()
        && let Ok(url) = HeaderValue::from_maybe_shared(body.slice(url))
    {
        response.headers_mut().insert(LOCATION, url);
    }
    response
}

async fn look_up(app: Arc<App>, base_url: Arc<str>, id: ClaimId, caller: Caller) -> Response {
    let view = match look_at_visible(&app, id, &caller).await {
        Ok(view) => view,
        Err(error) => return engine_problem(&error),
    };
    view.map_or_else(unknown_claim, |view| detail(StatusCode::OK, &view, &base_url))
}

/// A claim as it is now. To those who may not see it, it is as if it were not there: its id is all they know.
async fn look_at_visible(app: &App, id: ClaimId, caller: &Caller) -> Result<Option<View>, EngineError> {
    let visible = |table: &Table, _| table.whose(id).is_some_and(|claim| caller.may_see_all(&claim));
    match !caller.is_checked() || app.engine.read(visible) {
        true => app.engine.claim_settled(id).await,
        false => Ok(None),
    }
}

/// A claim whose own client is told of it: a ttl that waits to be picked up starts. A reader never starts it. A claim that
/// has its ttl from its promotion on costs no command.
async fn told(app: &App, view: View) -> Result<View, EngineError> {
    let claim = &view.claim;
    if !claim.unpicked || claim.left_us(view.now_us) <= claim.ttl_us() {
        return Ok(view);
    }
    match app.engine.submit(Command::Activate { id: claim.id }).await? {
        Outcome::Active(view) | Outcome::Rejected(Rejection::Final(view)) => Ok(*view),
        _ => Ok(view),
    }
}

/// `POST /v1/renewals`: restarts the ttls of many claims in one request, answered claim by claim.
pub async fn renew_many(app: &App, request: Request, caller: &Caller) -> Result<Response, Response> {
    parse::no_parameters(request.uri().query())?;
    let (head, body) = request.into_parts();
    let body = read_body(app, body, &head.headers, RENEWALS_BODY_LEN_MAX, caller).await?;
    let (mut ids, ttl_us) = parse_change::renewals(&body)?;
    if caller.is_checked() {
        let knows_all = |table: &Table, _| ids.iter().flatten().all(|id| table.whose(*id).is_some());
        if !app.engine.read(knows_all) {
            app.engine.barrier().await.map_err(|error| engine_problem(&error))?;
        }
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

/// Claims that the caller may not change, and claims that this node does not know, are unknown.
fn hide_others(app: &App, ids: &mut parse_change::RenewalIds, caller: &Caller) {
    app.engine.read(|table, _| {
        let may =
            |id: ClaimId| table.whose(id).is_some_and(|claim| caller.first_unchangeable(&claim).is_none());
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
    rendered(status, view, base_url).0
}

/// The same, and where in its body the claim's URL is.
fn rendered(status: StatusCode, view: &View, base_url: &str) -> (Response, Range<usize>) {
    let mut body = Vec::with_capacity(640);
    let url = render::detail(&mut body, view, base_url);
    body.push(b'\n');
    let mut response = json(status, body);
    if let Some(token) = view.token() {
        response.headers_mut().insert(TOKEN, HeaderValue::from(token));
    }
    (response, url)
}

fn unknown_claim() -> Response {
    not_found("there is no such claim, or it ended so long ago that it was forgotten")
}

/// Limits, keys that were used before, and claims that can't be made beside others.
fn rejected(app: &App, caller: &Caller, rejection: &Rejection, base_url: &str) -> Response {
    if matches!(rejection, Rejection::Deadlock(_)) {
        app.observer.metrics.deadlock_refused();
    }
    if let Rejection::KeyReused(id) = rejection {
        let detail =
            format!("{rejection}, which made {base_url}/v1/claims/{id}/: use a new key for each request");
        return problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused", &detail);
    }
    if let Some(response) = conflict(app, caller, rejection) {
        return response;
    }
    let (status, kind) = limit(rejection).unwrap_or((StatusCode::CONFLICT, "rejected"));
    try_again(problem(status, kind, &rejection.to_string()))
}
