//! Administration: what is locked, and a way to end it.
//!
//! In:    GET and DELETE of `/resources` and `/resources/{resource}`. Out: HAL bodies, revocations.
//! Never: touches a resource that this dialect can't name: leases and typed locks have administrators of their own.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use leasehold_core::table::Resource;
use leasehold_core::{Command, Outcome, Table, View};

use super::parse::is_name;
use super::{HAL, render, unexpected};
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::engine::{EngineError, Settled};
use crate::http::basic::AdminAccess;
use crate::http::problem::{engine_problem, not_found};
use crate::http::request::{Connection, Request, reason as given_reason};
use crate::http::server::App;
use crate::http::{Response, empty, typed};

/// Names looked at while the table can't be written.
const NAMES_PER_LOOK: usize = 4096;

/// `/resources`.
pub(super) async fn resources(
    app: &App,
    connection: &Connection,
    request: &Request,
    caller: &Caller,
) -> Result<Response, Response> {
    let who = Who::enter(app, request, caller).await?;
    if let Who::Caller(caller) = &who {
        caller.require_any(&[if request.method() == Method::DELETE { Verb::Revoke } else { Verb::Read }])?;
    }
    let failed = |error| engine_problem(&error);
    if request.method() != Method::DELETE {
        let mut names = names(app).await.map_err(failed)?;
        names.retain(|name| who.may(Verb::Read, name));
        return Ok(typed(StatusCode::OK, HAL, format!("{}\n", render::resources(&names))));
    }
    // What comes in from now on stays.
    let before = app.engine.read(|table, _| table.next_sequence());
    let reason = reason(connection, request);
    let mut names = names(app).await.map_err(failed)?;
    names.retain(|name| who.may(Verb::Revoke, name));
    let mut begun = false;
    for name in names {
        revoke(app, name, before, &reason, &mut begun).await?;
    }
    Ok(empty(StatusCode::NO_CONTENT))
}

/// `/resources/{resource}`.
pub(super) async fn resource(
    app: &App,
    connection: &Connection,
    request: &Request,
    name: Arc<str>,
    caller: &Caller,
) -> Result<Response, Response> {
    let who = Who::enter(app, request, caller).await?;
    let verb = if request.method() == Method::DELETE { Verb::Revoke } else { Verb::Read };
    if let Who::Caller(caller) = &who {
        caller.require(verb, &name)?;
    }
    if request.method() != Method::DELETE {
        let views = locks(app, &name).await.map_err(|error| engine_problem(&error))?;
        return Ok(typed(StatusCode::OK, HAL, format!("{}\n", render::resource(&name, &views))));
    }
    let before = app.engine.read(|table, _| table.next_sequence());
    match revoke(app, name, before, &reason(connection, request), &mut false).await? {
        0 => Err(not_found("there are no locks on this resource")),
        _ => Ok(empty(StatusCode::NO_CONTENT)),
    }
}

/// Whose word counts here.
enum Who<'a> {
    /// An administrator of the file, or everyone where nothing is checked.
    Administrator,
    /// Whoever the rules know.
    Caller(&'a Caller),
}

impl<'a> Who<'a> {
    /// Administrators of the file come in by it; where access control is on, everyone else by its rules.
    async fn enter(app: &App, request: &Request, caller: &'a Caller) -> Result<Self, Response> {
        let admitted = app.administrators.admit(request.headers()).await;
        match (caller.is_checked(), &app.config.admin) {
            (false, _) | (_, AdminAccess::Off) => admitted.map(|()| Self::Administrator),
            (true, AdminAccess::Users(_)) if admitted.is_ok() => Ok(Self::Administrator),
            (true, _) => Ok(Self::Caller(caller)),
        }
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
            other => return Err(unexpected(&other)),
        }
    }
}

/// The holder of a resource and those who wait for it.
async fn locks(app: &App, name: &Arc<str>) -> Result<Vec<View>, EngineError> {
    let question = |table: &Table, now_us| {
        let views: Vec<View> = live(table.resource(name)).map(|seq| table.view_at(seq, now_us)).collect();
        match views.iter().any(|view| table.is_unsettled(&view.claim, now_us)) {
            true => Settled::No(vec![name.clone()]),
            false => Settled::Yes(views),
        }
    };
    app.engine.read_settled(question).await
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
