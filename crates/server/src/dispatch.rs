//! From a route to the dialect or page that answers it.
//!
//! In:    a request. Out: its answer.
//! Never: looks into bodies or the table. The route's right is checked here, once, before any body is read. Dialects check
//!        what only the body or the table shows.
//!
//! 1. [`Route::of`]          what is asked
//! 2. `access.recognise`     who asks
//! 3. `admit`                whether the caller may
//! 4. `engine.barrier`       for calls that read: the table is new enough
//! 5. `call`                 the dialect

use std::sync::Arc;

use hyper::header::{HOST, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::{StatusCode, Version};
use tokio::sync::Semaphore;

use crate::access::rules::Verb;
use crate::access::{Caller, ConnectionCache, Recognised};
use crate::api::{claims, cluster, dashboard, dss, events, leases, limits, locks, probes, whoami};
use crate::app::App;
use crate::app::receive::drain;
use crate::config::AdminAccess;
use crate::message::body::RequestBody;
use crate::message::connection::Connection;
use crate::message::problem::{closing, engine_problem, method_not_allowed, not_found, problem};
use crate::message::request::Request;
use crate::message::{Response, ResponseFuture, at_once};

use crate::route::{Dialect, Freshness, Misrouted, Right, Route, Thread};

/// How many long answers are built in memory at a time.
static LONG_ANSWERS: Semaphore = Semaphore::const_new(4);

/// The header by which the dashboard marks its own calls.
const PAGE: HeaderName = HeaderName::from_static("leasehold-page");

/// Answers a request that asks for `route`.
pub fn answer(
    app: Arc<App>,
    connection: Arc<Connection>,
    connection_cache: &ConnectionCache,
    request: Request,
    route: Result<Route, Misrouted>,
) -> ResponseFuture {
    let is_page = app.guards.access.is_on() && request.headers().get(PAGE).is_some();
    let answer = answer_anyone(app, connection, connection_cache, request, route);
    match is_page {
        true => Box::pin(async move { without_challenge(answer.await) }),
        false => answer,
    }
}

/// A browser answers a challenge with a prompt of its own, over the page. The page has a form.
fn without_challenge(mut response: Response) -> Response {
    response.headers_mut().remove(WWW_AUTHENTICATE);
    response
}

fn answer_anyone(
    app: Arc<App>,
    connection: Arc<Connection>,
    connection_cache: &ConnectionCache,
    request: Request,
    route: Result<Route, Misrouted>,
) -> ResponseFuture {
    // Two readers of one request must not disagree about whom it is for (RFC 9112, 3.2).
    let hosts = request.headers().get_all(HOST).count();
    if hosts > 1 || (hosts == 0 && request.version() >= Version::HTTP_11) {
        let refusal =
            closing(problem(StatusCode::BAD_REQUEST, "host", "a request has exactly one Host header"));
        return at_once(refusal);
    }
    let dialect = route.as_ref().map_or_else(Misrouted::dialect, Route::dialect);
    if dialect == Dialect::Leases
        && let Some(refusal) = leases::overlong(&request)
    {
        return refused(app, request, dialect, refusal);
    }
    if route.as_ref().is_ok_and(|route| route.right() == Right::Open) {
        return known(app, connection, request, route, Caller::ANYONE);
    }
    match app.guards.access.recognise(&connection, connection_cache, request.headers()) {
        Ok(Recognised::Known(caller)) => known(app, connection, request, route, caller),
        Ok(Recognised::Unknown(pending)) => Box::pin(async move {
            let caller = app.guards.access.resolve(*pending).await;
            known(app, connection, request, route, caller).await
        }),
        Err(refusal) => refused(app, request, Dialect::Other, refusal.into()),
    }
}

/// Answers a request of a known caller.
fn known(
    app: Arc<App>,
    connection: Arc<Connection>,
    request: Request,
    route: Result<Route, Misrouted>,
    caller: Caller,
) -> ResponseFuture {
    let route = match route {
        Ok(route) => route,
        Err(misrouted) => {
            let (dialect, refusal) = (misrouted.dialect(), misrouted_problem(&misrouted));
            return refused(app, request, dialect, refusal);
        }
    };
    match admit(&app, &route, &caller) {
        Ok(()) if route.freshness() == Freshness::AsItIs => dispatch(app, connection, request, route, caller),
        Ok(()) => fresh(app, connection, request, route, caller),
        Err(refusal) => refused(app, request, route.dialect(), refusal),
    }
}

/// A refusal in the format of its dialect. Over HTTP/2 a small body is read first, since a client that is still sending may
/// miss the answer. HTTP/1.1 answers first and discards the body.
pub(crate) fn refused(
    app: Arc<App>,
    request: Request,
    dialect: Dialect,
    refusal: Response,
) -> ResponseFuture {
    let refusal = if dialect == Dialect::Leases { leases::refusal(refusal) } else { refusal };
    match request.body() {
        RequestBody::Http2(..) => Box::pin(async move {
            drain(&app, request.into_body()).await;
            refusal
        }),
        _ => at_once(refusal),
    }
}

fn misrouted_problem(misrouted: &Misrouted) -> Response {
    match misrouted {
        Misrouted::NotFound(_, detail) => not_found(detail),
        Misrouted::Method(_, allow) => method_not_allowed(allow),
        Misrouted::Lease(mistake) => leases::mistaken_path(mistake),
        Misrouted::UnknownType(kind) => dss::unknown_type(kind),
    }
}

/// Whether the caller may make this call at all. Refusals go to the audit.
fn admit(app: &App, route: &Route, caller: &Caller) -> Result<(), Response> {
    if !caller.is_checked() {
        let closed = route.right() == Right::Members && app.config.admin != AdminAccess::Open;
        return if closed { Err(members_closed()) } else { Ok(()) };
    }
    let may = match route.right() {
        Right::Open | Right::Locks => Ok(()),
        Right::On(verbs, resource) => caller.require_one_of(verbs, resource),
        Right::Below(verbs, prefix) => caller.require_below(verbs, &prefix),
        Right::Own(verbs, resource) => caller.require_any(verbs, resource),
        Right::Service | Right::Members => caller.require(Verb::Admin, "*"),
    };
    Ok(may?)
}

/// Users of `--admin-userpass-file` administrate locks, not the cluster.
fn members_closed() -> Response {
    let detail = "changing the cluster or its limits and taking backups needs the right 'admin' of access control on this node: give \
                  an [access] part in the configuration file (see docs/security.md), or start the node with \
                  --admin-userpass-file yes to open administration to everybody";
    problem(StatusCode::FORBIDDEN, "administration-off", detail)
}

/// Whether a planted bug lets this call skip the barrier: the simulation must find it.
#[cfg(feature = "sim")]
fn skips_barrier(route: &Route) -> bool {
    use leasehold_engine::machine::simulated::{Bug, is_planted};
    matches!(route, Route::GetLease(_)) && is_planted(Bug::StaleLease)
}

/// Waits until the node's table is new enough. For a stale read, adds how old the table may be.
fn fresh(
    app: Arc<App>,
    connection: Arc<Connection>,
    mut request: Request,
    route: Route,
    caller: Caller,
) -> ResponseFuture {
    let stale = route.is_read() && take_stale(&mut request);
    if stale {
        request.allow_stale();
    }
    let skips = app.engine.is_alone();
    #[cfg(feature = "sim")]
    let skips = skips || skips_barrier(&route);
    if skips {
        return dispatch(app, connection, request, route, caller);
    }
    Box::pin(async move {
        if stale {
            // The age is taken before the table is read, and the time since then is added: an upper bound.
            let freshness = app.engine.freshness();
            let mut response = dispatch(app, connection, request, route, caller).await;
            if let Ok(staleness) = HeaderValue::from_str(&freshness.to_string()) {
                response.headers_mut().insert("leasehold-staleness", staleness);
            }
            return response;
        }
        match app.engine.barrier().await {
            Ok(()) => dispatch(app, connection, request, route, caller).await,
            Err(error) => engine_problem(&error),
        }
    })
}

/// Takes `stale=true` out of the query, so that dialects need not know of it.
fn take_stale(request: &mut Request) -> bool {
    let uri = request.uri();
    let Some(query) = uri.query().filter(|query| query.split('&').any(|pair| pair == "stale=true")) else {
        return false;
    };
    let rest: Vec<&str> = query.split('&').filter(|pair| *pair != "stale=true").collect();
    let target = match rest.is_empty() {
        true => uri.path().to_string(),
        false => format!("{}?{}", uri.path(), rest.join("&")),
    };
    match target.parse() {
        Ok(target) => *request.uri_mut() = target,
        Err(_) => return false,
    }
    true
}

/// Makes the answer on the thread that the route names. A body that arrives in pieces is read on the connection's thread.
fn dispatch(
    app: Arc<App>,
    connection: Arc<Connection>,
    request: Request,
    route: Route,
    caller: Caller,
) -> ResponseFuture {
    let elsewhere = route.thread() == Thread::Pool && matches!(request.body(), RequestBody::Whole(_));
    let pool = elsewhere.then(|| app.pool.clone());
    let answer = call(app, connection, request, route, caller);
    match pool {
        Some(pool) => pool.make(answer),
        None => answer,
    }
}

fn call(
    app: Arc<App>,
    connection: Arc<Connection>,
    request: Request,
    route: Route,
    caller: Caller,
) -> ResponseFuture {
    match route {
        Route::MakeClaim => claims::make(app, &connection, request, caller),
        Route::GetClaim(id) => claims::get(app, &connection, &request, id, caller),
        Route::PatchClaim(id) => claims::update(app, &connection, request, id, false, caller),
        Route::PutClaim(id) => claims::update(app, &connection, request, id, true, caller),
        // One of these may stand open for every client that holds a claim.
        Route::Endings => Box::pin(async move {
            claims::endings(&app, &connection, request, &caller).await.unwrap_or_else(|refusal| refusal)
        }),
        // Tens of thousands of these may stand open for hours.
        Route::MakeLock(resource) | Route::MakeActiveLock(resource) => Box::pin(async move {
            let made = locks::make(&app, &connection, request, resource, &caller).await;
            made.unwrap_or_else(|refusal| refusal)
        }),
        route => Box::pin(call_rarer(app, connection, request, route, caller)),
    }
}

/// Calls that are rarer, or short.
async fn call_rarer(
    app: Arc<App>,
    connection: Arc<Connection>,
    request: Request,
    route: Route,
    caller: Caller,
) -> Response {
    let (app, connection, caller) = (&app, &*connection, &caller);
    let answer = match route {
        Route::MakeClaim
        | Route::GetClaim(_)
        | Route::PatchClaim(_)
        | Route::PutClaim(_)
        | Route::Endings
        | Route::MakeLock(_)
        | Route::MakeActiveLock(_) => unreachable!("`call` answers these itself"),
        Route::ListClaims => claims::list(app, connection, &request, caller).await,
        Route::RenewMany => claims::renew_many(app, request, caller).await,
        Route::GetLock(resource, uid) => locks::get(app, &resource, uid, caller).await,
        Route::DeleteLock(resource, uid) => {
            Box::pin(locks::delete(app, connection, request.headers(), &resource, uid, caller)).await
        }
        Route::LockedResources => Box::pin(locks::admin::list(app, connection, &request, caller)).await,
        Route::UnlockAll => Box::pin(locks::admin::unlock_all(app, connection, &request, caller)).await,
        Route::LocksOf(name) => {
            Box::pin(locks::admin::locks_of(app, connection, &request, name, caller)).await
        }
        Route::UnlockResource(name) => {
            Box::pin(locks::admin::unlock_resource(app, connection, &request, name, caller)).await
        }
        Route::GetLease(resource) | Route::OtherOfLease(resource) => {
            Ok(leases::read(app, connection, &request, resource, caller).await)
        }
        Route::MakeLease(resource) | Route::RenewLease(resource) | Route::EndLease(resource) => {
            Ok(leases::change(app, connection, request, resource, caller).await)
        }
        Route::ListLeases(namespace) => Ok(in_turn(leases::list(app, &request, &namespace, caller)).await),
        Route::OtherOfLeases => Ok(leases::other_of_list(&request)),
        Route::TypedLock(kind) => dss::lock(app, connection, request, kind, caller).await,
        Route::TypedRefresh(kind) => dss::refresh(app, request, kind, caller).await,
        Route::TypedUnlock(kind) => dss::unlock(app, connection, request, kind, caller).await,
        Route::TypedStatus(kind) => dss::status(app, request, kind, caller).await,
        Route::TypedList(kind) => in_turn(dss::list(app, request, kind, caller)).await,
        Route::Resources => dashboard::resources(app, &request, caller).await,
        Route::Resource(name) => dashboard::resource(app, connection, &request, &name, caller).await,
        Route::Contention => dashboard::contention(app, &request, caller).await,
        Route::Overview => Ok(dashboard::overview(app, caller)),
        Route::Events => events::answer(app, connection, &request, caller),
        Route::Metrics => Ok(probes::metrics(app)),
        Route::Cluster => Ok(Box::pin(cluster::status(app, &request)).await),
        Route::AddNode => Box::pin(cluster::add(app, request, caller)).await,
        Route::RemoveNode(id) => Box::pin(cluster::remove(app, id)).await,
        Route::TransferLeadership => Box::pin(cluster::transfer(app, request, caller)).await,
        Route::Whoami => whoami::answer(&request, caller),
        Route::Limits => limits::show(app, &request).await,
        Route::SetLimit => limits::set(app, request, caller).await,
        Route::Backup => in_turn(Box::pin(cluster::backup(app))).await,
        Route::Live => Ok(probes::live(&request)),
        Route::Ready | Route::Healthy | Route::LeasesHealthy => Ok(probes::ready(app, &request)),
        Route::Version => Ok(probes::version()),
        Route::ApiDescription => Ok(dashboard::api_description()),
        Route::Page(file) => Ok(dashboard::page(file, &request)),
    };
    answer.unwrap_or_else(|refusal| refusal)
}

/// Builds a long answer once there is room in memory for one more.
async fn in_turn<T>(answer: impl Future<Output = T>) -> T {
    let _turn = LONG_ANSWERS.acquire().await;
    answer.await
}
