//! `/v1/cluster`: how the nodes are, and who belongs to them.
//!
//! In:    GET by anybody, changes by an administrator; where access control is on, both by who has the right `admin`.
//! Out:   JSON.
//! Never: changes anything itself: `engine/membership.rs` does, on the leader.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use serde::Deserialize;

use super::basic::AdminAccess;
use super::headers::Headers;
use super::problem::{engine_problem, method_not_allowed, not_found, outcome_unknown, problem};
use super::request::{Request, read_body};
use super::server::App;
use super::{Response, empty, json, typed};
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::engine::EngineError;
use crate::engine::membership::{Change, ChangeError};

const BODY_LEN_MAX: usize = 4 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewNode {
    id: u64,
    address: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewLeader {
    id: u64,
}

/// Answers a request below `/v1/cluster`.
pub(super) async fn answer(app: &Arc<App>, request: Request, caller: &Caller) -> Response {
    let path = request.uri().path().trim_end_matches('/').to_string();
    let rest = path.strip_prefix("/v1/cluster").unwrap_or_default();
    let done = match (rest, request.method()) {
        ("", &Method::GET | &Method::HEAD) => {
            if caller.is_checked()
                && let Err(refusal) = admit(app, request.headers(), caller).await
            {
                return refusal;
            }
            let digest = request.uri().query().is_some_and(|query| query == "digest=true");
            let status = app.engine.cluster_status(digest).await;
            return json(StatusCode::OK, serde_json::to_string(&status).unwrap_or_default() + "\n");
        }
        ("", _) => return method_not_allowed("GET, HEAD"),
        ("/nodes", &Method::POST) => add(app, request, caller).await,
        ("/nodes", _) => return method_not_allowed("POST"),
        ("/leader", &Method::POST) => transfer(app, request, caller).await,
        ("/leader", _) => return method_not_allowed("POST"),
        (rest, method) => match rest.strip_prefix("/nodes/").and_then(|id| id.parse().ok()) {
            Some(id) if *method == Method::DELETE => remove(app, &request, id, caller).await,
            Some(_) => return method_not_allowed("DELETE"),
            None => {
                return not_found(
                    "there is nothing here: see /v1/cluster, /v1/cluster/nodes, /v1/cluster/leader",
                );
            }
        },
    };
    done.unwrap_or_else(|refusal| refusal)
}

/// `/v1/backup`: the whole table as one file.
pub(super) async fn backup(app: &Arc<App>, request: &Request, caller: &Caller) -> Response {
    if *request.method() != Method::GET {
        return method_not_allowed("GET");
    }
    if let Err(refusal) = admit(app, request.headers(), caller).await {
        return refusal;
    }
    match app.engine.backup().await {
        Ok(bytes) => typed(StatusCode::OK, "application/octet-stream", bytes),
        Err(error) => problem(StatusCode::SERVICE_UNAVAILABLE, "no-backup", &error.to_string()),
    }
}

/// Administrators of the file come in by it; where access control is on, everyone else by its rules.
pub(super) async fn admit(app: &App, headers: &Headers, caller: &Caller) -> Result<(), Response> {
    let admitted = app.administrators.admit(headers).await;
    match (caller.is_checked(), &app.config.admin) {
        (false, _) => admitted,
        (true, AdminAccess::Users(_)) if admitted.is_ok() => Ok(()),
        (true, _) => caller.require(Verb::Admin, "*"),
    }
}

async fn add(app: &Arc<App>, request: Request, caller: &Caller) -> Result<Response, Response> {
    let NewNode { id, address } = admitted_body(app, request, caller).await?;
    change(app, Change::Add { id, address }).await
}

async fn transfer(app: &Arc<App>, request: Request, caller: &Caller) -> Result<Response, Response> {
    let NewLeader { id } = admitted_body(app, request, caller).await?;
    change(app, Change::Transfer { to: id }).await
}

async fn remove(app: &Arc<App>, request: &Request, id: u64, caller: &Caller) -> Result<Response, Response> {
    admit(app, request.headers(), caller).await?;
    change(app, Change::Remove { id }).await
}

async fn admitted_body<T: for<'a> Deserialize<'a>>(
    app: &Arc<App>,
    request: Request,
    caller: &Caller,
) -> Result<T, Response> {
    admit(app, request.headers(), caller).await?;
    let (head, body) = request.into_parts();
    let body = read_body(app, body, &head.headers, BODY_LEN_MAX).await?;
    serde_json::from_slice(&body)
        .map_err(|error| problem(StatusCode::BAD_REQUEST, "bad-change", &error.to_string()))
}

async fn change(app: &Arc<App>, change: Change) -> Result<Response, Response> {
    match app.engine.change_members(change).await {
        Ok(()) => Ok(empty(StatusCode::NO_CONTENT)),
        Err(ChangeError::NotLeader) => Err(engine_problem(&EngineError::NotLeader)),
        Err(unknown @ ChangeError::Unknown) => Err(outcome_unknown(&unknown.to_string())),
        Err(ChangeError::Refused(why)) => Err(problem(StatusCode::CONFLICT, "change-refused", &why)),
    }
}
