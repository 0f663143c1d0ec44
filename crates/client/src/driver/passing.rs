//! Deadlocks that pass: a claim was refused because of one that this manager had lost or given up, and whose end was still on
//! its way.
//!
//! In:    the refusal of a claim. Out: another attempt, as soon as ends have got through.
//! Never: hides a real deadlock: that is told when no end is on its way, or after a few attempts.

use super::Driver;
use super::entry::{Entry, TimerId};
use crate::http::Reply;
use crate::machine::Timer;
use crate::request::Wait;
use crate::wire;

/// In a manager whose claims end all the time, every refusal looks like one that passes.
const ATTEMPTS_MAX: u32 = 5;

impl Driver {
    /// Whether the refusal of a claim is a deadlock that may be gone by now.
    pub(super) fn is_passing_deadlock(&mut self, key: u64, reply: &Reply) -> bool {
        if wire::deadlock_in(reply.status, &reply.body).is_none() {
            return false;
        }
        let has_ended = self.last_end.is_some_and(|end| end >= reply.sent);
        let may_pass = has_ended || self.is_anything_ending();
        let session = self.claims.get(&key).and_then(|entry| entry.session.clone());
        // A claim that is lost ends with its ttl at the latest.
        let has_lost = self.claims.values().any(|other| other.is_lost && other.session == session);
        let Some(entry) = self.claims.get_mut(&key) else { return false };
        let is_real = entry.deadlocks >= ATTEMPTS_MAX && !has_lost;
        if !may_pass || is_real || entry.wait == Wait::No {
            return false;
        }
        entry.deadlocks += 1;
        self.refused.push(key);
        true
    }

    /// Repeats what was refused because of a claim that is over now.
    pub(super) fn repeat_refused(&mut self) {
        if self.refused.is_empty() || self.is_anything_ending() {
            return;
        }
        for key in std::mem::take(&mut self.refused) {
            self.fire(key, TimerId::Machine(Timer::Retry));
        }
    }

    fn is_anything_ending(&self) -> bool {
        self.cleaning > 0 || self.claims.values().any(Entry::is_ending)
    }
}
