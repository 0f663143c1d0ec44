//! Paths of leases: `/v1/<namespace>/leases/<name>`, and the resource they stand for.
//!
//! In:    the path of a URI, as sent. Out: the resource `<namespace>/leases/<name>`, or what is wrong with the path.
//! Never: decodes twice: what was `%252F` is the three characters `%2F` from then on, and never a slash.
//!
//! The path is cut at its slashes first and each segment decoded on its own, so an encoded slash stays inside its
//! segment. The first segment `lease` or `leases` behind the first segment divides namespace and name; both have any
//! number of segments. In the resource's name each segment is written in one canonical form (`canonical`): two URLs
//! name the same lease exactly if their decoded segments are the same.

use std::fmt::Write;
use std::sync::Arc;

use leasehold_core::limits::RESOURCE_LEN_MAX;

/// What a path of this dialect stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeasePath {
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
pub fn parse(path: &str) -> Result<LeasePath, PathMistake> {
    let segments = decoded_segments(path).ok_or(PathMistake::NotALease)?;
    if !segments.iter().any(|segment| segment.as_deref().is_ok_and(is_word)) {
        return Err(PathMistake::NotALease);
    }
    let segments = segments.into_iter().collect::<Result<Vec<_>, _>>().map_err(PathMistake::Bad)?;
    let (namespace, name) = divide(&segments)?;
    if let [only] = name
        && only == b"list"
    {
        return Ok(LeasePath::List(canonical_path(namespace)));
    }
    let resource = format!("{}/leases/{}", canonical_path(namespace), canonical_path(name));
    if resource.len() > RESOURCE_LEN_MAX {
        return Err(PathMistake::TooLong);
    }
    Ok(LeasePath::Lease(resource.into()))
}

/// Whether a path has a lease's word behind a namespace, and something behind the word. Such a path is a lease or a
/// mistake in one, whatever its namespace is called.
pub fn is_lease_path(path: &str) -> bool {
    if !path.contains("lease") && !path.contains('%') {
        return false;
    }
    let segments = decoded_segments(path).unwrap_or_default();
    let divider = segments.iter().skip(1).position(|segment| segment.as_deref().is_ok_and(is_word));
    divider.is_some_and(|place| place + 2 < segments.len())
}

/// Whether release 0.1.0 takes this path for another lease: there the last word but one had to be `lease` or `leases`.
/// While a node of that release is in the cluster, nobody acquires such a lease, since two clients could under one URL.
pub(super) fn differs_in_first_release(path: &str) -> bool {
    let Some(segments) = decoded_segments(path) else { return false };
    let Ok(segments) = segments.into_iter().collect::<Result<Vec<_>, _>>() else { return false };
    let [before @ .., word, name] = &segments[..] else { return false };
    let first_release = format!("{}/leases/{}", canonical_path(before), canonical(name));
    is_word(word) && matches!(parse(path), Ok(LeasePath::Lease(resource)) if *resource != *first_release)
}

fn is_word(segment: &[u8]) -> bool {
    matches!(segment, b"lease" | b"leases")
}

/// The segments behind `/v1/`, each decoded; `None` if the path does not start so.
fn decoded_segments(path: &str) -> Option<Vec<Result<Vec<u8>, String>>> {
    Some(path.strip_prefix("/v1/")?.split('/').map(decode).collect())
}

/// Decoded parts of a path.
type Segments = [Vec<u8>];

/// The segments of the namespace and of the name.
fn divide(segments: &Segments) -> Result<(&Segments, &Segments), PathMistake> {
    let bad = |why: &str| Err(PathMistake::Bad(why.into()));
    if segments.iter().any(|segment| matches!(segment.as_slice(), b"." | b"..")) {
        return bad(
            "'.' and '..' can't be parts of a lease's path, encoded or not: clients and proxies resolve \
                    them on the way",
        );
    }
    let Some(divider) = segments.iter().skip(1).position(|segment| is_word(segment)) else {
        return bad("a lease needs a namespace: /v1/<namespace>/leases/<name>");
    };
    let (namespace, name) = (&segments[..=divider], &segments[divider + 2..]);
    if name.iter().all(Vec::is_empty) {
        return bad(NO_NAME);
    }
    if segments.iter().any(Vec::is_empty) {
        return bad("the path has an empty segment: two slashes in a row, or one at the end");
    }
    Ok((namespace, name))
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

/// Segments in canonical form, with slashes between them.
fn canonical_path(segments: &[Vec<u8>]) -> String {
    segments.iter().map(|segment| canonical(segment)).collect::<Vec<_>>().join("/")
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

/// The namespace and the name in the resource of a lease.
pub(super) fn namespace_and_name(resource: &str) -> (&str, &str) {
    resource.split_once("/leases/").unwrap_or((resource, ""))
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
            Ok(LeasePath::Lease(resource)) => resource.to_string(),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn both_words_name_the_same_lease_at_any_depth() {
        assert_eq!(resource("/v1/ops/lease/backup"), "ops/leases/backup");
        assert_eq!(resource("/v1/ops/leases/backup"), "ops/leases/backup");
        assert_eq!(resource("/v1/a/b/c/d/e/leases/f"), "a/b/c/d/e/leases/f");
    }

    #[test]
    fn the_first_word_behind_a_namespace_divides_and_the_rest_is_the_name() {
        for (path, expected) in [
            ("/v1/my/namespace/leases/db/master", "my/namespace/leases/db/master"),
            ("/v1/my/namespace/lease/db/master", "my/namespace/leases/db/master"),
            ("/v1/a/leases/b/lease/c", "a/leases/b/lease/c"),
            ("/v1/a/lease/b/leases/c", "a/leases/b/leases/c"),
            ("/v1/a/leases/leases", "a/leases/leases"),
            ("/v1/a/leases/lease/list", "a/leases/lease/list"),
            ("/v1/leases/leases/x", "leases/leases/x"),
            ("/v1/lease/a/leases/x", "lease/a/leases/x"),
            ("/v1/a/leases/list/b", "a/leases/list/b"),
            ("/v1/a/leases/b/list", "a/leases/b/list"),
        ] {
            assert_eq!(resource(path), expected, "{path}");
        }
    }

    #[test]
    fn every_namespace_can_be_used() {
        for namespace in
            ["claims", "dss", "dss/media", "events", "cluster", "cluster/nodes", "health", "renewals"]
        {
            assert_eq!(resource(&format!("/v1/{namespace}/leases/a")), format!("{namespace}/leases/a"));
        }
    }

    #[test]
    fn a_path_is_a_lease_path_by_the_place_of_its_word() {
        for path in ["/v1/cluster/leases/x", "/v1/claims/lease/a/b", "/v1/dss/%6Ceases/lock", "/v1/a/leases/"]
        {
            assert!(is_lease_path(path), "{path}");
        }
        for path in [
            "/v1/cluster/leases",
            "/v1/leases/x",
            "/v1/claims/x",
            "/v1/claims/leasesx/y",
            "/cluster/leases/x",
        ] {
            assert!(!is_lease_path(path), "{path}");
        }
    }

    #[test]
    fn names_that_the_first_release_reads_otherwise_are_known() {
        for path in ["/v1/a/leases/b/lease/c", "/v1/a/lease/b/leases/c", "/v1/a/lease/b/lease/c"] {
            assert!(differs_in_first_release(path), "{path}");
        }
        // The first release refuses the last two, and knows the others as they are.
        for path in [
            "/v1/a/leases/c",
            "/v1/a/lease/c",
            "/v1/a/leases/b/leases/c",
            "/v1/a/leases/b/c",
            "/v1/dss/leases/c",
        ] {
            assert!(!differs_in_first_release(path), "{path}");
        }
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
        for path in [
            "/v1/ops/leases/a%2Fb",
            "/v1/ops/leases/a/b",
            "/v1/a%20b/lease/%C3%A9%FF%25",
            "/v1/a/b/leases/%3Cx%3E",
            "/v1/a/leases/b/lease/c",
        ] {
            assert_eq!(resource(&href(&resource(path))), resource(path));
        }
    }

    #[test]
    fn the_word_list_alone_is_the_list() {
        assert_eq!(parse("/v1/ops/lease/list"), Ok(LeasePath::List("ops".into())));
        assert_eq!(parse("/v1/ops/leases/l%69st"), Ok(LeasePath::List("ops".into())));
        assert_eq!(parse("/v1/leases/leases/list"), Ok(LeasePath::List("leases".into())));
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
            ("/v1/ops/leases/a/", "empty segment"),
            ("/v1/ops/leases/a//b", "empty segment"),
            ("/v1/ops/leases/..", "'..'"),
            ("/v1/ops/leases/a/../b", "'..'"),
            ("/v1/ops/%2e%2E/leases/a", "'..'"),
            ("/v1/./leases/a", "'.'"),
            ("/v1/ops/leases/%", "hex"),
            ("/v1/ops/leases/%4", "hex"),
            ("/v1/ops/leases/%+1", "hex"),
            ("/v1/%zz/leases/a", "hex"),
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
