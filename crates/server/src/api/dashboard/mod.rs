//! The dashboard: a page of the binary's own, and the few calls that only it needs.
//!
//! In:    GETs of `/`, its files, `/v1/overview`, `/v1/contention` and `/v1/resources`. Out: files that are part of the
//!        binary; JSON.
//! Never: asks anything of another host, and allows no page to: the content security policy says so.

mod api;
mod contention;
mod query;
mod rows;
mod who;

use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};

pub use self::api::{overview, percent_decoded, resource, resources};
pub use self::contention::contention;
pub use self::who::Who;
use crate::api::openapi;
use crate::message::request::Request;
use crate::message::{Response, empty, json, typed};

/// Scripts, styles and data from this service alone; nothing in the page itself, no frames, no forms.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the binary.
#[derive(Debug, PartialEq, Eq)]
pub struct File {
    path: &'static str,
    content_type: &'static str,
    content: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

macro_rules! page {
    ($path:literal, $name:literal) => {
        File { path: $path, content_type: HTML, content: include_str!(concat!("files/", $name)) }
    };
}

macro_rules! asset {
    ($content_type:expr, $name:literal) => {
        File {
            path: concat!("/assets/", $name),
            content_type: $content_type,
            content: include_str!(concat!("files/", $name)),
        }
    };
}

static FILES: &[File] = &[
    page!("/", "index.html"),
    page!("/docs", "docs.html"),
    asset!("image/svg+xml", "icon.svg"),
    asset!(STYLE, "style.css"),
    asset!(SCRIPT, "app.js"),
    asset!(SCRIPT, "api.js"),
    asset!(SCRIPT, "board.js"),
    asset!(SCRIPT, "chart.js"),
    asset!(SCRIPT, "cluster.js"),
    asset!(SCRIPT, "detail.js"),
    asset!(SCRIPT, "slots.js"),
    asset!(SCRIPT, "docs.js"),
    asset!(SCRIPT, "dom.js"),
    asset!(SCRIPT, "feed.js"),
    asset!(SCRIPT, "format.js"),
    asset!(SCRIPT, "health.js"),
    asset!(SCRIPT, "holder.js"),
    asset!(SCRIPT, "list.js"),
    asset!(SCRIPT, "overview.js"),
    asset!(SCRIPT, "person.js"),
    asset!(SCRIPT, "place.js"),
    asset!(SCRIPT, "revoke.js"),
    asset!(SCRIPT, "session.js"),
    asset!(SCRIPT, "timeline.js"),
    asset!(SCRIPT, "tree.js"),
];

/// The file at this path, the same whatever the table holds.
pub fn file_at(path: &str) -> Option<&'static File> {
    let path = if path == "/docs/" { "/docs" } else { path };
    FILES.iter().find(|file| file.path == path)
}

/// `GET /openapi.json`
pub fn api_description() -> Response {
    json(StatusCode::OK, openapi::document())
}

/// A page, or a file that it needs.
pub fn page(file: &File, request: &Request) -> Response {
    let File { content_type, content, .. } = *file;
    // Files change with the version alone, or while somebody works on them.
    let tag = format!("\"{}-{:x}\"", env!("CARGO_PKG_VERSION"), crc32fast::hash(content.as_bytes()));
    let known = request.headers().get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response =
        if known { empty(StatusCode::NOT_MODIFIED) } else { typed(StatusCode::OK, content_type, content) };
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
