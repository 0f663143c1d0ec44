//! Settling: claims whose deadline has come end before a command looks at their resources.
//!
//! In:    a resource or a claim that a command touches; the clock of the entry. Out: due claims ended as of their deadlines,
//!        and their resources handed over (`wake.rs`).
//! Never: works off a whole backlog at once. Of a crowd or a queue it ends as many claims as the entry may still end; the rest
//!        follows in later entries.

use super::Table;
use super::claim::Status;
use super::crowd::Crowd;
use super::resource::Slot;
use crate::command::Target;
use crate::event::Event;
use crate::limits::SETTLED_HOLDERS_MAX;
use crate::outcome::Rejection;

impl Table {
    /// The claim a command means, after what is due on its resource has ended.
    pub(super) fn find_settled(
        &mut self,
        target: &Target,
        events: &mut Vec<Event>,
    ) -> Result<u64, Rejection> {
        match target {
            Target::Claim(id) => {
                let seq = self.find(*id).ok_or(Rejection::Unknown(*id))?;
                self.settle_of(seq, events);
                Ok(seq)
            }
            Target::Holder(resource) => {
                let slot = self.resources.find(resource);
                let holder = slot.and_then(|slot| self.settled_holder(slot, events));
                let Some(seq) = holder else {
                    let last = self.last_holder(slot).map(Box::new);
                    return Err(Rejection::NotHeld(resource.clone(), last));
                };
                // Who names a resource means that one alone, and would change others, or only one of several holders.
                if self.claims.at(seq).is_alone() {
                    Ok(seq)
                } else {
                    Err(Rejection::NotAlone(Box::new(self.view(seq))))
                }
            }
        }
    }

    /// Who holds a resource, once what is due has ended.
    pub(super) fn settled_holder(&mut self, slot: Slot, events: &mut Vec<Event>) -> Option<u64> {
        self.settle(slot, events);
        #[cfg(feature = "planted")]
        if self.planted.grant_twice {
            return None;
        }
        self.resources.at(slot).active()
    }

    /// Ends the holders of one resource that are due, and hands it over.
    pub(super) fn settle(&mut self, slot: Slot, events: &mut Vec<Event>) {
        let resource = self.resources.at(slot);
        if let Some(seq) = resource.sole_holder() {
            if self.claims.at(seq).is_due(self.clock.now_us) {
                self.end_due(seq, events);
            }
        } else if resource.crowd().is_some() {
            self.settle_crowd(slot, events);
        }
    }

    /// Ends those that are due of the claims that share a resource, have slots of it or reserve it: as many as the entry may
    /// still end. Only a backlog leaves any, and nobody looks through a large crowd for them.
    fn settle_crowd(&mut self, slot: Slot, events: &mut Vec<Event>) {
        if !self.has_backlog() || self.entry.unsettled.contains(&slot) {
            return;
        }
        let resource = self.resources.at(slot);
        if resource.crowd().map_or(0, Crowd::admitted) > SETTLED_HOLDERS_MAX {
            self.entry.unsettled.insert(slot);
            return;
        }
        let now_us = self.clock.now_us;
        let admitted = resource.holders().chain(resource.reserved());
        let due: Vec<u64> = admitted.filter(|seq| self.claims.at(*seq).is_due(now_us)).collect();
        for seq in due {
            let items = self.claims.at(seq).item_count();
            if self.entry.overdue_left < items {
                self.entry.unsettled.insert(slot);
                break;
            }
            self.entry.overdue_left -= items;
            self.end_quietly(seq, events);
        }
        self.wake(events);
    }

    /// Whether more claims were due than the entry could end at its start.
    pub(super) fn has_backlog(&self) -> bool {
        self.deadlines.first().is_some_and(|(due_us, _)| due_us <= self.clock.now_us)
    }

    /// The same as [`Table::settle`], and the claims of the queue whose wait is over: as many as the entry may still end, and
    /// one at least, so that whoever asks again comes to an end, and a full queue of them has room.
    pub(super) fn settle_queue(&mut self, slot: Slot, events: &mut Vec<Event>) {
        self.settle(slot, events);
        let now_us = self.clock.now_us;
        // Only a backlog leaves anything due; there is no need to look through a queue without one.
        if self.has_backlog() && self.entry.settled != Some(slot) {
            let max = self.entry.overdue_left.max(1);
            let queue = self.resources.at(slot).blocked();
            let due: Vec<u64> = queue.filter(|seq| self.claims.at(*seq).is_due(now_us)).take(max).collect();
            if due.len() < max {
                self.entry.settled = Some(slot);
            }
            self.entry.overdue_left = self.entry.overdue_left.saturating_sub(due.len());
            due.into_iter().for_each(|seq| self.end_quietly(seq, events));
            self.wake(events);
        }
    }

    /// Ends a claim if it is due. If it waits, its resources are settled first: it may be its turn.
    pub(super) fn settle_of(&mut self, seq: u64, events: &mut Vec<Event>) {
        let claim = self.claims.at(seq);
        if claim.status == Status::Waiting {
            match claim.set() {
                None => self.settle(claim.resource, events),
                Some(set) => {
                    let slots: Vec<Slot> = set.items.iter().map(|item| item.resource).collect();
                    slots.into_iter().for_each(|slot| self.settle(slot, events));
                }
            }
        }
        if self.claims.at(seq).is_due(self.clock.now_us) {
            self.end_due(seq, events);
        }
    }

    /// Ends a claim whose deadline has come, as of its deadline; what it held goes to the next from now on.
    pub(super) fn end_due(&mut self, seq: u64, events: &mut Vec<Event>) {
        self.end_quietly(seq, events);
        self.wake(events);
    }

    /// The same, before anybody is woken.
    pub(super) fn end_quietly(&mut self, seq: u64, events: &mut Vec<Event>) {
        let claim = self.claims.at(seq);
        let deadline_us = claim.deadline_us().unwrap_or(self.clock.now_us);
        self.end(seq, claim.status_when_due(), deadline_us, None, events);
    }

    /// Ends claims that are due, in order of their deadlines, until they had `max` items.
    pub(super) fn expire_due(&mut self, max: usize, events: &mut Vec<Event>) {
        let mut items = 0;
        while items < max
            && let Some((deadline_us, seq)) = self.deadlines.first()
            && deadline_us <= self.clock.now_us
        {
            items += self.claims.at(seq).item_count();
            self.end_due(seq, events);
        }
    }
}
