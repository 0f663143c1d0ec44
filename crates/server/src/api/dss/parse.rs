//! Requests of the typed locks: the path and the JSON body, checked.
//!
//! In:    bytes from strangers. Out: [`Ask`], or what is wrong with it, in words.
//! Never: guesses: a body with a field that nobody knows is refused, since an old server that overlooked a new field
//!        could lock what was not meant.

use std::sync::Arc;

use leasehold_core::{ClaimId, limits};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::access::identity::client_of;
use crate::message::query::seconds_to_us;

/// Longest hostname, in bytes: as long as DNS allows, and then a little.
const HOSTNAME_LEN_MAX: usize = 255;
/// Lengths of a call's own id: long enough to be unique, short enough to be kept with every lock it ends.
const CALL_LEN: std::ops::RangeInclusive<usize> = 16..=64;
/// Most ids in one call.
const IDS_LEN_MAX: usize = limits::LOCK_ALL_LEN_MAX;
/// Most locks in one page of a list.
const LIST_LEN_MAX: usize = 1000;

/// The types of locks. What stands in the path and in front of the id in the resource's name.
pub(crate) const TYPES: [&str; 5] = ["media", "device", "object", "layout", "deprec"];

/// A call's body, all fields known and of the right type.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    ids: Vec<String>,
    hostname: Option<String>,
    owner: Option<i32>,
    #[serde(default)]
    force: Option<bool>,
    ttl: Option<f64>,
    call: Option<String>,
    #[serde(default)]
    retry: Option<bool>,
}

/// What is asked of a list of locks.
#[derive(Debug)]
pub(super) struct Ask {
    /// The ids, as they came.
    pub(super) ids: Vec<String>,
    /// Their resources; `None` where an id is too long to be one.
    pub(super) resources: Vec<Option<Arc<str>>>,
    /// `hostname:pid` of the caller, if given.
    pub(super) owner: Option<Arc<str>>,
    /// Whether the owner does not matter.
    pub(super) force: bool,
    /// For how long, without a refresh.
    pub(super) ttl_us: Option<u64>,
    /// The client's own id of this call: the same when it is sent again.
    pub(super) call: Option<String>,
    /// Whether the client sends it again, since it does not know what became of it.
    pub(super) retry: bool,
    /// Why, in the caller's words.
    pub(super) reason: Option<Arc<str>>,
}

/// Which locks a list shows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListAsk {
    /// Of this host.
    pub(super) hostname: String,
    /// Of this process alone.
    pub(super) owner: Option<i32>,
    /// Go on behind this id.
    pub(super) after: Option<String>,
    /// The most locks to list.
    #[serde(default = "list_len_max")]
    pub(super) limit: usize,
}

fn list_len_max() -> usize {
    LIST_LEN_MAX
}

/// Whether the body of a call must name the owner of the locks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnerFields {
    /// `hostname` and `owner` must be there.
    Required,
    /// They are not read.
    Ignored,
}

impl Ask {
    pub(super) fn parse(kind: &str, body: &[u8], owner_fields: OwnerFields) -> Result<Self, String> {
        let body: Body = serde_json::from_slice(body).map_err(|error| {
            format!("the body must be a JSON object like {{\"ids\": [\"...\"], \"hostname\": \"...\", \"owner\": 1}}: {error}")
        })?;
        if body.ids.is_empty() || body.ids.len() > IDS_LEN_MAX {
            return Err(format!("ids: must name 1 to {IDS_LEN_MAX} locks, and names {}", body.ids.len()));
        }
        let owner = match owner_fields {
            OwnerFields::Required => Some(owner(body.hostname.as_deref(), body.owner)?),
            OwnerFields::Ignored => None,
        };
        let ttl_us = match body.ttl {
            None => None,
            Some(ttl) => match seconds_to_us(ttl).filter(|ttl_us| *ttl_us > 0) {
                None => return Err("ttl: must be a number of seconds above 0".into()),
                ttl_us => ttl_us,
            },
        };
        if body.call.as_deref().is_some_and(|call| !is_call(call)) {
            let (min, max) = CALL_LEN.into_inner();
            return Err(format!("call: must be {min} to {max} letters, digits, '-' or '_', drawn at random"));
        }
        let resources = body.ids.iter().map(|id| resource(kind, id)).collect();
        Ok(Self {
            ids: body.ids,
            resources,
            owner,
            force: body.force.unwrap_or(false),
            ttl_us,
            call: body.call,
            retry: body.retry.unwrap_or(false),
            reason: None,
        })
    }

    /// One claim id for each of the ids. A call that has an id of its own, sent twice, gives the same claim ids
    /// twice: the table knows it again and locks nothing a second time.
    pub(super) fn claim_ids(&self, kind: &str) -> Vec<ClaimId> {
        let Some(call) = &self.call else {
            return self
                .ids
                .iter()
                .map(|_| ClaimId::from_u128(leasehold_engine::machine::random()))
                .collect();
        };
        let mut request = Sha256::new();
        let ttl_us = self.ttl_us.unwrap_or(u64::MAX).to_le_bytes();
        let head =
            [kind.as_bytes(), call.as_bytes(), self.owner.as_deref().unwrap_or("").as_bytes(), &ttl_us];
        for part in head.into_iter().chain(self.ids.iter().map(String::as_bytes)) {
            request.update((part.len() as u64).to_le_bytes());
            request.update(part);
        }
        let request = request.finalize();
        let claim_id = |place: usize| {
            let hash =
                Sha256::new().chain_update(request).chain_update((place as u64).to_le_bytes()).finalize();
            ClaimId::from_u128(u128::from_le_bytes(std::array::from_fn(|i| hash[i])))
        };
        (0..self.ids.len()).map(claim_id).collect()
    }
}

impl ListAsk {
    pub(super) fn parse(body: &[u8]) -> Result<Self, String> {
        let ask: Self = serde_json::from_slice(body).map_err(|error| {
            format!("the body must be a JSON object like {{\"hostname\": \"...\", \"owner\": 1}}: {error}")
        })?;
        if !(1..=LIST_LEN_MAX).contains(&ask.limit) {
            return Err(format!("limit: must be 1 to {LIST_LEN_MAX}"));
        }
        Ok(ask)
    }
}

fn owner(hostname: Option<&str>, pid: Option<i32>) -> Result<Arc<str>, String> {
    match (hostname, pid) {
        (None, _) => Err("hostname: is missing; it is mandatory".into()),
        (_, None) => Err("owner: is missing; it is the caller's pid, an integer, and mandatory".into()),
        (Some(""), _) => Err("hostname: must not be empty".into()),
        (Some(hostname), _) if hostname.len() > HOSTNAME_LEN_MAX => {
            Err(format!("hostname: must be at most {HOSTNAME_LEN_MAX} bytes long, and is {}", hostname.len()))
        }
        (Some(hostname), Some(pid)) => Ok(format!("{hostname}:{pid}").into()),
    }
}

/// Hostname and pid of an owner. Who holds a typed lock through another dialect has no pid.
pub(super) fn split_owner(owner: &str) -> (&str, Option<i32>) {
    let owner = client_of(owner);
    let split = owner.rsplit_once(':').and_then(|(hostname, pid)| Some((hostname, pid.parse().ok()?)));
    match split {
        Some((hostname, pid)) if !hostname.is_empty() => (hostname, Some(pid)),
        _ => (owner, None),
    }
}

pub(super) fn resource(kind: &str, id: &str) -> Option<Arc<str>> {
    // What stands before the id is ours, and does not count.
    (id.len() <= limits::RESOURCE_LEN_MAX).then(|| format!("dss/{kind}/{id}").into())
}

fn is_call(call: &str) -> bool {
    CALL_LEN.contains(&call.len())
        && call.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(body: &str) -> Ask {
        Ask::parse("media", body.as_bytes(), OwnerFields::Required).unwrap()
    }

    #[test]
    fn a_call_sent_again_gives_the_same_claim_ids_and_any_other_call_does_not() {
        let body = r#"{"ids": ["a", "b"], "hostname": "h", "owner": 1, "call": "0123456789abcdef"}"#;
        let ids = ask(body).claim_ids("media");
        assert_eq!(ids, ask(body).claim_ids("media"));
        assert_ne!(ids[0], ids[1]);
        for other in [
            body.replace("cdef", "cdee"),
            body.replace(r#"["a", "b"]"#, r#"["a", "c"]"#),
            body.replace(r#""owner": 1"#, r#""owner": 2"#),
            body.replace(r#""owner": 1"#, r#""owner": 1, "ttl": 5"#),
        ] {
            assert_ne!(ids[0], ask(&other).claim_ids("media")[0], "{other}");
        }
        assert_ne!(ids[0], ask(body).claim_ids("device")[0]);
    }

    #[test]
    fn an_owner_is_split_at_its_last_colon() {
        assert_eq!(split_owner("node:17"), ("node", Some(17)));
        assert_eq!(split_owner("a:b:17"), ("a:b", Some(17)));
        for whole in ["10.0.0.1", "someone", ":17", "node:", "node:x"] {
            assert_eq!(split_owner(whole), (whole, None));
        }
    }
}
