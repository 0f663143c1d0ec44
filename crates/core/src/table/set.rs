//! What a claim has that came with items, a mode or a session: behind one pointer of its record.
//!
//! In:    made by `claim_set.rs`, changed by `wake.rs` and `steps.rs`. Out: the items of views, events and snapshots.
//! Never: there for a plain claim: one resource, exclusive, no session, which is what nearly all are.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::record::Record;
use super::resource::Slot;
use crate::command::Mode;

/// The items of a claim and what else came with them.
#[derive(Debug, Clone)]
pub(super) struct Set {
    /// In the order asked; the first one's resource is the claim's.
    pub(super) items: Vec<SetItem>,
    /// The worker that the claim belongs to.
    pub(super) session: Option<Arc<str>>,
    /// While it waits, it is withdrawn when its client has not asked for it for its ttl.
    pub(super) lapses: bool,
    /// How many items of a waiting claim are not admitted.
    pub(super) blocked: u32,
    /// What the names of all items but the first, the session and the slots take.
    pub(super) bytes: u32,
}

/// One item of a claim.
#[derive(Debug, Clone)]
pub(super) struct SetItem {
    pub(super) resource: Slot,
    /// The resource's name, which events and views share: a copy for each would cost more than all the rest.
    pub(super) name: Arc<str>,
    pub(super) mode: Mode,
    /// It fits with all live claims that came before it on its resource.
    pub(super) admitted: bool,
    /// 0 before the grant.
    pub(super) token: u64,
    /// The slots that were granted.
    pub(super) slots: Box<[u16]>,
}

impl Set {
    /// The bytes that a set counts for beyond its claim: `names` are the lengths of its resources' names and their modes.
    pub(super) fn count_bytes(names: impl Iterator<Item = (usize, Mode)>, session: Option<&str>) -> u32 {
        let slots = |mode| if let Mode::Slots { take, .. } = mode { 4 * take as usize } else { 0 };
        let items =
            names.enumerate().map(|(place, (len, mode))| slots(mode) + if place > 0 { len } else { 0 });
        (items.sum::<usize>() + session.map_or(0, str::len)) as u32
    }
}

impl Record {
    /// How many items it has.
    pub(super) fn item_count(&self) -> usize {
        self.set().map_or(1, |set| set.items.len())
    }

    /// Where an item's resource stands, and how the item is wanted.
    pub(super) fn item(&self, place: usize) -> (Slot, Mode) {
        match self.set() {
            Some(set) => (set.items[place].resource, set.items[place].mode),
            None => (self.resource, Mode::Exclusive),
        }
    }

    /// All of them.
    pub(super) fn items(&self) -> impl Iterator<Item = (Slot, Mode)> {
        (0..self.item_count()).map(|place| self.item(place))
    }

    /// The place of the item on this resource.
    pub(super) fn place_of(&self, slot: Slot) -> usize {
        let items = self.set().map_or(&[][..], |set| &set.items);
        items.iter().position(|item| item.resource == slot).unwrap_or(0)
    }

    /// Whether it is exclusive on one resource alone, so that a call that names the resource may change it.
    pub(super) fn is_alone(&self) -> bool {
        self.item_count() == 1 && self.item(0).1 == Mode::Exclusive
    }

    /// The worker that it belongs to.
    pub(super) fn session(&self) -> Option<&Arc<str>> {
        self.set()?.session.as_ref()
    }

    /// Whether it waits only as long as its client asks for it.
    pub(super) fn lapses(&self) -> bool {
        self.set().is_some_and(|set| set.lapses)
    }
}

/// A set as it stands in a snapshot, with names instead of places.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SetRow {
    pub(super) items: Vec<ItemRow>,
    pub(super) session: Option<Arc<str>>,
    pub(super) lapses: bool,
}

/// One item of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ItemRow {
    pub(super) resource: Arc<str>,
    pub(super) mode: Mode,
    pub(super) admitted: bool,
    pub(super) token: u64,
    pub(super) slots: Vec<u16>,
}

impl Set {
    pub(super) fn to_row(&self) -> SetRow {
        let item = |item: &SetItem| ItemRow {
            resource: item.name.clone(),
            mode: item.mode,
            admitted: item.admitted,
            token: item.token,
            slots: item.slots.to_vec(),
        };
        let items = self.items.iter().map(item).collect();
        SetRow { items, session: self.session.clone(), lapses: self.lapses }
    }
}
