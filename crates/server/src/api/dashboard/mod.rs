//! The dashboard: a page of the binary's own, and the few calls that only it needs.
//!
//! In:    GETs of `/`, its files, `/v1/overview` and `/v1/resources`. Out: files that are part of the binary; JSON.
//! Never: asks anything of another host, and allows no page to: the content security policy says so.

mod api;
mod rows;

use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};

pub use self::api::{overview, percent_decoded, resource, resources};
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

const fn file(path: &'static str, content_type: &'static str, content: &'static str) -> File {
    File { path, content_type, content }
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

static FILES: [File; 7] = [
    file("/", HTML, include_str!("files/index.html")),
    file("/assets/app.js", SCRIPT, include_str!("files/app.js")),
    file("/assets/draw.js", SCRIPT, include_str!("files/draw.js")),
    file("/assets/style.css", "text/css; charset=utf-8", include_str!("files/style.css")),
    file("/assets/icon.svg", "image/svg+xml", include_str!("files/icon.svg")),
    file("/docs", HTML, include_str!("files/docs.html")),
    file("/assets/docs.js", SCRIPT, include_str!("files/docs.js")),
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
