//! Where a web page came from, as `Origin` and settings write it.
//!
//! In:    text. Out: its scheme and host.
//! Never: decides what such a page may do (`app/web_origin.rs`).

use hyper::http::uri::Authority;

/// Whether this is an origin as a setting may name it.
pub fn is_origin(text: &str) -> bool {
    let text = text.strip_suffix('/').unwrap_or(text);
    split_origin(text).is_some_and(|(_, host)| host.parse::<Authority>().is_ok() && !host.contains('@'))
}

/// Scheme and host of `https://host:port`.
pub fn split_origin(origin: &str) -> Option<(&str, &str)> {
    let (scheme, host) = origin.split_once("://")?;
    let known = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    (known && !host.is_empty()).then_some((scheme, host))
}
