//! Bugs on purpose, for the tests that ask whether they would be caught.
//!
//! In:    switches, from `crates/lab` and `tests/exhaustive.rs`. Out: a table that is wrong.
//! Never: compiled into the service.

use std::collections::BTreeMap;

use super::load::Load;
use super::resource::Slot;
use super::set::SetItem;
use super::{Resource, Table};
use crate::command::Mode;

/// Which bugs are switched on.
#[derive(Debug, Default)]
pub(super) struct Planted {
    pub(super) lifo: bool,
    pub(super) grant_twice: bool,
    pub(super) bug: Option<TableBug>,
    /// The last phase of each resource, for the bug that goes on with it.
    pub(super) phases: BTreeMap<Slot, u64>,
}

/// A bug in the rules for sharing, slots, sets and sessions: the exhaustive search must find each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableBug {
    /// A writer is granted beside readers.
    WriterBesideReader,
    /// One slot more is granted than there is.
    OneSlotTooMany,
    /// A set is granted when a part of it is free.
    PartOfASet,
    /// Only holders count, and no reservations.
    OvertakenSet,
    /// A reader that joins others gets a token of its own.
    NewTokenInAPhase,
    /// A phase goes on with the token of the one before.
    SameTokenAcrossPhases,
    /// Any number of slots is taken for the resource's.
    CapacityIgnored,
    /// A claim that is over keeps its slots, and later ones don't get the lowest.
    SlotsNotFreed,
    /// The end of a waiting claim wakes nobody.
    WaitingEndDoesNotWake,
    /// A command that ends several claims wakes after each of them.
    WakesAfterEach,
    /// The look for a deadlock follows holders, and nobody who waits before them.
    DeadlockByHoldersOnly,
    /// The look for a deadlock takes every claim in the way for one that must end.
    DeadlockByEveryWait,
    /// A session goes on although a descendant waits.
    DescendantsIgnored,
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

    /// One of the bugs in the rules for sharing, slots, sets and sessions.
    pub fn plant(&mut self, bug: TableBug) {
        self.planted.bug = Some(bug);
    }

    pub(super) fn has_bug(&self, bug: TableBug) -> bool {
        self.planted.bug == Some(bug)
    }

    /// Whether an item fits, by the switches.
    pub(super) fn planted_takes(&self, slot: Slot, mode: Mode) -> bool {
        let resource = self.resources.at(slot);
        let load = resource.load();
        match (self.planted.bug, load, mode) {
            (Some(TableBug::WriterBesideReader), Load::Shared, Mode::Exclusive) => true,
            (Some(TableBug::OneSlotTooMany), Load::Slots(taken), Mode::Slots { take, of }) => {
                taken + take <= of + 1
            }
            (Some(TableBug::OvertakenSet), ..) if resource.active().is_none() => true,
            _ => load.takes(mode),
        }
    }

    /// The phase that a reader joins, by the switches.
    pub(super) fn planted_phase(&self, item: &SetItem, phase: Option<u64>) -> Option<u64> {
        match self.planted.bug {
            Some(TableBug::NewTokenInAPhase) => None,
            Some(TableBug::SameTokenAcrossPhases) if item.mode == Mode::Shared => {
                self.planted.phases.get(&item.resource).copied()
            }
            _ => phase,
        }
    }

    /// Tokens begin anew.
    pub fn plant_token_reset(&mut self) {
        self.last_token = 0;
    }

    /// Who is next, by the switch.
    pub(super) fn planted_next(&self, resource: &Resource) -> Option<u64> {
        if self.planted.lifo { resource.blocked().next_back() } else { resource.first_blocked() }
    }
}
