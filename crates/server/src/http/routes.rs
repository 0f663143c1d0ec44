//! Which path belongs to whom.
//!
//! In:    a request. Out: the response of the dialect or page that owns its path.
//! Never: looks into bodies or tables.

use std::pin::Pin;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::HOST;
use hyper::{Method, Request, StatusCode, Version};

use super::problem::{closing, method_not_allowed, not_found, problem};
use super::request::Connection;
use super::server::App;
use super::{Response, json, typed};
use crate::dialect::{claims, dss, leases, locks};

/// Answers a request. The future has the size of what it does: hyper keeps one a connection, and neither a request
/// that stands open for hours nor one of a hundred thousand a second must take the room of the largest one.
pub fn answer(
    app: Arc<App>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Pin<Box<dyn Future<Output = Response> + Send>> {
    // Two readers of one request must not disagree about whom it is for (RFC 9112, 3.2).
    let hosts = request.headers().get_all(HOST).iter().count();
    if hosts > 1 || (hosts == 0 && request.version() >= Version::HTTP_11) {
        let refusal =
            closing(problem(StatusCode::BAD_REQUEST, "host", "a request has exactly one Host header"));
        return Box::pin(std::future::ready(refusal));
    }
    let path = request.uri().path();
    if matches!(path, "/v1/claims" | "/v1/claims/") {
        return Box::pin(async move { claims::collection(&app, &connection, request).await });
    }
    if let Some(id) = path.strip_prefix("/v1/claims/").map(|id| id.strip_suffix('/').unwrap_or(id))
        && !id.is_empty()
        && !id.contains('/')
    {
        let id = id.parse().ok();
        return Box::pin(async move { claims::item(&app, &connection, request, id).await });
    }
    match locks::Place::of(path) {
        Some(place) => Box::pin(async move { locks::answer(&app, &connection, request, place).await }),
        None => Box::pin(route(app, connection, request)),
    }
}

async fn route(app: Arc<App>, connection: Arc<Connection>, request: Request<Incoming>) -> Response {
    let path = request.uri().path();
    if path.starts_with("/v1/claims/") {
        return not_found("there is nothing here: a claim's URL is /v1/claims/<id>/");
    }
    if let Some(rest) = path.strip_prefix("/v1/dss/") {
        let rest = rest.to_string();
        return dss::answer(&app, &rest, request).await;
    }
    match path {
        "/v1/renewals" | "/v1/renewals/" => claims::renewals(&app, &connection, request).await,
        "/livez" | "/healthz" | "/readyz" | "/v1/health" | "/version" => page(&app, &request),
        _ if path.starts_with("/v1/") => leases::serve(&app, &connection, request).await,
        _ => not_found("there is nothing here: claims are under /v1/claims/, locks under /locks/"),
    }
}

fn page(app: &App, request: &Request<Incoming>) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return method_not_allowed("GET, HEAD");
    }
    match (request.uri().path(), app.engine.ready()) {
        ("/version", _) => {
            json(StatusCode::OK, format!("{{\"version\": \"{}\"}}\n", env!("CARGO_PKG_VERSION")))
        }
        ("/livez", _) | (_, Ok(())) => typed(StatusCode::OK, "text/plain", "ok\n"),
        (_, Err(error)) => problem(StatusCode::SERVICE_UNAVAILABLE, "not-ready", &error.to_string()),
    }
}
