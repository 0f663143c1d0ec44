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
use crate::settings::{ClaimRequest, OnLost, Wait, Worker};

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
        let resource = self.resource.clone().ok_or_else(|| Error::Invalid("'resource' is missing".into()))?;
        Ok(Name { resource, worker: self.worker.clone() })
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
        Ok(ClaimRequest {
            resource: name.resource.clone(),
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
            return Err(Error::Invalid(format!("'{id}' is no id of a claim")));
        }
        let within = seconds("within", self.within.ok_or_else(|| missing("within"))?)?;
        Ok(Predecessor { id, token: self.token, within })
    }
}

/// The answer to a request that failed.
pub(super) fn refusal(error: &Error) -> Value {
    json!({ "ok": false, "error": error.kind(), "detail": error.to_string() })
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
}
