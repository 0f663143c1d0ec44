//! Query strings.
//!
//! In:    the part of a URI after `?`. Out: decoded pairs; with [`parameters`] also what is wrong with them.
//! Never: decides which parameters exist.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The decoded parameters of a query string, in order.
pub fn pairs(query: Option<&str>) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    form_urlencoded::parse(query.unwrap_or("").as_bytes())
}

/// Decoded parameters, in order.
pub type Parameters<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// The same, each at most once, and by name what is wrong with those that were left out.
pub fn parameters(query: Option<&str>) -> (Parameters<'_>, BTreeMap<String, String>) {
    let (mut good, mut mistakes) = (Vec::new(), BTreeMap::new());
    let mut known = BTreeSet::new();
    let parts = query.unwrap_or("").split('&').filter(|part| !part.is_empty());
    for (part, (name, value)) in parts.zip(pairs(query)) {
        if !known.insert(name.clone()) {
            mistakes.insert(name.into_owned(), "is given twice".into());
        } else if let Some(mistake) = encoding_mistake(part) {
            mistakes.insert(name.into_owned(), mistake.into());
        } else {
            good.push((name, value));
        }
    }
    (good, mistakes)
}

/// What a lenient decoder would guess at: `%` without two hex digits, bytes that are no UTF-8.
fn encoding_mistake(part: &str) -> Option<&'static str> {
    let mut decoded = Vec::with_capacity(part.len());
    let mut bytes = part.bytes();
    while let Some(byte) = bytes.next() {
        let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
        decoded.push(match byte {
            b'%' => match (digit(), digit()) {
                (Some(high), Some(low)) => (high << 4 | low) as u8,
                _ => return Some("has a % that two hex digits don't follow"),
            },
            byte => byte,
        });
    }
    std::str::from_utf8(&decoded).is_err().then_some("is not UTF-8 when decoded")
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

/// A bound of a filter: seconds, as microseconds, also below zero.
pub fn parse_bound(text: &str) -> Option<i64> {
    let seconds: f64 = text.parse().ok()?;
    let size = seconds_to_us(seconds.abs())?.cast_signed();
    Some(if seconds < 0.0 { -size } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_parameters_come_decoded_and_in_order() {
        let (good, mistakes) = parameters(Some("b=%C3%A9+x&&a="));
        assert_eq!(good, [("b".into(), "é x".into()), ("a".into(), "".into())]);
        assert!(mistakes.is_empty());
    }

    #[test]
    fn what_a_decoder_would_guess_at_is_named() {
        let (good, mistakes) = parameters(Some("a=%ff&b=%4&c=1&c=2&d=%C3%A9"));
        assert_eq!(good, [("c".into(), "1".into()), ("d".into(), "é".into())]);
        assert_eq!(mistakes.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    }
}
