//! Claims with items: shared, in slots, several at once, or as part of a session.
//!
//! In:    [`NewSet`]. Out: all items granted in one instant, a place in every line, or a refusal that names what is in the way.
//! Never: leaves a part of a set behind: every check comes before the first change.

use std::collections::{BTreeMap, BTreeSet};

use super::Table;
use super::crowd::Crowd;
#[cfg(feature = "planted")]
use super::planted::TableBug;
use super::resource::Slot;
use super::set::{Set, SetItem};
use super::steps::GrantedHow;
use super::wake::Obstacle;
use crate::command::{Mode, NewSet, OnBusy};
use crate::event::Event;
use crate::limits::{HOLDERS_MAX, ITEMS_MAX, SLOTS_MAX};
use crate::outcome::{Outcome, Rejection};

impl Table {
    pub(super) fn claim_set(&mut self, new: &NewSet, events: &mut Vec<Event>) -> Result<Outcome, Rejection> {
        self.require_version(3)?;
        if let Some(answer) = self.earlier(new.id, new.idempotency.as_ref(), events) {
            return answer;
        }
        check_items(new)?;
        // No resource comes or goes before the claim is made: its items are looked up once.
        let known: Vec<Option<Slot>> =
            new.items.iter().map(|item| self.resources.find(&item.resource)).collect();
        self.settle_items(new, &known, events);
        self.check_capacities(new, &known)?;
        let obstacles = self.obstacles(new, &known, events);
        let waits = obstacles.iter().any(Option::is_some);
        #[cfg(feature = "planted")]
        let waits = waits && !(self.has_bug(TableBug::PartOfASet) && obstacles.iter().any(Option::is_none));
        if waits && new.on_busy == OnBusy::Refuse {
            return Err(self.refuse_to_wait(new, &obstacles));
        }
        self.check_places(&known, &obstacles)?;
        self.check_room(new)?;
        if waits {
            self.check_deadlock(new, &obstacles)?;
        }
        let seq = self.create_set(new, &known, &obstacles);
        if waits {
            self.enqueue(seq, new.on_busy, events);
            return Ok(Outcome::Queued(Box::new(self.view(seq))));
        }
        self.grant(seq, GrantedHow::AtOnce, events);
        Ok(Outcome::Granted(Box::new(self.view(seq))))
    }

    /// Ends what is due on every resource of a set before any of them is looked at: the end of a set frees several.
    fn settle_items(&mut self, new: &NewSet, known: &[Option<Slot>], events: &mut Vec<Event>) {
        for (item, slot) in new.items.iter().zip(known) {
            let Some(slot) = *slot else { continue };
            self.settle(slot, events);
            let wanted = if let Mode::Slots { of, .. } = item.mode { Some(of) } else { None };
            let present = self.resources.at(slot).capacity();
            // A claim that is over sets no capacity and takes no place, wherever it stands.
            let other = present.is_some() && wanted.is_some() && present != wanted;
            if other || self.queue_is_full(slot) {
                self.settle_queue(slot, events);
            }
        }
    }

    fn check_capacities(&self, new: &NewSet, known: &[Option<Slot>]) -> Result<(), Rejection> {
        #[cfg(feature = "planted")]
        if self.has_bug(TableBug::CapacityIgnored) {
            return Ok(());
        }
        for (item, slot) in new.items.iter().zip(known) {
            let present = slot.and_then(|slot| self.resources.at(slot).capacity());
            if let (Mode::Slots { of, .. }, Some(present)) = (item.mode, present)
                && of != present
            {
                // What is over and still stands there sets no capacity.
                let may_be_over = |slot| {
                    self.entry.unsettled.contains(&slot)
                        || (self.has_backlog() && self.entry.settled != Some(slot))
                };
                let unsettled = slot.is_some_and(may_be_over);
                return Err(match unsettled {
                    true => Rejection::Unsettled(item.resource.clone()),
                    false => Rejection::Capacity { resource: item.resource.clone(), of: present },
                });
            }
        }
        Ok(())
    }

    /// What is in the way of each item.
    fn obstacles(
        &mut self,
        new: &NewSet,
        known: &[Option<Slot>],
        events: &mut Vec<Event>,
    ) -> Vec<Option<Obstacle>> {
        let items = new.items.iter().zip(known);
        items.map(|(item, slot)| self.obstacle((*slot)?, item.mode, events)).collect()
    }

    fn refuse_to_wait(&self, new: &NewSet, obstacles: &[Option<Obstacle>]) -> Rejection {
        let mut in_the_way =
            new.items.iter().zip(obstacles).filter_map(|(item, found)| Some((item, (*found)?)));
        let first = in_the_way.clone().find(|(_, found)| !found.unsettled).or_else(|| in_the_way.next());
        match first {
            Some((item, found)) if !found.unsettled => {
                let by = Box::new(self.view(found.claim));
                Rejection::Blocked { resource: item.resource.clone(), by }
            }
            Some((item, _)) => Rejection::Unsettled(item.resource.clone()),
            None => Rejection::BadItems,
        }
    }

    /// Room in every queue if the claim has to wait, and among the holders where an item does not.
    fn check_places(&self, known: &[Option<Slot>], obstacles: &[Option<Obstacle>]) -> Result<(), Rejection> {
        let waits = obstacles.iter().any(Option::is_some);
        for (slot, obstacle) in known.iter().zip(obstacles) {
            let Some(slot) = *slot else { continue };
            if waits && self.queue_is_full(slot) {
                return Err(Rejection::QueueFull(self.settings.queue_len_max));
            }
            if obstacle.is_none()
                && self.resources.at(slot).crowd().map_or(0, Crowd::admitted) as u64 >= HOLDERS_MAX
            {
                return Err(Rejection::HoldersFull(HOLDERS_MAX));
            }
        }
        Ok(())
    }

    /// Limits count items.
    fn check_room(&self, new: &NewSet) -> Result<(), Rejection> {
        let items = new.items.len() as u64;
        self.check_table_room(items)?;
        let mut more: BTreeMap<&str, u64> = BTreeMap::new();
        for item in &new.items {
            let more = more.entry(self.version.namespace_of(&item.resource)).or_default();
            *more += 1;
            self.check_namespace_room(&item.resource, *more)?;
        }
        self.check_owner_room(&new.owner, items)?;
        self.check_bytes(&new.items[0].resource, &new.owner, new.counted_bytes())
    }

    fn create_set(&mut self, new: &NewSet, known: &[Option<Slot>], obstacles: &[Option<Obstacle>]) -> u64 {
        let first = &new.items[0].resource;
        let at = known[0].map_or_else(|| self.resources.seek(first), Ok);
        let names = (new.id, first, &new.owner);
        let seq = self.create(names, at, new.ttl_us, new.data.as_ref(), new.counted_bytes());
        self.keep_key(seq, new.idempotency);
        let mut items = Vec::with_capacity(new.items.len());
        for (place, (item, obstacle)) in new.items.iter().zip(obstacles).enumerate() {
            let resource = match (place, known[place]) {
                (0, _) => self.claims.at(seq).resource,
                (_, Some(slot)) => slot,
                _ => self.resources.obtain(&item.resource),
            };
            if let Mode::Slots { of, .. } = item.mode {
                self.resources.at_mut(resource).add_slot_claim(of);
            }
            if place > 0 {
                self.count_item(&item.resource, &new.owner);
            }
            let (name, mode, admitted) = (item.resource.clone(), item.mode, obstacle.is_none());
            items.push(SetItem { resource, name, mode, admitted, token: 0, slots: Box::default() });
        }
        let set = Box::new(Set {
            blocked: obstacles.iter().flatten().count() as u32,
            items,
            session: new.session.clone(),
            // A claim that gives up after a while is a request that stands open, and asks all the time.
            lapses: new.lapses && new.on_busy == OnBusy::Queue,
            bytes: new.set_bytes(),
        });
        self.claims.update(seq, |claim| claim.put_set(set));
        seq
    }
}

/// What a dialect checks before, with better words: a table never believes a log entry.
fn check_items(new: &NewSet) -> Result<(), Rejection> {
    let sound = |mode: Mode| match mode {
        Mode::Slots { take, of } => take >= 1 && take <= of && of <= SLOTS_MAX,
        _ => true,
    };
    if new.items.is_empty() || new.items.len() > ITEMS_MAX || !new.items.iter().all(|item| sound(item.mode)) {
        return Err(Rejection::BadItems);
    }
    let mut seen = BTreeSet::new();
    match new.items.iter().find(|item| !seen.insert(&item.resource)) {
        Some(item) => Err(Rejection::Repeated(item.resource.clone())),
        None => Ok(()),
    }
}
