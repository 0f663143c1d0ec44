//! Lists of claims: filters, pages, and the way to the next page.
//!
//! In:    `GET /v1/claims/?...`. Out: a JSON array in order of creation, `Link: rel="next"` where there is more.
//! Never: holds the table for long: it reads a few thousand claims at a time and lets writers pass.

use std::collections::BTreeSet;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{HeaderValue, LINK};
use leasehold_core::table::{ListFilter, ListPage, Sight};
use leasehold_core::{Command, Status, View};

use super::parse::mistaken;
use super::render;
use crate::access::Caller;
use crate::app::App;
use crate::app::long_answer::{BodyWriter, Unfinished, long_answer};
use crate::message::connection::Connection;
use crate::message::problem::engine_problem;
use crate::message::query::{pairs, parameters, parse_bound};
use crate::message::request::Request;
use crate::message::time::parse_instant;
use crate::message::{Response, json};
use leasehold_engine::Engine;

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1000;
/// Claims looked at while the table can't be written.
const CLAIMS_PER_LOOK: usize = 4096;

struct ListQuery {
    filter: ListFilter,
    limit: usize,
    offset: u64,
}

/// `GET /v1/claims/`
pub async fn list(
    app: &App,
    connection: &Connection,
    request: &Request,
    caller: &Caller,
) -> Result<Response, Response> {
    let query = parse(request.uri().query())?;
    let page = read(app, &query, caller).await?;
    let base_url = connection.base_url(request.headers());
    let mut response = json(StatusCode::OK, "");
    if page.more {
        let link = next_link(request.uri().query(), &base_url, &query);
        if let Ok(link) = HeaderValue::from_str(&link) {
            response.headers_mut().insert(LINK, link);
        }
    }
    let engine = app.engine.clone();
    let views = page.views.into_iter().map(Listed::new).collect();
    long_answer(app, caller, response, |out| write(out, engine, views, base_url)).await
}

/// A claim on a page that is being written. Its data stays in the table until its turn: a page that nobody reads must not
/// keep what the table has dropped.
struct Listed {
    view: View,
    has_data: bool,
}

impl Listed {
    fn new(mut view: View) -> Self {
        let has_data = view.claim.data.take().is_some();
        Self { view, has_data }
    }

    /// The claim with its data, or without it if the table has dropped that meanwhile.
    fn filled(self, engine: &Engine) -> View {
        let Self { mut view, has_data } = self;
        if has_data {
            let id = view.claim.id;
            let now = engine.read(|table, now_us| table.claim_view(id, now_us));
            view.claim.data = now.and_then(|now| now.claim.data);
        }
        view
    }
}

/// Writes a page as fast as its client takes it: rendered, it may have 64 MiB.
async fn write(
    mut out: BodyWriter,
    engine: Arc<Engine>,
    listed: Vec<Listed>,
    base_url: Arc<str>,
) -> Result<BodyWriter, Unfinished> {
    out.buffer.push(b'[');
    for (i, listed) in listed.into_iter().enumerate() {
        out.buffer.extend_from_slice(if i == 0 { b"" } else { b",\n " });
        render::detail(&mut out.buffer, &listed.filled(&engine), &base_url);
        out.rest().await?;
    }
    out.buffer.extend_from_slice(b"]\n");
    Ok(out)
}

/// Reads a page, again if something on it had outlived its deadline and had to be ended first.
async fn read(app: &App, query: &ListQuery, caller: &Caller) -> Result<ListPage, Response> {
    let sees = |resource: &str, owner: &str| caller.may_see(resource, owner);
    let engine = &app.engine;
    let failed = |error| engine_problem(&error);
    if engine.read(|table, now_us| table.earliest_deadline_us().is_some_and(|due_us| due_us <= now_us)) {
        engine.submit(Command::Tick).await.map_err(failed)?;
    }
    loop {
        let mut page = ListPage::new(query.offset, query.limit);
        let mut unsettled = BTreeSet::new();
        while !page.done {
            engine.read(|table, now_us| {
                let sees: Sight<'_> = if caller.is_checked() { Some(&sees) } else { None };
                table.list_seen(&query.filter, sees, &mut page, now_us, CLAIMS_PER_LOOK);
            });
            tokio::task::yield_now().await;
        }
        engine.read(|table, now_us| {
            let views = page.views.iter().filter(|view| table.is_unsettled(view, now_us));
            unsettled.extend(views.flat_map(|view| view.resources().cloned()));
        });
        if unsettled.is_empty() {
            return Ok(page);
        }
        let resources: Vec<Arc<str>> = unsettled.into_iter().collect();
        engine.submit(Command::Settle { resources }).await.map_err(failed)?;
    }
}

fn parse(query: Option<&str>) -> Result<ListQuery, Response> {
    let mut list = ListQuery { filter: ListFilter::default(), limit: LIMIT_DEFAULT, offset: 0 };
    let (parameters, mut mistakes) = parameters(query);
    for (name, value) in parameters {
        if let Err(mistake) = set(&mut list, &name, &value) {
            mistakes.insert(name.into_owned(), mistake);
        }
    }
    if mistakes.is_empty() { Ok(list) } else { Err(mistaken(&mistakes)) }
}

fn set(list: &mut ListQuery, name: &str, value: &str) -> Result<(), String> {
    let filter = &mut list.filter;
    let seconds = || parse_bound(value).map(Some).ok_or("must be a number of seconds");
    let instant = || parse_instant(value).map(Some).ok_or("must be an RFC 3339 time or unix seconds");
    match name {
        "resource" if value.is_empty() => return Err("must not be empty".into()),
        "resource" => filter.resource = Some(value.into()),
        "status" => {
            let names = Status::ALL.map(Status::as_str).join(", ");
            filter.status = Some(Status::from_name(value).ok_or(format!("must be one of {names}"))?);
        }
        "minimum_ttl" => filter.left_us.0 = seconds()?,
        "maximum_ttl" => filter.left_us.1 = seconds()?,
        "minimum_created" => filter.created_wall_us.0 = instant()?,
        "maximum_created" => filter.created_wall_us.1 = instant()?,
        "minimum_active_duration" => filter.active_us.0 = seconds()?,
        "maximum_active_duration" => filter.active_us.1 = seconds()?,
        "minimum_waiting_duration" => filter.waiting_us.0 = seconds()?,
        "maximum_waiting_duration" => filter.waiting_us.1 = seconds()?,
        "offset" => list.offset = value.parse().map_err(|_| "must be a whole number, 0 or more")?,
        "limit" => {
            let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
            list.limit = limit.ok_or(format!("must be a whole number from 1 to {LIMIT_MAX}"))?;
        }
        _ => {
            return Err(
                "unknown filter; the filters are resource, status, limit, offset, and minimum_ and maximum_ \
                        of active_duration, created, ttl, waiting_duration"
                    .into(),
            );
        }
    }
    Ok(())
}

fn next_link(query: Option<&str>, base_url: &str, list: &ListQuery) -> String {
    let mut next = form_urlencoded::Serializer::new(String::new());
    next.extend_pairs(pairs(query).filter(|(name, _)| name != "offset" && name != "limit"));
    next.append_pair("limit", &list.limit.to_string());
    next.append_pair("offset", &(list.offset + list.limit as u64).to_string());
    format!("<{base_url}/v1/claims/?{}>; rel=\"next\"", next.finish())
}
