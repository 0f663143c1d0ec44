//! One resource: who holds it, who waits, who is over.
//!
//! In:    `apply.rs` keeps it in step with the claims. Out: sequence numbers in their order.
//! Never: decides anything.
//!
//! Most resources have a holder and nothing else, so the rest stands behind a pointer.

use std::collections::VecDeque;

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
