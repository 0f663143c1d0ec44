//! Live claims of a snapshot take their places again: holders, reservations, queues, slots, phases and sessions.
//!
//! In:    claims in order of creation, from `restore.rs`. Out: the derived parts of the table; or what contradicts what.
//! Never: believes a claim: one that does not fit with those before it is no claim of a sound table.

use std::ops::Bound;

use super::Table;
use super::claim::Status;
use super::record::Record;
use super::restore::{Admissible, RestoreError, wrong_claim};
use super::set::{Set, SetItem, SetRow};
use crate::command::Mode;
use crate::limits::{ITEMS_MAX, SLOTS_MAX};

impl Table {
    /// Gives a claim its set, with places instead of names.
    pub(super) fn restore_set(
        &mut self,
        claim: &mut Record,
        row: SetRow,
        name: &str,
    ) -> Result<(), &'static str> {
        if row.items.first().is_none_or(|first| *first.resource != *name) || row.items.len() > ITEMS_MAX {
            return Err("has a set that does not begin with its resource, or is too long");
        }
        let names = row.items.iter().map(|item| (item.resource.len(), item.mode));
        let bytes = Set::count_bytes(names, row.session.as_deref());
        let mut items: Vec<SetItem> = Vec::with_capacity(row.items.len());
        for item in row.items {
            let resource = self.resources.obtain(&item.resource);
            let sound = match item.mode {
                Mode::Slots { take, of } => take >= 1 && take <= of && of <= SLOTS_MAX,
                _ => item.slots.is_empty(),
            };
            let granted = claim.was_granted();
            let twice = items.iter().any(|other| other.resource == resource);
            if !sound || twice || (item.token > 0) != granted || item.token > claim.token.get() {
                return Err("has an item with a wrong mode, name or token");
            }
            let (mode, admitted, token) = (item.mode, item.admitted, item.token);
            items.push(SetItem {
                resource,
                name: item.resource,
                mode,
                admitted,
                token,
                slots: item.slots.into(),
            });
        }
        let blocked = match claim.status {
            Status::Waiting => items.iter().filter(|item| !item.admitted).count() as u32,
            _ => 0,
        };
        if claim.status == Status::Waiting && blocked == 0 {
            return Err("is waiting and already has all its resources");
        }
        claim.put_set(Box::new(Set { items, session: row.session, lapses: row.lapses, blocked, bytes }));
        Ok(())
    }

    /// Puts a live claim onto its resources, if it fits those before it, so that no index can contradict another.
    pub(super) fn restore_live(&mut self, seq: u64, claim: &Record) -> Result<(), &'static str> {
        let holds = claim.status == Status::Active;
        let Some(set) = claim.set() else {
            let resource = self.resources.at_mut(claim.resource);
            match holds {
                true if !resource.load().takes(Mode::Exclusive) => {
                    return Err("holds a resource that another claim holds");
                }
                true => resource.hold(seq, Mode::Exclusive),
                false => resource.push_blocked(seq),
            }
            return Ok(());
        };
        match holds {
            true => self.holding_sets.add(set),
            false => self.waiting_sets.add(set),
        }
        for (place, item) in set.items.iter().enumerate() {
            if place > 0 {
                self.count_item(&item.name, &claim.owner);
            }
            self.restore_item(seq, item, holds)?;
        }
        match &set.session {
            Some(session) if holds => self.sessions.add_holding(session),
            Some(session) => self.sessions.add_waiting(session, seq),
            None => {}
        }
        Ok(())
    }

    fn restore_item(&mut self, seq: u64, item: &SetItem, holds: bool) -> Result<(), &'static str> {
        let resource = self.resources.at_mut(item.resource);
        if let Mode::Slots { of, .. } = item.mode {
            if resource.capacity().is_some_and(|present| present != of) {
                return Err("gives its resource another number of slots than other claims do");
            }
            resource.add_slot_claim(of);
        }
        let admitted = holds || item.admitted;
        if admitted && !resource.load().takes(item.mode) {
            return Err("holds or reserves a resource that another claim holds");
        }
        match (holds, item.admitted) {
            (true, _) => resource.hold(seq, item.mode),
            (false, true) => resource.reserve(seq, item.mode),
            (false, false) => resource.push_blocked(seq),
        }
        match item.mode {
            Mode::Shared if holds => {
                let crowd = resource.crowd_mut();
                if crowd.phase_token().is_some_and(|token| token != item.token) {
                    return Err("shares a resource under another token than the other holders");
                }
                crowd.set_phase_token(item.token);
            }
            Mode::Slots { take, .. } if holds => {
                let crowd = resource.crowd_mut();
                if item.slots.len() != take as usize || !item.slots.iter().all(|slot| crowd.use_slot(*slot)) {
                    return Err("has a wrong number of slots, or slots that another claim has");
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes over what waits to be admitted, if it does. Before version 3 nothing ever does.
    pub(super) fn restore_admissible(&mut self, admissible: Admissible) -> Result<(), RestoreError> {
        for (seq, place) in &admissible {
            let claim = self.claims.get(*seq).filter(|claim| claim.status == Status::Waiting);
            let item = claim.filter(|claim| (*place as usize) < claim.item_count());
            let Some((slot, mode)) = item.map(|claim| claim.item(*place as usize)) else {
                return Err(wrong_claim(*seq, "is listed as next for a resource that it does not wait for"));
            };
            let resource = self.resources.at(slot);
            if !resource.load().takes(mode) || !resource.blocked().any(|other| other == *seq) {
                return Err(wrong_claim(*seq, "is listed as next for a resource that is not free for it"));
            }
        }
        self.admissible = admissible.into_iter().collect();
        if self.version.number() < 3 {
            self.check_nobody_waits_in_vain()?;
        }
        Ok(())
    }

    /// Claims whose wait is over may have been passed over by a newer holder, until their turn to end comes.
    fn check_nobody_waits_in_vain(&self) -> Result<(), RestoreError> {
        for (_, resource) in self.resources.range(Bound::Unbounded) {
            let in_time = |seq: &u64| !self.claims.at(*seq).is_due(self.clock.now_us);
            if resource.active().is_none()
                && let Some(seq) = resource.blocked().find(in_time)
            {
                return Err(wrong_claim(seq, "is waiting for a resource that nobody holds"));
            }
        }
        Ok(())
    }
}
