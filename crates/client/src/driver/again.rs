//! Asks again for a claim that ended because its client was not heard of for longer than the ttl: it was granted and expired, or,
//! a claim with modes, slots or several resources, it was withdrawn from the queue.
//!
//! In:    the server's word that a claim is over which its client still waits for. Out: another claim, for the same client.
//! Never: asks again for a claim that its client has held, or that somebody ended on purpose.

use super::Driver;
use super::entry::TimerId;
use crate::clock::BootInstant;
use crate::http::Reply;
use crate::machine::{State, Timer};
use crate::request::Wait;
use crate::wire;

impl Driver {
    /// Whether a claim in this final status is one that expired unseen.
    pub(super) fn expired_unseen(&self, key: u64, status: Option<&str>) -> bool {
        let Some(entry) = self.claims.get(&key) else { return false };
        let is_waited_for = entry.on_claim.is_some() && entry.verdict.is_none() && entry.wait != Wait::No;
        // A claim that was taken up from another process has been held before.
        let was_held = entry.shared.grant.get().is_some();
        let was_asked = entry.state == State::Activating || entry.state.is_holding();
        is_waited_for && was_asked && !was_held && status == Some("expired")
    }

    /// Whether the server has withdrawn a claim because nobody asked for it: this client was silent for longer than the ttl before
    /// it sent this request. Nobody gives a reason for that end.
    pub(super) fn withdrawn_unseen(&self, key: u64, status: Option<&str>, reply: &Reply) -> bool {
        let Some(entry) = self.claims.get(&key) else { return false };
        let is_waited_for = entry.on_claim.is_some() && entry.verdict.is_none() && entry.wait != Wait::No;
        let was_silent = reply.sent.since(entry.asked) > entry.ttl;
        let has_reason = wire::reason_in(&reply.body).is_some();
        is_waited_for && was_silent && !has_reason && !entry.is_plain() && status == Some("withdrawn")
    }

    /// The server has answered that the claim waits: it counts a request as asking until the end of its wait.
    pub(super) fn note_asked(&mut self, key: u64, reply: &Reply) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        let open = entry.long_poll.map_or(reply.sent, |(_, wait)| reply.sent + wait);
        entry.asked = open.min(BootInstant::now());
    }

    /// Registers the claim under another key, after a pause: a ttl that is shorter than every answer would have no end of it.
    pub(super) fn ask_again(&mut self, key: u64) {
        self.drop_request(key);
        for timer in [
            TimerId::Machine(Timer::Activate),
            TimerId::Machine(Timer::Renew),
            TimerId::Lost,
            TimerId::End,
            TimerId::MaxHold,
        ] {
            self.stop_timer(key, timer);
        }
        let Some(entry) = self.claims.get_mut(&key) else { return };
        entry.state = State::RetryingRegister;
        entry.id = None;
        entry.grant = None;
        entry.unconfirmed = false;
        entry.long_poll = None;
        entry.polls = 0;
        entry.asked = BootInstant::now();
        entry.idempotency_key = super::fresh_key();
        entry.show(|progress| {
            progress.claim = None;
            progress.position = None;
        });
        let trouble =
            "the claim ended on the server before this client heard of it: it was silent for too long";
        entry.set_trouble(Some(trouble.into()));
        for timer in [Timer::Retry, Timer::Timeout] {
            if let Some(due) = self.due(key, timer) {
                self.start_timer(key, TimerId::Machine(timer), due);
            }
        }
    }
}
