//! The dashboard: a page of the binary's own, and the few calls that only it needs.
//!
//! In:    GETs of `/`, its files, `/v1/overview` and `/v1/resources`. Out: files that are part of the binary; JSON.
//! Never: asks anything of another host, and allows no page to: the content security policy says so.

mod api;
mod rows;

use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{Method, StatusCode};

use crate::access::Caller;
use crate::http::problem::method_not_allowed;
use crate::http::request::{Connection, Request};
use crate::http::server::App;
use crate::http::{Response, empty, json, typed};
use crate::openapi;

/// Scripts, styles and data from this service alone; nothing in the page itself, no frames, no forms.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Path, content type, content.
const FILES: [(&str, &str, &str); 7] = [
    ("/", "text/html; charset=utf-8", include_str!("files/index.html")),
    ("/assets/app.js", "text/javascript; charset=utf-8", include_str!("files/app.js")),
    ("/assets/draw.js", "text/javascript; charset=utf-8", include_str!("files/draw.js")),
    ("/assets/style.css", "text/css; charset=utf-8", include_str!("files/style.css")),
    ("/assets/icon.svg", "image/svg+xml", include_str!("files/icon.svg")),
    ("/docs", "text/html; charset=utf-8", include_str!("files/docs.html")),
    ("/assets/docs.js", "text/javascript; charset=utf-8", include_str!("files/docs.js")),
];

/// Whether this path is the dashboard's. A resource is one segment here, so that no lease is in the way.
pub fn owns(path: &str) -> bool {
    matches!(path, "/v1/overview" | "/v1/resources" | "/v1/resources/")
        || is_file(path)
        || resource_of(path).is_some()
}

/// Whether this is a file of the binary, the same whatever the table holds.
pub fn is_file(path: &str) -> bool {
    matches!(path, "/openapi.json" | "/docs/") || FILES.iter().any(|(known, ..)| *known == path)
}

fn resource_of(path: &str) -> Option<&str> {
    path.strip_prefix("/v1/resources/").filter(|name| !name.is_empty() && !name.contains('/'))
}

/// Answers a request for one of them.
pub async fn answer(app: &App, connection: &Connection, request: &Request, caller: &Caller) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return method_not_allowed("GET, HEAD");
    }
    let path = request.uri().path();
    let answered = match path {
        "/v1/overview" => api::overview(app, caller),
        "/v1/resources" | "/v1/resources/" => api::list(app, request, caller).await,
        "/openapi.json" => Ok(json(StatusCode::OK, openapi::document())),
        _ => match resource_of(path) {
            Some(name) => api::detail(app, connection, request, name, caller).await,
            None => Ok(file(path.trim_end_matches('/'), request)),
        },
    };
    answered.unwrap_or_else(|refusal| refusal)
}

fn file(path: &str, request: &Request) -> Response {
    let path = if path.is_empty() { "/" } else { path };
    let found = FILES.iter().find(|(known, ..)| *known == path);
    let (_, content_type, content) = found.expect("`owns` knows every file");
    // Files change with the version alone, or while somebody works on them.
    let tag = format!("\"{}-{:x}\"", env!("CARGO_PKG_VERSION"), crc32fast::hash(content.as_bytes()));
    let known = request.headers().get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response =
        if known { empty(StatusCode::NOT_MODIFIED) } else { typed(StatusCode::OK, content_type, *content) };
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    response
}
