//! Administration: what is locked, and a way to end it.
//!
//! In:    GET and DELETE of `/resources` and `/resources/{resource}`. Out: HAL bodies, revocations.
//! Never: touches a resource that this dialect can't name: leases and typed locks have administrators of their own.

use std::sync::Arc;

use hyper::StatusCode;
use leasehold_core::table::Resource;
use leasehold_core::{Command, Outcome, Table, View};

use super::parse::is_name;
use super::{HAL, render};
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::api::refused::unexpected;
use crate::app::App;
use crate::app::long_answer::{BodyWriter, Unfinished, long_answer};
use crate::config::AdminAccess;
use crate::message::connection::Connection;
use crate::message::problem::{engine_problem, not_found};
use crate::message::request::{Request, reason as given_reason};
use crate::message::{Response, empty, typed};
use leasehold_engine::{EngineError, Settled};

/// Names looked at while the table can't be written ...
const NAMES_PER_LOOK: usize = 4096;
/// ... and locks of one resource.
const LOCKS_PER_LOOK: usize = 512;

/// `GET /resources`
pub async fn list(
    app: &Arc<App>,
    connection: &Connection,
    request: &Request,
    caller: &Caller,
) -> Result<Response, Response> {
    let who = Who::enter(app, connection, request, caller, Verb::Read, None).await?;
    let response = typed(StatusCode::OK, HAL, "");
    long_answer(app, caller, response, |out| write_names(out, app.clone(), who)).await
}

/// `DELETE /resources`
pub async fn unlock_all(
    app: &App,
    connection: &Connection,
    request: &Request,
    caller: &Caller,
) -> Result<Response, Response> {
    let who = Who::enter(app, connection, request, caller, Verb::Revoke, None).await?;
    // What comes in from now on stays.
    let before = app.engine.read(|table, _| table.next_sequence());
    let reason = reason(connection, request);
    let mut names = names(app).await.map_err(|error| engine_problem(&error))?;
    names.retain(|name| who.may(Verb::Revoke, name));
    let mut begun = false;
    for name in names {
        revoke(app, name, before, &reason, &mut begun).await?;
    }
    Ok(empty(StatusCode::NO_CONTENT))
}

/// `GET /resources/<resource>`
pub async fn locks_of(
    app: &Arc<App>,
    connection: &Connection,
    request: &Request,
    name: Arc<str>,
    caller: &Caller,
) -> Result<Response, Response> {
    Who::enter(app, connection, request, caller, Verb::Read, Some(&name)).await?;
    let response = typed(StatusCode::OK, HAL, "");
    long_answer(app, caller, response, |out| write_locks(out, app.clone(), name)).await
}

/// `DELETE /resources/<resource>`
pub async fn unlock_resource(
    app: &App,
    connection: &Connection,
    request: &Request,
    name: Arc<str>,
    caller: &Caller,
) -> Result<Response, Response> {
    Who::enter(app, connection, request, caller, Verb::Revoke, Some(&name)).await?;
    let before = app.engine.read(|table, _| table.next_sequence());
    match revoke(app, name, before, &reason(connection, request), &mut false).await? {
        0 => Err(not_found("there are no locks on this resource")),
        _ => Ok(empty(StatusCode::NO_CONTENT)),
    }
}

/// Whose word counts here.
enum Who {
    /// A user of the administrators' file, or everyone where nothing is checked.
    Administrator,
    /// A caller whom the rules know.
    Caller(Caller),
}

impl Who {
    /// Users of the file come in by it; where access control is on, everyone else by its rules: with this verb on the
    /// resource, or, for a list, on any.
    async fn enter(
        app: &App,
        connection: &Connection,
        request: &Request,
        caller: &Caller,
        verb: Verb,
        resource: Option<&str>,
    ) -> Result<Self, Response> {
        let by_file = matches!(app.config.admin, AdminAccess::Users(_)) && !caller.is_known();
        if !caller.is_checked() || by_file || app.config.admin == AdminAccess::Off {
            match app.administrators.admit(request.headers(), &connection.client(request.headers())).await {
                Ok(()) => return Ok(Self::Administrator),
                // Without Basic credentials, the rules may still let somebody in.
                Err(refusal) if !caller.is_checked() || refusal.status() != StatusCode::UNAUTHORIZED => {
                    return Err(refusal);
                }
                Err(_) => {}
            }
        }
        match resource {
            Some(name) => caller.require(verb, name)?,
            None => caller.require_any(&[verb], "*")?,
        }
        Ok(Self::Caller(caller.clone()))
    }

    fn may(&self, verb: Verb, resource: &str) -> bool {
        match self {
            Self::Administrator => true,
            Self::Caller(caller) => caller.may(verb, resource),
        }
    }
}

/// The administrator's own words, or where it came from.
fn reason(connection: &Connection, request: &Request) -> Arc<str> {
    if let Some(reason) = given_reason(request.headers()) {
        return reason;
    }
    format!("an administrator at {} deleted it", connection.client(request.headers())).into()
}

/// Ends all locks of a resource that were made before this number; how many that were. Once some have been ended (`begun`),
/// nobody may say that nothing happened.
async fn revoke(
    app: &App,
    name: Arc<str>,
    before: u64,
    reason: &Arc<str>,
    begun: &mut bool,
) -> Result<u64, Response> {
    let mut revoked = 0;
    loop {
        let reason = Some(reason.clone());
        let command = Command::Revoke { resource: Some(name.clone()), before, reason };
        let outcome = app.engine.submit(command).await;
        let failed = |error| engine_problem(if *begun { &EngineError::Unknown } else { &error });
        let outcome = outcome.map_err(failed)?;
        *begun = true;
        match outcome {
            Outcome::Revoked { count, more: true } => revoked += count,
            Outcome::Revoked { count, more: false } => return Ok(revoked + count),
            other => return Err(unexpected(&other, "locks")),
        }
    }
}

/// Writes the holder of a resource and those who wait for it, a bounded look at a time. What ends or is granted while the
/// client reads is left out from there on: nobody sees two holders.
async fn write_locks(mut out: BodyWriter, app: Arc<App>, name: Arc<str>) -> Result<BodyWriter, Unfinished> {
    let failed = |error: EngineError| Unfinished::from(engine_problem(&error));
    let start = |table: &Table, now_us| {
        let locks: Vec<u64> = live(table.resource(&name)).collect();
        let first = locks.iter().take(LOCKS_PER_LOOK).map(|seq| table.view_at(*seq, now_us));
        let views: Vec<View> = first.collect();
        let unsettled = views.iter().any(|view| table.is_unsettled(&view.claim, now_us));
        settled(unsettled.then(|| name.clone()).into_iter().collect(), (views, locks))
    };
    let (mut views, locks) = app.engine.read_settled(start).await.map_err(failed)?;
    out.buffer.extend_from_slice(render::resource_start(&name).as_bytes());
    let mut separator = "";
    let mut rest = locks.chunks(LOCKS_PER_LOOK).skip(1);
    loop {
        for view in views.drain(..) {
            out.buffer.extend_from_slice(separator.as_bytes());
            out.buffer.extend_from_slice(render::lock(&view).to_string().as_bytes());
            separator = ",";
            out.rest().await?;
        }
        let Some(next) = rest.next() else { break };
        views = app.engine.read(|table, now_us| still_waiting(table, &name, next, now_us));
        tokio::task::yield_now().await;
    }
    out.buffer.extend_from_slice(render::END.as_bytes());
    Ok(out)
}

/// Those of these locks that still wait.
fn still_waiting(table: &Table, name: &str, locks: &[u64], now_us: u64) -> Vec<View> {
    let (Some(first), Some(last)) = (locks.first(), locks.last()) else { return Vec::new() };
    let Some(resource) = table.resource(name) else { return Vec::new() };
    let waiting = resource.queue_from(*first).take_while(|seq| seq <= last);
    waiting.map(|seq| table.view_at(seq, now_us)).filter(|view| !view.claim.is_due(now_us)).collect()
}

/// Writes the resources that have locks and that the caller may see, a bounded look at a time.
async fn write_names(mut out: BodyWriter, app: Arc<App>, who: Who) -> Result<BodyWriter, Unfinished> {
    out.buffer.extend_from_slice(render::RESOURCES_START.as_bytes());
    let (mut after, mut separator): (Option<Arc<str>>, _) = (None, "");
    loop {
        let question = |table: &Table, now_us| look(table, now_us, after.as_deref());
        let found = app.engine.read_settled(question).await;
        let (found, last) = found.map_err(|error| engine_problem(&error))?;
        for name in found.iter().filter(|name| who.may(Verb::Read, name)) {
            out.buffer.extend_from_slice(separator.as_bytes());
            out.buffer.extend_from_slice(render::resource(name).to_string().as_bytes());
            separator = ",";
            out.rest().await?;
        }
        match last {
            Some(last) => after = Some(last),
            None => break,
        }
        tokio::task::yield_now().await;
    }
    out.buffer.extend_from_slice(render::END.as_bytes());
    Ok(out)
}

/// The resources with locks that this dialect can name, a bounded look at a time.
async fn names(app: &App) -> Result<Vec<Arc<str>>, EngineError> {
    let mut names: Vec<Arc<str>> = Vec::new();
    let mut after: Option<Arc<str>> = None;
    loop {
        let question = |table: &Table, now_us| look(table, now_us, after.as_deref());
        let (found, last) = app.engine.read_settled(question).await?;
        names.extend(found);
        match last {
            None => return Ok(names),
            last => after = last,
        }
    }
}

/// Some names, and the one to go on after, if there are more.
type Names = (Vec<Arc<str>>, Option<Arc<str>>);

/// Looks at a bounded number of resources.
fn look(table: &Table, now_us: u64, after: Option<&str>) -> Settled<Names> {
    let (mut found, mut unsettled, mut last) = (Vec::new(), Vec::new(), None);
    for (looked_at, (name, resource)) in table.resources_after("", after).enumerate() {
        if looked_at == NAMES_PER_LOOK {
            return settled(unsettled, (found, last.map(Arc::from)));
        }
        last = Some(name);
        let Some(first) = live(Some(resource)).next().filter(|_| is_name(name)) else { continue };
        if table.is_unsettled(&table.view_at(first, now_us).claim, now_us) {
            unsettled.push(name.into());
        }
        found.push(name.into());
    }
    settled(unsettled, (found, None))
}

fn settled<T>(unsettled: Vec<Arc<str>>, answer: T) -> Settled<T> {
    if unsettled.is_empty() { Settled::Yes(answer) } else { Settled::No(unsettled) }
}

/// The live claims of a resource, the holder first.
fn live(resource: Option<&Resource>) -> impl Iterator<Item = u64> {
    resource.into_iter().flat_map(|resource| resource.active().into_iter().chain(resource.queue()))
}
