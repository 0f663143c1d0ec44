//! Bodies of requests about claims that exist: updates of one, and lists of ids.
//!
//! In:    bytes from strangers. Out: updates and ids, or a 400 whose keys name every bad parameter.
//! Never: stops at the first mistake, or lets through what it does not know.

use std::borrow::Cow;
use std::collections::BTreeSet;

use leasehold_core::{ClaimId, Ending, Status};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::parse::{MemberList, bad, explained, given, members, ttl_mistake};
use crate::message::Response;
use crate::message::query::seconds_to_us;

/// Most renewals in one request.
const RENEWALS_LEN_MAX: usize = 20_000;

/// Most claims whose ends one request waits for.
const WATCHED_LEN_MAX: usize = 10_000;

/// An update as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patch {
    Ttl(u64),
    Activate,
    /// `PUT` alone: ttl and status `active` at once.
    ActivateWithTtl(u64),
    Finish(Ending),
    /// Revoked as soon as the holder has let go, or its ttl is over.
    RevokeWhenGone,
}

pub(super) fn patch(body: &[u8], is_put: bool) -> Result<Patch, Response> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Fast<'a> {
        #[serde(default, deserialize_with = "given")]
        ttl: Option<f64>,
        #[serde(borrow, default, deserialize_with = "given")]
        status: Option<Cow<'a, str>>,
        #[serde(borrow, default, deserialize_with = "given")]
        when: Option<Cow<'a, str>>,
    }
    if let Ok(fast) = serde_json::from_slice::<Fast<'_>>(body) {
        let ttl_us = fast.ttl.and_then(seconds_to_us);
        let status = fast.status.as_deref().and_then(status_update);
        match (fast.ttl.is_some(), ttl_us, fast.status.is_some(), status, fast.when.as_deref()) {
            (true, Some(ttl_us), false, _, None) => return Ok(Patch::Ttl(ttl_us)),
            (false, _, true, Some(patch), None) => return Ok(patch),
            (true, Some(ttl_us), true, Some(Patch::Activate), None) if is_put => {
                return Ok(Patch::ActivateWithTtl(ttl_us));
            }
            (false, _, true, Some(revoked @ Patch::Finish(Ending::Revoked)), Some(WHEN_NOW)) => {
                return Ok(revoked);
            }
            (false, _, true, Some(Patch::Finish(Ending::Revoked)), Some(WHEN_GONE)) => {
                return Ok(Patch::RevokeWhenGone);
            }
            _ => {}
        }
    }
    Err(explain_patch(body, is_put))
}

/// The two ways to revoke.
const WHEN_NOW: &str = "now";
const WHEN_GONE: &str = "gone";

/// What is wrong with `when`: its value, or that it goes with a revocation alone.
fn when_mistake(members: &MemberList<'_>) -> Option<String> {
    let text = |wanted: &str| {
        let (_, value) = members.iter().find(|(name, _)| name == wanted)?;
        serde_json::from_str::<Cow<'_, str>>(value.get()).ok()
    };
    let known = text("when").is_some_and(|when| [WHEN_NOW, WHEN_GONE].contains(&&*when));
    match (known, text("status").as_deref()) {
        (false, _) => Some("must be 'now' or 'gone'".into()),
        (true, Some("revoked")) => None,
        (true, _) => Some("goes with {\"status\": \"revoked\"} alone".into()),
    }
}

fn explain_patch(body: &[u8], is_put: bool) -> Response {
    let (members, mut mistakes) = match members(body) {
        Ok(found) => found,
        Err(refusal) => return refusal,
    };
    for (name, value) in &members {
        let mistake = match name.as_str() {
            "ttl" => ttl_mistake(value),
            "status" => status_mistake(value),
            "when" => when_mistake(&members),
            _ => Some("unknown parameter; an update takes ttl or status".into()),
        };
        mistakes.extend(mistake.map(|mistake| (name.clone(), mistake)));
    }
    let updates = members.iter().filter(|(name, _)| name != "when").count();
    if mistakes.is_empty() && updates != 1 {
        let message = match (updates == 0, is_put) {
            (true, _) => "is missing; an update takes exactly one of ttl and status",
            (false, true) => "ttl and status go together only as {\"ttl\": ..., \"status\": \"active\"}",
            (false, false) => "only one of ttl and status may be given in a request",
        };
        mistakes.extend(["ttl", "status"].map(|name| (name.into(), message.into())));
    }
    explained(mistakes)
}

/// Ids as asked for: what is none is kept as it came, to be named in the answer.
pub(super) type RenewalIds = Vec<Result<ClaimId, String>>;

pub(super) fn renewals(body: &[u8]) -> Result<(RenewalIds, Option<u64>), Response> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        ids: Vec<String>,
        #[serde(default, deserialize_with = "given")]
        ttl: Option<f64>,
    }
    let Ok(Body { ids, ttl }) = serde_json::from_slice(body) else { return Err(explain_renewals(body)) };
    let ttl_us = ttl.and_then(seconds_to_us);
    if !(1..=RENEWALS_LEN_MAX).contains(&ids.len()) || ttl_us.is_some() != ttl.is_some() {
        return Err(explain_renewals(body));
    }
    Ok((ids.into_iter().map(|id| id.parse().map_err(|_| id)).collect(), ttl_us))
}

fn explain_renewals(body: &[u8]) -> Response {
    let (members, mut mistakes) = match members(body) {
        Ok(found) => found,
        Err(refusal) => return refusal,
    };
    for (name, value) in &members {
        let mistake = match name.as_str() {
            "ids" => match serde_json::from_str::<Vec<Cow<'_, str>>>(value.get()) {
                Ok(ids) => (!(1..=RENEWALS_LEN_MAX).contains(&ids.len()))
                    .then(|| format!("must name 1 to {RENEWALS_LEN_MAX} claims")),
                Err(_) => Some("must be a list of claim ids, which are strings".into()),
            },
            "ttl" => ttl_mistake(value),
            _ => Some("unknown parameter; renewals take ids and ttl".into()),
        };
        mistakes.extend(mistake.map(|mistake| (name.clone(), mistake)));
    }
    if members.iter().all(|(given, _)| given != "ids") {
        mistakes.insert("ids".into(), "is missing; it is mandatory".into());
    }
    explained(mistakes)
}

/// The claims whose ends are asked for, each once.
pub(super) fn watched(body: &[u8]) -> Result<RenewalIds, Response> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        ids: Vec<String>,
    }
    let too_many = || bad("ids", &format!("must name 1 to {WATCHED_LEN_MAX} claims"));
    match serde_json::from_slice(body) {
        Ok(Body { ids }) if (1..=WATCHED_LEN_MAX).contains(&ids.len()) => {
            let ids: BTreeSet<String> = ids.into_iter().collect();
            Ok(ids.into_iter().map(|id| id.parse().map_err(|_| id)).collect())
        }
        Ok(_) => Err(too_many()),
        Err(_) => {
            let (members, mut mistakes) = members(body)?;
            for (name, value) in &members {
                let mistake = match name.as_str() {
                    "ids" => serde_json::from_str::<Vec<Cow<'_, str>>>(value.get())
                        .is_err()
                        .then_some("must be a list of claim ids, which are strings"),
                    _ => Some("unknown parameter; this request takes ids"),
                };
                mistakes.extend(mistake.map(|mistake| (name.clone(), mistake.into())));
            }
            if members.iter().all(|(given, _)| given != "ids") {
                mistakes.insert("ids".into(), "is missing; it is mandatory".into());
            }
            Err(explained(mistakes))
        }
    }
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

fn status_mistake(status: &RawValue) -> Option<String> {
    let status = serde_json::from_str::<Cow<'_, str>>(status.get()).ok();
    let known = status.is_some_and(|status| status_update(&status).is_some());
    (!known).then(|| "must be one of 'aborted', 'active', 'released', 'revoked', 'withdrawn'".into())
}
