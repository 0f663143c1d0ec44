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

use hyper::StatusCode;
use hyper::header::HeaderValue;
use leasehold_core::{ClaimId, Command, Ending, Guard, Outcome, Rejection, Status, Target, View};

pub(crate) use self::parse::TYPES;
use self::parse::{Ask, ListAsk, OwnerFields};
use self::render::{Errno, Fate};
use crate::access::Caller;
use crate::access::rules::Verb;
use crate::api::one_resource_view::{boxed_on_resource, on_resource};
use crate::api::refused::{limited, unexpected};
use crate::app::App;
use crate::app::receive::read_body;
use crate::audit::Noted;
use crate::message::Response;
use crate::message::connection::Connection;
use crate::message::headers::Headers;
use crate::message::problem::engine_problem;
use crate::message::request::{Request, reason};
use leasehold_engine::{EngineError, Settled};

/// Largest body of a call: 20,000 ids of 400 bytes each.
const BODY_LEN_MAX: usize = 8 << 20;
/// Largest body of a request for a list: a host's name and an id.
const LIST_BODY_LEN_MAX: usize = 16 << 10;
/// Resources looked at while the table can't be written.
const RESOURCES_PER_LOOK: usize = 4096;

/// What can be asked of typed locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypedCall {
    /// All of them or none.
    Lock,
    /// As many as possible.
    Refresh,
    /// As many as possible.
    Unlock,
    /// Who holds these.
    Status,
    /// The locks of a host.
    List,
}

impl TypedCall {
    /// By the last segment of a path.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "lock" => Some(Self::Lock),
            "refresh" => Some(Self::Refresh),
            "unlock" => Some(Self::Unlock),
            "status" => Some(Self::Status),
            "list" => Some(Self::List),
            _ => None,
        }
    }
}

/// The path names a type that does not exist.
pub fn unknown_type(kind: &str) -> Response {
    render::invalid(&format!("there is no type '{kind}'; there are {}", TYPES.join(", ")))
}

/// Reads and checks a body: its caller has the right that the route takes, and its size is bounded.
async fn read(
    app: &App,
    request: Request,
    kind: &str,
    owner_fields: OwnerFields,
    who: &Caller,
) -> Result<(Headers, Ask), Response> {
    let (head, body) = request.into_parts();
    let body = read_body(app, body, &head.headers, BODY_LEN_MAX, who).await?;
    let mut ask = Ask::parse(kind, &body, owner_fields).map_err(|message| render::invalid(&message))?;
    ask.owner = ask.owner.map(|owner| who.owner_named(owner));
    ask.reason = reason(&head.headers);
    Ok((head.headers, ask))
}

/// The caller has this right on each of the locks; the first on which it is missing is named.
fn require(ask: &Ask, verb: Verb, who: &Caller) -> Result<(), Response> {
    let mut resources = ask.resources.iter().flatten();
    Ok(resources.try_for_each(|resource| who.require(verb, resource))?)
}

/// `POST /v1/dss/<type>/lock`
pub async fn lock(
    app: &App,
    connection: &Connection,
    request: Request,
    kind: &str,
    who: &Caller,
) -> Result<Response, Response> {
    let (headers, mut ask) = read(app, request, kind, OwnerFields::Required, who).await?;
    require(&ask, Verb::Claim, who)?;
    let mut noted = Vec::new();
    if app.guards.audit.is_some() {
        // The audit must know the claims before they are made.
        ask.call.get_or_insert_with(|| format!("{:032x}", leasehold_engine::machine::random::<u128>()));
        let (by, from) = (who.owner(connection, &headers), connection.client(&headers));
        let claims = ask.claim_ids(kind).into_iter();
        noted.extend(claims.map(|claim| app.note_from(claim, by.clone(), from.clone())));
    }
    let answer = lock_all(app, kind, &ask, who).await?;
    noted.into_iter().for_each(Noted::settled);
    Ok(answer)
}

/// `POST /v1/dss/<type>/refresh`
pub async fn refresh(app: &App, request: Request, kind: &str, who: &Caller) -> Result<Response, Response> {
    let (_, ask) = read(app, request, kind, OwnerFields::Required, who).await?;
    require(&ask, Verb::Claim, who)?;
    let guard = Guard { owner: ask.owner.clone(), version: None };
    let renew = |resource| Command::Renew {
        target: Target::Holder(resource),
        guard: guard.clone(),
        ttl_us: ask.ttl_us,
        data: None,
    };
    let commands = ask.resources.iter().flatten().cloned().map(renew).collect();
    let outcomes = app.engine.submit_many(commands).await.map_err(|error| engine_problem(&error))?;
    let mut outcomes = outcomes.into_iter();
    let mut fate = |known: &Option<Arc<str>>| match known {
        Some(_) => renewed(outcomes.next()),
        None => Ok(too_long()),
    };
    let fates = ask.resources.iter().map(&mut fate).collect::<Result<Vec<Fate>, Response>>()?;
    Ok(answer(kind, &ask, fates, None, who))
}

/// `POST /v1/dss/<type>/unlock`
pub async fn unlock(
    app: &App,
    connection: &Connection,
    request: Request,
    kind: &str,
    who: &Caller,
) -> Result<Response, Response> {
    let (headers, ask) = read(app, request, kind, OwnerFields::Required, who).await?;
    let (by, from) = (who.owner(connection, &headers), connection.client(&headers));
    let note = |claim, ending| app.note_end(claim, ending, None, by.clone(), from.clone());
    let fates = unlock::unlock(app, &ask, who, note).await?;
    Ok(answer(kind, &ask, fates, None, who))
}

/// `POST /v1/dss/<type>/status`
pub async fn status(app: &App, request: Request, kind: &str, who: &Caller) -> Result<Response, Response> {
    let (_, ask) = read(app, request, kind, OwnerFields::Ignored, who).await?;
    require(&ask, Verb::Read, who)?;
    let fates = holders(app, &ask).await.map_err(|error| engine_problem(&error))?;
    Ok(answer(kind, &ask, fates, None, who))
}

/// `POST /v1/dss/<type>/list`
pub async fn list(app: &App, request: Request, kind: &str, who: &Caller) -> Result<Response, Response> {
    let (head, body) = request.into_parts();
    let body = read_body(app, body, &head.headers, LIST_BODY_LEN_MAX, who).await?;
    let ask = ListAsk::parse(&body).map_err(|message| render::invalid(&message))?;
    list_page(app, kind, &ask, who).await
}

/// What became of each id, and of other holders what the caller may see.
fn answer(kind: &str, ask: &Ask, fates: Vec<Fate>, message: Option<&str>, who: &Caller) -> Response {
    let visible = |view: &View| who.may_see(&view.claim.resource, &view.claim.owner);
    let shown = |(fate, resource): (Fate, &Option<Arc<str>>)| {
        let view = fate.view.zip(resource.as_ref());
        let view = view.map(|(view, resource)| boxed_on_resource(view, resource, who));
        Fate { view: view.filter(|view| visible(view)), ..fate }
    };
    let fates: Vec<Fate> = fates.into_iter().zip(&ask.resources).map(shown).collect();
    let response = render::answer(&ask.ids, &fates, message);
    // The table's own word for what is somebody else's.
    if response.status() == StatusCode::FORBIDDEN {
        who.note_refusal(Verb::Revoke, &format!("dss/{kind}"), StatusCode::FORBIDDEN);
    }
    response
}

/// All of them or none, in one step of the table.
async fn lock_all(app: &App, kind: &str, ask: &Ask, who: &Caller) -> Result<Response, Response> {
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
            let why = match &rejection {
                Rejection::Busy(view) if view.claim.status == Status::Waiting => match who.may_see_view(view)
                {
                    true => format!("reserved by {}, who came first", view.claim.owner),
                    false => "reserved by another, who came first".into(),
                },
                Rejection::Busy(view) if !who.may_see_view(view) => "held by another".into(),
                rejection => rejection.to_string(),
            };
            let message = format!("nothing was locked: {:?}: {why}", ask.ids[index]);
            fates[index] = match rejection {
                Rejection::Busy(holder) => Fate::failed(Errno::Eexist, Some(holder)),
                Rejection::Repeated(_) => Fate::failed(Errno::Eexist, None),
                rejection => return Err(limited(&rejection, "dss")),
            };
            Ok(answer(kind, ask, fates, Some(&message), who))
        }
        Outcome::Rejected(rejection) => Err(limited(&rejection, "dss")),
        other => Err(unexpected(&other, "dss")),
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
    // Some are held, whatever became of this: nobody may say that nothing happened.
    let given_up = app.engine.submit_many(commands).await;
    given_up.map_err(|_| engine_problem(&EngineError::Unknown))?;
    let held: BTreeSet<ClaimId> = views.iter().filter(|view| held(view)).map(|view| view.claim.id).collect();
    let fates = claim_ids.iter().map(|id| match held.contains(id) {
        true => Fate::default(),
        false => Fate::failed(Errno::Enolck, None),
    });
    let message =
        "the locks were taken, and some of them were lost before this call was sent again: none is held";
    Ok(render::answer(&ask.ids, &fates.collect::<Vec<_>>(), Some(message)))
}

/// All of them at one instant, so that who locks several at once is never seen with a part of them.
async fn holders(app: &App, ask: &Ask) -> Result<Vec<Fate>, EngineError> {
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
    fates.await
}

/// Whether nothing among these has outlived its deadline.
fn settled(fates: Vec<Fate>, now_us: u64) -> Settled<Vec<Fate>> {
    let due = fates.iter().filter_map(|fate| fate.view.as_ref()).filter(|view| view.claim.is_due(now_us));
    let due: Vec<Arc<str>> = due.map(|view| view.claim.resource.clone()).collect();
    if due.is_empty() { Settled::Yes(fates) } else { Settled::No(due) }
}

/// The locks of one host, or of one process there, in the order of their ids.
async fn list_page(app: &App, kind: &str, ask: &ListAsk, who: &Caller) -> Result<Response, Response> {
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
                let holder = table.holder_view(name, now_us).map(|view| on_resource(view, name, who));
                if let Some(view) = holder.filter(wanted) {
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

/// What the table said about one lock that was to be refreshed.
fn renewed(outcome: Option<Outcome>) -> Result<Fate, Response> {
    match outcome {
        Some(Outcome::Renewed(view)) => Ok(Fate::ok(view)),
        Some(Outcome::Rejected(Rejection::NotHeld(..))) => Ok(Fate::failed(Errno::Enolck, None)),
        Some(Outcome::Rejected(
            Rejection::NotOwner(view) | Rejection::Revoking(view) | Rejection::NotAlone(view),
        )) => Ok(Fate::failed(Errno::Eacces, Some(view))),
        Some(Outcome::Rejected(rejection)) => Err(limited(&rejection, "dss")),
        Some(other) => Err(unexpected(&other, "dss")),
        None => Err(engine_problem(&EngineError::Unknown)),
    }
}
