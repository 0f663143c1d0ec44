//! Which path belongs to whom.
//!
//! In:    a request. Out: the response of the dialect or page that owns its path.
//! Never: looks into bodies or tables.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use super::problem::{engine_problem, method_not_allowed, not_found};
use super::request::Connection;
use super::server::App;
use super::{Response, json, typed};
use crate::dialect::{claims, dss};

/// Answers a request.
pub async fn route(app: Arc<App>, connection: Arc<Connection>, request: Request<Incoming>) -> Response {
    let path = request.uri().path();
    if let Some(rest) = path.strip_prefix("/v1/claims") {
        match rest.strip_prefix('/').map(|id| id.strip_suffix('/').unwrap_or(id)) {
            None if rest.is_empty() => return claims::collection(&app, &connection, request).await,
            Some("") => return claims::collection(&app, &connection, request).await,
            Some(id) if !id.contains('/') => {
                let id = id.parse().ok();
                return claims::item(&app, &connection, request, id).await;
            }
            _ => return not_found("there is nothing here: a claim's URL is /v1/claims/<id>/"),
        }
    }
    if let Some(rest) = path.strip_prefix("/v1/dss/") {
        let rest = rest.to_string();
        return dss::answer(&app, &rest, request).await;
    }
    match path {
        "/v1/renewals" | "/v1/renewals/" => claims::renewals(&app, &connection, request).await,
        "/livez" | "/healthz" | "/readyz" | "/v1/health" | "/version" => page(&app, &request),
        _ => not_found("there is nothing here: claims are under /v1/claims/"),
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
        (_, Err(error)) => engine_problem(&error),
    }
}
