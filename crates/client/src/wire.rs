//! The JSON of the claims API, as far as a client reads it.
//!
//! In:    bodies of responses. Out: [`ClaimInfo`] and friends.
//! Never: insists on a field that older servers do not send.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Blocker, Error, Lost};

/// A claim as a server shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClaimInfo {
    /// Its URL; it ends with its id.
    pub url: String,
    /// What it is about.
    pub resource: String,
    /// `waiting`, `active` or a final status.
    pub status: String,
    /// What it was, and when.
    #[serde(default)]
    pub status_history: Vec<Value>,
    /// When it was made.
    #[serde(default)]
    pub created: Option<String>,
    /// What is left of the time for which it stays active, in seconds. A server of release 0.1.0, which sends no `initial_ttl`,
    /// has the length here.
    #[serde(default)]
    pub ttl: Option<f64>,
    /// How long it stays active without renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_ttl: Option<f64>,
    /// How long it has been active.
    #[serde(default)]
    pub active_duration: Option<f64>,
    /// How long it waited.
    #[serde(default)]
    pub waiting_duration: Option<f64>,
    /// What its maker left with it.
    #[serde(default)]
    pub user_data: Value,
    /// The fencing token.
    #[serde(default)]
    pub token: Option<u64>,
    /// Who made it.
    #[serde(default)]
    pub owner: Option<String>,
    /// Place in the queue, 1 = next.
    #[serde(default)]
    pub position: Option<u64>,
    /// When it expires unless renewed.
    #[serde(default)]
    pub expires: Option<String>,
    /// Why it was ended, if somebody said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How many claims wait behind it; `None` unless it is active, or of a server of release 0.1.0.
    #[serde(default)]
    pub waiters: Option<u64>,
    /// Whether it is active and is to let go.
    #[serde(default)]
    pub revoking: bool,
    /// What it holds or wants, one by one; empty for a claim on one resource without mode, slots or session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<ItemInfo>,
    /// The worker that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Who holds the resource: only in the answer "not your turn".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Box<ClaimInfo>>,
}

impl ClaimInfo {
    /// The last part of its URL.
    pub fn id(&self) -> &str {
        id_of(&self.url)
    }

    /// How long it stays active without renewal, in seconds, whichever release the server is of; `None` unless it is active.
    pub fn length(&self) -> Option<f64> {
        self.ttl.map(|ttl| self.initial_ttl.unwrap_or(ttl))
    }

    /// How long it stays active, in seconds from the server's answer; `None` unless it is active. Only for a claim that was not
    /// renewed: release 0.1.0 does not tell what is left after that.
    pub(crate) fn left(&self) -> Option<f64> {
        match (self.ttl?, self.initial_ttl) {
            (left, Some(_)) => Some(left),
            (length, None) => Some((length - self.active_duration?).max(0.0)),
        }
    }
}

/// One resource of a claim as a server shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ItemInfo {
    /// What it is about.
    pub resource: String,
    /// `exclusive` or `shared`; slots have `take` and `of`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// How many slots it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub take: Option<u32>,
    /// How many slots there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<u32>,
    /// The slots that it holds, numbered from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<Vec<u32>>,
    /// The fencing token for this resource.
    pub token: Option<u64>,
    /// Place among those that wait for this resource, 1 = next.
    pub position: Option<u64>,
}

/// The id at the end of a claim's URL, or the id itself.
pub fn id_of(url: &str) -> &str {
    url.trim_end_matches('/').rsplit('/').next().unwrap_or(url)
}

/// One claim of an answer to `POST /v1/renewals`.
#[derive(Debug, Deserialize)]
pub(crate) struct Renewal {
    pub(crate) id: String,
    pub(crate) renewed: bool,
    #[serde(default)]
    pub(crate) status: Option<String>,
    #[serde(default)]
    pub(crate) revoking: bool,
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// One claim of an answer to `POST /v1/endings`: it is over, is to let go, or is not known.
#[derive(Debug, Deserialize)]
pub(crate) struct Ending {
    pub(crate) id: String,
    pub(crate) status: Option<String>,
    #[serde(default)]
    pub(crate) revoking: bool,
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

impl Ending {
    /// What its client is told.
    pub(crate) fn lost(&self) -> Lost {
        let status = if self.revoking { "revoked" } else { self.status.as_deref().unwrap_or("unknown") };
        lost(status, self.reason.as_deref())
    }
}

/// The answer to `POST /v1/endings`.
#[derive(Debug, Deserialize)]
pub(crate) struct Endings {
    pub(crate) claims: Vec<Ending>,
}

/// A claim that the server took away, and why.
pub(crate) fn lost(status: &str, reason: Option<&str>) -> Lost {
    Lost::Ended(with_reason(status, reason))
}

/// A final status, and why.
pub(crate) fn with_reason(status: &str, reason: Option<&str>) -> String {
    reason.map_or_else(|| status.to_string(), |reason| format!("{status} ({reason})"))
}

/// Whether a renewal was refused because the claim is to let go, and why it is.
pub(crate) fn revoking_in(body: &[u8]) -> Option<Lost> {
    let claim = serde_json::from_slice::<ClaimInfo>(body).ok().filter(|claim| claim.revoking)?;
    Some(lost("revoked", claim.reason.as_deref()))
}

/// Why a claim ended, if the body of a refusal tells.
pub(crate) fn reason_in(body: &[u8]) -> Option<String> {
    serde_json::from_slice::<Value>(body).ok()?.get("reason")?.as_str().map(String::from)
}

/// The answer to `POST /v1/renewals`.
#[derive(Debug, Deserialize)]
pub(crate) struct Renewals {
    pub(crate) claims: Vec<Renewal>,
}

/// What the body of a refusal says, in a line: a problem's detail, the mistakes by name, or the text as it is.
pub fn detail(body: &[u8]) -> String {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return String::from_utf8_lossy(body).trim().chars().take(300).collect();
    };
    if let Some(detail) = value.get("detail").and_then(Value::as_str) {
        return detail.into();
    }
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), String::from);
    match &value {
        Value::Object(members) => {
            let named: Vec<String> =
                members.iter().map(|(name, why)| format!("{name}: {}", text(why))).collect();
            named.join("; ")
        }
        other => text(other),
    }
}

/// Whether the server itself says that what was asked certainly did not happen. A 503 of a proxy says nothing: some send it
/// after the request has reached the server.
pub(crate) fn is_certainly_undone(status: u16, body: &[u8]) -> bool {
    matches!(status, 503 | 507) && problem_of_ours(body).is_some_and(|kind| kind != "outcome-unknown")
}

/// Whether a Leasehold server refuses, and not a proxy or another server.
pub(crate) fn is_problem_of_ours(body: &[u8]) -> bool {
    problem_of_ours(body).is_some()
}

/// Whether a server refuses a request because of its word `session`, which `is_plain` says is its only new one: the server is
/// too old for it, or some of its cluster is.
pub(crate) fn refuses_session(status: u16, body: &[u8], is_plain: bool) -> bool {
    let is_unknown = || {
        let body = serde_json::from_slice::<Value>(body).ok();
        body.is_some_and(|body| body.get("session").is_some())
    };
    let is_upgrading = || {
        let kind = problem_of_ours(body);
        kind.is_some_and(|kind| matches!(kind.as_str(), "member-too-old" | "member-away" | "upgrading"))
    };
    match status {
        400 => is_unknown(),
        503 => is_plain && is_upgrading(),
        _ => false,
    }
}

/// The deadlock that a refusal is about.
pub(crate) fn deadlock_in(status: u16, body: &[u8]) -> Option<Error> {
    if status != 409 || problem_of_ours(body)? != "deadlock" {
        return None;
    }
    let problem = serde_json::from_slice::<Value>(body).ok()?;
    let cycle = problem.get("cycle").and_then(Value::as_array);
    let step = |step: &Value| Blocker::deserialize(step).unwrap_or_default();
    let cycle = cycle.map_or_else(Vec::new, |cycle| cycle.iter().map(step).collect());
    Some(Error::Deadlock { detail: detail(body), cycle })
}

fn problem_of_ours(body: &[u8]) -> Option<String> {
    let problem = serde_json::from_slice::<Value>(body).ok()?;
    problem.get("type")?.as_str()?.strip_prefix("urn:leasehold:problem:").map(String::from)
}

/// The statuses that nothing follows.
pub const FINAL: [&str; 5] = ["released", "withdrawn", "aborted", "revoked", "expired"];

/// The final status that a claim is in, if the body of a refusal tells.
pub(crate) fn status_in(body: &[u8]) -> Option<String> {
    let value = serde_json::from_slice::<Value>(body).ok()?;
    let status = value.get("status")?.as_str()?;
    // A 400 about a bad `status` has words under the same key.
    FINAL.contains(&status).then(|| status.to_string())
}
