//! Requests of the claims dialect: JSON bodies, headers and query strings, checked to the last field.
//!
//! In:    bytes from strangers. Out: values that the table takes, or a 400 whose keys name every bad parameter.
//! Never: stops at the first mistake, or lets through what it does not know.
//!
//! Good bodies are read in one pass into a struct; only what that refuses is read again, slowly, to explain.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::HeaderName;
use leasehold_core::{Data, Format, Idempotency, limits};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::items::{self, SetBody, resource_mistake};
use super::json_check;
use crate::message::headers::Headers;
use crate::message::query::{parameters, parse_seconds, seconds_to_us};
use crate::message::{Response, json};

/// Longest wait of one request, below the timeouts of common proxies. A longer one is cut to this.
const WAIT_MAX: Duration = Duration::from_secs(300);
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Longest idempotency key.
const KEY_LEN_MAX: usize = 255;
/// What is wrong, by parameter.
pub(super) type Mistakes = BTreeMap<String, String>;

/// A claim as asked for.
pub(super) struct ClaimBody {
    pub(super) resource: Arc<str>,
    pub(super) ttl_us: u64,
    pub(super) data: Option<Data>,
    /// What it wants to hold, if it is more than that resource, exclusively.
    pub(super) set: Option<SetBody>,
}

impl ClaimBody {
    /// Every resource that it asks for.
    pub(super) fn resources(&self) -> impl Iterator<Item = &Arc<str>> {
        let items = self.set.as_ref().map_or(&[][..], |set| &set.items);
        let own = items.is_empty().then_some(&self.resource);
        own.into_iter().chain(items.iter().map(|item| &item.resource))
    }
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
        && fast.user_data.is_none_or(|data| data_mistake(data).is_none())
    {
        let data = fast.user_data.and_then(json_data);
        return Ok(ClaimBody { resource: fast.resource.as_ref().into(), ttl_us, data, set: None });
    }
    read_claim_body(body)
}

fn json_data(raw: &RawValue) -> Option<Data> {
    let given = raw.get() != "null";
    given.then(|| Data { format: Format::Json, bytes: raw.get().as_bytes().into() })
}

/// A claim with more words than the plain one, or everything that is wrong with a claim.
fn read_claim_body(body: &[u8]) -> Result<ClaimBody, Response> {
    let (members, mut mistakes) = members(body)?;
    let (mut resource, mut ttl_us, mut data) = (None, None, None);
    for (name, value) in &members {
        let mistake = match name.as_str() {
            "resource" => match serde_json::from_str::<Cow<'_, str>>(value.get()) {
                Ok(name) => resource_mistake(&name).or_else(|| {
                    resource = Some((*name).into());
                    None
                }),
                Err(_) => Some("must be a string".into()),
            },
            "ttl" => {
                ttl_us = serde_json::from_str(value.get()).ok().and_then(seconds_to_us);
                ttl_mistake(value)
            }
            "user_data" => {
                data = json_data(value);
                data_mistake(value)
            }
            "resources" | "mode" | "take" | "of" | "session" => None,
            _ => Some(
                "unknown parameter; a claim takes resource or resources, ttl, user_data, mode, take, of and session"
                    .into(),
            ),
        };
        mistakes.extend(mistake.map(|mistake| (name.clone(), mistake)));
    }
    let given = |wanted: &str| members.iter().any(|(name, _)| name == wanted);
    if !given("ttl") {
        mistakes.insert("ttl".into(), "is missing; it is mandatory".into());
    }
    match (given("resource"), given("resources")) {
        (false, false) => {
            mistakes.insert("resource".into(), "is missing; it is mandatory".into());
        }
        (true, true) => {
            let both = "only one of resource and resources may be given";
            mistakes.extend(["resource", "resources"].map(|name| (name.into(), both.into())));
        }
        _ => {}
    }
    let set = items::set(&members, &mut mistakes);
    let first = set.as_ref().map(|set| set.items[0].resource.clone());
    match (first.or(resource), ttl_us) {
        (Some(resource), Some(ttl_us)) if mistakes.is_empty() => {
            Ok(ClaimBody { resource, ttl_us, data, set })
        }
        _ => Err(explained(mistakes)),
    }
}

/// `?wait=SECONDS`, the only parameter of POST and PATCH.
pub(super) fn wait_parameter(query: Option<&str>) -> Result<Option<Duration>, Response> {
    let mut wait = None;
    let (parameters, mut mistakes) = parameters(query);
    for (name, value) in parameters {
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
    let (parameters, mut mistakes) = parameters(query);
    mistakes.extend(
        parameters.into_iter().map(|(name, _)| (name.into_owned(), "unknown query parameter".into())),
    );
    if mistakes.is_empty() { Ok(()) } else { Err(mistaken(&mistakes)) }
}

/// `Idempotency-Key`.
pub(super) fn idempotency_key(headers: &Headers) -> Option<Bytes> {
    headers.share(IDEMPOTENCY_KEY)
}

/// A key, bound to the caller and to what was asked.
pub(super) fn idempotency(key: &[u8], owner: &str, asked: &ClaimBody) -> Result<Idempotency, Response> {
    if key.is_empty() || key.len() > KEY_LEN_MAX {
        return Err(bad("Idempotency-Key", &format!("must have 1 to {KEY_LEN_MAX} characters")));
    }
    let ClaimBody { resource, ttl_us, data, set } = asked;
    let mut request = Parts::default();
    request.add(resource.as_bytes());
    request.add(&ttl_us.to_le_bytes());
    request.add(data.as_ref().map_or(&b""[..], |data| &data.bytes));
    if let Some(set) = set {
        request.add(&[u8::from(set.lapses), u8::from(set.session.is_some())]);
        request.add(set.session.as_deref().unwrap_or_default().as_bytes());
        for item in &set.items {
            request.add(item.resource.as_bytes());
            request.add(item.mode.to_string().as_bytes());
        }
    }
    let mut bound = Parts::default();
    bound.add(owner.as_bytes());
    bound.add(key);
    Ok(Idempotency { key: bound.hash(), fingerprint: request.hash() as u64 })
}

/// A hash of parts of which each says how long it is: no two lists of parts give the same bytes.
#[derive(Default)]
struct Parts(Sha256);

impl Parts {
    fn add(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    fn hash(self) -> u128 {
        let hash: [u8; 32] = self.0.finalize().into();
        u128::from_le_bytes(std::array::from_fn(|i| hash[i]))
    }
}

/// The members of a JSON object, and which of them are given twice.
pub(super) fn members(body: &[u8]) -> Result<(MemberList<'_>, Mistakes), Response> {
    if body.is_empty() {
        return Err(bad("body", "is empty; a JSON object is expected"));
    }
    let Members(members) = serde_json::from_slice(body).map_err(|error| match error.is_data() {
        true => bad("body", "must be a JSON object"),
        false => bad("body", &format!("is not valid JSON: {error}")),
    })?;
    let mut known = BTreeSet::new();
    let doubled = members.iter().filter(|(name, _)| !known.insert(name.clone()));
    let mistakes = doubled.map(|(name, _)| (name.clone(), "is given twice".into())).collect();
    Ok((members, mistakes))
}

/// Names and values, in their order.
pub(super) type MemberList<'a> = Vec<(String, &'a RawValue)>;

/// Every member of a JSON object, the doubled ones too.
struct Members<'a>(MemberList<'a>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// A parameter that may be left out, but is no `null`.
pub(super) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// The slow parser finds each mistake that the quick one refuses. Should it miss one, the refusal at least names the body.
pub(super) fn explained(mut mistakes: Mistakes) -> Response {
    if mistakes.is_empty() {
        mistakes.insert("body".into(), "can't be read".into());
    }
    mistaken(&mistakes)
}

pub(super) fn ttl_mistake(ttl: &RawValue) -> Option<String> {
    if !ttl.get().starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return Some("must be a number of seconds".into());
    }
    let seconds = serde_json::from_str(ttl.get()).ok();
    seconds.and_then(seconds_to_us).is_none().then(ttl_range)
}

fn data_mistake(data: &RawValue) -> Option<String> {
    if data.get().len() > limits::DATA_LEN_MAX {
        return Some(format!("must be at most {} bytes of JSON", limits::DATA_LEN_MAX));
    }
    json_check::check(data.get())
        .err()
        .map(|error| format!("is JSON that not every client could read: {error}"))
}

fn ttl_range() -> String {
    format!("must be a number of seconds from 0 to {}", limits::TTL_US_MAX / 1_000_000)
}
