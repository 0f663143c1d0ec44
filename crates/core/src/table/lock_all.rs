//! Typed locks: one claim for each resource, all of them in one step, or none.
//!
//! In:    resources, and an id for each. Out: a claim each, or the first that could not be made, and why.
//! Never: has a rule of its own: `wake.rs` decides whether a resource is free, as for every other command.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Table;
use super::budgets::bytes_of_item;
use super::steps::GrantedHow;
use crate::command::{Data, Mode};
use crate::event::Event;
use crate::name::ClaimId;
use crate::outcome::{Outcome, Rejection};

impl Table {
    pub(super) fn lock_all(
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
        let checked = self
            .check_all_free(items, events)
            .and_then(|()| self.check_all_room(items, owner))
            .and_then(|()| self.check_all_bytes(items, owner, data));
        if let Err((index, rejection)) = checked {
            return Outcome::LockedNone { index, rejection };
        }
        let grant = |(id, resource): &(ClaimId, Arc<str>)| {
            let known = self.resources.seek(resource);
            let bytes = bytes_of_item(resource, owner, data);
            let seq = self.create((*id, resource, owner), known, ttl_us, data, bytes);
            self.grant(seq, GrantedHow::AtOnce, events);
            self.view(seq)
        };
        Outcome::LockedAll(items.iter().map(grant).collect())
    }

    fn check_all_free(
        &mut self,
        items: &[(ClaimId, Arc<str>)],
        events: &mut Vec<Event>,
    ) -> Result<(), (usize, Rejection)> {
        let mut asked = BTreeSet::new();
        for (index, (_, resource)) in items.iter().enumerate() {
            let slot = self.resources.find(resource);
            if let Some(obstacle) = slot.and_then(|slot| self.obstacle(slot, Mode::Exclusive, events)) {
                let rejection = match obstacle.unsettled {
                    true => Rejection::Unsettled(resource.clone()),
                    false => Rejection::Busy(Box::new(self.view(obstacle.claim))),
                };
                return Err((index, rejection));
            }
            if !asked.insert(resource) {
                return Err((index, Rejection::Repeated(resource.clone())));
            }
        }
        Ok(())
    }

    fn check_all_room(&self, items: &[(ClaimId, Arc<str>)], owner: &str) -> Result<(), (usize, Rejection)> {
        if items.is_empty() {
            return Ok(());
        }
        let all = items.len() as u64;
        self.check_table_room(all).map_err(|rejection| (0, rejection))?;
        self.check_namespaces(items, |_| 1, Self::check_namespace_room)?;
        self.check_owner_room(owner, all).map_err(|rejection| (0, rejection))
    }

    fn check_all_bytes(
        &self,
        items: &[(ClaimId, Arc<str>)],
        owner: &str,
        data: Option<&Data>,
    ) -> Result<(), (usize, Rejection)> {
        let bytes = |resource: &str| bytes_of_item(resource, owner, data);
        let all = items.iter().map(|(_, resource)| bytes(resource)).sum();
        if all == 0 {
            return Ok(());
        }
        self.check_total_bytes(all).map_err(|rejection| (0, rejection))?;
        self.check_namespaces(items, bytes, Self::check_namespace_bytes)?;
        self.check_owner_bytes(owner, all).map_err(|rejection| (0, rejection))
    }

    /// Checks that each namespace has room for what the items up to each one add to it.
    fn check_namespaces(
        &self,
        items: &[(ClaimId, Arc<str>)],
        amount: impl Fn(&str) -> u64,
        check: impl Fn(&Self, &str, u64) -> Result<(), Rejection>,
    ) -> Result<(), (usize, Rejection)> {
        let mut more: BTreeMap<&str, u64> = BTreeMap::new();
        for (index, (_, resource)) in items.iter().enumerate() {
            let more = more.entry(self.version.namespace_of(resource)).or_default();
            *more += amount(resource);
            check(self, resource, *more).map_err(|rejection| (index, rejection))?;
        }
        Ok(())
    }
}
