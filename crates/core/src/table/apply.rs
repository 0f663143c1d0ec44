//! Commands, one by one: the rules of the lock table.
//!
//! In:    a stamped [`Batch`]. Out: [`Applied`].
//! Never: leaves a resource that it touched with a holder whose deadline has passed.
//!
//! The order within an entry: the clock moves to the stamp; a bounded number of due claims end, in order of their
//! deadlines, and each freed resource passes to the head of its queue; then each command first settles what it
//! touches and runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::claim::{Claim, End, Status};
use super::claims::PAGE_BITS;
use super::resource::Slot;
use super::{Applied, Table, namespace_of};
use crate::command::{Batch, Command, Data, Ending, Guard, NewClaim, OnBusy, Settings, Target};
use crate::event::{Event, EventKind};
use crate::limits::{EXPIRIES_PER_ENTRY, REVOCATIONS_PER_COMMAND};
use crate::name::ClaimId;
use crate::outcome::{Outcome, Rejection, View};

/// How a claim came to hold its resource.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grant {
    /// With its own command.
    AtOnce,
    /// With somebody else's, or by a deadline: its client may not know yet.
    FromQueue,
}

impl Table {
    /// Applies one log entry.
    pub fn apply(&mut self, batch: &Batch) -> Applied {
        let mut events = Vec::with_capacity(batch.commands.len());
        // A stamp never goes back; should a leader ever send one that does, time stands still instead.
        self.clock.now_us = self.clock.now_us.max(batch.stamp.now_us);
        self.clock.wall_us = batch.stamp.wall_us;
        self.expire_due(EXPIRIES_PER_ENTRY, &mut events);
        let outcomes = batch.commands.iter().map(|command| self.command(command, &mut events)).collect();
        self.forget_finished(2 * events.len() + 100);
        Applied { outcomes, events }
    }

    fn command(&mut self, command: &Command, events: &mut Vec<Event>) -> Outcome {
        let answer = match command {
            Command::Claim(new) => self.claim(new, events),
            Command::Activate { id } => self.activate(*id, events),
            Command::Renew { target, guard, ttl_us, data } => {
                self.renew(target, guard, *ttl_us, data.as_ref(), events)
            }
            Command::Finish { target, guard, ending, reason, purge_data } => {
                self.finish(target, guard, *ending, reason.as_ref(), *purge_data, events)
            }
            Command::LockAll { items, owner, ttl_us, data } => {
                Ok(self.lock_all(items, owner, *ttl_us, data.as_ref(), events))
            }
            Command::Revoke { resource, before, reason } => {
                Ok(self.revoke(resource.as_ref(), *before, reason.as_ref(), events))
            }
            Command::Settle { resources } => {
                for resource in resources {
                    if let Some(slot) = self.resources.find(resource) {
                        self.settle_queue(slot, events);
                    }
                }
                Ok(Outcome::Done)
            }
            Command::Tick => Ok(Outcome::Done),
            Command::Configure(settings) => Ok(self.configure(settings)),
        };
        answer.unwrap_or_else(Outcome::Rejected)
    }

    // ---- the commands

    fn claim(&mut self, new: &NewClaim, events: &mut Vec<Event>) -> Result<Outcome, Rejection> {
        if let Some(seq) = self.find(new.id) {
            return Ok(self.existing(seq, events));
        }
        if let Some(idempotency) = &new.idempotency
            && let Some(&seq) = self.by_key.get(&idempotency.key)
        {
            let first = self.claims.at(seq);
            return match &first.idempotency {
                Some(known) if known.fingerprint == idempotency.fingerprint => Ok(self.existing(seq, events)),
                _ => Err(Rejection::KeyReused(first.id)),
            };
        }
        let slot = self.resources.find(&new.resource);
        let holder = slot.and_then(|slot| self.settled_holder(slot, events));
        if let (Some(slot), Some(holder)) = (slot, holder) {
            if new.on_busy == OnBusy::Refuse {
                return Err(Rejection::Busy(Box::new(self.view(holder))));
            }
            if self.queue_is_full(slot) {
                self.settle_queue(slot, events);
                if self.queue_is_full(slot) {
                    return Err(Rejection::QueueFull(self.settings.queue_len_max));
                }
            }
        }
        self.check_table_room(1)?;
        self.check_namespace_room(&new.resource, 1)?;
        self.check_owner_room(&new.owner, 1)?;
        let seq = self.create(new.id, &new.resource, &new.owner, new.ttl_us, new.data.as_ref());
        if let Some(idempotency) = new.idempotency {
            self.claims.update(seq, |claim| claim.idempotency = Some(Arc::new(idempotency)));
            self.by_key.insert(idempotency.key, seq);
        }
        if holder.is_none() {
            self.grant(seq, Grant::AtOnce, events);
            return Ok(Outcome::Granted(Box::new(self.view(seq))));
        }
        self.enqueue(seq, new.on_busy, events);
        Ok(Outcome::Queued(Box::new(self.view(seq))))
    }

    fn existing(&mut self, seq: u64, events: &mut Vec<Event>) -> Outcome {
        self.settle_of(seq, events);
        Outcome::Existing(Box::new(self.view(seq)))
    }

    fn activate(&mut self, id: ClaimId, events: &mut Vec<Event>) -> Result<Outcome, Rejection> {
        let seq = self.find_settled(&Target::Claim(id), events)?;
        let now_us = self.clock.now_us;
        match self.claims.at(seq) {
            claim if claim.status.is_final() => Err(Rejection::Final(Box::new(self.view(seq)))),
            claim if claim.status == Status::Waiting => Err(Rejection::Waiting(Box::new(self.view(seq)))),
            claim => {
                if claim.unpicked {
                    let latest_us = claim.deadline_us;
                    self.last_version += 1;
                    let version = self.last_version;
                    self.update_deadline(seq, |claim| {
                        claim.unpicked = false;
                        claim.version = version;
                        claim.set_deadline(now_us, claim.ttl_us());
                        // After the grace the ttl runs, seen or not.
                        claim.deadline_us = claim.deadline_us.min(latest_us);
                    });
                }
                Ok(Outcome::Active(Box::new(self.view(seq))))
            }
        }
    }

    fn renew(
        &mut self,
        target: &Target,
        guard: &Guard,
        ttl_us: Option<u64>,
        data: Option<&Data>,
        events: &mut Vec<Event>,
    ) -> Result<Outcome, Rejection> {
        let seq = self.find_settled(target, events)?;
        self.check_guard(seq, guard)?;
        if self.claims.at(seq).status == Status::Waiting {
            return Err(Rejection::Waiting(Box::new(self.view(seq))));
        }
        self.last_version += 1;
        let (version, clock) = (self.last_version, self.clock);
        self.update_deadline(seq, |claim| {
            if ttl_us.is_some() {
                claim.set_ttl(ttl_us);
            }
            if let Some(data) = data {
                claim.data = Some(Arc::new(data.clone()));
            }
            claim.unpicked = false;
            claim.renewals = claim.renewals.saturating_add(1);
            // Readers tell a renewal by a newer time, also when the wall clock stands still or was set back.
            claim.renewed_wall_us = clock.wall_us.max(claim.renewed_wall_us + 1);
            claim.version = version;
            claim.set_deadline(clock.now_us, claim.ttl_us());
        });
        self.report(seq, EventKind::Renewed, events);
        Ok(Outcome::Renewed(Box::new(self.view(seq))))
    }

    fn finish(
        &mut self,
        target: &Target,
        guard: &Guard,
        ending: Ending,
        reason: Option<&Arc<str>>,
        purge_data: bool,
        events: &mut Vec<Event>,
    ) -> Result<Outcome, Rejection> {
        let seq = self.find_settled(target, events)?;
        self.check_guard(seq, guard)?;
        if ending == Ending::Released && self.claims.at(seq).status == Status::Waiting {
            return Err(Rejection::Waiting(Box::new(self.view(seq))));
        }
        if purge_data {
            self.claims.update(seq, |claim| claim.data = None);
        }
        self.end(seq, ending.into(), self.clock.now_us, reason, events);
        let view = self.view(seq);
        self.promote(self.claims.at(seq).resource_slot, events);
        Ok(Outcome::Finished(Box::new(view)))
    }

    fn lock_all(
        &mut self,
        items: &[(ClaimId, Arc<str>)],
        owner: &Arc<str>,
        ttl_us: Option<u64>,
        data: Option<&Data>,
        events: &mut Vec<Event>,
    ) -> Outcome {
        // All ids of one command are new together: any that is known tells that this is a retry, also after
        // the others were released and forgotten.
        let known: Vec<u64> = items.iter().filter_map(|(id, _)| self.find(*id)).collect();
        if !known.is_empty() {
            known.iter().for_each(|seq| self.settle_of(*seq, events));
            return Outcome::LockedAll(known.into_iter().map(|seq| self.view(seq)).collect());
        }
        if let Err((index, rejection)) = self.check_all_free(items, owner, events) {
            return Outcome::LockedNone { index, rejection };
        }
        let grant = |(id, resource): &(ClaimId, Arc<str>)| {
            let seq = self.create(*id, resource, owner, ttl_us, data);
            self.grant(seq, Grant::AtOnce, events);
            self.view(seq)
        };
        Outcome::LockedAll(items.iter().map(grant).collect())
    }

    fn check_all_free(
        &mut self,
        items: &[(ClaimId, Arc<str>)],
        owner: &Arc<str>,
        events: &mut Vec<Event>,
    ) -> Result<(), (usize, Rejection)> {
        let mut asked = BTreeSet::new();
        for (index, (_, resource)) in items.iter().enumerate() {
            let slot = self.resources.find(resource);
            if let Some(holder) = slot.and_then(|slot| self.settled_holder(slot, events)) {
                return Err((index, Rejection::Busy(Box::new(self.view(holder)))));
            }
            if !asked.insert(resource) {
                return Err((index, Rejection::Repeated(resource.clone())));
            }
        }
        if items.is_empty() {
            return Ok(());
        }
        let all = items.len() as u64;
        self.check_table_room(all).map_err(|rejection| (0, rejection))?;
        let mut more: BTreeMap<&str, u64> = BTreeMap::new();
        for (index, (_, resource)) in items.iter().enumerate() {
            let more = more.entry(namespace_of(resource)).or_default();
            *more += 1;
            self.check_namespace_room(resource, *more).map_err(|rejection| (index, rejection))?;
        }
        self.check_owner_room(owner, all).map_err(|rejection| (0, rejection))
    }

    fn revoke(
        &mut self,
        resource: Option<&Arc<str>>,
        before: u64,
        reason: Option<&Arc<str>>,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let mut left = REVOCATIONS_PER_COMMAND;
        let mut count = 0;
        match resource {
            Some(resource) => count += self.revoke_on(resource, before, reason, &mut left, events),
            None => {
                for resource in self.resources_with_live_claims(before, left) {
                    if left > 0 {
                        count += self.revoke_on(&resource, before, reason, &mut left, events);
                    }
                }
            }
        }
        Outcome::Revoked { count, more: left == 0 }
    }

    /// From the tail of the queue, the holder last: nobody is promoted only to be revoked.
    fn revoke_on(
        &mut self,
        resource: &Arc<str>,
        before: u64,
        reason: Option<&Arc<str>>,
        left: &mut usize,
        events: &mut Vec<Event>,
    ) -> u64 {
        let Some(slot) = self.resources.find(resource) else { return 0 };
        let entry = self.resources.at(slot);
        // Claims newer than `before` stand at the tail and stay.
        let old: Vec<u64> = entry.queue().rev().skip_while(|seq| *seq >= before).take(*left).collect();
        let waiting_left = entry.queue().take_while(|seq| *seq < before).count() - old.len();
        *left -= old.len();
        let mut count = 0;
        for seq in old {
            count += self.revoke_one(seq, reason, events);
        }
        let holder = self.resources.at(slot).active();
        if let Some(seq) = holder.filter(|seq| *seq < before && waiting_left == 0 && *left > 0) {
            *left -= 1;
            count += self.revoke_one(seq, reason, events);
            self.promote(slot, events);
        }
        self.settle(slot, events);
        count
    }

    /// Revokes a claim, or ends it as its deadline would have, if that has passed. Counts the first.
    fn revoke_one(&mut self, seq: u64, reason: Option<&Arc<str>>, events: &mut Vec<Event>) -> u64 {
        let claim = self.claims.at(seq);
        if !claim.is_due(self.clock.now_us) {
            self.end(seq, Status::Revoked, self.clock.now_us, reason, events);
            return 1;
        }
        let status = if claim.status == Status::Active { Status::Expired } else { Status::Withdrawn };
        self.end(seq, status, claim.deadline_us, None, events);
        0
    }

    /// The first resources, in order of creation, that have live claims made before `before`.
    fn resources_with_live_claims(&self, before: u64, max: usize) -> BTreeSet<Arc<str>> {
        let pages = self.claims.pages_from(0).take_while(|(number, _)| number << PAGE_BITS < before);
        let with_live = pages.filter(|(_, page)| page.counts[0] + page.counts[1] > 0);
        let claims = with_live.flat_map(|(number, page)| {
            let old = move |claim: &&Claim| (number << PAGE_BITS | u64::from(claim.slot)) < before;
            page.claims.iter().filter(|claim| !claim.status.is_final()).filter(old)
        });
        claims.take(max).map(|claim| claim.resource.clone()).collect()
    }

    fn configure(&mut self, settings: &Settings) -> Outcome {
        self.settings = settings.clone();
        Outcome::Done
    }

    // ---- the steps they share

    /// The claim a command means, after what is due on its resource has ended.
    fn find_settled(&mut self, target: &Target, events: &mut Vec<Event>) -> Result<u64, Rejection> {
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
                    let last = self.latest_finished(resource).map(Box::new);
                    Rejection::NotHeld(resource.clone(), last)
                })
            }
        }
    }

    /// Owner before finality before version: a stranger learns nothing about the claim but that it is not his.
    fn check_guard(&self, seq: u64, guard: &Guard) -> Result<(), Rejection> {
        let claim = self.claims.at(seq);
        if guard.owner.as_ref().is_some_and(|owner| *owner != claim.owner) {
            return Err(Rejection::NotOwner(Box::new(self.view(seq))));
        }
        if claim.status.is_final() {
            return Err(Rejection::Final(Box::new(self.view(seq))));
        }
        if guard.version.is_some_and(|version| version != claim.version) {
            return Err(Rejection::VersionMismatch(Box::new(self.view(seq))));
        }
        Ok(())
    }

    fn queue_is_full(&self, slot: Slot) -> bool {
        self.resources.at(slot).queue_len() >= self.settings.queue_len_max
    }

    fn check_table_room(&self, more: u64) -> Result<(), Rejection> {
        let max = self.settings.claims_max;
        if self.live() + more > max { Err(Rejection::TableFull(max)) } else { Ok(()) }
    }

    fn check_namespace_room(&self, resource: &str, more: u64) -> Result<(), Rejection> {
        let max = self.settings.claims_per_namespace_max;
        let used = self.live_in_namespace_of(resource);
        if used + more > max { Err(Rejection::NamespaceFull(max)) } else { Ok(()) }
    }

    fn check_owner_room(&self, owner: &str, more: u64) -> Result<(), Rejection> {
        let max = self.settings.claims_per_owner_max;
        let used = self.owners.get(owner).copied().unwrap_or(0);
        if used + more > max { Err(Rejection::OwnerFull(max)) } else { Ok(()) }
    }

    /// A new waiting claim, known to every index but its resource's queue.
    fn create(
        &mut self,
        id: ClaimId,
        resource: &Arc<str>,
        owner: &Arc<str>,
        ttl_us: Option<u64>,
        data: Option<&Data>,
    ) -> u64 {
        self.last_version += 1;
        let (resource_slot, resource) = self.resources.obtain(resource);
        let mut claim = Claim {
            id,
            owner: self.count_live(&resource, owner),
            resource,
            ttl_us: 0,
            deadline_us: 0,
            created_us: self.clock.now_us,
            created_wall_us: self.clock.wall_us,
            activated_us: 0,
            activated_wall_us: 0,
            renewed_wall_us: 0,
            token: 0,
            version: self.last_version,
            data: data.cloned().map(Arc::new),
            idempotency: None,
            end: None,
            renewals: 0,
            status: Status::Waiting,
            unpicked: false,
            slot: 0,
            resource_slot,
        };
        claim.set_ttl(ttl_us);
        claim.set_deadline(0, None);
        let seq = self.claims.insert(claim);
        let claims = &self.claims;
        self.by_id.insert(id, seq, |seq| claims.at(seq).id);
        seq
    }

    fn enqueue(&mut self, seq: u64, on_busy: OnBusy, events: &mut Vec<Event>) {
        let slot = self.claims.at(seq).resource_slot;
        self.resources.at_mut(slot).push_waiting(seq);
        if let OnBusy::QueueFor { wait_us } = on_busy {
            let now_us = self.clock.now_us;
            self.update_deadline(seq, |claim| claim.set_deadline(now_us, Some(wait_us)));
        }
        self.report(seq, EventKind::Queued, events);
    }

    /// Makes a claim the holder of its free resource, with the next token.
    fn grant(&mut self, seq: u64, grant: Grant, events: &mut Vec<Event>) {
        self.last_token += 1;
        self.last_version += 1;
        let (token, version, clock) = (self.last_token, self.last_version, self.clock);
        let grace_us = self.settings.pickup_grace_us;
        let claim = self.update_deadline(seq, |claim| {
            // A claim that gives up after a while is a request that stands open: its client sees the grant.
            let unseen = grant == Grant::FromQueue && claim.deadline_us().is_none();
            claim.unpicked = grace_us > 0 && unseen && claim.ttl_us().is_some();
            let grace_us = if claim.unpicked { grace_us } else { 0 };
            claim.status = Status::Active;
            claim.token = token;
            claim.version = version;
            claim.activated_us = clock.now_us;
            claim.activated_wall_us = clock.wall_us;
            claim.renewed_wall_us = clock.wall_us;
            claim.set_deadline(clock.now_us, claim.ttl_us().map(|ttl| ttl.saturating_add(grace_us)));
        });
        let (waited_us, slot) = (claim.waited_us(clock.now_us), claim.resource_slot);
        self.resources.at_mut(slot).set_active(Some(seq));
        self.report(seq, EventKind::Activated { waited_us }, events);
    }

    /// Ends a live claim. A freed resource stays free until `promote` is called.
    fn end(
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
        let mut was_active = false;
        let claim = self.update_deadline(seq, |claim| {
            was_active = claim.status == Status::Active;
            claim.status = status;
            claim.version = version;
            claim.unpicked = false;
            claim.set_deadline(0, None);
            claim.end = Some(Arc::new(End { ended_us, ended_wall_us, reason: reason.cloned() }));
        });
        let held_us = claim.held_us(ended_us).unwrap_or(0);
        let (resource, owner, slot) = (claim.resource.clone(), claim.owner.clone(), claim.resource_slot);
        let entry = self.resources.at_mut(slot);
        if was_active {
            entry.set_active(None);
        } else {
            entry.remove_waiting(seq);
        }
        entry.push_finished(seq);
        self.finished.push_back(seq);
        self.uncount_live(&resource, &owner);
        self.report(seq, EventKind::Ended { status, held_us }, events);
    }

    /// Passes a free resource to the head of its queue. A head whose wait is over is not granted anything.
    fn promote(&mut self, slot: Slot, events: &mut Vec<Event>) {
        while self.resources.at(slot).active().is_none()
            && let Some(head) = self.resources.at(slot).first_waiting()
        {
            match self.claims.at(head) {
                claim if claim.is_due(self.clock.now_us) => {
                    self.end(head, Status::Withdrawn, claim.deadline_us, None, events);
                }
                _ => {
                    self.resources.at_mut(slot).remove_waiting(head);
                    self.grant(head, Grant::FromQueue, events);
                }
            }
        }
    }

    /// Who holds a resource, once what is due has ended.
    fn settled_holder(&mut self, slot: Slot, events: &mut Vec<Event>) -> Option<u64> {
        self.settle(slot, events);
        self.resources.at(slot).active()
    }

    /// Ends the holder of one resource if it is due, and then the heads of the queue that are.
    fn settle(&mut self, slot: Slot, events: &mut Vec<Event>) {
        if let Some(seq) = self.resources.at(slot).active()
            && self.claims.at(seq).is_due(self.clock.now_us)
        {
            self.end_due(seq, events);
        }
    }

    /// The same, and every claim of the queue whose wait is over.
    fn settle_queue(&mut self, slot: Slot, events: &mut Vec<Event>) {
        self.settle(slot, events);
        let now_us = self.clock.now_us;
        // Only a backlog leaves anything due; there is no need to look through a queue without one.
        if self.earliest_deadline_us().is_some_and(|due_us| due_us <= now_us) {
            let queue = self.resources.at(slot).queue();
            let due: Vec<u64> = queue.filter(|seq| self.claims.at(*seq).is_due(now_us)).collect();
            due.into_iter().for_each(|seq| self.end_due(seq, events));
        }
    }

    /// Ends a claim if it is due. If it waits, its resource is settled first: it may be its turn.
    fn settle_of(&mut self, seq: u64, events: &mut Vec<Event>) {
        let claim = self.claims.at(seq);
        if claim.status == Status::Waiting {
            self.settle(claim.resource_slot, events);
        }
        if self.claims.at(seq).is_due(self.clock.now_us) {
            self.end_due(seq, events);
        }
    }

    /// Ends a claim whose deadline has come, as of its deadline; what it held goes to the next from now on.
    fn end_due(&mut self, seq: u64, events: &mut Vec<Event>) {
        let claim = self.claims.at(seq);
        let (deadline_us, slot) = (claim.deadline_us, claim.resource_slot);
        match claim.status {
            Status::Active => {
                self.end(seq, Status::Expired, deadline_us, None, events);
                self.promote(slot, events);
            }
            _ => self.end(seq, Status::Withdrawn, deadline_us, None, events),
        }
    }

    fn expire_due(&mut self, max: usize, events: &mut Vec<Event>) {
        for _ in 0..max {
            match self.deadlines.first() {
                Some(&(deadline_us, seq)) if deadline_us <= self.clock.now_us => self.end_due(seq, events),
                _ => break,
            }
        }
    }

    /// Drops the oldest finished claims beyond the number that stays readable: at most `max` at a time, which is
    /// more than the entry added, so that a lowered setting stalls nobody either.
    fn forget_finished(&mut self, max: usize) {
        for _ in 0..max {
            if (self.finished.len() as u64) <= self.settings.finished_max {
                break;
            }
            let Some(seq) = self.finished.pop_front() else { break };
            let claim = self.claims.remove(seq);
            self.by_id.remove(claim.id, seq);
            if let Some(idempotency) = &claim.idempotency {
                self.by_key.remove(&idempotency.key);
            }
            let entry = self.resources.at_mut(claim.resource_slot);
            entry.pop_finished();
            if entry.is_empty() {
                self.resources.remove(claim.resource_slot, &claim.resource);
            }
        }
    }

    // ---- bookkeeping

    pub(super) fn find(&self, id: ClaimId) -> Option<u64> {
        self.by_id.find(id, |seq| self.claims.at(seq).id)
    }

    /// Changes a claim and keeps its deadline in the ordered set.
    fn update_deadline(&mut self, seq: u64, change: impl FnOnce(&mut Claim)) -> &Claim {
        let mut before = None;
        let claim = self.claims.update(seq, |claim| {
            before = claim.deadline_us();
            change(claim);
        });
        let after = claim.deadline_us();
        if before != after {
            if let Some(deadline_us) = before {
                self.deadlines.remove(&(deadline_us, seq));
            }
            if let Some(deadline_us) = after {
                self.deadlines.insert((deadline_us, seq));
            }
        }
        claim
    }

    /// Counts a live claim for its owner and namespace; gives back the one copy of the owner's name.
    pub(super) fn count_live(&mut self, resource: &str, owner: &Arc<str>) -> Arc<str> {
        match self.namespaces.get_mut(namespace_of(resource)) {
            Some(count) => *count += 1,
            None => {
                self.namespaces.insert(namespace_of(resource).into(), 1);
            }
        }
        let name = self.owners.get_key_value(owner).map_or_else(|| owner.clone(), |(name, _)| name.clone());
        *self.owners.entry(name.clone()).or_default() += 1;
        name
    }

    fn uncount_live(&mut self, resource: &str, owner: &Arc<str>) {
        if let Some(count) = self.namespaces.get_mut(namespace_of(resource)) {
            *count -= 1;
            if *count == 0 {
                self.namespaces.remove(namespace_of(resource));
            }
        }
        if let Some(count) = self.owners.get_mut(owner) {
            *count -= 1;
            if *count == 0 {
                self.owners.remove(owner);
            }
        }
    }

    fn report(&self, seq: u64, kind: EventKind, events: &mut Vec<Event>) {
        let Claim { id, resource, owner, token, .. } = self.claims.at(seq);
        events.push(Event {
            stamp: self.clock,
            kind,
            claim: *id,
            resource: resource.clone(),
            owner: owner.clone(),
            token: *token,
        });
    }

    pub(super) fn view(&self, seq: u64) -> View {
        let mut claim = self.claims.at(seq).clone();
        let slot = std::mem::take(&mut claim.resource_slot);
        let waits = claim.status == Status::Waiting;
        let position = if waits { self.resources.at(slot).position(seq) } else { None };
        View { position, claim, now_us: self.clock.now_us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Stamp;

    #[test]
    fn a_renewal_is_newer_than_the_one_before_also_when_the_wall_clock_goes_back() {
        let mut table = Table::default();
        let (id, resource): (_, Arc<str>) = (ClaimId::from_u128(1), "dss/media/tape".into());
        let lock = Command::LockAll {
            items: vec![(id, resource.clone())],
            owner: "host:1".into(),
            ttl_us: None,
            data: None,
        };
        let renew = Command::Renew {
            target: Target::Holder(resource),
            guard: Guard::default(),
            ttl_us: None,
            data: None,
        };
        let mut renewed_us = 0;
        for (step, (command, wall_us)) in
            [(&lock, 1_000), (&renew, 1_000), (&renew, 400), (&renew, 5_000)].into_iter().enumerate()
        {
            let stamp = Stamp { now_us: 1 + step as u64, wall_us };
            table.apply(&Batch { stamp, commands: vec![command.clone()] });
            let claim = table.claim_view(id, 0).unwrap().claim;
            assert!(claim.renewed_wall_us > renewed_us, "step {step}");
            renewed_us = claim.renewed_wall_us;
        }
        assert_eq!(renewed_us, 5_000);
    }
}
