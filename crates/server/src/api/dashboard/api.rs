//! `/v1/resources` and `/v1/overview`: who holds what, page by page, for the dashboard and for scripts.
//!
//! In:    a prefix, a search, a place to go on from. Out: JSON.
//! Never: holds the table for long: it reads some thousand names at a time and lets writers pass.

use std::sync::Arc;

use hyper::StatusCode;
use leasehold_core::table::Resource;
use leasehold_core::{Claim, Command, Status, Table};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::query::{Query, State, parse};
use super::rows;
use super::who::{contains, mentions};
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::api::probes;
use crate::app::App;
use crate::message::connection::Connection;
use crate::message::problem::{engine_problem, not_found};
use crate::message::request::Request;
use crate::message::{Response, json as json_response};
use leasehold_engine::Settled;

/// Names looked at while the table can't be written.
const NAMES_PER_LOOK: usize = 2048;
/// Names looked at for one answer; a search that finds little goes on from there with its next request.
pub(super) const NAMES_MAX: usize = 200_000;
/// Waiting and finished claims of one resource that are shown.
const CLAIMS_SHOWN: usize = 100;

/// Readers that go through names, of which one at a time holds the table: they would keep claims waiting together, and one user
/// may start many.
static SCANS: Semaphore = Semaphore::const_new(1);

/// Waits until nobody else goes through names. To be given back after each look, so that all of them get on.
pub(super) async fn scan_turn() -> Option<SemaphorePermit<'static>> {
    SCANS.acquire().await.ok()
}

/// Counts and the last half hour, for those who may read everything; and for everybody who they and this node are. Who may read
/// less is told counts of what they may see by the contention board.
pub fn overview(app: &App, caller: &Caller) -> Response {
    let (held, waiting, resources, token) = app.engine.read(|table, _| {
        let (held, waiting) = (table.count(Status::Active), table.count(Status::Waiting));
        (held, waiting, table.resource_count(), table.last_token())
    });
    let problem = probes::problem_now(app);
    let mut body = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "node": {
            "id": app.engine.node_id(),
            "alone": app.engine.is_alone(),
            "leader": app.engine.known_leader(),
            "ready": problem.is_none(),
            "problem": problem,
        },
        "you": {
            "access_control": caller.is_checked(),
            "user": caller.user(),
            "known": caller.is_known(),
            "admin": caller.may(Verb::Admin, "*"),
        },
    });
    if caller.may_everywhere(Verb::Read) {
        body["held"] = held.into();
        body["waiting"] = waiting.into();
        body["resources"] = resources.into();
        body["last_token"] = token.into();
        body["series"] = app.observer.series.to_json();
    }
    json_response(StatusCode::OK, format!("{body}\n"))
}

/// Ends what is due first. A reader who takes an old table for an answer does not wait for a leader.
pub(super) async fn expire_due(app: &App, request: &Request) -> Result<(), Response> {
    let due = |table: &Table, now_us| table.earliest_deadline_us().is_some_and(|due_us| due_us <= now_us);
    if !request.may_be_stale() && app.engine.read(due) {
        app.engine.submit(Command::Tick).await.map_err(|error| engine_problem(&error))?;
    }
    Ok(())
}

/// One page of those resources that the caller may see, in the order of their names.
pub async fn resources(app: &App, request: &Request, caller: &Caller) -> Result<Response, Response> {
    let query = parse(request.uri().query())?;
    expire_due(app, request).await?;
    loop {
        let (rows, next, unsettled) = page(app, &query, caller).await;
        if unsettled.is_empty() || request.may_be_stale() {
            let body = json!({ "resources": rows, "next": next });
            return Ok(json_response(StatusCode::OK, format!("{body}\n")));
        }
        let settle = app.engine.submit(Command::Settle { resources: unsettled });
        settle.await.map_err(|error| engine_problem(&error))?;
    }
}

/// Rows, where to go on, and resources on which something is due. Where to go on is told by a name, and only by one that
/// the caller may see: names that it may not see are passed over, however many there are.
async fn page(app: &App, query: &Query, caller: &Caller) -> (Vec<Value>, Option<String>, Vec<Arc<str>>) {
    let (mut rows, mut unsettled) = (Vec::new(), Vec::new());
    let mut last = query.after.clone();
    let (mut looked_at, mut complete) = (0, false);
    loop {
        let turn = scan_turn().await;
        let exhausted = app.engine.read(|table, now_us| {
            let from = last.clone();
            if looked_at == 0 && !caller.could_see_below(&query.prefix, table) {
                return true;
            }
            let names = table.resources_after(&query.prefix, from.as_deref());
            let mut count = 0;
            for (name, resource) in names.take(NAMES_PER_LOOK) {
                if complete {
                    return false;
                }
                count += 1;
                last = Some(name.to_string());
                let visible = is_visible(table, name, resource, now_us, caller);
                if visible && matches(query, table, name, resource, now_us, caller) {
                    if rows::is_due(table, resource, now_us, 1) {
                        unsettled.push(name.into());
                    }
                    rows.push(rows::summary(table, name, resource, now_us, &query.person, caller));
                }
                complete = visible && (rows.len() == query.limit || looked_at + count >= NAMES_MAX);
            }
            looked_at += count;
            count < NAMES_PER_LOOK
        });
        drop(turn);
        if exhausted {
            return (rows, None, unsettled);
        }
        if complete {
            return (rows, last, unsettled);
        }
        tokio::task::yield_now().await;
    }
}

pub(super) fn is_visible(
    table: &Table,
    name: &str,
    resource: &Resource,
    now_us: u64,
    caller: &Caller,
) -> bool {
    let owns = |seq| caller.may_see(name, &table.view_at(seq, now_us).claim.owner);
    !caller.is_checked() || caller.may_see(name, "") || resource.holders().take(CLAIMS_SHOWN).any(owns)
}

fn matches(
    query: &Query,
    table: &Table,
    name: &str,
    resource: &Resource,
    now_us: u64,
    caller: &Caller,
) -> bool {
    let state = match query.state {
        State::Any => true,
        State::Held => resource.active().is_some(),
        State::Queued => resource.queue_len() > 0,
    };
    // Who waits is told only to those who may read the resource.
    let waiting = || resource.queue().take(CLAIMS_SHOWN).filter(|_| caller.may(Verb::Read, name));
    let any = |wanted: &dyn Fn(&Claim) -> bool| {
        resource
            .holders()
            .take(CLAIMS_SHOWN)
            .chain(waiting())
            .any(|seq| wanted(&rows::seen(table, seq, now_us, caller).claim))
    };
    let (search, person) = (&query.search, &query.person);
    state
        && (person.is_anybody() || any(&|claim| person.made(claim)))
        && (contains(name.as_bytes(), search) || any(&|claim| mentions(claim, search)))
}

/// One resource: who holds it, who waits, who held it before.
pub async fn resource(
    app: &App,
    connection: &Connection,
    request: &Request,
    name: &str,
    caller: &Caller,
) -> Result<Response, Response> {
    let shown =
        rows::Shown { base_url: connection.base_url(request.headers()), claims: CLAIMS_SHOWN, caller };
    let answer = app
        .engine
        .read_settled(|table, now_us| match table.resource(name) {
            Some(resource)
                if !request.may_be_stale() && rows::is_due(table, resource, now_us, CLAIMS_SHOWN) =>
            {
                Settled::No(vec![name.into()])
            }
            resource => {
                Settled::Yes(resource.map(|resource| rows::detail(table, name, resource, now_us, &shown)))
            }
        })
        .await
        .map_err(|error| engine_problem(&error))?;
    let body =
        answer.ok_or_else(|| not_found("no claim names this resource, or all of them were forgotten"))?;
    Ok(json_response(StatusCode::OK, format!("{body}\n")))
}

/// A segment of a path, decoded; `None`: it is not UTF-8 then.
pub fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
        decoded.push(if byte == b'%' { (digit()? << 4 | digit()?) as u8 } else { byte });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_decoded_or_refused() {
        assert_eq!(percent_decoded("db%2Fmain").as_deref(), Some("db/main"));
        for bad in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(percent_decoded(bad), None, "{bad}");
        }
    }
}
