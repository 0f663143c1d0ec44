//! Paths of leases: `/v1/<namespace>/leases/<name>`, and the resource they stand for.
//!
//! In:    the path of a URI, as sent. Out: the resource `<namespace>/leases/<name>`, or what is wrong with the path.
//! Never: decodes twice: what was `%252F` is the three characters `%2F` from then on, and never a slash.
//!
//! The path is cut at its slashes first and each segment decoded on its own, so an encoded slash stays inside its
//! segment. In the resource's name each segment is written in one canonical form (`canonical`): two URLs name the
//! same lease exactly if their decoded segments are the same.

use std::fmt::Write;
use std::sync::Arc;

use leasehold_core::limits::RESOURCE_LEN_MAX;

/// First segments that belong to others: no namespace starts with them.
const RESERVED: [&str; 5] = ["claims", "renewals", "dss", "health", "events"];

/// What a path of this dialect stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// One lease, by its name in the table.
    Lease(Arc<str>),
    /// The list of a namespace, which is given in canonical form.
    List(String),
}

/// Why a path stands for nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMistake {
    /// It does not look like a lease at all.
    NotALease,
    /// It does, but something is wrong with it.
    Bad(String),
    /// The name is longer than the table takes.
    TooLong,
}

/// Reads a path that starts with `/v1/`.
pub fn parse(path: &str) -> Result<Place, PathMistake> {
    let rest = path.strip_prefix("/v1/").ok_or(PathMistake::NotALease)?;
    let raw: Vec<&str> = rest.split('/').collect();
    let decoded: Vec<Result<Vec<u8>, String>> = raw.iter().map(|segment| decode(segment)).collect();
    let is_word = |segment: &Result<Vec<u8>, String>| matches!(segment.as_deref(), Ok(b"lease" | b"leases"));
    if !decoded.iter().any(is_word) {
        return Err(PathMistake::NotALease);
    }
    let segments = decoded.into_iter().collect::<Result<Vec<_>, _>>().map_err(PathMistake::Bad)?;
    check(&segments)?;
    let (name, before) = segments.split_last().ok_or(PathMistake::NotALease)?;
    let namespace = &before[..before.len() - 1];
    let namespace = namespace.iter().map(|segment| canonical(segment)).collect::<Vec<_>>().join("/");
    if name == b"list" {
        return Ok(Place::List(namespace));
    }
    let resource = format!("{namespace}/leases/{}", canonical(name));
    if resource.len() > RESOURCE_LEN_MAX {
        return Err(PathMistake::TooLong);
    }
    Ok(Place::Lease(resource.into()))
}

fn check(segments: &[Vec<u8>]) -> Result<(), PathMistake> {
    let bad = |why: &str| Err(PathMistake::Bad(why.into()));
    let is_word = |segment: &[u8]| matches!(segment, b"lease" | b"leases");
    let word_at = segments.len().checked_sub(2).filter(|place| is_word(&segments[*place]));
    if segments.iter().any(|segment| matches!(segment.as_slice(), b"." | b"..")) {
        return bad(
            "'.' and '..' can't be parts of a lease's path, encoded or not: clients and proxies resolve \
                    them on the way",
        );
    }
    match word_at {
        Some(0) => return bad("a lease needs a namespace: /v1/<namespace>/leases/<name>"),
        Some(place) if segments[place + 1].is_empty() => return bad(NO_NAME),
        Some(_) => {}
        None if segments.last().is_some_and(|last| is_word(last)) => return bad(NO_NAME),
        None => {
            return bad(
                "a lease's name is one segment, the one after 'leases': write a slash in it as %2F, \
                        and none at the end",
            );
        }
    }
    if segments.iter().any(Vec::is_empty) {
        return bad("the path has an empty segment: two slashes in a row");
    }
    match RESERVED.iter().find(|word| segments[0] == word.as_bytes()) {
        Some(word) => bad(&format!("a namespace can't start with '{word}': /v1/{word} is another interface")),
        None => Ok(()),
    }
}

const NO_NAME: &str =
    "a lease needs a name: /v1/<namespace>/leases/<name>; the list is at /v1/<namespace>/leases/list";

/// Decodes a segment, once.
fn decode(segment: &str) -> Result<Vec<u8>, String> {
    let mut bytes = segment.bytes();
    let mut decoded = Vec::with_capacity(segment.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => decoded.push((high << 4 | low) as u8),
            _ => return Err("'%' in the path must be followed by two hex digits; itself it is %25".into()),
        }
    }
    Ok(decoded)
}

/// One text for each sequence of bytes, in which no slash stands for itself: `/`, `%`, control characters and what is
/// no UTF-8 are written as `%XX`, everything else as it is.
fn canonical(segment: &[u8]) -> String {
    let mut text = String::with_capacity(segment.len());
    let encode = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            write!(text, "%{byte:02X}").expect("a string takes every write");
        }
    };
    for chunk in segment.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '/' | '%' => encode(&mut text, char.encode_utf8(&mut [0; 4]).as_bytes()),
                char if char.is_control() => encode(&mut text, char.encode_utf8(&mut [0; 4]).as_bytes()),
                char => text.push(char),
            }
        }
        encode(&mut text, chunk.invalid());
    }
    text
}

/// The path of a canonical name, for links. What is encoded in the name is so in the path.
pub(super) fn href(canonical: &str) -> String {
    let mut path = String::from("/v1/");
    for byte in canonical.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/%".contains(&byte) {
            path.push(char::from(byte));
        } else {
            write!(path, "%{byte:02X}").expect("a string takes every write");
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(path: &str) -> String {
        match parse(path) {
            Ok(Place::Lease(resource)) => resource.to_string(),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn both_words_name_the_same_lease_at_any_depth() {
        assert_eq!(resource("/v1/ops/lease/backup"), "ops/leases/backup");
        assert_eq!(resource("/v1/ops/leases/backup"), "ops/leases/backup");
        assert_eq!(resource("/v1/a/b/c/d/e/leases/f"), "a/b/c/d/e/leases/f");
        assert_eq!(resource("/v1/a/leases/b/lease/c"), "a/leases/b/leases/c");
        assert_eq!(resource("/v1/a/leases/leases"), "a/leases/leases");
    }

    #[test]
    fn a_segment_is_decoded_exactly_once_and_stays_one_segment() {
        assert_eq!(resource("/v1/ops/leases/a%2Fb"), "ops/leases/a%2Fb");
        assert_eq!(resource("/v1/ops/leases/a%2fb"), "ops/leases/a%2Fb");
        assert_eq!(resource("/v1/ops/leases/a%252Fb"), "ops/leases/a%252Fb");
        assert_eq!(resource("/v1/ops/leases/%61b"), "ops/leases/ab");
        assert_eq!(resource("/v1/ops/leases/a+b%20c"), "ops/leases/a+b c");
        assert_eq!(resource("/v1/ops/leases/caf%C3%A9"), "ops/leases/café");
        assert_eq!(resource("/v1/ops/leases/%FF%00%0a"), "ops/leases/%FF%00%0A");
        assert_eq!(resource("/v1/a%2Fleases%2Fb/leases/c"), "a%2Fleases%2Fb/leases/c");
        assert_eq!(resource("/v1/ops/%6Ceases/b"), "ops/leases/b");
    }

    #[test]
    fn links_lead_back_to_the_same_lease() {
        for path in ["/v1/ops/leases/a%2Fb", "/v1/a%20b/lease/%C3%A9%FF%25", "/v1/a/b/leases/%3Cx%3E"] {
            assert_eq!(resource(&href(&resource(path))), resource(path));
        }
    }

    #[test]
    fn the_word_list_is_the_list() {
        assert_eq!(parse("/v1/ops/lease/list"), Ok(Place::List("ops".into())));
        assert_eq!(parse("/v1/a/leases/leases/l%69st"), Ok(Place::List("a/leases".into())));
    }

    #[test]
    fn what_is_no_lease_is_left_to_others() {
        for path in ["/v1/", "/v1/ops", "/v1/ops/list", "/v1/ops/%zz", "/v2/ops/leases/a"] {
            assert_eq!(parse(path), Err(PathMistake::NotALease), "{path}");
        }
    }

    #[test]
    fn bad_paths_are_explained() {
        let cases = [
            ("/v1/leases/a", "namespace"),
            ("/v1//leases/a", "empty segment"),
            ("/v1/ops//leases/a", "empty segment"),
            ("/v1/ops/leases", "needs a name"),
            ("/v1/ops/leases/", "needs a name"),
            ("/v1/ops/leases/a/", "one segment"),
            ("/v1/ops/leases/a/b", "%2F"),
            ("/v1/ops/leases/..", "'..'"),
            ("/v1/ops/%2e%2E/leases/a", "'..'"),
            ("/v1/./leases/a", "'.'"),
            ("/v1/ops/leases/%", "hex"),
            ("/v1/ops/leases/%4", "hex"),
            ("/v1/ops/leases/%+1", "hex"),
            ("/v1/%zz/leases/a", "hex"),
            ("/v1/%63laims/leases/a", "'claims'"),
            ("/v1/dss/leases/a", "'dss'"),
        ];
        for (path, word) in cases {
            match parse(path) {
                Err(PathMistake::Bad(why)) => assert!(why.contains(word), "{path}: {why}"),
                other => panic!("{path}: {other:?}"),
            }
        }
        assert_eq!(parse(&format!("/v1/ops/leases/{}", "é".repeat(1100))), Err(PathMistake::TooLong));
    }
}
