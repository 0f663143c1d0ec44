//! Refusals, counted: the first of a kind is a line at once, further ones are one line a minute.
//!
//! In:    every refusal. Out: lines for the file of refusals.
//! Never: writes more lines than there are kinds, or keeps more kinds than [`KINDS_MAX`]: a stranger decides how many
//!        refusals there are.

use std::collections::HashMap;

use serde::Serialize;

use crate::message::time::rfc3339;
use leasehold_engine::clock::wall_us;

/// Kinds of refusals that are counted apart; further ones are counted together.
const KINDS_MAX: usize = 1000;
/// Longest name in a line of refusals, in characters.
const NAME_LEN_MAX: usize = 128;
/// Who stands for all that are not counted apart.
const OTHERS: &str = "others";

/// One refused request.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefusedRequest<'a> {
    /// Who was turned away.
    pub(super) who: &'a str,
    /// How it said who it is.
    pub(super) how: &'a str,
    /// From which address.
    pub(super) from: &'a str,
    /// The right that was missing.
    pub(super) verb: &'a str,
    /// On this resource.
    pub(super) resource: &'a str,
    /// The status of the answer.
    pub(super) status: u16,
}

/// What is counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kind {
    who: String,
    how: String,
    from: String,
    verb: String,
    status: u16,
}

/// How often, since the last line about it, and the last resource.
#[derive(Debug, Default)]
struct Count {
    count: u64,
    resource: String,
}

/// The kinds of this minute and the last.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    kinds: HashMap<Kind, Count>,
}

impl Refusals {
    /// Counts a refusal; the line to write at once, if it is the first of its kind.
    pub(super) fn count(&mut self, refusal: RefusedRequest<'_>) -> Option<String> {
        let mut kind = Kind {
            who: shortened(refusal.who),
            how: refusal.how.into(),
            from: shortened(refusal.from),
            verb: refusal.verb.into(),
            status: refusal.status,
        };
        if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&kind) {
            kind = Kind { who: OTHERS.into(), how: OTHERS.into(), from: OTHERS.into(), ..kind };
        }
        let resource = shortened(refusal.resource);
        if let Some(known) = self.kinds.get_mut(&kind) {
            known.count += 1;
            known.resource = resource;
            return None;
        }
        let first = line(&kind, &resource, 1);
        self.kinds.insert(kind, Count::default());
        Some(first)
    }

    /// A line for each kind that came again; a kind that did not is forgotten.
    pub(super) fn summed_up(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        self.kinds.retain(|kind, again| {
            let Count { count, resource } = std::mem::take(again);
            if count > 0 {
                lines.push(line(kind, &resource, count));
            }
            count > 0
        });
        lines
    }
}

#[derive(Serialize)]
struct RefusedLine<'a> {
    time: String,
    what: &'a str,
    who: &'a str,
    how: &'a str,
    from: &'a str,
    verb: &'a str,
    resource: &'a str,
    status: u16,
    count: u64,
}

fn line(kind: &Kind, resource: &str, count: u64) -> String {
    let Kind { who, how, from, verb, status } = kind;
    let time = rfc3339(wall_us());
    let line = RefusedLine { time, what: "refused", who, how, from, verb, resource, status: *status, count };
    format!("{}\n", serde_json::to_string(&line).unwrap_or_default())
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME_LEN_MAX) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal<'a>(from: &'a str, resource: &'a str) -> RefusedRequest<'a> {
        RefusedRequest { who: "anonymous", how: "none", from, verb: "claim", resource, status: 401 }
    }

    #[test]
    fn one_line_at_once_and_one_a_minute() {
        let mut refusals = Refusals::default();
        let lines = (0..1000).filter_map(|_| refusals.count(refusal("192.0.2.1", "r"))).count();
        assert_eq!(lines, 1);
        let summed = refusals.summed_up();
        assert!(summed.len() == 1 && summed[0].contains(r#""count":999"#), "{summed:?}");
        assert!(refusals.summed_up().is_empty());
        assert!(refusals.count(refusal("192.0.2.1", "r")).is_some(), "it is new again after a quiet minute");
    }

    #[test]
    fn neither_many_kinds_nor_long_names_make_many_bytes() {
        let mut refusals = Refusals::default();
        let long = "ä".repeat(100_000);
        let mut bytes = 0;
        for address in 0..50_000 {
            let from = format!("2001:db8::{address:x}");
            bytes += refusals.count(refusal(&from, &long)).map_or(0, |line| line.len());
        }
        bytes += refusals.summed_up().iter().map(String::len).sum::<usize>();
        assert!(bytes < (KINDS_MAX + 2) * 1024, "{bytes}");
    }
}
