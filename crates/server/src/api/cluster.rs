//! `/v1/cluster`: how the nodes are, and who belongs to them.
//!
//! In:    requests that `dispatch.rs` has admitted.
//! Out:   JSON.
//! Never: changes anything itself: `engine/src/membership.rs` does, on the leader.

use std::sync::Arc;

use hyper::StatusCode;
use serde::Deserialize;

use crate::access::Caller;
use crate::app::App;
use crate::app::receive::read_body;
use crate::message::problem::{engine_problem, outcome_unknown, problem};
use crate::message::request::Request;
use crate::message::{Response, empty, json, typed};
use leasehold_engine::EngineError;
use leasehold_engine::membership::{ChangeError, MembershipChange};

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

/// `GET /v1/cluster`
pub async fn status(app: &Arc<App>, request: &Request) -> Response {
    let digest = request.uri().query().is_some_and(|query| query == "digest=true");
    let status = app.engine.cluster_status(digest).await;
    json(StatusCode::OK, serde_json::to_string(&status).unwrap_or_default() + "\n")
}

/// `GET /v1/backup`: the whole table as one file.
pub async fn backup(app: &Arc<App>) -> Result<Response, Response> {
    match app.engine.backup().await {
        Ok(bytes) => Ok(typed(StatusCode::OK, "application/octet-stream", bytes)),
        Err(error) => Err(problem(StatusCode::SERVICE_UNAVAILABLE, "no-backup", &error.to_string())),
    }
}

/// `POST /v1/cluster/nodes`
pub async fn add(app: &Arc<App>, request: Request, caller: &Caller) -> Result<Response, Response> {
    let NewNode { id, address } = body(app, request, caller).await?;
    change(app, MembershipChange::Add { id, address }).await
}

/// `POST /v1/cluster/leader`
pub async fn transfer(app: &Arc<App>, request: Request, caller: &Caller) -> Result<Response, Response> {
    let NewLeader { id } = body(app, request, caller).await?;
    change(app, MembershipChange::Transfer { to: id }).await
}

/// `DELETE /v1/cluster/nodes/<id>`
pub async fn remove(app: &Arc<App>, id: u64) -> Result<Response, Response> {
    change(app, MembershipChange::Remove { id }).await
}

async fn body<T: for<'a> Deserialize<'a>>(
    app: &Arc<App>,
    request: Request,
    caller: &Caller,
) -> Result<T, Response> {
    let (head, body) = request.into_parts();
    let body = read_body(app, body, &head.headers, BODY_LEN_MAX, caller).await?;
    serde_json::from_slice(&body)
        .map_err(|error| problem(StatusCode::BAD_REQUEST, "bad-change", &error.to_string()))
}

async fn change(app: &Arc<App>, change: MembershipChange) -> Result<Response, Response> {
    match app.engine.change_members(change).await {
        Ok(()) => Ok(empty(StatusCode::NO_CONTENT)),
        Err(ChangeError::NotLeader) => Err(engine_problem(&EngineError::NotLeader)),
        Err(unknown @ ChangeError::Unknown) => Err(outcome_unknown(&unknown.to_string())),
        Err(ChangeError::Refused(why)) => Err(problem(StatusCode::CONFLICT, "change-refused", &why)),
    }
}
