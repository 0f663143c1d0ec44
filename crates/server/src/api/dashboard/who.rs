//! Who made a claim: what it says of itself in its data, beside the owner whom the service has seen.
//!
//! In:    a claim. Out: host, user, process and command, as `leasehold run` and the Python client write them.
//! Never: believes it: nobody has checked what a client says of itself, so the owner is always shown with it.

use leasehold_core::{Claim, Format};
use serde::Deserialize;
use serde_json::{Value, json};

/// Data larger than this is not looked into: it would make a list slow.
const DATA_LEN_MAX: usize = 16 << 10;
/// Letters of each word that are kept.
const WORD_LEN_MAX: usize = 200;

/// What a claim says of its maker; at least one of the four.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// The machine.
    pub host: Option<String>,
    /// The user there.
    pub user: Option<String>,
    /// The process.
    pub pid: Option<String>,
    /// What it runs.
    pub command: Option<String>,
}

#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    host: Value,
    #[serde(default)]
    user: Value,
    #[serde(default)]
    pid: Value,
    #[serde(default)]
    command: Value,
    #[serde(default)]
    program: Value,
}

impl Who {
    /// `None`: the claim says nothing that would help.
    pub fn of(claim: &Claim) -> Option<Self> {
        let data = claim.data.as_deref().filter(|data| data.format == Format::Json)?;
        Self::parse(&data.bytes)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        // serde would read a list too, its items as the fields in their order.
        let is_object = bytes.trim_ascii_start().first() == Some(&b'{');
        if !is_object || bytes.len() > DATA_LEN_MAX {
            return None;
        }
        let said: Said = serde_json::from_slice(bytes).ok()?;
        let command = word(&said.command).or_else(|| word(&said.program));
        let who = Self { host: word(&said.host), user: word(&said.user), pid: word(&said.pid), command };
        let says_something = who.words().next().is_some();
        says_something.then_some(who)
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        [&self.host, &self.user, &self.pid, &self.command].into_iter().flatten().map(String::as_str)
    }

    /// As the page and the event stream have it.
    pub fn to_json(&self) -> Value {
        json!({ "host": self.host, "user": self.user, "pid": self.pid, "command": self.command })
    }
}

fn word(value: &Value) -> Option<String> {
    let word = match value {
        Value::String(text) => text.chars().take(WORD_LEN_MAX).collect(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    Some(word).filter(|word| !word.is_empty())
}

/// A maker of claims, as a query names one: whatever it leaves out is not compared.
#[derive(Debug, Default)]
pub(super) struct Person {
    pub(super) owner: Option<String>,
    pub(super) host: Option<String>,
    pub(super) user: Option<String>,
    pub(super) pid: Option<String>,
}

impl Person {
    pub(super) fn is_anybody(&self) -> bool {
        [&self.owner, &self.host, &self.user, &self.pid].into_iter().all(Option::is_none)
    }

    pub(super) fn made(&self, claim: &Claim) -> bool {
        let owns = self.owner.as_deref().is_none_or(|owner| owner == &*claim.owner);
        let asked = [&self.host, &self.user, &self.pid];
        if !owns || asked.iter().all(|word| word.is_none()) {
            return owns;
        }
        let Some(who) = Who::of(claim) else { return false };
        let said = [&who.host, &who.user, &who.pid];
        asked.iter().zip(said).all(|(asked, said)| asked.is_none() || *asked == said)
    }
}

/// Whether a claim's owner, or what it says of its maker, contains this text.
pub(super) fn mentions(claim: &Claim, text: &str) -> bool {
    let in_data = || {
        // A look at the bytes first: most data has nothing like it, and need not be parsed.
        let bytes = claim.data.as_deref().map_or(&[][..], |data| &data.bytes);
        bytes.len() <= DATA_LEN_MAX
            && contains(bytes, text)
            && Who::of(claim).is_some_and(|who| who.words().any(|word| contains(word.as_bytes(), text)))
    };
    contains(claim.owner.as_bytes(), text) || in_data()
}

/// Whatever the case of letters in ASCII.
pub(super) fn contains(text: &[u8], part: &str) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_ignores_case_and_finds_parts() {
        let contains = |text: &str, part| contains(text.as_bytes(), part);
        assert!(contains("db/Main", "b/MA") && contains("x", "") && contains("größe", "Größe"));
        assert!(!contains("db", "dbs") && !contains("", "a"));
    }

    #[test]
    fn what_our_clients_write_is_understood_and_anything_else_is_left_alone() {
        let who = |text: &str| Who::parse(text.as_bytes());
        let run = who(r#"{"host": "alpha", "user": null, "pid": 12, "command": "pg_dump -Fc"}"#).unwrap();
        assert_eq!(run.words().collect::<Vec<_>>(), ["alpha", "12", "pg_dump -Fc"]);
        let python = who(r#"{"host": "b", "user": "ada", "pid": 7, "program": "job.py"}"#).unwrap();
        assert_eq!(python.command.as_deref(), Some("job.py"));
        for other in ["[1]", "null", "{}", r#"{"host": {"name": "x"}}"#, r#"{"host": ""}"#, "{"] {
            assert_eq!(who(other), None, "{other}");
        }
    }
}
