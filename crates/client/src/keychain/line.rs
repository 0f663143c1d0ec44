//! One line from the parent, and what an answer to a bad one looks like.
//!
//! In:    JSON. Out: [`Line`], and the claim that it asks for.
//! Never: guesses what a bad value meant.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Settings;
use crate::driver::Predecessor;
use crate::error::Error;
use crate::item::{Item, Mode};
use crate::request::{ClaimRequest, Wait, Worker};
use crate::settings::OnLost;

/// A line from the parent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    /// Comes back in the answer.
    #[serde(default)]
    pub(super) id: Value,
    pub(super) op: String,
    #[serde(default)]
    pub(super) resource: Option<String>,
    /// Several, each a name or an object; the first names the claim from then on.
    #[serde(default)]
    resources: Option<Vec<Value>>,
    #[serde(default)]
    mode: Option<ModeWord>,
    #[serde(default)]
    take: Option<u32>,
    #[serde(default)]
    of: Option<u32>,
    /// The worker that the server is told of, a path.
    #[serde(default)]
    session: Option<String>,
    /// Which of the parent's workers asks: each has one claim on a resource at a time.
    #[serde(default)]
    pub(super) worker: String,
    #[serde(default)]
    pub(super) ttl: Option<f64>,
    #[serde(default)]
    timeout: Option<f64>,
    #[serde(default)]
    data: Option<Box<RawValue>>,
    #[serde(default)]
    max_hold: Option<f64>,
    #[serde(default)]
    lead: Option<f64>,
    #[serde(default)]
    on_lost: Option<OnLostWord>,
    /// The idempotency key of the claim: another keychain finds the claim by it.
    #[serde(default)]
    key: Option<String>,
    /// For `take-up`: the claim's id, its token, and how long from now it is worth a try.
    #[serde(default)]
    claim: Option<String>,
    #[serde(default)]
    token: Option<u64>,
    #[serde(default)]
    within: Option<f64>,
}

/// One of several resources, if it is more than a name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WantedItem {
    resource: String,
    #[serde(default)]
    mode: Option<ModeWord>,
    #[serde(default)]
    take: Option<u32>,
    #[serde(default)]
    of: Option<u32>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum ModeWord {
    Exclusive,
    Shared,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum OnLostWord {
    Report,
    Terminate,
}

/// What names a claim on the pipe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) resource: String,
    pub(super) worker: String,
}

impl Line {
    pub(super) fn name(&self) -> Result<Name, Error> {
        let resource = match &self.resources {
            None => self.resource.clone().ok_or_else(|| Error::Invalid("'resource' is missing".into()))?,
            Some(_) => self.items()?.swap_remove(0).resource,
        };
        Ok(Name { resource, worker: self.worker.clone() })
    }

    /// Everything that it asks for: at least one item.
    fn items(&self) -> Result<Vec<Item>, Error> {
        let Some(resources) = &self.resources else {
            let resource = self.resource.clone().unwrap_or_default();
            return Ok(vec![Item { resource, mode: mode(self.mode, self.take, self.of)? }]);
        };
        let invalid = |what: &str| Err(Error::Invalid(what.into()));
        if resources.is_empty() {
            return invalid("'resources' must name at least one resource");
        }
        if self.resource.is_some() || self.mode.is_some() || self.take.is_some() || self.of.is_some() {
            return invalid(
                "'resource', 'mode', 'take' and 'of' can't be given beside 'resources': give them inside its items",
            );
        }
        resources
            .iter()
            .map(|wanted| match wanted {
                Value::String(name) => Ok(Item::exclusive(name)),
                other => {
                    let item = WantedItem::deserialize(other).map_err(|error| {
                        Error::Invalid(format!("an item of 'resources' can't be read: {error}"))
                    })?;
                    Ok(Item { resource: item.resource, mode: mode(item.mode, item.take, item.of)? })
                }
            })
            .collect()
    }

    /// Whether the answer names the items, as the request uses words that older parents don't.
    pub(super) fn wants_items(&self) -> bool {
        self.resources.is_some() || self.mode.is_some() || self.take.is_some()
    }

    /// The claim that it asks for. `serial` makes it a worker of its own for the manager: names are checked here.
    pub(super) fn request(
        &self,
        name: &Name,
        serial: u64,
        settings: &Settings,
    ) -> Result<ClaimRequest, Error> {
        let wait = match self.timeout {
            None => Wait::Default,
            Some(0.0) => Wait::No,
            Some(timeout) => Wait::For(seconds("timeout", timeout)?),
        };
        let max_hold = self.max_hold.map(|most| seconds("max_hold", most)).transpose()?;
        let mut items = self.items()?;
        let mode = items.remove(0).mode;
        Ok(ClaimRequest {
            resource: name.resource.clone(),
            mode,
            others: items,
            session: self.session.clone(),
            ttl: self.ttl()?,
            wait,
            data: self.data.clone(),
            max_hold: max_hold.or(settings.max_hold),
            lead: self.lead.map_or(Ok(Duration::ZERO), |lead| seconds("lead", lead))?,
            // The keychain's own end is not what a loss should bring about.
            on_lost: Some(OnLost::Report),
            worker: Some(Worker::named(serial.to_string())),
            idempotency_key: self.key.clone(),
        })
    }

    pub(super) fn ttl(&self) -> Result<Option<Duration>, Error> {
        self.ttl.map(|ttl| seconds("ttl", ttl)).transpose()
    }

    pub(super) fn terminates(&self, settings: &Settings) -> bool {
        match self.on_lost {
            None => settings.on_lost == OnLost::Terminate,
            Some(word) => matches!(word, OnLostWord::Terminate),
        }
    }

    /// For `take-up`: the claim to go on with.
    pub(super) fn predecessor(&self) -> Result<Predecessor, Error> {
        let missing = |name: &str| Error::Invalid(format!("'{name}' is missing"));
        let id = self.claim.clone().ok_or_else(|| missing("claim"))?;
        if id.is_empty()
            || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        {
            return Err(Error::Invalid(format!("'{id}' is not the id of a claim")));
        }
        let within = seconds("within", self.within.ok_or_else(|| missing("within"))?)?;
        Ok(Predecessor { id, token: self.token, within })
    }
}

/// The answer to a request that failed.
pub(super) fn refusal(error: &Error) -> Value {
    let mut answer = json!({ "ok": false, "error": error.kind(), "detail": error.to_string() });
    if let Error::Deadlock { cycle, .. } = error {
        answer["cycle"] = json!(cycle);
    }
    answer
}

fn mode(word: Option<ModeWord>, take: Option<u32>, of: Option<u32>) -> Result<Mode, Error> {
    match (word, take, of) {
        (None | Some(ModeWord::Exclusive), None, None) => Ok(Mode::Exclusive),
        (Some(ModeWord::Shared), None, None) => Ok(Mode::Shared),
        (None, Some(take), Some(of)) => Ok(Mode::Slots { take, of }),
        (Some(_), ..) => Err(Error::Invalid("'mode' can't be given beside 'take' and 'of'".into())),
        _ => Err(Error::Invalid("'take' and 'of' must be given together, as in 'take' 1 'of' 5".into())),
    }
}

fn seconds(name: &str, seconds: f64) -> Result<Duration, Error> {
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero());
    let hint = if name == "max_hold" { "; leave it out to hold without a limit" } else { "" };
    duration.ok_or_else(|| Error::Invalid(format!("'{name}' must be a number of seconds above 0{hint}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_held_without_a_limit_unless_one_is_given() {
        let settings = |max_hold| Settings {
            max_hold,
            on_lost: OnLost::Report,
            tell_renewals: false,
            terminate: Box::new(|| ()),
        };
        let held = |line: &str, most: Option<Duration>| {
            let line: Line = serde_json::from_str(line).unwrap();
            line.request(&line.name().unwrap(), 1, &settings(most)).map(|request| request.max_hold)
        };
        let plain = r#"{"op": "claim", "resource": "r"}"#;
        assert_eq!(held(plain, None), Ok(None));
        assert_eq!(held(plain, Some(Duration::from_secs(9))), Ok(Some(Duration::from_secs(9))));
        let limited = r#"{"op": "claim", "resource": "r", "max_hold": 5}"#;
        assert_eq!(held(limited, Some(Duration::from_secs(9))), Ok(Some(Duration::from_secs(5))));
        assert!(held(r#"{"op": "claim", "resource": "r", "max_hold": 0}"#, None).is_err());
    }

    #[test]
    fn modes_slots_and_sets_are_read_and_mistakes_are_named() {
        let items = |words: &str| {
            let line: Line = serde_json::from_str(&format!(r#"{{"op": "claim", {words}}}"#)).unwrap();
            line.name().and_then(|_| line.items())
        };
        assert_eq!(items(r#""resource": "r""#), Ok(vec!["r".into()]));
        assert_eq!(items(r#""resource": "r", "mode": "shared""#), Ok(vec![Item::shared("r")]));
        assert_eq!(items(r#""resource": "r", "take": 1, "of": 5"#), Ok(vec![Item::slots("r", 1, 5)]));
        let set = r#""resources": ["a", {"resource": "b", "mode": "shared"}]"#;
        assert_eq!(items(set), Ok(vec!["a".into(), Item::shared("b")]));
        for bad in [
            r#""resources": []"#,
            r#""resources": ["a"], "resource": "a""#,
            r#""resource": "r", "take": 1"#,
            r#""resource": "r", "mode": "shared", "take": 1, "of": 2"#,
        ] {
            assert!(items(bad).is_err(), "{bad}");
        }
    }
}
