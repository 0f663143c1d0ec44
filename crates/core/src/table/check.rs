//! The invariants of the table, written down as code.
//!
//! In:    a table. Out: the first invariant that does not hold, in words.
//! Never: called on the hot path: tests and the simulation call it after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use super::Table;
use super::budgets::Share;
use super::claim::Status;
use super::claims::PAGE_BITS;
use super::record::Record;

impl Table {
    /// Checks everything that must be true between two entries. `expiry_backlog` says that more claims were due
    /// than one entry may end, so that some stand past their deadline until somebody touches them.
    pub fn check(&self, expiry_backlog: bool) -> Result<(), String> {
        let claims = self.all_claims();
        self.check_holders_and_queues(&claims)?;
        self.check_deadlines(&claims, expiry_backlog)?;
        self.check_counts(&claims)?;
        self.check_keys(&claims)?;
        self.check_finished(&claims)
    }

    fn all_claims(&self) -> BTreeMap<u64, &Record> {
        let pages = self.claims.pages_from(0);
        pages
            .flat_map(|(number, page)| {
                page.claims.iter().map(move |claim| (number << PAGE_BITS | u64::from(claim.slot), claim))
            })
            .collect()
    }

    /// One active claim a resource; nobody waits for a free one whose wait is not over; queues in order of arrival; tokens are unique
    /// and not ahead of the counter.
    fn check_holders_and_queues(&self, claims: &BTreeMap<u64, &Record>) -> Result<(), String> {
        let mut holders: BTreeMap<&str, u64> = BTreeMap::new();
        let mut tokens = BTreeSet::new();
        for (seq, claim) in claims {
            let (name, entry) = (self.resources.name(claim.resource), self.resources.at(claim.resource));
            if self.resources.find(name) != Some(claim.resource) {
                return Err(format!("{} looks for its resource {name} in a wrong place", claim.id));
            }
            let token = claim.token.get();
            if token > self.last_token || (token > 0 && !tokens.insert(token)) {
                return Err(format!("token {token} repeats or is ahead of the counter"));
            }
            match claim.status {
                Status::Active if holders.insert(name, *seq).is_some() => {
                    return Err(format!("two active claims on {name}"));
                }
                Status::Active if entry.active() != Some(*seq) => {
                    return Err(format!("{name} does not know its holder {seq}"));
                }
                Status::Waiting if entry.position(*seq).is_none() => {
                    return Err(format!("{seq} waits for {name} without a place"));
                }
                Status::Waiting if entry.active().is_none() && !claim.is_due(self.clock.now_us) => {
                    return Err(format!("{seq} waits for {name}, which nobody holds"));
                }
                _ if self.find(claim.id) != Some(*seq) => return Err(format!("{} is not indexed", claim.id)),
                _ => {}
            }
        }
        for (name, entry) in self.resources.range(Bound::Unbounded) {
            let queue: Vec<u64> = entry.queue().collect();
            let waiting = |seq: &u64| claims.get(seq).is_some_and(|claim| claim.status == Status::Waiting);
            if !queue.is_sorted() || !queue.iter().all(waiting) {
                return Err(format!("the queue of {name} is not in order of arrival: {queue:?}"));
            }
            if entry.active() != holders.get(name).copied() || entry.is_empty() {
                return Err(format!("{name} names a wrong holder, or nothing at all"));
            }
        }
        Ok(())
    }

    fn check_deadlines(&self, claims: &BTreeMap<u64, &Record>, expiry_backlog: bool) -> Result<(), String> {
        let live = claims.iter().filter(|(_, claim)| !claim.status.is_final());
        let expected: BTreeSet<(u64, u64)> =
            live.filter_map(|(seq, claim)| Some((claim.deadline_us()?, *seq))).collect();
        if !expected.into_iter().eq(self.deadlines.iter()) {
            return Err("the set of deadlines differs from the claims' deadlines".into());
        }
        match self.earliest_deadline_us() {
            Some(due) if due <= self.clock.now_us && !expiry_backlog => {
                Err(format!("a claim outlived its deadline {due} at {}", self.clock.now_us))
            }
            _ => Ok(()),
        }
    }

    fn check_counts(&self, claims: &BTreeMap<u64, &Record>) -> Result<(), String> {
        let mut owners: BTreeMap<Arc<str>, Share> = BTreeMap::new();
        let mut namespaces: BTreeMap<Box<str>, Share> = BTreeMap::new();
        let (mut live_bytes, mut finished_bytes) = (0, 0);
        for claim in claims.values() {
            let name = self.resources.name(claim.resource);
            let bytes = claim.counted_bytes(name.len());
            if claim.status.is_final() {
                finished_bytes += bytes;
                continue;
            }
            live_bytes += bytes;
            owners.entry(claim.owner.clone()).or_default().add(bytes);
            namespaces.entry(self.version.namespace_of(name).into()).or_default().add(bytes);
        }
        if owners != self.owners || namespaces != self.namespaces {
            return Err("live claims are miscounted by owner or namespace".into());
        }
        if (live_bytes, finished_bytes) != (self.live_bytes, self.finished_bytes) {
            return Err("the bytes of live or finished claims are miscounted".into());
        }
        for status in Status::ALL {
            let count = claims.values().filter(|claim| claim.status == status).count() as u64;
            if count != self.count(status) {
                return Err(format!("{count} claims are {status}, {} are counted", self.count(status)));
            }
        }
        Ok(())
    }

    /// A key leads to the one claim that was made under it.
    fn check_keys(&self, claims: &BTreeMap<u64, &Record>) -> Result<(), String> {
        let with_key = claims.iter().filter_map(|(seq, claim)| Some((seq, claim.idempotency()?.key)));
        let mut count = 0;
        for (seq, key) in with_key {
            if self.find_key(key) != Some(*seq) {
                return Err(format!("the idempotency key of {seq} leads elsewhere"));
            }
            count += 1;
        }
        match count == self.by_key.len() {
            true => Ok(()),
            false => {
                Err(format!("{count} claims have an idempotency key, {} are indexed", self.by_key.len()))
            }
        }
    }

    /// Final claims have an end and stand in its order, also within their resource; live ones have none.
    fn check_finished(&self, claims: &BTreeMap<u64, &Record>) -> Result<(), String> {
        let mut finished: Vec<(u64, u64)> = Vec::new();
        for (seq, claim) in claims {
            if claim.status.is_final() != claim.end().is_some() {
                return Err(format!("{} is {} but its end says otherwise", claim.id, claim.status));
            }
            if claim.status.is_final() {
                finished.push((claim.version.get(), *seq));
            }
        }
        finished.sort_unstable();
        if !finished.iter().map(|(_, seq)| seq).eq(self.finished.iter()) {
            return Err("the finished claims are not in order of their ends".into());
        }
        let with_data = finished.iter().map(|(_, seq)| seq).filter(|seq| claims[seq].has_data());
        if !with_data.eq(self.finished_with_data.iter()) {
            return Err("the finished claims with data are not in order of their ends".into());
        }
        let mut by_resource: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (_, seq) in finished {
            by_resource.entry(self.resources.name(claims[&seq].resource)).or_default().push(seq);
        }
        for (name, entry) in self.resources.range(Bound::Unbounded) {
            let expected = by_resource.remove(name).unwrap_or_default();
            if !entry.finished().eq(expected.iter().copied()) {
                return Err(format!("the finished claims of {name} are not in order of their ends"));
            }
            let held = expected.into_iter().rev().find(|seq| claims[seq].was_granted());
            if entry.last_holder() != held {
                return Err(format!("{name} names a wrong last holder"));
            }
        }
        Ok(())
    }
}
