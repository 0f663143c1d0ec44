//! How many claims and items each owner and each namespace has, and how many items are held and waited for in each mode:
//! limits, budgets and metrics ask here.
//!
//! In:    live claims as they come and end. Out: shares, always equal to what the claims add up to (`check.rs`).
//! Never: refuses anything: `budgets.rs` and the checks of room do.

use std::sync::Arc;

use super::Table;
use super::budgets::Share;
use super::claim::Status;
use super::record::RareBytes;
use super::resource::Slot;
use super::set::Set;
use crate::command::Mode;

/// Live claims that came with items, a mode or a session, and their items by mode. Plain claims are not in here: each is one
/// exclusive item.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct SetCounts {
    claims: u64,
    /// In the order of [`Mode`].
    items: [u64; 3],
}

impl SetCounts {
    pub(super) fn add(&mut self, set: &Set) {
        self.claims += 1;
        for item in &set.items {
            self.items[place_of(item.mode)] += 1;
        }
    }

    pub(super) fn remove(&mut self, set: &Set) {
        self.claims -= 1;
        for item in &set.items {
            self.items[place_of(item.mode)] -= 1;
        }
    }

    /// Items beyond the first of each claim.
    fn more_items(&self) -> u64 {
        self.items.iter().sum::<u64>() - self.claims
    }
}

fn place_of(mode: Mode) -> usize {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => 1,
        Mode::Slots { .. } => 2,
    }
}

impl Table {
    /// How many items live claims have: limits count items.
    pub fn live_items(&self) -> u64 {
        self.live() + self.holding_sets.more_items() + self.waiting_sets.more_items()
    }

    /// How many items are held: exclusive, shared and slots.
    pub fn held_items(&self) -> [u64; 3] {
        self.items_of(Status::Active, &self.holding_sets)
    }

    /// How many items are waited for, those included that are reserved for a set already: exclusive, shared and slots.
    pub fn awaited_items(&self) -> [u64; 3] {
        self.items_of(Status::Waiting, &self.waiting_sets)
    }

    fn items_of(&self, status: Status, sets: &SetCounts) -> [u64; 3] {
        let plain = self.count(status) - sets.claims;
        let [exclusive, shared, slots] = sets.items;
        [plain + exclusive, shared, slots]
    }

    /// Counts a live claim for its owner and namespace; gives back the one copy of the owner's name.
    pub(super) fn count_live(&mut self, resource: &str, owner: &Arc<str>, bytes: u64) -> Arc<str> {
        self.live_bytes += bytes;
        match self.namespaces.get_mut(self.version.namespace_of(resource)) {
            Some(share) => share.add(bytes),
            None => {
                self.namespaces
                    .insert(self.version.namespace_of(resource).into(), Share { claims: 1, bytes });
            }
        }
        let name = self.owners.get_key_value(owner).map_or_else(|| owner.clone(), |(name, _)| name.clone());
        self.owners.entry(name.clone()).or_default().add(bytes);
        name
    }

    /// Counts one more item of a live claim, which limits count like a claim.
    pub(super) fn count_item(&mut self, resource: &str, owner: &Arc<str>) {
        self.count_live(resource, owner, 0);
    }

    pub(super) fn uncount_item(&mut self, slot: Slot, seq: u64) {
        let owner = self.claims.at(seq).owner.clone();
        self.uncount_share(slot, &owner, 0);
    }

    /// A live claim, with this much beyond its names, has become a finished one.
    pub(super) fn count_ended(&mut self, slot: Slot, owner: &Arc<str>, live: RareBytes, finished: RareBytes) {
        let name = self.resources.name(slot);
        let names = name.len() + owner.len();
        let bytes = live.counted(names);
        self.live_bytes -= bytes;
        self.finished_bytes += finished.counted(names);
        self.uncount_share(slot, owner, bytes);
    }

    fn uncount_share(&mut self, slot: Slot, owner: &Arc<str>, bytes: u64) {
        let namespace = self.version.namespace_of(self.resources.name(slot));
        if self.namespaces.get_mut(namespace).is_some_and(|share| share.is_empty_without(bytes)) {
            self.namespaces.remove(namespace);
        }
        if self.owners.get_mut(owner).is_some_and(|share| share.is_empty_without(bytes)) {
            self.owners.remove(owner);
        }
    }
}
