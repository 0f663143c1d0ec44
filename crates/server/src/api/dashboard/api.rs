//! `/v1/resources` and `/v1/overview`: who holds what, page by page, for the dashboard and for scripts.
//!
//! In:    a prefix, a search, a place to go on from. Out: JSON.
//! Never: holds the table for long: it reads some thousand names at a time and lets writers pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::StatusCode;
use leasehold_core::table::Resource;
use leasehold_core::{Command, Status, Table};
use serde_json::{Value, json};

use super::rows;
use crate::access::Caller;
use crate::app::App;
use crate::message::connection::Connection;
use crate::message::problem::{engine_problem, not_found};
use crate::message::query::parameters;
use crate::message::request::Request;
use crate::message::{Response, json as json_response};
use leasehold_engine::Settled;

const LIMIT_DEFAULT: usize = 50;
const LIMIT_MAX: usize = 500;
/// Names looked at while the table can't be written.
const NAMES_PER_LOOK: usize = 2048;
/// Names looked at for one answer; a search that finds little goes on from there with its next request.
const NAMES_MAX: usize = 200_000;
/// Waiting and finished claims of one resource that are shown.
const CLAIMS_SHOWN: usize = 100;

#[derive(Debug, Default)]
struct Query {
    prefix: String,
    search: String,
    after: Option<String>,
    limit: Option<usize>,
    state: State,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Any,
    Held,
    Queued,
}

/// Counts and the last half hour.
pub fn overview(app: &App) -> Response {
    let (held, waiting, resources, token) = app.engine.read(|table, _| {
        let (held, waiting) = (table.count(Status::Active), table.count(Status::Waiting));
        (held, waiting, table.resource_count(), table.last_token())
    });
    let body = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "held": held,
        "waiting": waiting,
        "resources": resources,
        "last_token": token,
        "series": app.observer.series.to_json(),
    });
    json_response(StatusCode::OK, format!("{body}\n"))
}

/// One page of those resources that the caller may see, in the order of their names.
pub async fn resources(app: &App, request: &Request, caller: &Caller) -> Result<Response, Response> {
    let query = parse(request.uri().query())?;
    let failed = |error| engine_problem(&error);
    let engine = &app.engine;
    if engine.read(|table, now_us| table.earliest_deadline_us().is_some_and(|due_us| due_us <= now_us)) {
        engine.submit(Command::Tick).await.map_err(failed)?;
    }
    loop {
        let (rows, next, unsettled) = page(app, &query, caller).await;
        if unsettled.is_empty() {
            let body = json!({ "resources": rows, "next": next });
            return Ok(json_response(StatusCode::OK, format!("{body}\n")));
        }
        engine.submit(Command::Settle { resources: unsettled }).await.map_err(failed)?;
    }
}

/// Rows, where to go on, and resources on which something is due. Where to go on is told by a name, and only by one that
/// the caller may see: names that it may not see are passed over, however many there are.
async fn page(app: &App, query: &Query, caller: &Caller) -> (Vec<Value>, Option<String>, Vec<Arc<str>>) {
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
    let (mut rows, mut unsettled) = (Vec::new(), Vec::new());
    let mut last = query.after.clone();
    let (mut looked_at, mut complete) = (0, false);
    loop {
        let exhausted = app.engine.read(|table, now_us| {
            let from = last.clone();
            let names = table.resources_after(&query.prefix, from.as_deref());
            let mut count = 0;
            for (name, resource) in names.take(NAMES_PER_LOOK) {
                if complete {
                    return false;
                }
                count += 1;
                last = Some(name.to_string());
                let visible = is_visible(table, name, resource, now_us, caller);
                if visible && matches(query, table, name, resource, now_us) {
                    if rows::is_due(table, resource, now_us, 1) {
                        unsettled.push(name.into());
                    }
                    rows.push(rows::summary(table, name, resource, now_us));
                }
                complete = visible && (rows.len() == limit || looked_at + count >= NAMES_MAX);
            }
            looked_at += count;
            count < NAMES_PER_LOOK
        });
        if exhausted {
            return (rows, None, unsettled);
        }
        if complete {
            return (rows, last, unsettled);
        }
        tokio::task::yield_now().await;
    }
}

fn is_visible(table: &Table, name: &str, resource: &Resource, now_us: u64, caller: &Caller) -> bool {
    let owner = || resource.active().map(|seq| table.view_at(seq, now_us).claim.owner);
    !caller.is_checked() || caller.may_see(name, owner().as_deref().unwrap_or_default())
}

fn matches(query: &Query, table: &Table, name: &str, resource: &Resource, now_us: u64) -> bool {
    let state = match query.state {
        State::Any => true,
        State::Held => resource.active().is_some(),
        State::Queued => resource.queue().len() > 0,
    };
    let search = || {
        let owner = || resource.active().map(|seq| table.view_at(seq, now_us).claim.owner);
        contains(name, &query.search) || owner().is_some_and(|owner| contains(&owner, &query.search))
    };
    state && (query.search.is_empty() || search())
}

/// Whatever the case of letters in ASCII.
fn contains(text: &str, part: &str) -> bool {
    part.is_empty()
        || text.as_bytes().windows(part.len()).any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
}

/// One resource: who holds it, who waits, who held it before.
pub async fn resource(
    app: &App,
    connection: &Connection,
    request: &Request,
    name: &str,
) -> Result<Response, Response> {
    let base_url = connection.base_url(request.headers());
    let answer = app
        .engine
        .read_settled(|table, now_us| match table.resource(name) {
            Some(resource) if rows::is_due(table, resource, now_us, CLAIMS_SHOWN) => {
                Settled::No(vec![name.into()])
            }
            resource => Settled::Yes(
                resource.map(|resource| rows::detail(table, name, resource, now_us, &base_url, CLAIMS_SHOWN)),
            ),
        })
        .await
        .map_err(|error| engine_problem(&error))?;
    let body =
        answer.ok_or_else(|| not_found("no claim names this resource, or all of them were forgotten"))?;
    Ok(json_response(StatusCode::OK, format!("{body}\n")))
}

fn parse(query: Option<&str>) -> Result<Query, Response> {
    let mut wanted = Query::default();
    let (parameters, mut mistakes) = parameters(query);
    for (name, value) in parameters {
        if let Err(mistake) = set(&mut wanted, &name, &value) {
            mistakes.insert(name.into_owned(), mistake);
        }
    }
    if mistakes.is_empty() { Ok(wanted) } else { Err(mistaken(&mistakes)) }
}

fn mistaken(mistakes: &BTreeMap<String, String>) -> Response {
    json_response(StatusCode::BAD_REQUEST, format!("{}\n", json!(mistakes)))
}

fn set(query: &mut Query, name: &str, value: &str) -> Result<(), String> {
    match name {
        "prefix" => query.prefix = value.to_string(),
        "search" => query.search = value.to_string(),
        "after" => query.after = Some(value.to_string()).filter(|after| !after.is_empty()),
        "limit" => {
            let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
            query.limit = Some(limit.ok_or(format!("must be a whole number from 1 to {LIMIT_MAX}"))?);
        }
        "state" => {
            query.state = match value {
                "any" => State::Any,
                "held" => State::Held,
                "queued" => State::Queued,
                _ => return Err("must be any, held or queued".into()),
            };
        }
        _ => return Err("unknown parameter; there are prefix, search, state, after, limit".into()),
    }
    Ok(())
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
    fn a_search_ignores_case_and_finds_parts() {
        assert!(contains("db/Main", "b/MA") && contains("x", "") && contains("größe", "Größe"));
        assert!(!contains("db", "dbs") && !contains("", "a"));
    }

    #[test]
    fn names_are_decoded_or_refused() {
        assert_eq!(percent_decoded("db%2Fmain").as_deref(), Some("db/main"));
        for bad in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(percent_decoded(bad), None, "{bad}");
        }
    }
}
