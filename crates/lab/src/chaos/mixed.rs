//! Claims of all other kinds over HTTP: shared, in slots, several resources at once, and one after the other in a session.
//!
//! In:    a client of the claims dialect. Out: operations in its book; answers that should not have been.
//! Never: has resources of its own alone: plain claims and typed locks of the round want some of them, too.

use std::sync::Arc;

use super::clients::Client;
use super::notes::Held;
use crate::history::{Answer, Item, Mode};

/// Slots of every resource, as nearly all say.
const SLOTS: u16 = 3;

/// The ttl of claims in a session.
const SESSION_TTL_US: u64 = 6_000_000;

impl Client {
    /// One claim: mostly on one thing, or on up to three, each in its own way.
    pub(super) fn mixed(&mut self) {
        let round = self.shared.round;
        let names = [
            format!("r{round}s0"),
            format!("r{round}m0"),
            format!("r{round}m1"),
            format!("dss/media/r{round}d0"),
        ];
        let mut names = names.to_vec();
        let count = match self.random.below(10) {
            0..=5 => 1,
            6..=8 => 2,
            _ => 3,
        };
        let item = |_| {
            let resource = names.swap_remove(self.random.below(names.len() as u64) as usize);
            let mode = match self.random.below(10) {
                0..=1 => Mode::Exclusive,
                2..=5 => Mode::Shared,
                _ => {
                    let of = if self.random.percent(95) { SLOTS } else { SLOTS + 1 };
                    Mode::Slots { take: self.random.between(1, 4) as u16, of }
                }
            };
            Item { resource, mode }
        };
        let items: Arc<[Item]> = (0..count).map(item).collect();
        let held = self.shared.begin_items(items);
        self.lead(&held);
    }

    /// Holds one thing and asks for another in the same session. Others do it the other way round: one of them is refused.
    pub(super) fn nested(&mut self) {
        let (round, first) = (self.shared.round, self.random.below(2));
        let name = |number| format!("r{round}m{number}");
        let outer = self.begin(&name(first));
        let session = format!("worker-{}", outer.handle);
        let Some((id, answer)) = self.make(&outer, SESSION_TTL_US, Some(&session)) else { return };
        if !self.wait_for_turn(&outer, &id, answer, SESSION_TTL_US) {
            return;
        }
        if self.random.percent(30) {
            self.ask_below(&outer, &id, &session);
        }
        let inner = self.begin(&name(1 - first));
        if let Some((inner_id, answer)) = self.make(&inner, SESSION_TTL_US, Some(&session))
            && self.wait_for_turn(&inner, &inner_id, answer, SESSION_TTL_US)
        {
            self.think();
            self.finish_claim(&inner, &inner_id, "released");
        }
        self.finish_claim(&outer, &id, "released");
    }

    /// A job below a session wants what the session holds: it is told at once, as long as the session holds.
    fn ask_below(&mut self, outer: &Held, outer_id: &str, session: &str) {
        let held = self.shared.begin_items(outer.items.clone());
        let below = format!("{session}/job");
        let Some((id, answer)) = self.make(&held, SESSION_TTL_US, Some(&below)) else { return };
        if answer == Answer::Waiting && matches!(self.read_claim(outer, outer_id), Answer::Active(_)) {
            self.shared.odd(format!("VIOLATION: a job of {session} waits for what {session} holds"));
        }
        self.finish_claim(&held, &id, "withdrawn");
    }
}
