//! Commands, one by one: the rules of the lock table.
//!
//! In:    a stamped [`Batch`]. Out: [`Applied`].
//! Never: leaves a resource that it touched with a holder whose deadline has passed.
//!
//! The order within an entry: the clock moves to the stamp; a bounded number of due claims end, in order of their
//! deadlines, and each freed resource passes to the head of its queue; then each command first settles what it
//! touches and runs.

use std::sync::Arc;

use super::claim::{Revoking, Status};
use super::packed::Packed;
use super::resource::Slot;
use super::steps::GrantedHow;
use super::{Applied, Table, ThisEntry};
use crate::command::{
    Batch, Command, Data, Ending, Guard, Idempotency, Mode, NewClaim, OnBusy, Settings, Target,
};
use crate::event::{Event, EventKind};
use crate::limits::{ADMISSIONS_PER_ENTRY, EXPIRIES_PER_ENTRY, OVERDUE_WAITS_PER_ENTRY};
use crate::name::{ClaimId, Stamp};
use crate::outcome::{Outcome, Rejection};

impl Table {
    /// Applies a batch.
    pub fn apply(&mut self, batch: &Batch) -> Applied {
        self.apply_all(batch.stamp, std::iter::once(&*batch.commands))
    }

    /// Applies commands under one stamp, in however many pieces they come: one log entry.
    pub fn apply_all<'a>(
        &mut self,
        stamp: Stamp,
        pieces: impl Iterator<Item = &'a [Command]> + Clone,
    ) -> Applied {
        let count = pieces.clone().map(<[Command]>::len).sum();
        let (mut events, mut outcomes) = (Vec::with_capacity(count), Vec::with_capacity(count));
        // A stamp never goes back; should a leader ever send one that does, time stands still instead.
        self.clock.now_us = self.clock.now_us.max(stamp.now_us);
        self.clock.wall_us = stamp.wall_us;
        self.entry = ThisEntry {
            overdue_left: OVERDUE_WAITS_PER_ENTRY,
            admissions_left: ADMISSIONS_PER_ENTRY,
            ..ThisEntry::default()
        };
        self.expire_due(EXPIRIES_PER_ENTRY, &mut events);
        self.wake(&mut events);
        outcomes.extend(pieces.flatten().map(|command| self.command(command, &mut events)));
        self.forget_finished(2 * events.len() + 100);
        self.trim_finished(2 * events.len() + 100);
        Applied { outcomes, events }
    }

    fn command(&mut self, command: &Command, events: &mut Vec<Event>) -> Outcome {
        let answer = match command {
            Command::Claim(new) => self.claim(new, events),
            Command::Activate { id } => self.activate(*id, 0, events),
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
                self.revoke(resource.as_ref(), *before, reason.as_ref(), events)
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
            Command::Upgrade { version } => Ok(self.upgrade(*version)),
            Command::ConfigureBudgets(budgets) => self.configure_budgets(*budgets),
            Command::SetBudget { scope, bytes } => self.set_budget(scope, *bytes),
            Command::Refuse => Err(Rejection::NoMemory),
            Command::Await { id, wait_us } => self.activate(*id, *wait_us, events),
            Command::RevokeWhenGone { id, reason } => self.revoke_when_gone(*id, reason.as_ref(), events),
            Command::ClaimSet(new) => self.claim_set(new, events),
        };
        answer.unwrap_or_else(Outcome::Rejected)
    }

    // ---- the commands

    fn claim(&mut self, new: &NewClaim, events: &mut Vec<Event>) -> Result<Outcome, Rejection> {
        if let Some(answer) = self.earlier(new.id, new.idempotency.as_ref(), events) {
            return answer;
        }
        let known = self.resources.seek(&new.resource);
        let slot = known.ok();
        let obstacle = slot.and_then(|slot| self.obstacle(slot, Mode::Exclusive, events));
        if let (Some(slot), Some(obstacle)) = (slot, obstacle) {
            if new.on_busy == OnBusy::Refuse {
                return Err(match obstacle.unsettled {
                    true => Rejection::Unsettled(new.resource.clone()),
                    false => Rejection::Busy(Box::new(self.view(obstacle.claim))),
                });
            }
            self.check_queue_room(slot, events)?;
        }
        self.check_table_room(1)?;
        self.check_namespace_room(&new.resource, 1)?;
        self.check_owner_room(&new.owner, 1)?;
        let bytes = new.counted_bytes();
        self.check_bytes(&new.resource, &new.owner, bytes)?;
        let names = (new.id, &new.resource, &new.owner);
        let seq = self.create(names, known, new.ttl_us, new.data.as_ref(), bytes);
        self.keep_key(seq, new.idempotency);
        if obstacle.is_none() {
            self.grant(seq, GrantedHow::AtOnce, events);
            return Ok(Outcome::Granted(Box::new(self.view(seq))));
        }
        self.enqueue(seq, new.on_busy, events);
        Ok(Outcome::Queued(Box::new(self.view(seq))))
    }

    /// The answer to a request that came before, under its id or its key.
    pub(super) fn earlier(
        &mut self,
        id: ClaimId,
        idempotency: Option<&Idempotency>,
        events: &mut Vec<Event>,
    ) -> Option<Result<Outcome, Rejection>> {
        if let Some(seq) = self.find(id) {
            return Some(Ok(self.existing(seq, events)));
        }
        let idempotency = idempotency?;
        let seq = self.find_key(idempotency.key)?;
        let first = self.claims.at(seq);
        Some(match first.idempotency() {
            Some(known) if known.fingerprint == idempotency.fingerprint => Ok(self.existing(seq, events)),
            _ => Err(Rejection::KeyReused(first.id)),
        })
    }

    /// Keeps the key under which a new claim is found again.
    pub(super) fn keep_key(&mut self, seq: u64, idempotency: Option<Idempotency>) {
        if let Some(idempotency) = idempotency {
            self.claims.update(seq, |claim| claim.set_idempotency(Some(Arc::new(idempotency))));
            self.index_key(idempotency.key, seq);
        }
    }

    /// Refuses one more in a queue that is full of claims whose wait is not over.
    pub(super) fn check_queue_room(&mut self, slot: Slot, events: &mut Vec<Event>) -> Result<(), Rejection> {
        if self.queue_is_full(slot) {
            self.settle_queue(slot, events);
            if self.queue_is_full(slot) {
                return Err(Rejection::QueueFull(self.settings.queue_len_max));
            }
        }
        Ok(())
    }

    fn existing(&mut self, seq: u64, events: &mut Vec<Event>) -> Outcome {
        self.settle_of(seq, events);
        let claim = self.claims.at(seq);
        if claim.status == Status::Waiting && claim.lapses() {
            self.note_asked(seq, 0);
        }
        Outcome::Existing(Box::new(self.view(seq)))
    }

    /// `open_us`: how long the request stands open if the claim waits.
    fn activate(&mut self, id: ClaimId, open_us: u64, events: &mut Vec<Event>) -> Result<Outcome, Rejection> {
        let seq = self.find_settled(&Target::Claim(id), events)?;
        match self.claims.at(seq) {
            claim if claim.status.is_final() => Err(Rejection::Final(Box::new(self.view(seq)))),
            claim if claim.status == Status::Waiting => Err(self.still_waiting(seq, open_us)),
            // Nobody starts to work under it any more.
            claim if claim.unpicked && claim.revoking().is_some() => {
                Err(Rejection::Revoking(Box::new(self.view(seq))))
            }
            claim => {
                if claim.unpicked {
                    self.pick_up(seq);
                }
                Ok(Outcome::Active(Box::new(self.view(seq))))
            }
        }
    }

    /// The first request for a promoted claim starts its ttl.
    fn pick_up(&mut self, seq: u64) {
        self.last_version += 1;
        let (version, now_us, by_rhythm) = (self.last_version, self.clock.now_us, self.picks_up_by_rhythm());
        self.update_deadline(seq, |claim| {
            claim.unpicked = false;
            claim.version = Packed::new(version);
            match by_rhythm {
                true => claim.set_deadline(now_us, claim.ttl_us()),
                // After the grace the ttl runs, seen or not.
                false => claim.advance_deadline(now_us, claim.ttl_us()),
            }
        });
    }

    /// The answer to a request for a claim that waits. Its client's rhythm is what a promotion will go by.
    fn still_waiting(&mut self, seq: u64, open_us: u64) -> Rejection {
        if self.picks_up_by_rhythm() {
            self.note_asked(seq, open_us);
        }
        Rejection::Waiting(Box::new(self.view(seq)))
    }

    fn note_asked(&mut self, seq: u64, open_us: u64) {
        let now_us = self.clock.now_us;
        self.update_deadline(seq, |claim| claim.note_asked(now_us, open_us));
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
            return Err(self.still_waiting(seq, 0));
        }
        if self.claims.at(seq).revoking().is_some() {
            return Err(Rejection::Revoking(Box::new(self.view(seq))));
        }
        if let Some(data) = data {
            self.replace_data(seq, data)?;
        }
        self.last_version += 1;
        let (version, clock) = (self.last_version, self.clock);
        self.update_deadline(seq, |claim| {
            if ttl_us.is_some() {
                claim.set_ttl(ttl_us);
            }
            claim.unpicked = false;
            claim.renewals = claim.renewals.saturating_add(1);
            // Readers tell a renewal by a newer time, also when the wall clock stands still or was set back.
            claim.renewed_wall_us = clock.wall_us.max(claim.renewed_wall_us + 1);
            claim.version = Packed::new(version);
            claim.set_deadline(clock.now_us, claim.ttl_us());
        });
        self.report(seq, EventKind::Renewed, events);
        Ok(Outcome::Renewed(Box::new(self.view(seq))))
    }

    /// Gives a live claim other data, if its budgets have room for it.
    fn replace_data(&mut self, seq: u64, data: &Data) -> Result<(), Rejection> {
        let claim = self.claims.at(seq);
        let name = self.resources.name(claim.resource);
        let before = claim.counted_bytes(name.len());
        let after = claim.counted_bytes_with(name.len(), data.bytes.len());
        self.check_bytes(name, &claim.owner, after.saturating_sub(before))?;
        self.claims.update(seq, |claim| claim.set_data(Some(Arc::new(data.clone()))));
        self.recount_live(seq, before, after);
        Ok(())
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
            return Err(self.still_waiting(seq, 0));
        }
        if purge_data {
            self.purge_data(seq);
        }
        self.end(seq, ending.into(), self.clock.now_us, reason, events);
        let view = self.view(seq);
        self.promote(self.claims.at(seq).resource, events);
        Ok(Outcome::Finished(Box::new(view)))
    }

    /// Has the holder told to let go. A claim that only waits has nothing to let go of, and is over at once.
    fn revoke_when_gone(
        &mut self,
        id: ClaimId,
        reason: Option<&Arc<str>>,
        events: &mut Vec<Event>,
    ) -> Result<Outcome, Rejection> {
        self.require_version(2)?;
        let target = Target::Claim(id);
        let seq = self.find_settled(&target, events)?;
        self.check_guard(seq, &Guard::default())?;
        let claim = self.claims.at(seq);
        if claim.status == Status::Waiting {
            return self.finish(&target, &Guard::default(), Ending::Revoked, reason, false, events);
        }
        if claim.revoking().is_none() {
            let name_len = self.resources.name(claim.resource).len();
            let before = claim.counted_bytes(name_len);
            self.last_version += 1;
            let version = self.last_version;
            self.claims.update(seq, |claim| {
                claim.set_revoking(Revoking { reason: reason.cloned() });
                claim.version = Packed::new(version);
            });
            let claim = self.claims.at(seq);
            let mut after = claim.counted_bytes(name_len);
            let (resource, owner) = (self.resources.name(claim.resource), &*claim.owner);
            // A revocation is never refused for want of room: its reason is left out.
            if self.check_bytes(resource, owner, after.saturating_sub(before)).is_err() {
                after = before;
                self.claims.update(seq, |claim| claim.set_revoking(Revoking { reason: None }));
            }
            self.recount_live(seq, before, after);
            self.report(seq, EventKind::Revoking, events);
        }
        Ok(Outcome::Revoking(Box::new(self.view(seq))))
    }

    fn configure(&mut self, settings: &Settings) -> Outcome {
        self.settings = settings.clone();
        Outcome::Done
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
