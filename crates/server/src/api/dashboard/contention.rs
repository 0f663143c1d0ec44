//! `/v1/contention`: the longest queues, waits and holds, and the namespaces below a prefix.
//!
//! In:    a prefix. Out: the first few of each, and counts a namespace.
//! Never: holds the table for long: it reads some names at a time and lets writers pass.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use hyper::StatusCode;
use leasehold_core::Table;
use leasehold_core::table::Resource;
use serde_json::{Value, json};

use super::api::{NAMES_MAX, expire_due, is_visible, scan_turn};
use super::who::Person;
use super::{query, rows};
use crate::access::Caller;
use crate::app::App;
use crate::message::request::Request;
use crate::message::{Response, json as json_response};

/// Resources that are named of each kind.
const SHOWN: usize = 10;
/// Namespaces that are named; the others are counted.
const NAMESPACES_MAX: usize = 500;
/// Names looked at while the table can't be written.
const NAMES_PER_LOOK: usize = 1024;
/// Waiting claims of one queue that its mean is taken of, evenly spread.
const WAITS_SAMPLED: usize = 16;

/// The contention that the caller may see.
pub async fn contention(app: &App, request: &Request, caller: &Caller) -> Result<Response, Response> {
    let mut prefix = String::new();
    query::read(request.uri().query(), |name, value| match name {
        "prefix" => {
            prefix = value.to_string();
            Ok(())
        }
        _ => Err("unknown parameter; the only one is 'prefix'".into()),
    })?;
    expire_due(app, request).await?;
    let mut board = Board::default();
    let mut last: Option<String> = None;
    let complete = loop {
        let turn = scan_turn().await;
        let seen = app.engine.read(|table, now_us| {
            let mut seen = 0;
            let mut newest = None;
            if last.is_none() && !caller.could_see_below(&prefix, table) {
                return 0;
            }
            for (name, resource) in table.resources_after(&prefix, last.as_deref()).take(NAMES_PER_LOOK) {
                seen += 1;
                newest = Some(name);
                if is_visible(table, name, resource, now_us, caller) {
                    board.look(table, &prefix, name, resource, now_us);
                }
            }
            last = newest.map(str::to_string).or_else(|| last.take());
            seen
        });
        drop(turn);
        if seen < NAMES_PER_LOOK {
            break true;
        }
        // Names that the caller may not see count for nothing: their number would tell of them.
        if board.resources as usize >= NAMES_MAX {
            break false;
        }
        tokio::task::yield_now().await;
    };
    let body = app.engine.read(|table, now_us| board.into_json(table, now_us, complete, caller));
    Ok(json_response(StatusCode::OK, format!("{body}\n")))
}

/// The largest so far.
#[derive(Default)]
struct Top(BinaryHeap<Reverse<(u64, Arc<str>)>>);

impl Top {
    fn offer(&mut self, size: u64, name: &str) {
        let full = self.0.len() == SHOWN;
        if size == 0 || (full && self.0.peek().is_some_and(|Reverse((least, _))| *least >= size)) {
            return;
        }
        if full {
            self.0.pop();
        }
        self.0.push(Reverse((size, name.into())));
    }

    /// Largest first.
    fn rows(self, table: &Table, now_us: u64, caller: &Caller) -> Vec<Value> {
        let row = |Reverse((_, name)): Reverse<(u64, Arc<str>)>| {
            table
                .resource(&name)
                .map(|resource| rows::summary(table, &name, resource, now_us, &Person::default(), caller))
        };
        self.0.into_sorted_vec().into_iter().filter_map(row).collect()
    }
}

#[derive(Default)]
struct Counts {
    name: String,
    resources: u64,
    held: u64,
    waiting: u64,
    longest_wait_us: u64,
}

#[derive(Default)]
struct Board {
    queues: Top,
    waits: Top,
    holds: Top,
    /// In the order of their names: those of one namespace come one after the other.
    namespaces: Vec<Counts>,
    more_namespaces: u64,
    /// Resources that are in no namespace below the prefix.
    here: u64,
    resources: u64,
    held: u64,
    waiting: u64,
    waited_us: f64,
}

impl Board {
    fn look(&mut self, table: &Table, prefix: &str, name: &str, resource: &Resource, now_us: u64) {
        let waited_us = |seq: u64| table.view_at(seq, now_us).claim.waited_us(now_us);
        let waiting = resource.queue_len();
        let longest_us = resource.queue().next().map_or(0, waited_us);
        if waiting > 0 {
            let step = waiting.div_ceil(WAITS_SAMPLED as u64) as usize;
            let (sum, sampled) = resource
                .queue()
                .step_by(step)
                .fold((0.0, 0.0), |(sum, n), seq| (sum + waited_us(seq) as f64, n + 1.0));
            self.waited_us += sum / sampled * waiting as f64;
            self.waiting += waiting;
        }
        let held_us = resource.active().and_then(|seq| table.view_at(seq, now_us).claim.held_us(now_us));
        self.resources += 1;
        self.held += resource.holders_len();
        self.queues.offer(waiting, name);
        self.waits.offer(longest_us, name);
        self.holds.offer(held_us.unwrap_or(0), name);
        self.count(prefix, name, |counts| {
            counts.resources += 1;
            counts.held += resource.holders_len();
            counts.waiting += waiting;
            counts.longest_wait_us = counts.longest_wait_us.max(longest_us);
        });
    }

    fn count(&mut self, prefix: &str, name: &str, add: impl FnOnce(&mut Counts)) {
        let Some((segment, _)) = name[prefix.len()..].split_once('/') else {
            self.here += 1;
            return;
        };
        let namespace = &name[..prefix.len() + segment.len() + 1];
        if self.namespaces.last().is_none_or(|last| last.name != namespace) {
            self.more_namespaces += u64::from(self.namespaces.len() > NAMESPACES_MAX);
            self.namespaces.truncate(NAMESPACES_MAX);
            self.namespaces.push(Counts { name: namespace.into(), ..Counts::default() });
        }
        if let Some(last) = self.namespaces.last_mut() {
            add(last);
        }
    }

    fn into_json(mut self, table: &Table, now_us: u64, complete: bool, caller: &Caller) -> Value {
        self.more_namespaces += u64::from(self.namespaces.len() > NAMESPACES_MAX);
        self.namespaces.truncate(NAMESPACES_MAX);
        let seconds = |us: f64| us / 1e6;
        let namespaces = self.namespaces.iter().map(|counts| {
            json!({
                "name": counts.name,
                "resources": counts.resources,
                "held": counts.held,
                "waiting": counts.waiting,
                "longest_wait": (counts.waiting > 0).then(|| seconds(counts.longest_wait_us as f64)),
            })
        });
        json!({
            "complete": complete,
            "looked_at": self.resources,
            "resources": self.resources,
            "held": self.held,
            "waiting": self.waiting,
            "mean_wait": (self.waiting > 0).then(|| seconds(self.waited_us / self.waiting as f64)),
            "namespaces": namespaces.collect::<Vec<_>>(),
            "more_namespaces": self.more_namespaces,
            "resources_here": self.here,
            "longest_queue": self.queues.rows(table, now_us, caller),
            "longest_wait": self.waits.rows(table, now_us, caller),
            "longest_hold": self.holds.rows(table, now_us, caller),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_few_are_kept_whatever_their_order() {
        let mut top = Top::default();
        for size in [3, 0, 50, 7, 9, 1, 12, 40, 41, 42, 43, 44, 2, 8] {
            top.offer(size, &format!("r{size}"));
        }
        let sizes: Vec<u64> = top.0.into_sorted_vec().into_iter().map(|Reverse((size, _))| size).collect();
        assert_eq!(sizes, [50, 44, 43, 42, 41, 40, 12, 9, 8, 7]);
    }

    #[test]
    fn namespaces_are_one_level_below_the_prefix() {
        let mut board = Board::default();
        for name in ["a", "a-b/x", "a/x", "a/y/z", "b/x"] {
            board.count("", name, |counts| counts.resources += 1);
        }
        let counted: Vec<_> = board.namespaces.iter().map(|at| (at.name.as_str(), at.resources)).collect();
        assert_eq!((counted, board.here), (vec![("a-b/", 1), ("a/", 2), ("b/", 1)], 1));
        let mut below = Board::default();
        ["a/x", "a/y/z"].into_iter().for_each(|name| below.count("a/", name, |counts| counts.held += 1));
        assert_eq!((below.namespaces[0].name.as_str(), below.here), ("a/y/", 1));
    }
}
