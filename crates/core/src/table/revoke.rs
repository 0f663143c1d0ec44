//! Revocations of all claims of a resource, or of all resources: a bounded number of items a command.
//!
//! In:    a resource or none, and a number before which claims were made. Out: how many are over, and whether some are left.
//! Never: promotes a claim only to revoke it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Table;
use super::claim::Status;
use super::claims::PAGE_BITS;
use super::record::Record;
use crate::event::Event;
use crate::limits::REVOCATIONS_PER_COMMAND;
use crate::outcome::{Outcome, Rejection};

impl Table {
    pub(super) fn revoke(
        &mut self,
        resource: Option<&Arc<str>>,
        before: u64,
        reason: Option<&Arc<str>>,
        events: &mut Vec<Event>,
    ) -> Result<Outcome, Rejection> {
        let mut left = REVOCATIONS_PER_COMMAND;
        let mut count = 0;
        match resource {
            Some(resource) => {
                self.check_all_alone(resource, before)?;
                count += self.revoke_on(resource, before, reason, &mut left, events);
            }
            None => {
                for resource in self.resources_with_live_claims(before, left) {
                    if left > 0 {
                        count += self.revoke_on(&resource, before, reason, &mut left, events);
                    }
                }
            }
        }
        self.wake(events);
        Ok(Outcome::Revoked { count, more: left == 0 })
    }

    /// Who names a resource means that one alone: nothing of it is revoked while somebody shares it or has it in a set.
    fn check_all_alone(&self, resource: &str, before: u64) -> Result<(), Rejection> {
        let Some(resource) = self.resources.get(resource) else { return Ok(()) };
        let mut live = resource.holders().chain(resource.queue()).filter(|seq| *seq < before);
        match live.find(|seq| !self.claims.at(*seq).is_alone()) {
            Some(seq) => Err(Rejection::NotAlone(Box::new(self.view(seq)))),
            None => Ok(()),
        }
    }

    /// From the tail of the queue, the holders last: nobody is promoted only to be revoked.
    fn revoke_on(
        &mut self,
        resource: &Arc<str>,
        before: u64,
        reason: Option<&Arc<str>>,
        left: &mut usize,
        events: &mut Vec<Event>,
    ) -> u64 {
        let Some(slot) = self.resources.find(resource) else { return 0 };
        let resource = self.resources.at(slot);
        // Claims newer than `before` stand at the tail and stay.
        let waiting = resource.queue().rev().skip_while(|seq| *seq >= before);
        let holders = resource.holders().rev().filter(|seq| *seq < before);
        let mut old = Vec::new();
        for seq in waiting.chain(holders) {
            if *left == 0 {
                break;
            }
            *left = left.saturating_sub(self.claims.at(seq).item_count());
            old.push(seq);
        }
        let mut count = 0;
        for seq in old {
            count += self.revoke_one(seq, reason, events);
        }
        // Since version 3 whoever waits is woken when all are revoked: a set may be free of one and not of the next.
        #[cfg(feature = "planted")]
        if self.has_bug(super::planted::TableBug::WakesAfterEach) {
            self.wake(events);
        }
        if !self.wakes_after_the_last() {
            self.promote(slot, events);
            self.settle(slot, events);
        }
        count
    }

    /// Revokes a claim, or ends it as its deadline would have, if that has passed. Counts the first.
    fn revoke_one(&mut self, seq: u64, reason: Option<&Arc<str>>, events: &mut Vec<Event>) -> u64 {
        let claim = self.claims.at(seq);
        if !claim.is_due(self.clock.now_us) {
            self.end(seq, Status::Revoked, self.clock.now_us, reason, events);
            return 1;
        }
        let (status, ended_us) = (claim.status_when_due(), claim.deadline_us().unwrap_or(self.clock.now_us));
        self.end(seq, status, ended_us, None, events);
        0
    }

    /// The first resources, in order of creation, that have live claims made before `before`.
    fn resources_with_live_claims(&self, before: u64, max: usize) -> BTreeSet<Arc<str>> {
        let pages = self.claims.pages_from(0).take_while(|(number, _)| number << PAGE_BITS < before);
        let with_live = pages.filter(|(_, page)| page.counts[0] + page.counts[1] > 0);
        let claims = with_live.flat_map(|(number, page)| {
            let old = move |claim: &&Record| (number << PAGE_BITS | u64::from(claim.slot)) < before;
            page.claims.iter().filter(|claim| !claim.status.is_final()).filter(old)
        });
        claims.take(max).map(|claim| self.resources.name(claim.resource).into()).collect()
    }
}
