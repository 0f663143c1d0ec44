//! Administration: what is locked, and a way to end it.
//!
//! In:    GET and DELETE of `/resources` and `/resources/{resource}`. Out: HAL bodies, revocations.
//! Never: touches a resource that this dialect can't name: leases and typed locks have administrators of their own.

use std::collections::BTreeSet;
use std::sync::Arc;

use hyper::StatusCode;
use leasehold_core::table::Resource;
use leasehold_core::{Command, Outcome, Rejection, Table, View};
use serde_json::json;

use super::parse::is_name;
use super::{HAL, render};
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::api::one_resource_view::on_resource;
use crate::api::refused::{not_alone_on, unexpected};
use crate::app::App;
use crate::app::long_answer::{BodyWriter, Unfinished, long_answer};
use crate::config::AdminAccess;
use crate::message::connection::Connection;
use crate::message::problem::{engine_problem, not_found, problem_with};
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
    let mut left = Vec::new();
    // What comes in from now on stays.
    let before = app.engine.read(|table, _| table.next_sequence());
    let reason = reason(connection, request);
    let mut names = names(app).await.map_err(|error| engine_problem(&error))?;
    names.retain(|name| who.may(Verb::Revoke, name));
    let mut begun = false;
    for name in names {
        if let Revoked::NotAlone(_) = revoke(app, name.clone(), before, &reason, &mut begun).await? {
            left.push(name);
        }
    }
    if left.is_empty() {
        return Ok(empty(StatusCode::NO_CONTENT));
    }
    let detail = "all other locks were deleted; these resources are held shared, in slots or as part of a set, which only the \
                  claims' own URLs can change";
    let members = json!({ "resources": left.iter().map(|name| &**name).collect::<Vec<_>>() });
    Err(problem_with(StatusCode::CONFLICT, "not-alone", detail, members))
}

/// `GET /resources/<resource>`
pub async fn locks_of(
    app: &Arc<App>,
    connection: &Connection,
    request: &Request,
    name: Arc<str>,
    caller: &Caller,
) -> Result<Response, Response> {
    let who = Who::enter(app, connection, request, caller, Verb::Read, Some(&name)).await?;
    let response = typed(StatusCode::OK, HAL, "");
    long_answer(app, caller, response, |out| write_locks(out, app.clone(), name, who)).await
}

/// `DELETE /resources/<resource>`
pub async fn unlock_resource(
    app: &App,
    connection: &Connection,
    request: &Request,
    name: Arc<str>,
    caller: &Caller,
) -> Result<Response, Response> {
    let who = Who::enter(app, connection, request, caller, Verb::Revoke, Some(&name)).await?;
    let before = app.engine.read(|table, _| table.next_sequence());
    let none = || not_found("there are no locks on this resource");
    match revoke(app, name.clone(), before, &reason(connection, request), &mut false).await? {
        Revoked::Locks(0) => Err(none()),
        Revoked::Locks(_) => Ok(empty(StatusCode::NO_CONTENT)),
        Revoked::NotAlone(by) => Err(not_alone_on(who.caller(), &name, &by)),
    }
}

/// With which rights a request came in.
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

    /// Whose rights decide what is shown.
    fn caller(&self) -> &Caller {
        match self {
            Self::Administrator => &Caller::ANYONE,
            Self::Caller(caller) => caller,
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

/// What became of the locks of a resource.
enum Revoked {
    /// This number of them ended.
    Locks(u64),
    /// None did: this one is shared, in slots or part of a set.
    NotAlone(Box<View>),
}

/// Ends all locks of a resource that were made before this number. Once some have been ended (`begun`),
/// nobody may say that nothing happened.
async fn revoke(
    app: &App,
    name: Arc<str>,
    before: u64,
    reason: &Arc<str>,
    begun: &mut bool,
) -> Result<Revoked, Response> {
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
            Outcome::Revoked { count, more: false } => return Ok(Revoked::Locks(revoked + count)),
            Outcome::Rejected(Rejection::NotAlone(by)) => return Ok(Revoked::NotAlone(by)),
            other => return Err(unexpected(&other, "locks")),
        }
    }
}

/// Writes the holders of a resource and those who wait for it, a bounded look at a time. What ends or is granted while the
/// client reads is left out from there on: nobody sees two holders that never held together.
async fn write_locks(
    mut out: BodyWriter,
    app: Arc<App>,
    name: Arc<str>,
    who: Who,
) -> Result<BodyWriter, Unfinished> {
    let failed = |error: EngineError| Unfinished::from(engine_problem(&error));
    let start = |table: &Table, now_us| {
        let holders = table.resource(&name).map_or(0, |resource| resource.holders().count());
        let locks: Vec<u64> = live(table.resource(&name)).collect();
        let first = locks.iter().take(LOCKS_PER_LOOK).map(|seq| table.view_at(*seq, now_us));
        let views: Vec<View> = first.collect();
        let unsettled = views.iter().any(|view| table.is_unsettled(view, now_us));
        settled(unsettled.then(|| name.clone()).into_iter().collect(), (views, locks, holders))
    };
    let (mut views, locks, holders) = app.engine.read_settled(start).await.map_err(failed)?;
    let held: BTreeSet<u64> = locks[..holders].iter().copied().collect();
    out.buffer.extend_from_slice(render::resource_start(&name).as_bytes());
    let mut separator = "";
    let mut rest = locks.chunks(LOCKS_PER_LOOK).skip(1);
    loop {
        for view in views.drain(..) {
            out.buffer.extend_from_slice(separator.as_bytes());
            let lock = render::lock(&on_resource(view, &name, who.caller()));
            out.buffer.extend_from_slice(lock.to_string().as_bytes());
            separator = ",";
            out.rest().await?;
        }
        let Some(next) = rest.next() else { break };
        views = app.engine.read(|table, now_us| still_live(table, &name, next, &held, now_us));
        tokio::task::yield_now().await;
    }
    out.buffer.extend_from_slice(render::END.as_bytes());
    Ok(out)
}

/// Those of these locks that are still what they were: holders that hold, and waiting ones that wait.
fn still_live(table: &Table, name: &str, locks: &[u64], held: &BTreeSet<u64>, now_us: u64) -> Vec<View> {
    let Some(resource) = table.resource(name) else { return Vec::new() };
    let wanted: BTreeSet<u64> = locks.iter().copied().collect();
    let holding = resource.holders().filter(|seq| held.contains(seq) && wanted.contains(seq));
    let (first, last) = (locks.first().copied().unwrap_or(0), locks.last().copied().unwrap_or(0));
    let waiting =
        resource.queue_from(first).take_while(|seq| *seq <= last).filter(|seq| wanted.contains(seq));
    let live = holding.chain(waiting).map(|seq| table.view_at(seq, now_us));
    live.filter(|view| !view.claim.is_due(now_us)).collect()
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
        if table.is_unsettled(&table.view_at(first, now_us), now_us) {
            unsettled.push(name.into());
        }
        found.push(name.into());
    }
    settled(unsettled, (found, None))
}

fn settled<T>(unsettled: Vec<Arc<str>>, answer: T) -> Settled<T> {
    if unsettled.is_empty() { Settled::Yes(answer) } else { Settled::No(unsettled) }
}

/// The live claims of a resource, the holders first.
fn live(resource: Option<&Resource>) -> impl Iterator<Item = u64> {
    resource.into_iter().flat_map(|resource| resource.holders().chain(resource.queue()))
}
