//! `POST /v1/endings`: tells a client of the end of any of its claims, as soon as one ends.
//!
//! In:    the ids of all claims of a client, and for how long the request may stand open. Out: those that are over, are to let
//!        go, or are not known; nothing at all once the time is up.
//! Never: misses an end: a client that asks again with the ids that it still holds is told of the ends in between.
//!
//! One open request for many claims costs a place in a map a claim, and an event costs one look into that map, however many
//! requests stand open. A stream of all events would cost each event a look at each of them.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use leasehold_core::{ClaimId, Table};
use leasehold_engine::machine;

use super::parse;
use super::parse_change::{self, RenewalIds};
use super::{RENEWALS_BODY_LEN_MAX, render};
use crate::access::{Caller, Refusal};
use crate::app::App;
use crate::app::budget::Place;
use crate::app::receive::read_body;
use crate::message::connection::{Connection, Full};
use crate::message::problem::{engine_problem, problem, try_again};
use crate::message::request::Request;
use crate::message::{Response, json};

/// The least number of claims that an open request counts as: it takes room even if it names one claim.
const REQUEST_COUNTS_MIN: usize = 32;
/// Claims looked up while the table can't be written.
const CLAIMS_PER_LOOK: usize = 1_000;

/// `POST /v1/endings`
pub async fn endings(
    app: &Arc<App>,
    connection: &Connection,
    request: Request,
    caller: &Caller,
) -> Result<Response, Response> {
    let wait = parse::wait_parameter(request.uri().query())?.unwrap_or_default();
    let (head, body) = request.into_parts();
    let owner = caller.owner(connection, &head.headers);
    let body = read_body(app, body, &head.headers, RENEWALS_BODY_LEN_MAX, caller).await?;
    drop(head);
    let ids = parse_change::watched(&body)?;
    drop(body);
    let knows_all = |table: &Table, _| ids.iter().flatten().all(|id| table.whose(*id).is_some());
    if !app.engine.read(knows_all) {
        app.engine.barrier().await.map_err(|error| engine_problem(&error))?;
    }
    let over = match wait.is_zero() {
        true => look(app, &ids, caller).await,
        false => {
            let _place = place(app, &owner, ids.len())?;
            first_end(app, &ids, caller, wait).await
        }
    };
    if caller.is_withdrawn() {
        return Err(Refusal::Withdrawn.into());
    }
    Ok(json(StatusCode::OK, over))
}

/// Room for a request that waits for the ends of this number of claims.
fn place(app: &App, owner: &Arc<str>, claims: usize) -> Result<Place, Response> {
    app.watched.take_many(owner, claims.max(REQUEST_COUNTS_MIN)).map_err(|full| {
        let whose = if full == Full::Client { " of this client" } else { "" };
        let detail = format!(
            "open requests{whose} wait for the ends of too many claims already: retry later, or ask without waiting"
        );
        try_again(problem(StatusCode::SERVICE_UNAVAILABLE, "too-many-watched", &detail))
    })
}

/// Waits until one of the claims has something to tell, the time is up, the caller's credentials end, or the node stops.
async fn first_end(app: &Arc<App>, ids: &RenewalIds, caller: &Caller, wait: Duration) -> Vec<u8> {
    let until = machine::Instant::now() + wait;
    let mut stopping = app.stopping.clone();
    loop {
        // Before the look: what happens in between rings.
        let known: Vec<ClaimId> = ids.iter().flatten().copied().collect();
        let watch = app.engine.publisher().watch(known);
        let over = look(app, ids, caller).await;
        if over.len() > NOTHING.len() {
            return over;
        }
        tokio::select! {
            biased;
            () = watch.rung() => {}
            () = machine::sleep_until(until) => return NOTHING.into(),
            _ = caller.ended() => return NOTHING.into(),
            _ = stopping.wait_for(|stopping| *stopping) => return NOTHING.into(),
        }
    }
}

/// The answer when there is nothing to tell.
const NOTHING: &[u8] = b"{\"claims\": []}\n";

/// The claims that have something to tell. One that the caller may not change is not known, as if it were not there.
async fn look(app: &App, ids: &RenewalIds, caller: &Caller) -> Vec<u8> {
    let mut out = Vec::from(&NOTHING[..NOTHING.len() - 3]);
    for some in ids.chunks(CLAIMS_PER_LOOK) {
        app.engine.read(|table, _| {
            for id in some {
                let fate = id.as_ref().ok().and_then(|id| table.fate(*id));
                let fate = fate.filter(|fate| caller.first_unchangeable(&fate.whose).is_none());
                if fate.as_ref().is_some_and(|fate| !fate.status.is_final() && !fate.is_revoking) {
                    continue;
                }
                if out.last() == Some(&b'}') {
                    out.extend_from_slice(b", ");
                }
                let id = id.as_ref().map_or_else(Clone::clone, ToString::to_string);
                render::ending(&mut out, &id, fate.as_ref());
            }
        });
        tokio::task::yield_now().await;
    }
    out.extend_from_slice(b"]}\n");
    out
}
