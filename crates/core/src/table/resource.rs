//! Resources: who holds each of them, who waits, who is over.
//!
//! In:    `steps.rs` keeps them in step with the claims. Out: sequence numbers in their order.
//! Never: decides anything.
//!
//! Most resources have a holder and nothing else, so the rest stands behind a pointer. To find one among a million
//! by its name costs a microsecond of cache misses, so a claim knows where its resource stands.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// So many resources stand together: growing moves none of them.
const PART_LEN: usize = 1024;

/// Where a resource stands as long as it has a claim. Not part of the log: it may differ between nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// All resources.
#[derive(Debug, Default)]
pub(super) struct Resources {
    /// Ordered, so that a prefix is a range.
    names: BTreeMap<Arc<str>, Slot>,
    parts: Vec<Vec<Resource>>,
    /// Where nothing stands any more.
    free: Vec<Slot>,
}

impl Resources {
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Where the resource with this name stands.
    pub(super) fn find(&self, name: &str) -> Option<Slot> {
        self.names.get(name).copied()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Resource> {
        self.find(name).map(|slot| self.at(slot))
    }

    pub(super) fn at(&self, slot: Slot) -> &Resource {
        let slot = slot.0 as usize;
        &self.parts[slot / PART_LEN][slot % PART_LEN]
    }

    pub(super) fn at_mut(&mut self, slot: Slot) -> &mut Resource {
        let slot = slot.0 as usize;
        &mut self.parts[slot / PART_LEN][slot % PART_LEN]
    }

    /// Finds or makes a resource; gives back the one copy of its name, too.
    pub(super) fn obtain(&mut self, name: &Arc<str>) -> (Slot, Arc<str>) {
        let entry = match self.names.entry(name.clone()) {
            Entry::Occupied(entry) => return (*entry.get(), entry.key().clone()),
            Entry::Vacant(entry) => entry,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            let full = self.parts.last().is_none_or(|part| part.len() == PART_LEN);
            if full {
                self.parts.push(Vec::with_capacity(PART_LEN));
            }
            let last = self.parts.len() - 1;
            self.parts[last].push(Resource::default());
            Slot((last * PART_LEN + self.parts[last].len() - 1) as u32)
        });
        entry.insert(slot);
        (slot, name.clone())
    }

    /// Forgets a resource that has no claims.
    pub(super) fn remove(&mut self, slot: Slot, name: &str) {
        *self.at_mut(slot) = Resource::default();
        self.names.remove(name);
        self.free.push(slot);
    }

    /// From this name on, in order.
    pub(super) fn range(&self, start: Bound<&str>) -> impl Iterator<Item = (&Arc<str>, &Resource)> {
        self.names.range::<str, _>((start, Bound::Unbounded)).map(|(name, slot)| (name, self.at(*slot)))
    }
}

/// The claims of one resource, by sequence number.
#[derive(Debug, Default)]
pub struct Resource {
    /// The holder; 0 if none.
    active: u64,
    rest: Option<Box<Rest>>,
}

#[derive(Debug, Default)]
struct Rest {
    /// First come, first served; ascending, since numbers are given in order of arrival.
    queue: VecDeque<u64>,
    /// Oldest end first.
    finished: VecDeque<u64>,
}

impl Resource {
    /// The claim that holds the resource.
    pub fn active(&self) -> Option<u64> {
        (self.active != 0).then_some(self.active)
    }

    /// The waiting claims, next one first.
    pub fn queue(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator {
        static NONE: VecDeque<u64> = VecDeque::new();
        self.rest.as_ref().map_or(&NONE, |rest| &rest.queue).iter().copied()
    }

    /// The finished claims, oldest end first.
    pub fn finished(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator {
        static NONE: VecDeque<u64> = VecDeque::new();
        self.rest.as_ref().map_or(&NONE, |rest| &rest.finished).iter().copied()
    }

    /// The place of a waiting claim, 1 = next.
    pub fn position(&self, seq: u64) -> Option<u64> {
        let queue = &self.rest.as_ref()?.queue;
        queue.binary_search(&seq).ok().map(|place| place as u64 + 1)
    }

    pub(super) fn queue_len(&self) -> u64 {
        self.rest.as_ref().map_or(0, |rest| rest.queue.len() as u64)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.active == 0
            && self.rest.as_ref().is_none_or(|rest| rest.queue.is_empty() && rest.finished.is_empty())
    }

    pub(super) fn set_active(&mut self, seq: Option<u64>) {
        self.active = seq.unwrap_or(0);
    }

    pub(super) fn push_waiting(&mut self, seq: u64) {
        self.rest.get_or_insert_default().queue.push_back(seq);
    }

    pub(super) fn first_waiting(&self) -> Option<u64> {
        self.rest.as_ref()?.queue.front().copied()
    }

    pub(super) fn remove_waiting(&mut self, seq: u64) {
        let Some(rest) = &mut self.rest else { return };
        if let Ok(place) = rest.queue.binary_search(&seq) {
            rest.queue.remove(place);
        }
        if rest.queue.is_empty() {
            // A queue that once was long gives its memory back.
            rest.queue = VecDeque::new();
        }
    }

    pub(super) fn push_finished(&mut self, seq: u64) {
        self.rest.get_or_insert_default().finished.push_back(seq);
    }

    /// Forgets the oldest finished claim.
    pub(super) fn pop_finished(&mut self) {
        let Some(rest) = &mut self.rest else { return };
        rest.finished.pop_front();
        if rest.queue.is_empty() && rest.finished.is_empty() {
            self.rest = None;
        }
    }
}
