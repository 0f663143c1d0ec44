//! Asks again for a claim that was granted while its client could not hear of it, and that expired before it could.
//!
//! In:    the server's word that a claim is over which its client still waits for. Out: another claim, for the same client.
//! Never: asks again for a claim that its client has held, or that somebody ended on purpose.

use super::Driver;
use super::entry::TimerId;
use crate::machine::{State, Timer};
use crate::request::Wait;

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
        entry.idempotency_key = super::fresh_key();
        entry.show(|progress| {
            progress.claim = None;
            progress.position = None;
        });
        entry.set_trouble(Some("the claim was granted and expired before this client heard of it".into()));
        for timer in [Timer::Retry, Timer::Timeout] {
            if let Some(due) = self.due(key, timer) {
                self.start_timer(key, TimerId::Machine(timer), due);
            }
        }
    }
}
