//! Which path belongs to whom.
//!
//! In:    a request. Out: the response of the dialect or page that owns its path.
//! Never: looks into bodies or tables, and lets nobody pass whom access control does not know.

use std::pin::Pin;
use std::sync::Arc;

use hyper::header::{HOST, HeaderValue};
use hyper::{Method, StatusCode, Version};

use super::body::RequestBody;
use super::problem::{closing, engine_problem, not_found, problem};
use super::request::{Connection, Request, drain};
use super::server::App;
use super::{Response, cluster, limits};
use crate::access::rules::Verb;
use crate::access::{Caller, Recognised};
use crate::dashboard;
use crate::dialect::{claims, dss, leases, locks};
use crate::observe::{events, health};

/// An answer on its way. It has the size of what it does: hyper keeps one a connection, and neither a request that stands
/// open for hours nor one of a hundred thousand a second must take the room of the largest one.
pub type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

/// An answer that needs nothing more.
pub fn at_once(response: Response) -> Answer {
    Box::pin(std::future::ready(response))
}

/// Answers a request.
pub fn answer(app: Arc<App>, connection: Arc<Connection>, request: Request) -> Answer {
    // Two readers of one request must not disagree about whom it is for (RFC 9112, 3.2).
    let hosts = request.headers().get_all(HOST).count();
    if hosts > 1 || (hosts == 0 && request.version() >= Version::HTTP_11) {
        let refusal =
            closing(problem(StatusCode::BAD_REQUEST, "host", "a request has exactly one Host header"));
        return at_once(refusal);
    }
    if is_open(request.uri().path()) {
        return Box::pin(async move {
            match health::is_probe(request.uri().path()) {
                true => health::answer(&app, &request),
                false => dashboard::answer(&app, &connection, &request, &Caller::ANYONE).await,
            }
        });
    }
    match app.guards.access.recognise(&connection, request.headers()) {
        Ok(Recognised::Known(caller)) => answer_to(app, connection, request, caller),
        Ok(Recognised::Unknown(pending)) => Box::pin(async move {
            let caller = app.guards.access.resolve(*pending).await;
            answer_to(app, connection, request, caller).await
        }),
        Err(refusal) => Box::pin(async move {
            drain(&app, request.into_body()).await;
            refusal
        }),
    }
}

/// Pages for probes, which have no credentials and learn nothing; and files that are the same for everybody.
fn is_open(path: &str) -> bool {
    path != "/metrics" && (health::is_probe(path) || dashboard::is_file(path))
}

/// The same, once it is known who asks.
fn answer_to(app: Arc<App>, connection: Arc<Connection>, request: Request, caller: Caller) -> Answer {
    if !app.engine.is_alone() && needs_barrier(&request) {
        return Box::pin(after_barrier(app, connection, request, caller));
    }
    dispatch(app, connection, request, caller)
}

/// Whether the answer depends on what other nodes have acknowledged: whatever only reads, and the few changes that look
/// before they act. (A change is ordered by the log, and its own node has applied it before it answers. Whose a claim is
/// never changes: the claims dialect asks for a barrier itself where its node does not know a claim yet.)
fn needs_barrier(request: &Request) -> bool {
    let path = request.uri().path();
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    match path {
        // What a node says of itself, and of what it sees happen.
        "/v1/events" | "/v1/overview" => false,
        _ if health::is_probe(path) || dashboard::is_file(path) => false,
        _ if path.starts_with("/v1/cluster") => false,
        _ if path.starts_with("/v1/dss/") => true,
        // Locks are looked at before they are released or revoked.
        _ => reads || (*request.method() == Method::DELETE && !path.starts_with("/v1/")),
    }
}

/// Waits until this node's table is new enough, or says how old it may be where the client does not mind.
async fn after_barrier(
    app: Arc<App>,
    connection: Arc<Connection>,
    mut request: Request,
    caller: Caller,
) -> Response {
    if take_stale(&mut request) {
        let staleness = format!("{:.3}", app.engine.staleness().as_secs_f64());
        let mut response = dispatch(app, connection, request, caller).await;
        if let Ok(staleness) = HeaderValue::from_str(&staleness) {
            response.headers_mut().insert("leasehold-staleness", staleness);
        }
        return response;
    }
    match app.engine.barrier().await {
        Ok(()) => dispatch(app, connection, request, caller).await,
        Err(error) => engine_problem(&error),
    }
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

fn dispatch(app: Arc<App>, connection: Arc<Connection>, mut request: Request, caller: Caller) -> Answer {
    if request.uri().query().is_some_and(|query| query.contains("stale=true")) {
        take_stale(&mut request);
    }
    let aside = is_long(&request).then(|| app.aside.clone());
    let answer = place(app, connection, request, caller);
    match aside {
        Some(aside) => aside.make(answer),
        None => answer,
    }
}

/// Whether an answer may need a look at everything in the table, or at all the nodes. What comes in pieces is read where
/// it comes in.
fn is_long(request: &Request) -> bool {
    let path = request.uri().path();
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let long = match path.strip_prefix("/v1/") {
        Some("claims" | "claims/") => reads,
        Some("backup") => true,
        Some(rest) if rest.starts_with("claims/") || rest.starts_with("events") => false,
        Some(rest) if rest.starts_with("dss/") => rest.ends_with("/list"),
        Some(rest) if rest.starts_with("cluster") => true,
        // Lists of leases and the dashboard's, but no lease.
        Some(rest) => reads && !rest.contains("/leases/"),
        None => path.starts_with("/resources") || path == "/metrics",
    };
    long && matches!(request.body(), RequestBody::Whole(_))
}

fn place(app: Arc<App>, connection: Arc<Connection>, request: Request, caller: Caller) -> Answer {
    let path = request.uri().path();
    if matches!(path, "/v1/claims" | "/v1/claims/") {
        return claims::collection(app, connection, request, caller);
    }
    if let Some(id) = path.strip_prefix("/v1/claims/").map(|id| id.strip_suffix('/').unwrap_or(id))
        && !id.is_empty()
        && !id.contains('/')
    {
        let id = id.parse().ok();
        return claims::item(app, &connection, request, id, caller);
    }
    match locks::Place::of(path) {
        Some(place) => {
            Box::pin(async move { locks::answer(&app, &connection, request, place, &caller).await })
        }
        None => Box::pin(route(app, connection, request, caller)),
    }
}

async fn route(app: Arc<App>, connection: Arc<Connection>, request: Request, caller: Caller) -> Response {
    let path = request.uri().path();
    if path.starts_with("/v1/claims/") {
        return not_found("there is nothing here: a claim's URL is /v1/claims/<id>/");
    }
    if path == "/v1/cluster" || path.starts_with("/v1/cluster/") {
        return Box::pin(cluster::answer(&app, request, &caller)).await;
    }
    if let Some(rest) = path.strip_prefix("/v1/dss/") {
        let rest = rest.to_string();
        return dss::answer(&app, &connection, &rest, request, &caller).await;
    }
    match path {
        "/v1/backup" => Box::pin(cluster::backup(&app, &request, &caller)).await,
        "/v1/limits" => Box::pin(limits::answer(&app, request, &caller)).await,
        "/v1/renewals" | "/v1/renewals/" => claims::renewals(&app, &connection, request, &caller).await,
        "/v1/events" => events::answer(&app, &request, &caller),
        "/metrics" => match caller.require(Verb::Admin, "*") {
            Ok(()) => health::answer(&app, &request),
            Err(refusal) => refusal,
        },
        _ if dashboard::owns(path) => dashboard::answer(&app, &connection, &request, &caller).await,
        _ if path.starts_with("/v1/") => leases::serve(&app, &connection, request, &caller).await,
        _ => not_found("there is nothing here: claims are under /v1/claims/, locks under /locks/"),
    }
}
