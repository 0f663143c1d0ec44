//! Requests of the claims dialect: JSON bodies, headers and query strings, checked to the last field.
//!
//! In:    bytes from strangers. Out: values that the table takes, or a 400 whose keys name every bad parameter.
//! Never: stops at the first mistake, or lets through what it does not know.
//!
//! Good bodies are read in one pass into a struct; only what that refuses is read again, slowly, to explain.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::HeaderMap;
use leasehold_core::{ClaimId, Data, Ending, Format, Idempotency, Status, limits};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::http::query::{pairs, parse_seconds, seconds_to_us};
use crate::http::{Response, json};

/// Longest wait of one request, below the timeouts of common proxies. A longer one is cut to this.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Longest idempotency key.
const KEY_LEN_MAX: usize = 255;
/// Most renewals in one request.
const RENEWALS_LEN_MAX: usize = 20_000;

/// What is wrong, by parameter.
type Mistakes = BTreeMap<String, String>;

/// A claim as asked for.
pub(super) struct ClaimBody {
    pub(super) resource: Arc<str>,
    pub(super) ttl_us: u64,
    pub(super) data: Option<Data>,
}

/// An update as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patch {
    Ttl(u64),
    Activate,
    /// `PUT` alone: ttl and status `active` at once.
    ActivateWithTtl(u64),
    Finish(Ending),
}

/// A 400 about one parameter.
pub(super) fn bad(parameter: &str, message: &str) -> Response {
    mistaken(&Mistakes::from([(parameter.into(), message.into())]))
}

/// A 400 about all of them.
pub(super) fn mistaken(mistakes: &Mistakes) -> Response {
    let mut body = serde_json::to_vec(mistakes).unwrap_or_default();
    body.push(b'\n');
    json(StatusCode::BAD_REQUEST, body)
}

pub(super) fn claim_body(body: &[u8]) -> Result<ClaimBody, Response> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Fast<'a> {
        #[serde(borrow)]
        resource: Cow<'a, str>,
        ttl: f64,
        #[serde(borrow, default)]
        user_data: Option<&'a RawValue>,
    }
    if let Ok(fast) = serde_json::from_slice::<Fast<'_>>(body)
        && let Some(ttl_us) = seconds_to_us(fast.ttl)
        && resource_mistake(&fast.resource).is_none()
    {
        let raw = fast.user_data.map(RawValue::get).filter(|raw| *raw != "null");
        if raw.is_none_or(|raw| raw.len() <= limits::DATA_LEN_MAX) {
            let data = raw.map(|raw| Data { format: Format::Json, bytes: raw.as_bytes().into() });
            return Ok(ClaimBody { resource: fast.resource.as_ref().into(), ttl_us, data });
        }
    }
    Err(explain_claim_body(body))
}

fn explain_claim_body(body: &[u8]) -> Response {
    let object = match object(body) {
        Ok(object) => object,
        Err(refusal) => return refusal,
    };
    let mut mistakes = Mistakes::new();
    for (name, value) in &object {
        let mistake = match name.as_str() {
            "resource" => match value {
                Value::String(resource) => resource_mistake(resource),
                _ => Some("must be a string".into()),
            },
            "ttl" => ttl_mistake(value),
            "user_data" => (value.to_string().len() > limits::DATA_LEN_MAX)
                .then(|| format!("must be at most {} bytes of JSON", limits::DATA_LEN_MAX)),
            _ => Some("unknown parameter; a claim takes resource, ttl and user_data".into()),
        };
        mistakes.extend(mistake.map(|mistake| (name.clone(), mistake)));
    }
    for name in ["resource", "ttl"] {
        if !object.contains_key(name) {
            mistakes.insert(name.into(), "is missing; it is mandatory".into());
        }
    }
    explained(mistakes, body)
}

pub(super) fn patch(body: &[u8], is_put: bool) -> Result<Patch, Response> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Fast<'a> {
        #[serde(default)]
        ttl: Option<f64>,
        #[serde(borrow, default)]
        status: Option<Cow<'a, str>>,
    }
    if let Ok(fast) = serde_json::from_slice::<Fast<'_>>(body) {
        let ttl_us = fast.ttl.and_then(seconds_to_us);
        let status = fast.status.as_deref().and_then(status_update);
        match (fast.ttl.is_some(), ttl_us, fast.status.is_some(), status) {
            (true, Some(ttl_us), false, _) => return Ok(Patch::Ttl(ttl_us)),
            (false, _, true, Some(patch)) => return Ok(patch),
            (true, Some(ttl_us), true, Some(Patch::Activate)) if is_put => {
                return Ok(Patch::ActivateWithTtl(ttl_us));
            }
            _ => {}
        }
    }
    Err(explain_patch(body, is_put))
}

fn explain_patch(body: &[u8], is_put: bool) -> Response {
    let object = match object(body) {
        Ok(object) => object,
        Err(refusal) => return refusal,
    };
    let mut mistakes = Mistakes::new();
    for (name, value) in &object {
        let mistake = match name.as_str() {
            "ttl" => ttl_mistake(value),
            "status" => status_mistake(value),
            _ => Some("unknown parameter; an update takes ttl or status".into()),
        };
        mistakes.extend(mistake.map(|mistake| (name.clone(), mistake)));
    }
    if mistakes.is_empty() && object.len() != 1 {
        let message = match (object.is_empty(), is_put) {
            (true, _) => "is missing; an update takes exactly one of ttl and status",
            (false, true) => "ttl and status go together only as {\"ttl\": ..., \"status\": \"active\"}",
            (false, false) => "only one of ttl and status may be given in a request",
        };
        mistakes.extend(["ttl", "status"].map(|name| (name.into(), message.into())));
    }
    explained(mistakes, body)
}

/// Ids as asked for: what is none is kept as it came, to be named in the answer.
pub(super) type RenewalIds = Vec<Result<ClaimId, String>>;

pub(super) fn renewals(body: &[u8]) -> Result<(RenewalIds, Option<u64>), Response> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        ids: Vec<String>,
        #[serde(default)]
        ttl: Option<f64>,
    }
    let body: Body = serde_json::from_slice(body)
        .map_err(|error| bad("body", &format!("must be {{\"ids\": [...], \"ttl\": seconds}}: {error}")))?;
    if body.ids.is_empty() || body.ids.len() > RENEWALS_LEN_MAX {
        return Err(bad("ids", &format!("must name 1 to {RENEWALS_LEN_MAX} claims")));
    }
    let ttl_us = match body.ttl {
        None => None,
        Some(ttl) => Some(seconds_to_us(ttl).ok_or_else(|| bad("ttl", &ttl_range()))?),
    };
    Ok((body.ids.into_iter().map(|id| id.parse().map_err(|_| id)).collect(), ttl_us))
}

/// `?wait=SECONDS`, the only parameter of POST and PATCH.
pub(super) fn wait_parameter(query: Option<&str>) -> Result<Option<Duration>, Response> {
    let mut wait = None;
    let mut mistakes = Mistakes::new();
    for (name, value) in pairs(query) {
        match (&*name, parse_seconds(&value)) {
            ("wait", Some(wait_us)) => wait = Some(Duration::from_micros(wait_us).min(WAIT_MAX)),
            ("wait", None) => {
                mistakes.insert("wait".into(), "must be a number of seconds, 0 or more".into());
            }
            _ => {
                mistakes.insert(name.into(), "unknown query parameter; this request takes wait".into());
            }
        }
    }
    if mistakes.is_empty() { Ok(wait) } else { Err(mistaken(&mistakes)) }
}

pub(super) fn no_parameters(query: Option<&str>) -> Result<(), Response> {
    let unknown = |(name, _): (Cow<'_, str>, _)| (name.into_owned(), "unknown query parameter".into());
    let mistakes: Mistakes = pairs(query).map(unknown).collect();
    if mistakes.is_empty() { Ok(()) } else { Err(mistaken(&mistakes)) }
}

/// `Idempotency-Key`, bound to the caller and to what was asked.
pub(super) fn idempotency(
    headers: &HeaderMap,
    owner: &str,
    resource: &str,
    ttl_us: u64,
    data: Option<&Data>,
) -> Result<Option<Idempotency>, Response> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    if key.is_empty() || key.len() > KEY_LEN_MAX {
        return Err(bad("Idempotency-Key", &format!("must have 1 to {KEY_LEN_MAX} characters")));
    }
    let hash = |parts: &[&[u8]]| -> [u8; 32] {
        let mut hasher = Sha256::new();
        for part in parts {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize().into()
    };
    let data = data.map_or(&b""[..], |data| &data.bytes);
    let request = hash(&[resource.as_bytes(), &ttl_us.to_le_bytes(), data]);
    let key = hash(&[owner.as_bytes(), key.as_bytes()]);
    let first = |bytes: [u8; 32]| u128::from_le_bytes(std::array::from_fn(|i| bytes[i]));
    Ok(Some(Idempotency { key: first(key), fingerprint: first(request) as u64 }))
}

/// `Leasehold-Reason`, why somebody ends a claim. What can't be kept as text is left out.
pub(super) fn reason(headers: &HeaderMap) -> Option<Arc<str>> {
    let text = headers.get("leasehold-reason")?.to_str().ok()?.trim();
    let text = text.get(..1024).unwrap_or(text);
    (!text.is_empty()).then(|| text.into())
}

/// The mistakes that were found; where the slow look finds none, what the quick one stumbled over.
fn explained(mut mistakes: Mistakes, body: &[u8]) -> Response {
    if mistakes.is_empty() {
        // Doubled keys, and numbers that only the quick look takes exactly.
        let why = serde_json::from_slice::<BTreeMap<&str, &RawValue>>(body);
        let why = why.err().map_or("a parameter is given twice".into(), |error| error.to_string());
        mistakes.insert("body".into(), why);
    }
    mistaken(&mistakes)
}

fn object(body: &[u8]) -> Result<serde_json::Map<String, Value>, Response> {
    if body.is_empty() {
        return Err(bad("body", "is empty; a JSON object is expected"));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(bad("body", "must be a JSON object")),
        Err(error) => Err(bad("body", &format!("is not valid JSON: {error}"))),
    }
}

fn resource_mistake(resource: &str) -> Option<String> {
    match resource.len() {
        0 => Some("must not be empty".into()),
        len if len > limits::RESOURCE_LEN_MAX => {
            Some(format!("must be at most {} bytes long, and is {len}", limits::RESOURCE_LEN_MAX))
        }
        _ => None,
    }
}

fn ttl_mistake(ttl: &Value) -> Option<String> {
    match ttl.as_f64().filter(|_| ttl.is_number()) {
        None => Some("must be a number of seconds".into()),
        Some(seconds) => seconds_to_us(seconds).is_none().then(ttl_range),
    }
}

fn ttl_range() -> String {
    format!("must be a number of seconds from 0 to {}", limits::TTL_US_MAX / 1_000_000)
}

fn status_update(status: &str) -> Option<Patch> {
    match Status::from_name(status)? {
        Status::Active => Some(Patch::Activate),
        Status::Aborted => Some(Patch::Finish(Ending::Aborted)),
        Status::Released => Some(Patch::Finish(Ending::Released)),
        Status::Revoked => Some(Patch::Finish(Ending::Revoked)),
        Status::Withdrawn => Some(Patch::Finish(Ending::Withdrawn)),
        Status::Waiting | Status::Expired => None,
    }
}

fn status_mistake(status: &Value) -> Option<String> {
    let known = status.as_str().and_then(status_update).is_some();
    (!known).then(|| "must be one of 'aborted', 'active', 'released', 'revoked', 'withdrawn'".into())
}
