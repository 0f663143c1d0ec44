//! The typed locks: `/v1/dss/{type}/{lock|refresh|unlock|status}`, and `list` for those who clean up.
//!
//! In:    a list of ids, and who asks: a hostname and a pid. Out: commands, and what became of each id.
//! Never: decides about locks. A typed lock is a claim on `dss/<type>/<id>` of the owner `hostname:pid`.
//!
//! A client whose response was lost may send the same call again, under the same `call` id, and gets the answer that it
//! missed: `lock` makes its claim ids of it, which the table knows again; `unlock` leaves it with the claims it ends.

mod parse;
mod render;
mod unlock;

use std::collections::BTreeSet;
use std::sync::Arc;

use hyper::header::HeaderValue;
use hyper::{Method, StatusCode};
use leasehold_core::{ClaimId, Command, Ending, Guard, Outcome, Rejection, Status, Target, View};

pub(crate) use self::parse::TYPES;
use self::parse::{Ask, Caller, ListAsk};
use self::render::{Errno, Fate};
use crate::access::Caller as Access;
use crate::access::rules::Verb;
use crate::engine::{EngineError, Settled};
use crate::http::Response;
use crate::http::headers::Headers;
use crate::http::limits::no_room;
use crate::http::problem::{self, method_not_allowed, not_found, problem};
use crate::http::request::{Connection, Request, read_body, reason};
use crate::http::server::App;

/// Largest body of a call: 10,000 ids of 800 bytes each.
const BODY_LEN_MAX: usize = 8 << 20;
/// Resources looked at while the table can't be written.
const RESOURCES_PER_LOOK: usize = 4096;

/// `/v1/dss/<rest>`.
pub async fn answer(
    app: &Arc<App>,
    connection: &Connection,
    rest: &str,
    request: Request,
    who: &Access,
) -> Response {
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let call = rest.split_once('/').filter(|(_, verb)| VERBS.contains(verb));
    let Some((kind, verb)) = call else {
        return not_found(
            "there is nothing here: typed locks are under /v1/dss/<type>/<lock, refresh, unlock or status>",
        );
    };
    if request.method() != Method::POST {
        return method_not_allowed("POST");
    }
    call_of(app, connection, kind, verb, request, who).await.unwrap_or_else(|refusal| refusal)
}

const VERBS: [&str; 5] = ["lock", "refresh", "unlock", "status", "list"];

async fn call_of(
    app: &Arc<App>,
    connection: &Connection,
    kind: &str,
    verb: &str,
    request: Request,
    who: &Access,
) -> Result<Response, Response> {
    let (head, body) = request.into_parts();
    let body = read_body(app, body, &head.headers, BODY_LEN_MAX).await?;
    if !TYPES.contains(&kind) {
        return Err(render::invalid(&format!("there is no type '{kind}'; there are {}", TYPES.join(", "))));
    }
    let ask = |caller| {
        let mut ask = Ask::parse(kind, &body, caller).map_err(|message| render::invalid(&message))?;
        ask.owner = ask.owner.map(|owner| who.owner_named(owner));
        ask.reason = reason(&head.headers);
        if verb == "lock" && ask.call.is_none() && app.guards.audit.is_some() {
            // The audit must know the claims before they are made.
            ask.call = Some(format!("{:032x}", crate::outside::random::<u128>()));
        }
        if who.is_checked() {
            admit(app, verb, &ask, who)?;
        }
        note(app, connection, &head.headers, kind, verb, &ask, who);
        Ok::<_, Response>(ask)
    };
    let answer = match verb {
        "lock" => lock(app, kind, &ask(Caller::Needed)?).await,
        "refresh" => refresh(app, &ask(Caller::Needed)?).await,
        "unlock" => unlock(app, &ask(Caller::Needed)?).await,
        "status" => status(app, &ask(Caller::Ignored)?).await,
        _ => {
            who.require_any(&[Verb::Read])?;
            let ask = ListAsk::parse(&body).map_err(|message| render::invalid(&message))?;
            list(app, kind, &ask, who).await
        }
    };
    // The table's own word for what is somebody else's.
    if let Ok(response) = &answer
        && response.status() == StatusCode::FORBIDDEN
    {
        who.note_refusal(Verb::Revoke, &format!("dss/{kind}"), StatusCode::FORBIDDEN);
    }
    answer
}

/// Whether the rules let a caller do this to each of the locks; the first that they don't is named.
fn admit(app: &App, verb: &str, ask: &Ask, who: &Access) -> Result<(), Response> {
    let resources = || ask.resources.iter().flatten();
    match verb {
        "status" => resources().try_for_each(|resource| who.require(Verb::Read, resource)),
        "unlock" if ask.force => app.engine.read(|table, now_us| {
            let others = resources().filter_map(|resource| table.holder_view(resource, now_us));
            let mut others = others.filter(|view| !who.may_change(&view.claim.resource, &view.claim.owner));
            others.next().map_or(Ok(()), |view| Err(who.refuse(Verb::Revoke, &view.claim.resource)))
        }),
        // Whoever holds a lock may give it up; the table knows who does.
        "unlock" => who.require_any(&[Verb::Claim]),
        _ => resources().try_for_each(|resource| who.require(Verb::Claim, resource)),
    }
}

/// Tells the audit who asks.
fn note(
    app: &App,
    connection: &Connection,
    headers: &Headers,
    kind: &str,
    verb: &str,
    ask: &Ask,
    who: &Access,
) {
    let claims: Vec<ClaimId> = match verb {
        _ if app.guards.audit.is_none() => return,
        "lock" if ask.call.is_some() => ask.claim_ids(kind),
        "unlock" => app.engine.read(|table, now_us| {
            let holders = ask.resources.iter().flatten();
            let holders = holders.filter_map(|resource| table.holder_view(resource, now_us));
            holders.map(|view| view.claim.id).collect()
        }),
        _ => return,
    };
    claims.into_iter().for_each(|claim| app.note(claim, who, connection, headers));
}

/// All of them or none, in one step of the table.
async fn lock(app: &App, kind: &str, ask: &Ask) -> Result<Response, Response> {
    if ask.resources.iter().any(Option::is_none) {
        let fates: Vec<Fate> = ask
            .resources
            .iter()
            .map(|known| known.as_ref().map_or(too_long(), |_| Fate::default()))
            .collect();
        return Ok(render::answer(&ask.ids, &fates, Some(TOO_LONG)));
    }
    let claim_ids = ask.claim_ids(kind);
    let command = Command::LockAll {
        items: claim_ids.iter().copied().zip(ask.resources.iter().flatten().cloned()).collect(),
        owner: ask.owner.clone().unwrap_or_default(),
        ttl_us: ask.ttl_us,
        data: None,
    };
    match app.engine.submit(command).await.map_err(|error| engine_problem(&error))? {
        Outcome::LockedAll(views) => locked(app, ask, &claim_ids, views).await,
        Outcome::LockedNone { index, rejection } => {
            let mut fates = vec![Fate::default(); ask.ids.len()];
            let message = format!("nothing was locked: {:?}: {rejection}", ask.ids[index]);
            fates[index] = match rejection {
                Rejection::Busy(holder) => Fate::failed(Errno::Eexist, Some(holder)),
                Rejection::Repeated(_) => Fate::failed(Errno::Eexist, None),
                rejection => return Err(full(&rejection)),
            };
            Ok(render::answer(&ask.ids, &fates, Some(&message)))
        }
        Outcome::Rejected(rejection) => Err(full(&rejection)),
        other => Err(unexpected(&other)),
    }
}

/// A call that was sent again may find that its locks were taken, and some of them lost since: by force, or because
/// nobody refreshed them in time. Then the others go too, and the client is told.
async fn locked(app: &App, ask: &Ask, claim_ids: &[ClaimId], views: Vec<View>) -> Result<Response, Response> {
    let held = |view: &View| view.claim.status == Status::Active && !view.claim.is_due(view.now_us);
    if views.len() == ask.ids.len() && views.iter().all(held) {
        let fates: Vec<Fate> = views.into_iter().map(|view| Fate::ok(Box::new(view))).collect();
        let mut response = render::answer(&ask.ids, &fates, None);
        if let [Fate { view: Some(view), .. }] = &fates[..] {
            response.headers_mut().insert("leasehold-token", HeaderValue::from(view.claim.token));
        }
        return Ok(response);
    }
    let give_up = |id: &ClaimId| Command::Finish {
        target: Target::Claim(*id),
        guard: Guard::default(),
        ending: Ending::Aborted,
        reason: Some("other locks of the same call were lost".into()),
        purge_data: false,
    };
    let commands = claim_ids.iter().map(give_up).collect();
    app.engine.submit_many(commands).await.map_err(|error| engine_problem(&error))?;
    let held: BTreeSet<ClaimId> = views.iter().filter(|view| held(view)).map(|view| view.claim.id).collect();
    let fates = claim_ids.iter().map(|id| match held.contains(id) {
        true => Fate::default(),
        false => Fate::failed(Errno::Enolck, None),
    });
    let message =
        "the locks were taken, and some of them were lost before this call was sent again: none is held";
    Ok(render::answer(&ask.ids, &fates.collect::<Vec<_>>(), Some(message)))
}

/// As many as possible.
async fn refresh(app: &App, ask: &Ask) -> Result<Response, Response> {
    let guard = Guard { owner: ask.owner.clone(), version: None };
    let renew = |resource| Command::Renew {
        target: Target::Holder(resource),
        guard: guard.clone(),
        ttl_us: ask.ttl_us,
        data: None,
    };
    each(app, ask, renew).await
}

/// As many as possible.
async fn unlock(app: &App, ask: &Ask) -> Result<Response, Response> {
    if let Some(call) = &ask.call {
        let fates = unlock::once(app, ask, call).await?;
        return Ok(render::answer(&ask.ids, &fates, None));
    }
    each(app, ask, |resource| unlock::finish(Target::Holder(resource), ask, None)).await
}

/// One command an id, in one entry; answered id by id.
async fn each(app: &App, ask: &Ask, command: impl Fn(Arc<str>) -> Command) -> Result<Response, Response> {
    let commands = ask.resources.iter().flatten().cloned().map(command).collect();
    let outcomes = app.engine.submit_many(commands).await.map_err(|error| engine_problem(&error))?;
    let mut outcomes = outcomes.into_iter();
    let mut fate = |known: &Option<Arc<str>>| match known {
        Some(_) => fate(outcomes.next()),
        None => Ok(too_long()),
    };
    let fates = ask.resources.iter().map(&mut fate).collect::<Result<Vec<Fate>, Response>>()?;
    Ok(render::answer(&ask.ids, &fates, None))
}

/// All of them at one instant, so that who locks several at once is never seen with a part of them.
async fn status(app: &App, ask: &Ask) -> Result<Response, Response> {
    let fates = app.engine.read_settled(|table, now_us| {
        let holder = |resource: &Option<Arc<str>>| match resource {
            None => too_long(),
            Some(resource) => match table.holder_view(resource, now_us) {
                Some(view) => Fate::ok(Box::new(view)),
                None => Fate::failed(Errno::Enolck, None),
            },
        };
        let fates: Vec<Fate> = ask.resources.iter().map(holder).collect();
        settled(fates, now_us)
    });
    let fates = fates.await.map_err(|error| engine_problem(&error))?;
    Ok(render::answer(&ask.ids, &fates, None))
}

/// Whether nothing among these has outlived its deadline.
fn settled(fates: Vec<Fate>, now_us: u64) -> Settled<Vec<Fate>> {
    let due = fates.iter().filter_map(|fate| fate.view.as_ref()).filter(|view| view.claim.is_due(now_us));
    let due: Vec<Arc<str>> = due.map(|view| view.claim.resource.clone()).collect();
    if due.is_empty() { Settled::Yes(fates) } else { Settled::No(due) }
}

/// The locks of one host, or of one process there, in the order of their ids.
async fn list(app: &App, kind: &str, ask: &ListAsk, who: &Access) -> Result<Response, Response> {
    let prefix = format!("dss/{kind}/");
    let mut after = ask.after.as_ref().map(|id| format!("{prefix}{id}"));
    let (mut ids, mut fates) = (Vec::new(), Vec::new());
    let wanted = |view: &View| {
        let (hostname, pid) = parse::split_owner(&view.claim.owner);
        let of_process = ask.owner.is_none_or(|wanted| pid == Some(wanted));
        let visible = who.may_see(&view.claim.resource, &view.claim.owner);
        hostname == ask.hostname && pid.is_some() && of_process && visible && !view.claim.is_due(view.now_us)
    };
    let mut more = true;
    while more && ids.len() < ask.limit {
        more = app.engine.read(|table, now_us| {
            let mut looked = 0;
            let mut last = None;
            for (name, _) in table.resources_after(&prefix, after.as_deref()).take(RESOURCES_PER_LOOK) {
                looked += 1;
                last = Some(name.to_string());
                if let Some(view) = table.holder_view(name, now_us).filter(wanted) {
                    ids.push(name[prefix.len()..].to_string());
                    fates.push(Fate::ok(Box::new(view)));
                }
                if ids.len() == ask.limit {
                    looked = RESOURCES_PER_LOOK;
                    break;
                }
            }
            after = last.or_else(|| after.take());
            looked == RESOURCES_PER_LOOK
        });
        tokio::task::yield_now().await;
    }
    let next = after.as_deref().filter(|_| more).map(|name| &name[prefix.len()..]);
    Ok(render::list(&ids, &fates, next))
}

const TOO_LONG: &str = "an id is longer than the name of a resource can be";

fn too_long() -> Fate {
    Fate::failed(Errno::Einval, None)
}

/// What the table said about one lock that was to be refreshed or unlocked.
fn fate(outcome: Option<Outcome>) -> Result<Fate, Response> {
    match outcome {
        Some(Outcome::Renewed(view) | Outcome::Finished(view)) => Ok(Fate::ok(view)),
        Some(Outcome::Rejected(Rejection::NotHeld(..))) => Ok(Fate::failed(Errno::Enolck, None)),
        Some(Outcome::Rejected(Rejection::NotOwner(view))) => Ok(Fate::failed(Errno::Eacces, Some(view))),
        Some(other) => Err(unexpected(&other)),
        None => Err(engine_problem(&EngineError::Unknown)),
    }
}

/// A limit of the operator's: no error of a lock.
fn full(rejection: &Rejection) -> Response {
    let (status, kind) = match rejection {
        Rejection::OwnerFull(_) => (StatusCode::TOO_MANY_REQUESTS, "owner-full"),
        Rejection::NamespaceFull(_) => (StatusCode::TOO_MANY_REQUESTS, "namespace-full"),
        Rejection::TableFull(_) => (StatusCode::INSUFFICIENT_STORAGE, "table-full"),
        _ => match no_room(rejection) {
            Some(known) => known,
            None => return unexpected(&Outcome::Rejected(rejection.clone())),
        },
    };
    problem(status, kind, &rejection.to_string())
}

/// The table answered with something that no command of this dialect asks for: a bug, said loudly.
fn unexpected(outcome: &Outcome) -> Response {
    tracing::error!(%outcome, "the table gave an answer that the typed locks can't render");
    problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        "bug",
        "the answer can't be rendered; the change may have happened",
    )
}

/// Callers of this dialect take 503 for "nothing happened"; where that is not known it is 504.
pub(super) fn engine_problem(error: &EngineError) -> Response {
    let mut response = problem::engine_problem(error);
    if *error == EngineError::Unknown {
        *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
    }
    response
}
