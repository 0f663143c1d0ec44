//! Query strings.
//!
//! In:    the part of a URI after `?`. Out: decoded pairs, or the one that is given twice.
//! Never: decides which parameters exist.

use std::borrow::Cow;

/// The decoded parameters of a query string, in order.
pub fn pairs(query: Option<&str>) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    form_urlencoded::parse(query.unwrap_or("").as_bytes())
}

/// A number of seconds, as microseconds.
pub fn seconds_to_us(seconds: f64) -> Option<u64> {
    let most = leasehold_core::limits::TTL_US_MAX as f64 / 1e6;
    (seconds >= 0.0 && seconds <= most).then(|| (seconds * 1e6).round() as u64)
}

/// The same from text.
pub fn parse_seconds(text: &str) -> Option<u64> {
    text.parse().ok().and_then(seconds_to_us)
}
