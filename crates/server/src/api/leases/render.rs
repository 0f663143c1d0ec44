//! Responses of the leases dialect: metadata in headers, leases as JSON, refusals.
//!
//! In:    views of the table, and who asks. Out: responses.
//! Never: leaves a metadata header out that is known.

use hyper::StatusCode;
use hyper::ext::ReasonPhrase;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, VARY, X_CONTENT_TYPE_OPTIONS,
};
use leasehold_core::{Claim, Data, Format as DataFormat, Outcome, Rejection, View};
use serde::Serialize;
use serde_json::{Value, json};

use super::client::{Client, Names, names};
use super::lease::{Lease, Times, is_held, times};
use super::parse::Format;
use super::report;
use crate::access::Caller;
use crate::api::redact::redacted_data;
use crate::api::refused::{limit, unexpected};
use crate::message::problem::{engine_problem, problem, try_again};
use crate::message::{Response, typed};
use leasehold_engine::EngineError;
use leasehold_engine::clock::wall_us;

const CLIENT_ID: HeaderName = HeaderName::from_static("x-quorum-client-id");
const CLIENT_IS_YOU: HeaderName = HeaderName::from_static("x-quorum-client-is-you");
const LENGTH: HeaderName = HeaderName::from_static("x-quorum-lease-length");
const ACQUIRED: HeaderName = HeaderName::from_static("x-quorum-lease-acquired");
const EXPIRES: HeaderName = HeaderName::from_static("x-quorum-lease-expires");
const EXPIRES_SECONDS: HeaderName = HeaderName::from_static("x-quorum-lease-expires-seconds");
const RENEWED: HeaderName = HeaderName::from_static("x-quorum-lease-renewed");
const RENEWALS: HeaderName = HeaderName::from_static("x-quorum-lease-renewals");
const VERSION: HeaderName = HeaderName::from_static("x-quorum-lease-version");
const TOKEN: HeaderName = HeaderName::from_static("leasehold-token");

/// Everything that is known about a lease, for this caller.
pub(super) fn metadata(headers: &mut HeaderMap, latest: Option<&View>, client: &Client<'_>) {
    let is_you = latest.is_some_and(|view| client.is_you(&view.claim.owner));
    headers.insert(CLIENT_IS_YOU, HeaderValue::from_static(if is_you { "Yes" } else { "No" }));
    let Some(view) = latest else { return };
    let claim = &view.claim;
    let Times { acquired_us, renewed_us, expires_us, left_us, .. } = times(view, wall_us());
    let numbers = [
        (LENGTH, claim.ttl_us().map(whole_seconds)),
        (ACQUIRED, Some(whole_seconds(acquired_us))),
        (EXPIRES, expires_us.map(whole_seconds)),
        (EXPIRES_SECONDS, left_us.map(whole_seconds)),
        (RENEWED, Some(whole_seconds(renewed_us))),
        (RENEWALS, Some(u64::from(claim.renewals))),
        (VERSION, Some(claim.version)),
        (TOKEN, Some(claim.token)),
    ];
    headers.insert(CLIENT_ID, text_value(names(&claim.owner, client.who).client));
    headers.extend(numbers.into_iter().filter_map(|(name, number)| Some((name, HeaderValue::from(number?)))));
}

/// Rounded down: a client that believes it gives up early rather than late.
fn whole_seconds(us: u64) -> u64 {
    us / 1_000_000
}

/// An owner from another dialect may contain what no header can.
fn text_value(text: &str) -> HeaderValue {
    HeaderValue::from_bytes(text.as_bytes()).unwrap_or_else(|_| {
        let clean: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
        HeaderValue::from_bytes(clean.as_bytes()).unwrap_or(HeaderValue::from_static("?"))
    })
}

/// Adds the headers of every response of this dialect: don't keep it, it depends on the caller, don't guess its type.
pub(super) fn seal(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(VARY, HeaderValue::from_static("accept, x-quorum-client-id"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Marks the refusal of a request that names no lease, or no client: the caller is not the holder.
pub(super) fn of_nobody(mut refusal: Response) -> Response {
    refusal.headers_mut().insert(CLIENT_IS_YOU, HeaderValue::from_static("No"));
    refusal
}

/// The answer to a request about a lease: a line for programs, the lease itself for who asks for more.
pub(super) fn answer(
    status: StatusCode,
    format: Format,
    lease: &Lease,
    client: &Client<'_>,
    line: &str,
) -> Response {
    match format {
        Format::Raw => typed(status, TEXT, format!("{line}\n")),
        Format::Json => typed(status, "application/json", lease_json(lease, client.who)),
        Format::Text => typed(status, TEXT, report::text(lease, client, line)),
        Format::Html => html(status, report::html(lease, client, line)),
    }
}

pub(super) const TEXT: &str = "text/plain; charset=utf-8";

/// A page that runs no script and loads nothing.
pub(super) fn html(status: StatusCode, page: String) -> Response {
    let mut response = typed(status, "text/html; charset=utf-8", page);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
                  frame-ancestors 'none'";
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}

/// The client data as it was sent.
pub(super) fn client_data(view: &View) -> Response {
    match redacted_data(&view.claim).as_deref() {
        Some(Data { format: DataFormat::Json, bytes }) => {
            typed(StatusCode::OK, "application/json", bytes.to_vec())
        }
        Some(Data { bytes, .. }) => typed(StatusCode::OK, "application/octet-stream", bytes.to_vec()),
        None => typed(StatusCode::OK, "application/octet-stream", ""),
    }
}

/// What the object of a lease and the items of a list have in common.
#[derive(Serialize)]
pub(super) struct Summary<'a> {
    is_valid: bool,
    owner: Option<&'a str>,
    owner_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    ttl: Option<Value>,
    acquired: Option<u64>,
    renewed: Option<u64>,
    expires: Option<u64>,
    renewals: Option<u32>,
    released: Option<u64>,
    version: Option<u64>,
}

impl<'a> Summary<'a> {
    pub(super) fn new(latest: Option<&'a View>, who: &Caller, now_wall_us: u64) -> Self {
        let claim = latest.map(|view| &view.claim);
        let times = latest.map(|view| times(view, now_wall_us));
        let names = claim.map(|claim| names(&claim.owner, who));
        let owner = names.as_ref().map(|names| names.client);
        Self {
            is_valid: latest.is_some_and(is_held),
            owner,
            owner_name: owner,
            user: names.and_then(|names| names.user),
            ttl: claim.and_then(Claim::ttl_us).map(ttl_json),
            acquired: times.map(|times| whole_seconds(times.acquired_us)),
            renewed: times.map(|times| whole_seconds(times.renewed_us)),
            expires: times.and_then(|times| times.expires_us).map(whole_seconds),
            renewals: claim.map(|claim| claim.renewals),
            released: times.and_then(|times| times.released_us).map(whole_seconds),
            version: claim.map(|claim| claim.version),
        }
    }
}

/// Leases last whole seconds; claims of other dialects need not.
fn ttl_json(ttl_us: u64) -> Value {
    if ttl_us.is_multiple_of(1_000_000) { json!(ttl_us / 1_000_000) } else { json!(ttl_us as f64 / 1e6) }
}

fn lease_json(lease: &Lease, who: &Caller) -> Vec<u8> {
    #[derive(Serialize)]
    struct Object<'a> {
        key: &'a str,
        #[serde(flatten)]
        summary: Summary<'a>,
        client_object: Value,
        history: Vec<Value>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        other_holders: Vec<Summary<'a>>,
    }
    let now_wall_us = wall_us();
    let object = Object {
        key: &lease.resource,
        summary: Summary::new(lease.latest.as_ref(), who, now_wall_us),
        client_object: client_object(
            lease.latest.as_ref().and_then(|view| redacted_data(&view.claim)).as_deref(),
        ),
        history: lease.history.iter().map(|view| past_json(view, who, now_wall_us)).collect(),
        other_holders: lease.others.iter().map(|view| Summary::new(Some(view), who, now_wall_us)).collect(),
    };
    let mut body = serde_json::to_vec(&object).expect("an object with text keys has a JSON form");
    body.push(b'\n');
    body
}

fn past_json(view: &View, who: &Caller, now_wall_us: u64) -> Value {
    let (claim, times) = (&view.claim, times(view, now_wall_us));
    let Names { client, user } = names(&claim.owner, who);
    let mut object = json!({
        "owner": client,
        "acquired": whole_seconds(times.acquired_us),
        "renewed": whole_seconds(times.renewed_us),
        "expires": times.expires_us.map(whole_seconds),
        "released": times.released_us.map(whole_seconds),
        "renewals": claim.renewals,
        "ended": claim.status.as_str(),
        "version": claim.version,
        "token": claim.token,
    });
    if let Some(user) = user {
        object["user"] = user.into();
    }
    object
}

/// Text as text; other bytes as an object that can't be mistaken for it.
fn client_object(data: Option<&Data>) -> Value {
    match data.map(|data| (std::str::from_utf8(&data.bytes), &data.bytes)) {
        None => Value::Null,
        Some((Ok(text), _)) => json!(text),
        Some((Err(_), bytes)) => json!({ "base64": base64(bytes) }),
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |place: usize| u32::from(three.get(place).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// A limit of the table, or an answer that no command of this dialect asks for.
pub(super) fn refused(rejection: &Rejection) -> Response {
    let namespace_full = StatusCode::from_u16(509).unwrap_or(StatusCode::INSUFFICIENT_STORAGE);
    let (status, kind) = match rejection {
        Rejection::OwnerFull(_) => (StatusCode::INSUFFICIENT_STORAGE, "owner-full"),
        Rejection::NamespaceFull(_) => (namespace_full, "namespace-full"),
        Rejection::NamespaceBytes(_) => (namespace_full, "namespace-bytes-full"),
        other => match limit(other) {
            Some((_, "queue-full")) | None => return unexpected(&Outcome::Rejected(other.clone()), "leases"),
            Some(known) => known,
        },
    };
    let mut response = try_again(problem(status, kind, &rejection.to_string()));
    if status == namespace_full {
        // No standard has a phrase for this number.
        response.extensions_mut().insert(ReasonPhrase::from_static(b"Namespace Full"));
    }
    response
}

/// The engine gave no outcome. This protocol has one number for whatever keeps the quorum from answering; a header tells
/// whether the change may have happened.
pub(super) fn unanswered(error: &EngineError) -> Response {
    if *error != EngineError::Unknown {
        return engine_problem(error);
    }
    let detail = format!("{error}; the change may have happened, or may yet: fetch the lease to see");
    let mut response = try_again(problem(StatusCode::SERVICE_UNAVAILABLE, "outcome-unknown", &detail));
    response.headers_mut().insert("leasehold-outcome", HeaderValue::from_static("unknown"));
    response
}

#[cfg(test)]
mod tests {
    use hyper::header::RETRY_AFTER;

    use super::*;

    #[test]
    fn whatever_keeps_the_quorum_from_answering_is_503_and_a_full_disk_507() {
        let cases = [
            (EngineError::NotLeader, 503, "no-leader"),
            (EngineError::Unknown, 503, "outcome-unknown"),
            (EngineError::Overloaded, 503, "overloaded"),
            (EngineError::Stopping, 503, "shutting-down"),
            (EngineError::TooSlow, 503, "too-slow"),
            (EngineError::DiskFull, 507, "disk-full"),
            (EngineError::MemoryFull, 507, "memory-full"),
            (EngineError::Upgrading, 503, "upgrading"),
        ];
        for (error, status, kind) in &cases {
            let response = seal(unanswered(error));
            assert!(format!("{:?}", response.body()).contains(kind), "{:?}", response.body());
            assert_eq!(response.status().as_u16(), *status, "{error}");
            assert_eq!(response.headers()[RETRY_AFTER], "1", "{error}");
            let unknown =
                response.headers().get("leasehold-outcome").is_some_and(|outcome| outcome == "unknown");
            assert_eq!(unknown, !error.is_certain(), "{error}");
            assert_eq!(response.headers()["content-type"], "application/problem+json");
            // Nobody knows who holds the lease: the response does not say.
            assert!(!response.headers().contains_key(CLIENT_IS_YOU), "{error}");
        }
    }

    #[test]
    fn limits_have_their_numbers_and_what_nobody_asked_for_is_500() {
        assert_eq!(refused(&Rejection::TableFull(1)).status(), 507);
        assert_eq!(refused(&Rejection::OwnerFull(1)).status(), 507);
        assert_eq!(refused(&Rejection::NamespaceFull(1)).status(), 509);
        let used = leasehold_core::Used { used: 1, max: 2 };
        assert_eq!(refused(&Rejection::NamespaceBytes(used)).status(), 509);
        for rejection in [Rejection::OwnerBytes(used), Rejection::TableBytes(used), Rejection::NoMemory] {
            assert_eq!(refused(&rejection).status(), 507);
        }
        let bug = refused(&Rejection::QueueFull(1));
        assert_eq!(bug.status(), 500);
        assert_eq!(bug.headers()["content-type"], "application/problem+json");
    }

    #[test]
    fn base64_pads() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }

    #[test]
    fn any_owner_fits_into_a_header() {
        for owner in ["db1", "Zoë", "two\nlines", "tab\there", ""] {
            assert!(!text_value(owner).as_bytes().contains(&b'\n'), "{owner:?}");
        }
    }
}
