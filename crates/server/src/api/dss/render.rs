//! Responses of the typed locks: one JSON shape for every answer.
//!
//! In:    what became of each id. Out: `{"errno", "locks": [{"id", "errno", "hostname", "owner", "timestamp", "token"}]}`
//!        in the order asked, and the HTTP status that belongs to the first error.
//! Never: leaves a field out: what does not apply is `null`.

use hyper::StatusCode;
use leasehold_core::View;
use serde::Serialize;

use super::parse::split_owner;
use crate::message::time::rfc3339;
use crate::message::{Response, json};

/// What can be wrong with one id, or with a call as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Errno {
    Eexist,
    Enolck,
    Eacces,
    Einval,
}

impl Errno {
    fn status(self) -> StatusCode {
        match self {
            Self::Eexist => StatusCode::CONFLICT,
            Self::Enolck => StatusCode::NOT_FOUND,
            Self::Eacces => StatusCode::FORBIDDEN,
            Self::Einval => StatusCode::BAD_REQUEST,
        }
    }
}

/// What became of one id.
#[derive(Debug, Clone, Default)]
pub(super) struct Fate {
    /// What went wrong.
    pub(super) errno: Option<Errno>,
    /// The lock: held now, or, after an unlock, the one that was.
    pub(super) view: Option<Box<View>>,
}

impl Fate {
    pub(super) fn ok(view: Box<View>) -> Self {
        Self { errno: None, view: Some(view) }
    }

    pub(super) fn failed(errno: Errno, view: Option<Box<View>>) -> Self {
        Self { errno: Some(errno), view }
    }
}

#[derive(Serialize)]
struct AnswerBody<'a> {
    errno: Option<Errno>,
    locks: Vec<Lock<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Option<&'a str>>,
}

#[derive(Serialize)]
struct Lock<'a> {
    id: &'a str,
    errno: Option<Errno>,
    hostname: Option<&'a str>,
    owner: Option<i32>,
    timestamp: Option<String>,
    token: Option<u64>,
}

fn lock<'a>(id: &'a str, fate: &'a Fate) -> Lock<'a> {
    let claim = fate.view.as_ref().map(|view| &view.claim);
    let owner = claim.map(|claim| split_owner(&claim.owner));
    Lock {
        id,
        errno: fate.errno,
        hostname: owner.map(|(hostname, _)| hostname),
        owner: owner.and_then(|(_, pid)| pid),
        // A claim that only reserves the lock has never held it.
        timestamp: claim.filter(|claim| claim.token > 0).map(|claim| rfc3339(claim.renewed_wall_us)),
        token: claim.map(|claim| claim.token).filter(|token| *token > 0),
    }
}

/// Id by id.
pub(super) fn answer(ids: &[String], fates: &[Fate], message: Option<&str>) -> Response {
    let errno = fates.iter().find_map(|fate| fate.errno);
    let locks = ids.iter().zip(fates).map(|(id, fate)| lock(id, fate)).collect();
    write(errno, &AnswerBody { errno, locks, message, next: None })
}

/// A page of a list, and behind which id the next one starts.
pub(super) fn list(ids: &[String], fates: &[Fate], next: Option<&str>) -> Response {
    let locks = ids.iter().zip(fates).map(|(id, fate)| lock(id, fate)).collect();
    write(None, &AnswerBody { errno: None, locks, message: None, next: Some(next) })
}

/// The call makes no sense as a whole.
pub(super) fn invalid(message: &str) -> Response {
    let errno = Some(Errno::Einval);
    write(errno, &AnswerBody { errno, locks: Vec::new(), message: Some(message), next: None })
}

fn write(errno: Option<Errno>, answer: &AnswerBody<'_>) -> Response {
    let mut body = serde_json::to_vec(answer).unwrap_or_default();
    body.push(b'\n');
    json(errno.map_or(StatusCode::OK, Errno::status), body)
}
