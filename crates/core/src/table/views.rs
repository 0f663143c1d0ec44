//! What others see of a claim: events as it changes, and views of it at one instant.
//!
//! In:    a claim and the lines that it stands in. Out: [`Event`]s and [`View`]s.
//! Never: changes anything but the name that was named last.

use std::sync::Arc;

use super::Table;
use super::claim::Status;
use super::resource::Slot;
use super::set::{Set, SetItem};
use crate::command::Mode;
use crate::event::{Event, EventKind};
use crate::outcome::{ItemView, SetView, View};

impl Table {
    /// One event for each item.
    pub(super) fn report(&mut self, seq: u64, kind: EventKind, events: &mut Vec<Event>) {
        let claim = self.claims.at(seq);
        if self.last_name.as_ref().is_none_or(|(slot, _)| *slot != claim.resource) {
            self.last_name = Some((claim.resource, self.resources.name(claim.resource).into()));
        }
        let event = |resource, mode, token, item| Event {
            stamp: self.clock,
            kind,
            claim: claim.id,
            resource,
            owner: claim.owner.clone(),
            token,
            mode,
            item,
            reason: claim.reason().cloned(),
        };
        match claim.set() {
            None => {
                let name = self.shared_name(claim.resource);
                events.push(event(name, Mode::Exclusive, claim.token.get(), 0));
            }
            Some(set) => {
                let items = set.items.iter().zip(0..);
                events.extend(
                    items.map(|(item, place)| event(item.name.clone(), item.mode, item.token, place)),
                );
            }
        }
    }

    /// The name of a resource: a copy that others have too, if it was named just before.
    pub(super) fn shared_name(&self, slot: Slot) -> Arc<str> {
        match &self.last_name {
            Some((last, name)) if *last == slot => name.clone(),
            _ => self.resources.name(slot).into(),
        }
    }

    pub(super) fn view(&self, seq: u64) -> View {
        let claim = self.claims.at(seq);
        let waits = claim.status == Status::Waiting;
        let set = claim.set().map(|set| Box::new(self.set_view(seq, set, waits)));
        let (position, waiters) = match &set {
            None => {
                let resource = self.resources.at(claim.resource);
                (if waits { resource.position(seq) } else { None }, resource.queue_len())
            }
            Some(set) => {
                let waiters = claim.items().map(|(slot, _)| self.resources.at(slot).queue_len()).sum();
                (set.items.iter().filter_map(|item| item.position).max(), waiters)
            }
        };
        View {
            position,
            waiters: if claim.status == Status::Active { waiters } else { 0 },
            claim: claim.unpack(self.shared_name(claim.resource)),
            now_us: self.clock.now_us,
            set,
        }
    }

    fn set_view(&self, seq: u64, set: &Set, waits: bool) -> SetView {
        let view = |item: &SetItem| ItemView {
            resource: item.name.clone(),
            mode: item.mode,
            slots: item.slots.to_vec(),
            token: item.token,
            position: if waits { self.resources.at(item.resource).position(seq) } else { None },
        };
        let items = set.items.iter().map(view).collect();
        SetView { items, session: set.session.clone(), lapses: set.lapses }
    }
}
