//! The steps that commands share: create, queue, grant, end, promote, settle, forget.
//!
//! In:    calls from `apply.rs`, under the entry's clock. Out: claims and indexes changed together, events reported.
//! Never: called from elsewhere: a step alone may leave a resource free that has a queue.

use std::sync::Arc;

use super::Table;
use super::ahead::AHEAD;
use super::budgets::Share;
use super::claim::{End, Status};
use super::name_index::Spot;
use super::packed::Packed;
use super::record::{RareBytes, Record};
use super::resource::Slot;
use crate::command::{Data, Guard, OnBusy, Target};
use crate::event::{Event, EventKind};
use crate::name::ClaimId;
use crate::outcome::{Rejection, View};

/// How a claim came to hold its resource.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Grant {
    /// With its own command.
    AtOnce,
    /// With somebody else's, or by a deadline: its client may not know yet.
    FromQueue,
}

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
                holder.ok_or_else(|| {
                    let last = self.last_holder(slot).map(Box::new);
                    Rejection::NotHeld(resource.clone(), last)
                })
            }
        }
    }

    /// Owner before finality before version: a stranger learns nothing about the claim but that it is not his.
    pub(super) fn check_guard(&self, seq: u64, guard: &Guard) -> Result<(), Rejection> {
        let claim = self.claims.at(seq);
        if guard.owner.as_ref().is_some_and(|owner| *owner != claim.owner) {
            return Err(Rejection::NotOwner(Box::new(self.view(seq))));
        }
        if claim.status.is_final() {
            return Err(Rejection::Final(Box::new(self.view(seq))));
        }
        if guard.version.is_some_and(|version| version != claim.version.get()) {
            return Err(Rejection::VersionMismatch(Box::new(self.view(seq))));
        }
        Ok(())
    }

    pub(super) fn queue_is_full(&self, slot: Slot) -> bool {
        self.resources.at(slot).queue_len() >= self.settings.queue_len_max
    }

    pub(super) fn check_table_room(&self, more: u64) -> Result<(), Rejection> {
        let max = self.settings.claims_max;
        if self.live() + more > max { Err(Rejection::TableFull(max)) } else { Ok(()) }
    }

    pub(super) fn check_namespace_room(&self, resource: &str, more: u64) -> Result<(), Rejection> {
        let max = self.settings.claims_per_namespace_max;
        let used = self.live_in_namespace_of(resource);
        if used + more > max { Err(Rejection::NamespaceFull(max)) } else { Ok(()) }
    }

    pub(super) fn check_owner_room(&self, owner: &str, more: u64) -> Result<(), Rejection> {
        let max = self.settings.claims_per_owner_max;
        let used = self.owners.get(owner).map_or(0, |share| share.claims);
        if used + more > max { Err(Rejection::OwnerFull(max)) } else { Ok(()) }
    }

    /// A new waiting claim, known to every index but its resource's queue. `known`: where its resource stands, or
    /// belongs. `bytes`: what it counts for in its budgets.
    pub(super) fn create(
        &mut self,
        new: (ClaimId, &Arc<str>, &Arc<str>),
        known: Result<Slot, Spot>,
        ttl_us: Option<u64>,
        data: Option<&Data>,
        bytes: u64,
    ) -> u64 {
        let (id, resource, owner) = new;
        self.last_version += 1;
        let slot = known.unwrap_or_else(|spot| self.resources.make(resource, spot));
        self.last_name = Some((slot, resource.clone()));
        let owner = self.count_live(resource, owner, bytes);
        let mut claim = Record::new(id, slot, owner, ttl_us, self.clock);
        claim.version = Packed::new(self.last_version);
        claim.set_data(data.cloned().map(Arc::new));
        let seq = self.claims.insert(claim);
        self.by_id.insert(id, seq);
        seq
    }

    pub(super) fn enqueue(&mut self, seq: u64, on_busy: OnBusy, events: &mut Vec<Event>) {
        let slot = self.claims.at(seq).resource;
        self.resources.at_mut(slot).push_waiting(seq);
        if let OnBusy::QueueFor { wait_us } = on_busy {
            let now_us = self.clock.now_us;
            self.update_deadline(seq, |claim| claim.set_deadline(now_us, Some(wait_us)));
        }
        self.report(seq, EventKind::Queued, events);
    }

    /// Makes a claim the holder of its free resource, with the next token.
    pub(super) fn grant(&mut self, seq: u64, grant: Grant, events: &mut Vec<Event>) {
        self.last_token += 1;
        self.last_version += 1;
        let (token, version, clock) = (self.last_token, self.last_version, self.clock);
        let (grace_us, by_rhythm) = (self.settings.pickup_grace_us, self.picks_up_by_rhythm());
        let claim = self.update_deadline(seq, |claim| {
            // A claim that gives up after a while is a request that stands open: its client sees the grant.
            let unseen = grant == Grant::FromQueue && claim.deadline_us().is_none();
            claim.unpicked = unseen && claim.ttl_us().is_some() && (grace_us > 0 || by_rhythm);
            let (grace_us, pickup_us) = match claim.take_pickup_us(clock.now_us) {
                _ if !claim.unpicked => (0, 0),
                pickup_us if grace_us == 0 => (0, pickup_us),
                _ => (grace_us, 0),
            };
            claim.status = Status::Active;
            claim.token = Packed::new(token);
            claim.version = Packed::new(version);
            claim.set_granted(clock);
            claim.renewed_wall_us = clock.wall_us;
            let until_us = |ttl_us: u64| ttl_us.saturating_add(grace_us).max(pickup_us);
            claim.set_deadline(clock.now_us, claim.ttl_us().map(until_us));
        });
        let (waited_us, slot) = (claim.waited_us(clock.now_us), claim.resource);
        self.resources.at_mut(slot).set_active(Some(seq));
        self.report(seq, EventKind::Activated { waited_us }, events);
    }

    /// Ends a live claim. A freed resource stays free until `promote` is called.
    pub(super) fn end(
        &mut self,
        seq: u64,
        status: Status,
        ended_us: u64,
        reason: Option<&Arc<str>>,
        events: &mut Vec<Event>,
    ) {
        self.last_version += 1;
        let version = self.last_version;
        let ended_wall_us = self.clock.wall_us.saturating_sub(self.clock.now_us - ended_us);
        let (mut was_active, mut live) = (false, RareBytes::default());
        let claim = self.update_deadline(seq, |claim| {
            was_active = claim.status == Status::Active;
            live = claim.rare_bytes();
            // However a claim ends that was to let go, why it was to stays with it.
            let reason = reason.or(claim.reason()).cloned();
            claim.version = Packed::new(version);
            claim.set_end(status, End { ended_us, ended_wall_us, reason });
        });
        let held_us = claim.held_us(ended_us).unwrap_or(0);
        let (owner, slot, rare) = (claim.owner.clone(), claim.resource, claim.rare_bytes());
        let entry = self.resources.at_mut(slot);
        if was_active {
            entry.set_active(None);
        } else {
            entry.remove_waiting(seq);
        }
        entry.push_finished(seq, was_active);
        self.finished.push_back(seq);
        if rare.data > 0 {
            self.finished_with_data.push_back(seq);
        }
        self.count_ended(slot, &owner, live, rare);
        self.report(seq, EventKind::Ended { status, held_us }, events);
    }

    /// Passes a free resource to the first in its queue whose wait is not over. Those before it end, as many of them as
    /// the entry may still end; the others are passed over.
    pub(super) fn promote(&mut self, slot: Slot, events: &mut Vec<Event>) {
        while self.resources.at(slot).active().is_none()
            && let Some(head) = self.next_waiting(slot)
        {
            if !self.claims.at(head).is_due(self.clock.now_us) {
                self.grant_from_queue(slot, head, events);
            } else if self.entry.overdue_left > 0 {
                self.entry.overdue_left -= 1;
                self.end_due(head, events);
            } else {
                match self.first_in_time(slot) {
                    Some(seq) => self.grant_from_queue(slot, seq, events),
                    None => break,
                }
            }
        }
    }

    fn grant_from_queue(&mut self, slot: Slot, seq: u64, events: &mut Vec<Event>) {
        self.resources.at_mut(slot).remove_waiting(seq);
        self.grant(seq, Grant::FromQueue, events);
    }

    /// The first in a queue whose wait is not over. The next search goes on from there.
    fn first_in_time(&mut self, slot: Slot) -> Option<u64> {
        let passed = self.entry.passed.filter(|(passed, _)| *passed == slot).map_or(0, |(_, seq)| seq);
        let mut rest = self.resources.at(slot).queue_from(passed);
        let found = rest.find(|seq| !self.claims.at(*seq).is_due(self.clock.now_us));
        self.entry.passed = Some((slot, found.unwrap_or(self.claims.next_seq())));
        found
    }

    #[cfg(not(feature = "planted"))]
    fn next_waiting(&self, slot: Slot) -> Option<u64> {
        self.resources.at(slot).first_waiting()
    }

    #[cfg(feature = "planted")]
    fn next_waiting(&self, slot: Slot) -> Option<u64> {
        self.planted_next(self.resources.at(slot))
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

    /// Ends the holder of one resource if it is due, and hands it over.
    pub(super) fn settle(&mut self, slot: Slot, events: &mut Vec<Event>) {
        if let Some(seq) = self.resources.at(slot).active()
            && self.claims.at(seq).is_due(self.clock.now_us)
        {
            self.end_due(seq, events);
        }
    }

    /// The same, and the claims of the queue whose wait is over: as many as the entry may still end, and one at least,
    /// so that whoever asks again comes to an end, and a full queue of them has room.
    pub(super) fn settle_queue(&mut self, slot: Slot, events: &mut Vec<Event>) {
        self.settle(slot, events);
        let now_us = self.clock.now_us;
        // Only a backlog leaves anything due; there is no need to look through a queue without one.
        let backlog = self.earliest_deadline_us().is_some_and(|due_us| due_us <= now_us);
        if backlog && self.entry.settled != Some(slot) {
            let max = self.entry.overdue_left.max(1);
            let queue = self.resources.at(slot).queue();
            let due: Vec<u64> = queue.filter(|seq| self.claims.at(*seq).is_due(now_us)).take(max).collect();
            if due.len() < max {
                self.entry.settled = Some(slot);
            }
            self.entry.overdue_left = self.entry.overdue_left.saturating_sub(due.len());
            due.into_iter().for_each(|seq| self.end_due(seq, events));
        }
    }

    /// Ends a claim if it is due. If it waits, its resource is settled first: it may be its turn.
    pub(super) fn settle_of(&mut self, seq: u64, events: &mut Vec<Event>) {
        let claim = self.claims.at(seq);
        if claim.status == Status::Waiting {
            self.settle(claim.resource, events);
        }
        if self.claims.at(seq).is_due(self.clock.now_us) {
            self.end_due(seq, events);
        }
    }

    /// Ends a claim whose deadline has come, as of its deadline; what it held goes to the next from now on.
    pub(super) fn end_due(&mut self, seq: u64, events: &mut Vec<Event>) {
        let claim = self.claims.at(seq);
        let (deadline_us, slot) = (claim.deadline_us().unwrap_or(self.clock.now_us), claim.resource);
        match claim.status {
            Status::Active => {
                self.end(seq, claim.status_when_due(), deadline_us, None, events);
                self.promote(slot, events);
            }
            _ => self.end(seq, claim.status_when_due(), deadline_us, None, events),
        }
    }

    pub(super) fn expire_due(&mut self, max: usize, events: &mut Vec<Event>) {
        for _ in 0..max {
            match self.deadlines.first() {
                Some((deadline_us, seq)) if deadline_us <= self.clock.now_us => self.end_due(seq, events),
                _ => break,
            }
        }
    }

    /// Drops the oldest finished claims beyond the number that stays readable: at most `max` at a time, which is
    /// more than the entry added, so that a lowered setting stalls nobody either.
    pub(super) fn forget_finished(&mut self, max: usize) {
        let beyond = (self.finished.len() as u64).saturating_sub(self.settings.finished_max);
        let count = usize::try_from(beyond).unwrap_or(usize::MAX).min(max);
        for done in 0..count {
            if done % AHEAD == 0 {
                self.look_back(AHEAD.min(count - done));
            }
            self.forget_oldest();
        }
    }

    /// Drops the oldest finished claim.
    pub(super) fn forget_oldest(&mut self) {
        let Some(seq) = self.finished.pop_front() else { return };
        let claim = self.claims.remove(seq);
        self.uncount_finished(seq, &claim);
        self.by_id.remove(claim.id, seq);
        if let Some(idempotency) = claim.idempotency() {
            self.by_key.remove(ClaimId::from_u128(idempotency.key), seq);
        }
        let entry = self.resources.at_mut(claim.resource);
        entry.pop_finished();
        if entry.is_empty() {
            self.last_name = self.last_name.take().filter(|(slot, _)| *slot != claim.resource);
            self.resources.remove(claim.resource);
        }
    }

    // ---- bookkeeping

    pub(super) fn find(&self, id: ClaimId) -> Option<u64> {
        self.by_id.find(id, |seq| self.claims.at(seq).id)
    }

    /// The claim that was made under this idempotency key.
    pub(super) fn find_key(&self, key: u128) -> Option<u64> {
        self.by_key.find(ClaimId::from_u128(key), |seq| key_of(self.claims.at(seq)))
    }

    pub(super) fn index_key(&mut self, key: u128, seq: u64) {
        self.by_key.insert(ClaimId::from_u128(key), seq);
    }

    /// Changes a claim and keeps its deadline in the ordered set.
    pub(super) fn update_deadline(&mut self, seq: u64, change: impl FnOnce(&mut Record)) -> &Record {
        let mut before = None;
        let claim = self.claims.update(seq, |claim| {
            before = claim.deadline_us();
            change(claim);
        });
        let after = claim.deadline_us();
        if before != after {
            if let Some(deadline_us) = before {
                self.deadlines.remove(deadline_us, seq);
            }
            if let Some(deadline_us) = after {
                self.deadlines.insert(deadline_us, seq);
            }
        }
        claim
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

    /// A live claim, with this much beyond its names, has become a finished one.
    fn count_ended(&mut self, slot: Slot, owner: &Arc<str>, live: RareBytes, finished: RareBytes) {
        let name = self.resources.name(slot);
        let names = name.len() + owner.len();
        let bytes = live.counted(names);
        self.live_bytes -= bytes;
        self.finished_bytes += finished.counted(names);
        let namespace = self.version.namespace_of(name);
        if self.namespaces.get_mut(namespace).is_some_and(|share| share.is_empty_without(bytes)) {
            self.namespaces.remove(namespace);
        }
        if self.owners.get_mut(owner).is_some_and(|share| share.is_empty_without(bytes)) {
            self.owners.remove(owner);
        }
    }

    pub(super) fn report(&mut self, seq: u64, kind: EventKind, events: &mut Vec<Event>) {
        let claim = self.claims.at(seq);
        if self.last_name.as_ref().is_none_or(|(slot, _)| *slot != claim.resource) {
            self.last_name = Some((claim.resource, self.resources.name(claim.resource).into()));
        }
        events.push(Event {
            stamp: self.clock,
            kind,
            claim: claim.id,
            resource: self.shared_name(claim.resource),
            owner: claim.owner.clone(),
            token: claim.token.get(),
            reason: claim.reason().cloned(),
        });
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
        let position = if waits { self.resources.at(claim.resource).position(seq) } else { None };
        let waiters = self.resources.at(claim.resource).queue_len();
        let waiters = if claim.status == Status::Active { waiters } else { 0 };
        let now_us = self.clock.now_us;
        View { position, waiters, claim: claim.unpack(self.shared_name(claim.resource)), now_us }
    }
}

/// The idempotency key of a claim that has one, in the form in which the index takes it.
pub(super) fn key_of(claim: &Record) -> ClaimId {
    ClaimId::from_u128(claim.idempotency().map_or(0, |known| known.key))
}
