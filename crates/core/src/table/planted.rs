//! Bugs on purpose, for the tests that ask whether they would be caught.
//!
//! In:    switches, from `crates/lab`. Out: a table that is wrong. Never: compiled into the service.

use super::{Resource, Table};

/// Which bugs are switched on.
#[derive(Debug, Default)]
pub(super) struct Planted {
    pub(super) lifo: bool,
    pub(super) grant_twice: bool,
}

impl Table {
    /// The last of a queue is served first.
    pub fn plant_lifo(&mut self, on: bool) {
        self.planted.lifo = on;
    }

    /// New claims are granted although somebody holds.
    pub fn plant_grant_twice(&mut self, on: bool) {
        self.planted.grant_twice = on;
    }

    /// Tokens begin anew.
    pub fn plant_token_reset(&mut self) {
        self.last_token = 0;
    }

    /// Who is next, by the switch.
    pub(super) fn planted_next(&self, resource: &Resource) -> Option<u64> {
        if self.planted.lifo { resource.queue().next_back() } else { resource.first_waiting() }
    }
}
