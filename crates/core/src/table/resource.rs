//! Resources: who holds each of them, who waits, who is over.
//!
//! In:    `steps.rs` and `wake.rs` keep them in step with the claims. Out: sequence numbers in their order, and the load.
//! Never: decides anything: `load.rs` does.
//!
//! A live claim is *admitted* to a resource when it fits with all that came before it there; until then it stands in the
//! queue. An admitted claim holds the resource, or *reserves* it while it waits for another resource of its set.
//!
//! Most resources have one claim, held or over, and nothing else, so the rest stands behind a pointer. To find one
//! among a million by its name costs a microsecond of cache misses, so a claim knows where its resource stands.

use std::collections::VecDeque;
use std::ops::Bound;

use super::crowd::Crowd;
use super::load::Load;
use super::name_index::{NameIndex, Spot};
use super::names::Names;
use crate::command::Mode;

/// Resources in one part. A growing table gets another part, and moves no resource.
const PART_LEN: usize = 1024;

/// Where a resource stands as long as it has a claim. Not part of the log: it may differ between nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(u32);

impl Slot {
    pub(super) fn new(number: u32) -> Self {
        Self(number)
    }

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// All resources.
#[derive(Debug, Default)]
pub(super) struct Resources {
    names: Names,
    /// Ordered, so that a prefix is a range.
    by_name: NameIndex,
    parts: Vec<Vec<Resource>>,
    /// Where nothing stands any more.
    free: Vec<Slot>,
}

impl Resources {
    pub(super) fn len(&self) -> usize {
        let room = self.parts.last().map_or(0, |last| (self.parts.len() - 1) * PART_LEN + last.len());
        room - self.free.len()
    }

    /// A copy of all names, which shares their pages.
    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    /// Where the resource with this name stands.
    pub(super) fn find(&self, name: &str) -> Option<Slot> {
        self.seek(name).ok()
    }

    /// The same, or where its name belongs: for [`Resources::make`], as long as no resource is made or removed.
    pub(super) fn seek(&self, name: &str) -> Result<Slot, Spot> {
        self.by_name.seek(name, &self.names)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Resource> {
        self.find(name).map(|slot| self.at(slot))
    }

    pub(super) fn name(&self, slot: Slot) -> &str {
        self.names.get(slot)
    }

    pub(super) fn at(&self, slot: Slot) -> &Resource {
        &self.parts[slot.index() / PART_LEN][slot.index() % PART_LEN]
    }

    pub(super) fn at_mut(&mut self, slot: Slot) -> &mut Resource {
        &mut self.parts[slot.index() / PART_LEN][slot.index() % PART_LEN]
    }

    /// Finds or makes a resource.
    pub(super) fn obtain(&mut self, name: &str) -> Slot {
        self.seek(name).unwrap_or_else(|spot| self.make(name, spot))
    }

    /// Makes a resource that does not exist yet.
    pub(super) fn make(&mut self, name: &str, spot: Spot) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            let full = self.parts.last().is_none_or(|part| part.len() == PART_LEN);
            if full {
                self.parts.push(Vec::with_capacity(PART_LEN));
            }
            let last = self.parts.len() - 1;
            self.parts[last].push(Resource::default());
            Slot::new((last * PART_LEN + self.parts[last].len() - 1) as u32)
        });
        self.names.put(slot, name);
        self.by_name.insert(spot, name, slot, &self.names);
        slot
    }

    /// Forgets a resource that has no claims.
    pub(super) fn remove(&mut self, slot: Slot) {
        *self.at_mut(slot) = Resource::default();
        self.by_name.remove(self.names.get(slot), &self.names);
        self.names.clear(slot);
        self.free.push(slot);
    }

    /// See [`super::Table::dismantle`].
    pub(super) fn dismantle(self, gone: &mut impl FnMut(&'static str)) {
        drop(self.by_name);
        gone("index by name");
        drop(self.names);
        gone("names");
        drop((self.parts, self.free));
        gone("resources");
    }

    /// From this name on, in order.
    pub(super) fn range(&self, start: Bound<&str>) -> impl Iterator<Item = (&str, &Resource)> {
        let (start, passed) = match start {
            Bound::Included(name) => (name, None),
            Bound::Excluded(name) => (name, Some(name)),
            Bound::Unbounded => ("", None),
        };
        let passed = passed.and_then(|name| self.find(name)).map_or(0, |_| 1);
        let slots = self.by_name.from(start, &self.names).skip(passed);
        slots.map(|slot| (self.name(slot), self.at(slot)))
    }
}

/// The claims of one resource, by sequence number.
#[derive(Debug, Default)]
pub struct Resource {
    /// The exclusive holder, 0 if none; or, marked as [`OVER`], the only claim there is: most resources never have two at a time.
    first: u64,
    /// Everything else; nothing beside a claim that is over.
    rest: Option<Box<Rest>>,
}

/// The claim is over. No sequence number comes near this.
const OVER: u64 = 1 << 63;
/// The claim that is over held the resource.
const HELD: u64 = 1 << 62;

#[derive(Debug, Default)]
struct Rest {
    /// Claims that are not admitted. First come, first served; ascending, since numbers are given in order of arrival.
    queue: VecDeque<u64>,
    /// Oldest end first.
    finished: VecDeque<u64>,
    /// Of those, the last that held the resource; 0 if none did. It is also the last of them to be forgotten.
    last_holder: u64,
    /// Claims that share the resource, have slots of it or reserve it; few resources have any.
    crowd: Option<Box<Crowd>>,
}

impl Resource {
    /// The claim that holds the resource; of several, the first that came.
    pub fn active(&self) -> Option<u64> {
        self.sole_holder().or_else(|| self.crowd()?.holders().next())
    }

    /// All claims that hold the resource, in order of their arrival.
    pub fn holders(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.sole_holder().into_iter().chain(self.crowd().into_iter().flat_map(Crowd::holders))
    }

    /// How many claims hold the resource.
    pub fn holders_len(&self) -> u64 {
        u64::from(self.sole_holder().is_some()) + self.crowd().map_or(0, Crowd::holders_len)
    }

    /// The claim that holds the resource exclusively.
    pub(super) fn sole_holder(&self) -> Option<u64> {
        (self.first != 0 && self.first & OVER == 0).then_some(self.first)
    }

    /// The waiting claims, next one first: those that reserve the resource, then those that stand in line for it.
    pub fn queue(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.reserved().chain(self.blocked())
    }

    /// The waiting claims from this number on.
    pub fn queue_from(&self, seq: u64) -> impl Iterator<Item = u64> {
        self.reserved().filter(move |other| *other >= seq).chain(self.blocked_from(seq))
    }

    /// The waiting claims that are admitted here, and reserve the resource until their other items are free.
    pub fn reserved(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.crowd().into_iter().flat_map(Crowd::reserved)
    }

    /// The waiting claims that are not admitted.
    pub(super) fn blocked(&self) -> impl DoubleEndedIterator<Item = u64> {
        static NONE: VecDeque<u64> = VecDeque::new();
        self.rest.as_ref().map_or(&NONE, |rest| &rest.queue).iter().copied()
    }

    /// The same, from this number on.
    pub(super) fn blocked_from(&self, seq: u64) -> impl Iterator<Item = u64> {
        let passed = self.rest.as_ref().map_or(0, |rest| rest.queue.partition_point(|other| *other < seq));
        self.blocked().skip(passed)
    }

    /// The finished claims, oldest end first.
    pub fn finished(&self) -> impl DoubleEndedIterator<Item = u64> {
        static NONE: VecDeque<u64> = VecDeque::new();
        let rest = self.rest.as_ref().map_or(&NONE, |rest| &rest.finished);
        self.only_finished().into_iter().chain(rest.iter().copied())
    }

    /// How many there are.
    pub fn finished_len(&self) -> usize {
        self.rest.as_ref().map_or(usize::from(self.first & OVER != 0), |rest| rest.finished.len())
    }

    fn only_finished(&self) -> Option<u64> {
        (self.first & OVER != 0).then_some(self.first & !(OVER | HELD))
    }

    /// The place of a waiting claim, 1 = next.
    pub fn position(&self, seq: u64) -> Option<u64> {
        let reserved = self.crowd().map_or(0, Crowd::reserved_len);
        let queue = &self.rest.as_ref()?.queue;
        match queue.binary_search(&seq) {
            Ok(place) => Some(reserved + place as u64 + 1),
            Err(_) => self.crowd()?.place_reserved(seq).map(|place| place + 1),
        }
    }

    /// How many claims wait.
    pub fn queue_len(&self) -> u64 {
        let blocked = self.rest.as_ref().map_or(0, |rest| rest.queue.len() as u64);
        blocked + self.crowd().map_or(0, Crowd::reserved_len)
    }

    /// How many slots the resource has, as long as a live claim has or wants some.
    pub fn capacity(&self) -> Option<u16> {
        self.crowd()?.capacity()
    }

    pub(super) fn crowd(&self) -> Option<&Crowd> {
        self.rest.as_ref()?.crowd.as_deref()
    }

    /// What the admitted claims come to.
    pub(super) fn load(&self) -> Load {
        match self.crowd() {
            _ if self.sole_holder().is_some() => Load::Full,
            Some(crowd) => crowd.load(),
            None => Load::Free,
        }
    }

    /// Whether no live or finished claim is left.
    pub(super) fn is_empty(&self) -> bool {
        self.first == 0 && self.rest.as_ref().is_none_or(|rest| rest.is_empty())
    }

    // ---- live claims

    /// An admitted claim becomes a holder; one that reserved the resource reserves it no longer.
    pub(super) fn hold(&mut self, seq: u64, mode: Mode) {
        if self.first & OVER != 0 {
            self.rest();
        }
        match mode {
            Mode::Exclusive => {
                self.first = seq;
                self.change_crowd(|crowd| crowd.unreserve(seq, mode));
            }
            _ => self.crowd_mut().hold(seq, mode),
        }
    }

    /// A waiting claim is admitted, and reserves the resource.
    pub(super) fn reserve(&mut self, seq: u64, mode: Mode) {
        self.crowd_mut().reserve(seq, mode);
    }

    /// A holder lets go.
    pub(super) fn let_go(&mut self, seq: u64, mode: Mode) {
        match mode {
            Mode::Exclusive => self.first = 0,
            _ => self.change_crowd(|crowd| crowd.let_go(seq, mode)),
        }
    }

    /// A waiting claim leaves, wherever it waits.
    pub(super) fn stop_waiting(&mut self, seq: u64, mode: Mode) {
        if !self.remove_blocked(seq) {
            self.change_crowd(|crowd| crowd.unreserve(seq, mode));
        }
    }

    /// A claim that wants slots has come: as long as there is one, the resource has this many.
    pub(super) fn add_slot_claim(&mut self, of: u16) {
        self.crowd_mut().add_slot_claim(of);
    }

    /// A claim that wanted or had slots is over.
    pub(super) fn remove_slot_claim(&mut self, slots: &[u16]) {
        self.change_crowd(|crowd| crowd.remove_slot_claim(slots));
    }

    pub(super) fn crowd_mut(&mut self) -> &mut Crowd {
        self.rest().crowd.get_or_insert_default()
    }

    /// Changes the crowd, if there is one. It goes with its last claim.
    fn change_crowd(&mut self, change: impl FnOnce(&mut Crowd)) {
        let Some(rest) = &mut self.rest else { return };
        if let Some(crowd) = &mut rest.crowd {
            change(crowd);
            if crowd.is_empty() {
                rest.crowd = None;
            }
        }
    }

    /// The rest, where a second claim finds room.
    fn rest(&mut self) -> &mut Rest {
        let (only, last_holder) = (self.only_finished(), self.last_holder());
        let rest = self.rest.get_or_insert_default();
        if let Some(seq) = only {
            rest.finished.push_back(seq);
            rest.last_holder = last_holder.unwrap_or(0);
            self.first = 0;
        }
        rest
    }

    pub(super) fn push_blocked(&mut self, seq: u64) {
        self.rest().queue.push_back(seq);
    }

    pub(super) fn first_blocked(&self) -> Option<u64> {
        self.rest.as_ref()?.queue.front().copied()
    }

    /// Takes a claim out of the queue. Says whether it stood there.
    pub(super) fn remove_blocked(&mut self, seq: u64) -> bool {
        let Some(rest) = &mut self.rest else { return false };
        let place = rest.queue.binary_search(&seq);
        if let Ok(place) = place {
            rest.queue.remove(place);
        }
        if rest.queue.is_empty() {
            // A queue that once was long gives its memory back.
            rest.queue = VecDeque::new();
        }
        place.is_ok()
    }

    // ---- finished claims

    /// The finished claim that held the resource last.
    pub(super) fn last_holder(&self) -> Option<u64> {
        let only = self.only_finished().filter(|_| self.first & HELD != 0);
        only.or_else(|| self.rest.as_ref().map(|rest| rest.last_holder).filter(|seq| *seq != 0))
    }

    pub(super) fn push_finished(&mut self, seq: u64, held: bool) {
        if self.first == 0 && self.rest.is_none() {
            self.first = seq | OVER | if held { HELD } else { 0 };
            return;
        }
        let rest = self.rest();
        rest.finished.push_back(seq);
        if held {
            rest.last_holder = seq;
        }
    }

    /// Forgets the oldest finished claim.
    pub(super) fn pop_finished(&mut self) {
        if self.first & OVER != 0 {
            self.first = 0;
        }
        let Some(rest) = &mut self.rest else { return };
        if rest.finished.pop_front() == Some(rest.last_holder) {
            rest.last_holder = 0;
        }
        if rest.is_empty() {
            self.rest = None;
        }
    }
}

impl Rest {
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.finished.is_empty() && self.crowd.is_none()
    }
}
