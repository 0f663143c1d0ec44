//! Who is next: after an end, the claims that fit now are admitted, and granted when all their items are.
//!
//! In:    the resources on which something has ended (`Table::woken`). Out: grants, in log order.
//! Never: admits a claim that does not fit with all live claims before it, or one whose deadline has come.
//!
//! On each resource the admitted claims come first in log order, and then the queue: if a claim does not fit with all
//! before it, no later one does. So only the first of each queue is ever looked at, and a queue's length costs nothing.

use super::Table;
use super::resource::Slot;
use super::steps::GrantedHow;
use crate::command::Mode;
use crate::event::Event;

/// What keeps an item from being admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// The first claim in the way. If it waits itself, it came first and reserves the resource.
    pub(super) claim: u64,
    /// It may be over, or about to be admitted: a later entry knows more.
    pub(super) unsettled: bool,
}

impl Table {
    /// Whether an item fits with all live claims on its resource, once what is due there has ended.
    pub(super) fn obstacle(&mut self, slot: Slot, mode: Mode, events: &mut Vec<Event>) -> Option<Obstacle> {
        self.settle(slot, events);
        #[cfg(feature = "planted")]
        if self.planted.grant_twice {
            return None;
        }
        let takes = self.takes(slot, mode);
        // Nobody overtakes: behind a queue it does not fit either.
        let head = if self.resources.at(slot).first_blocked().is_some() && takes {
            self.first_in_time(slot)
        } else {
            None
        };
        let resource = self.resources.at(slot);
        let claim = match head {
            None if takes => return None,
            Some(head) => head,
            None => resource.active().or_else(|| resource.reserved().next())?,
        };
        let unsettled = head.is_some_and(|seq| self.is_admissible(seq, slot));
        Some(Obstacle { claim, unsettled: unsettled || self.entry.unsettled.contains(&slot) })
    }

    /// Whether an item fits with all admitted claims.
    #[cfg(not(feature = "planted"))]
    fn takes(&self, slot: Slot, mode: Mode) -> bool {
        self.resources.at(slot).load().takes(mode)
    }

    #[cfg(feature = "planted")]
    fn takes(&self, slot: Slot, mode: Mode) -> bool {
        self.planted_takes(slot, mode)
    }

    /// Whether a waiting claim's item fits, and only the entry's budget kept it from being admitted.
    fn is_admissible(&self, seq: u64, slot: Slot) -> bool {
        self.admissible.contains(&(seq, self.claims.at(seq).place_of(slot) as u32))
    }

    /// Wakes a resource on which something may fit now.
    pub(super) fn promote(&mut self, slot: Slot, events: &mut Vec<Event>) {
        self.woken.push(slot);
        self.wake(events);
    }

    /// Admits what fits since the last ends, in log order, as much as the entry may.
    pub(super) fn wake(&mut self, events: &mut Vec<Event>) {
        loop {
            while let Some(slot) = self.woken.pop() {
                self.find_admissible(slot, events);
            }
            if self.entry.admissions_left == 0 {
                break;
            }
            let Some((seq, place)) = self.admissible.pop_first() else { break };
            let (slot, _) = self.claims.at(seq).item(place as usize);
            if !self.claims.at(seq).is_due(self.clock.now_us) {
                self.entry.admissions_left -= 1;
                self.admit(seq, place as usize, events);
            }
            self.woken.push(slot);
        }
    }

    /// Notes the first of a queue whose wait is not over, if it fits. Those before it end, as many of them as the entry may
    /// still end; the others are passed over.
    fn find_admissible(&mut self, slot: Slot, events: &mut Vec<Event>) {
        while !self.resources.at(slot).load().is_full()
            && let Some(head) = self.next_blocked(slot)
        {
            let found = if !self.claims.at(head).is_due(self.clock.now_us) {
                Some(head)
            } else if self.entry.overdue_left > 0 {
                self.entry.overdue_left =
                    self.entry.overdue_left.saturating_sub(self.claims.at(head).item_count());
                self.end_quietly(head, events);
                continue;
            } else {
                self.first_in_time(slot)
            };
            let Some(seq) = found else { return };
            let claim = self.claims.at(seq);
            let place = claim.place_of(slot);
            if self.takes(slot, claim.item(place).1) {
                self.admissible.insert((seq, place as u32));
            }
            return;
        }
    }

    /// An item of a waiting claim fits: the claim is granted if it was the last, and reserves the resource otherwise.
    fn admit(&mut self, seq: u64, place: usize, events: &mut Vec<Event>) {
        let (slot, mode) = self.claims.at(seq).item(place);
        self.resources.at_mut(slot).remove_blocked(seq);
        let mut blocked = 0;
        if self.claims.at(seq).set().is_some() {
            self.claims.update(seq, |claim| {
                if let Some(set) = claim.set_mut() {
                    set.items[place].admitted = true;
                    set.blocked -= 1;
                    blocked = set.blocked;
                }
            });
        }
        if blocked == 0 {
            self.grant(seq, GrantedHow::FromQueue, events);
        } else {
            self.resources.at_mut(slot).reserve(seq, mode);
        }
    }

    /// The first in a queue whose wait is not over. The next search goes on from there.
    pub(super) fn first_in_time(&mut self, slot: Slot) -> Option<u64> {
        let passed = self.entry.passed.filter(|(passed, _)| *passed == slot).map_or(0, |(_, seq)| seq);
        let mut rest = self.resources.at(slot).blocked_from(passed);
        let found = rest.find(|seq| !self.claims.at(*seq).is_due(self.clock.now_us));
        self.entry.passed = Some((slot, found.unwrap_or(self.claims.next_seq())));
        found
    }

    #[cfg(not(feature = "planted"))]
    fn next_blocked(&self, slot: Slot) -> Option<u64> {
        self.resources.at(slot).first_blocked()
    }

    #[cfg(feature = "planted")]
    fn next_blocked(&self, slot: Slot) -> Option<u64> {
        self.planted_next(self.resources.at(slot))
    }
}
