//! Takes up a claim that another process has made and can't renew any more.
//!
//! In:    the claim's id, and how long it certainly lasts. Out: the same claim, renewed, or why it is lost.
//! Never: says that the claim is held before the server has renewed it.

use std::time::Duration;

use super::Driver;
use super::entry::{Grant, TimerId};
use crate::clock::BootInstant;
use crate::item;
use crate::machine::{State, Timer};

/// What is known of a claim that its keychain left behind.
#[derive(Debug, Clone)]
pub(crate) struct Predecessor {
    /// Its id on the server.
    pub(crate) id: String,
    /// Its fencing token.
    pub(crate) token: Option<u64>,
    /// How long from now it is worth a try.
    pub(crate) within: Duration,
}

impl Driver {
    /// The claim starts as one that was granted too long ago to rely on: a renewal has to succeed before anyone is told.
    /// An expired claim can't be renewed, so a renewal that succeeds proves that nobody else held the resource meanwhile.
    pub(super) fn take_up(&mut self, key: u64, predecessor: Predecessor) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        entry.state = State::Active;
        entry.unconfirmed = true;
        entry.id = Some(predecessor.id.clone());
        let (token, session) = (predecessor.token, entry.session.clone());
        let items = item::granted(&entry.items, &[], token);
        entry.shared.grant.set(Grant { id: predecessor.id, token, items, session }).ok();
        self.start_timer(key, TimerId::End, BootInstant::now() + predecessor.within);
        self.fire(key, TimerId::Machine(Timer::Renew));
    }
}
