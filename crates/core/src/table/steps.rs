//! The steps that commands share: create, queue, grant, end, forget. `wake.rs` says who is next, `settle.rs` ends what is due.
//!
//! In:    calls from the commands (`apply.rs`, `claim_set.rs`, `lock_all.rs`, `revoke.rs`), `wake.rs` and `settle.rs`, under the
//!        entry's clock. Out: claims and indexes changed together, events reported.
//! Never: called from elsewhere: a step alone may leave a resource free that has a queue.

use std::sync::Arc;

use super::Table;
use super::claim::{End, Status};
use super::crowd::Crowd;
use super::name_index::Spot;
use super::packed::Packed;
#[cfg(feature = "planted")]
use super::planted::TableBug;
use super::record::{RareBytes, Record};
use super::resource::Slot;
use crate::command::{Data, Guard, Mode, OnBusy};
use crate::event::{Event, EventKind};
use crate::name::ClaimId;
use crate::outcome::Rejection;

/// How a claim came to hold its resource.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GrantedHow {
    /// With its own command.
    AtOnce,
    /// With somebody else's, or by a deadline: its client may not know yet.
    FromQueue,
}

impl Table {
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
        if self.live_items() + more > max { Err(Rejection::TableFull(max)) } else { Ok(()) }
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

    /// Lets a claim wait: for each item that fits it reserves the resource, for the others it stands in line.
    pub(super) fn enqueue(&mut self, seq: u64, on_busy: OnBusy, events: &mut Vec<Event>) {
        let claim = self.claims.at(seq);
        match claim.set() {
            None => self.resources.at_mut(claim.resource).push_blocked(seq),
            Some(set) => {
                self.waiting_sets.add(set);
                for item in &set.items {
                    let resource = self.resources.at_mut(item.resource);
                    if item.admitted {
                        resource.reserve(seq, item.mode);
                    } else {
                        resource.push_blocked(seq);
                    }
                }
                if let Some(session) = &set.session {
                    self.sessions.add_waiting(session, seq);
                }
            }
        }
        let wait_us = match on_busy {
            OnBusy::QueueFor { wait_us } => Some(wait_us),
            _ if claim.lapses() => claim.ttl_us(),
            _ => None,
        };
        if wait_us.is_some() {
            let now_us = self.clock.now_us;
            self.update_deadline(seq, |claim| claim.set_deadline(now_us, wait_us));
        }
        self.report(seq, EventKind::Queued, events);
    }

    /// Makes a claim the holder of its resources, which all take it.
    pub(super) fn grant(&mut self, seq: u64, grant: GrantedHow, events: &mut Vec<Event>) {
        let token = match self.claims.at(seq).set() {
            None => self.next_token(),
            Some(_) => self.grant_items(seq, grant),
        };
        self.last_version += 1;
        let (version, clock) = (self.last_version, self.clock);
        let (grace_us, by_rhythm) = (self.settings.pickup_grace_us, self.picks_up_by_rhythm());
        let claim = self.update_deadline(seq, |claim| {
            // A claim that gives up after a while is a request that stands open: its client sees the grant.
            let unseen = grant == GrantedHow::FromQueue && (claim.deadline_us().is_none() || claim.lapses());
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
        let waited_us = claim.waited_us(clock.now_us);
        if claim.set().is_none() {
            let slot = claim.resource;
            self.resources.at_mut(slot).hold(seq, Mode::Exclusive);
        }
        self.report(seq, EventKind::Activated { waited_us }, events);
    }

    fn next_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    /// Lets a claim hold each of its items. A sharer gets the token of those who share already; all other items get one new
    /// token together. Gives back the largest.
    fn grant_items(&mut self, seq: u64, grant: GrantedHow) -> u64 {
        let mut taken = None;
        self.claims.update(seq, |claim| taken = claim.take_set());
        let Some(mut set) = taken else { return 0 };
        if grant == GrantedHow::FromQueue {
            self.waiting_sets.remove(&set);
        }
        self.holding_sets.add(&set);
        let (mut fresh, mut largest) = (None, 0);
        for item in &mut set.items {
            let phase = match item.mode {
                Mode::Shared => self.resources.at(item.resource).crowd().and_then(Crowd::phase_token),
                _ => None,
            };
            #[cfg(feature = "planted")]
            let phase = self.planted_phase(item, phase);
            item.admitted = true;
            item.token = phase.unwrap_or_else(|| *fresh.get_or_insert_with(|| self.next_token()));
            largest = largest.max(item.token);
            let resource = self.resources.at_mut(item.resource);
            resource.hold(seq, item.mode);
            match item.mode {
                Mode::Exclusive => {}
                Mode::Shared => {
                    resource.crowd_mut().set_phase_token(item.token);
                    #[cfg(feature = "planted")]
                    self.planted.phases.insert(item.resource, item.token);
                }
                Mode::Slots { take, .. } => item.slots = resource.crowd_mut().take_slots(take),
            }
        }
        set.blocked = 0;
        if let Some(session) = &set.session {
            if grant == GrantedHow::FromQueue {
                self.sessions.remove(session, seq);
            }
            self.sessions.add_holding(session);
        }
        self.claims.update(seq, |claim| claim.put_set(set));
        largest
    }

    /// Ends a live claim. Whoever fits because of that waits until `wake` is called.
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
        match claim.set().is_some() {
            false => self.leave(slot, (seq, 0), Mode::Exclusive, was_active),
            true => self.leave_items(seq, was_active),
        }
        self.finished.push_back(seq);
        if rare.data > 0 {
            self.finished_with_data.push_back(seq);
        }
        self.count_ended(slot, &owner, live, rare);
        self.report(seq, EventKind::Ended { status, held_us }, events);
    }

    /// A claim that is over leaves one of its resources: by its number and the place of the item.
    fn leave(&mut self, slot: Slot, item: (u64, u32), mode: Mode, was_active: bool) {
        let (seq, _) = item;
        let was_next = !self.admissible.is_empty() && self.admissible.remove(&item);
        let resource = self.resources.at_mut(slot);
        // Nobody fits because of an end in a queue of claims that want the resource alone.
        let wakes = was_active || was_next || resource.crowd().is_some();
        #[cfg(feature = "planted")]
        let wakes = wakes && (was_active || self.planted.bug != Some(TableBug::WaitingEndDoesNotWake));
        if was_active {
            resource.let_go(seq, mode);
        } else {
            resource.stop_waiting(seq, mode);
        }
        resource.push_finished(seq, was_active);
        self.entry.admissions_left += 1;
        if wakes {
            self.woken.push(slot);
        }
    }

    fn leave_items(&mut self, seq: u64, was_active: bool) {
        let mut taken = None;
        self.claims.update(seq, |claim| taken = claim.take_set());
        let Some(set) = taken else { return };
        match was_active {
            true => self.holding_sets.remove(&set),
            false => self.waiting_sets.remove(&set),
        }
        for (place, item) in (0..).zip(&set.items) {
            self.leave(item.resource, (seq, place), item.mode, was_active);
            if let Mode::Slots { .. } = item.mode {
                #[cfg(feature = "planted")]
                let item = if self.has_bug(TableBug::SlotsNotFreed) {
                    &super::set::SetItem { slots: Box::default(), ..item.clone() }
                } else {
                    item
                };
                self.resources.at_mut(item.resource).remove_slot_claim(&item.slots);
            }
            if place > 0 {
                self.uncount_item(item.resource, seq);
            }
        }
        if let Some(session) = &set.session {
            self.sessions.remove(session, seq);
        }
        self.claims.update(seq, |claim| claim.put_set(set));
    }

    /// Drops the oldest finished claims beyond the number that stays readable: at most `max` at a time, which is
    /// more than the entry added, so that a lowered setting stalls nobody either.
    pub(super) fn forget_finished(&mut self, max: usize) {
        let beyond = (self.finished.len() as u64).saturating_sub(self.settings.finished_max);
        let count = usize::try_from(beyond).unwrap_or(usize::MAX).min(max);
        for _ in 0..count {
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
        for (slot, _) in claim.items() {
            let resource = self.resources.at_mut(slot);
            resource.pop_finished();
            if resource.is_empty() {
                self.last_name = self.last_name.take().filter(|(last, _)| *last != slot);
                self.resources.remove(slot);
            }
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
}

/// The idempotency key of a claim that has one, in the form in which the index takes it.
pub(super) fn key_of(claim: &Record) -> ClaimId {
    ClaimId::from_u128(claim.idempotency().map_or(0, |known| known.key))
}
