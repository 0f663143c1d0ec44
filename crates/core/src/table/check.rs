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
use super::crowd::Crowd;
use super::load::Load;
use super::record::Record;
use super::resource::Resource;
use super::sessions::Sessions;
use crate::command::Mode;

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

    /// On each resource the admitted claims fit together and come before the queue; nobody waits who fits; queues are in order of
    /// arrival; tokens are not ahead of the counter and unique, but for those who share.
    fn check_holders_and_queues(&self, claims: &BTreeMap<u64, &Record>) -> Result<(), String> {
        let mut lines: BTreeMap<&str, Line> = BTreeMap::new();
        let mut tokens = BTreeSet::new();
        let mut sessions = Sessions::default();
        for (seq, claim) in claims {
            let token = claim.token.get();
            if token > self.last_token || claim.own_token().is_some_and(|token| !tokens.insert(token)) {
                return Err(format!("token {token} was granted twice or is above the newest token"));
            }
            if self.find(claim.id) != Some(*seq) {
                return Err(format!("claim {} is not in the index by id", claim.id));
            }
            self.check_set(*seq, claim)?;
            match (claim.session(), claim.status) {
                (Some(session), Status::Active) => sessions.add_holding(session),
                (Some(session), Status::Waiting) => sessions.add_waiting(session, *seq),
                _ => {}
            }
            for (place, (slot, mode)) in claim.items().enumerate() {
                let name = self.resources.name(slot);
                if self.resources.find(name) != Some(slot) {
                    return Err(format!(
                        "claim {} names resource {name}, which the index has elsewhere",
                        claim.id
                    ));
                }
                if !claim.status.is_final() {
                    let admitted = claim.set().is_some_and(|set| set.items[place].admitted);
                    lines.entry(name).or_default().push(*seq, mode, claim.status, admitted);
                }
            }
        }
        if sessions != self.sessions {
            return Err("the sessions differ from those of the claims".into());
        }
        for (name, resource) in self.resources.range(Bound::Unbounded) {
            self.check_line(name, resource, &lines.remove(name).unwrap_or_default(), claims)?;
        }
        Ok(())
    }

    /// One resource against the live claims that name it.
    fn check_line(
        &self,
        name: &str,
        resource: &Resource,
        line: &Line,
        claims: &BTreeMap<u64, &Record>,
    ) -> Result<(), String> {
        if resource.is_empty() {
            return Err(format!("{name} has no claim at all"));
        }
        if !resource.holders().eq(line.holders.iter().copied()) {
            return Err(format!("{name} names wrong holders; by its claims they are {:?}", line.holders));
        }
        if !resource.reserved().eq(line.reserved.iter().copied()) {
            return Err(format!(
                "{name} names wrong reservations; by its claims they are {:?}",
                line.reserved
            ));
        }
        if !resource.blocked().eq(line.blocked.iter().map(|(seq, _)| *seq)) {
            return Err(format!("the queue of {name} is not in order of arrival: {:?}", line.blocked));
        }
        if line.unfit || resource.load() != line.load {
            return Err(format!("two claims hold or reserve {name} and exclude each other"));
        }
        let capacity = resource.capacity();
        if line.capacities.len() > 1 || line.capacities.first().copied() != capacity {
            let slots = capacity.map_or("no".into(), |of| of.to_string());
            return Err(format!("{name} has {slots} slots; by its claims it has {:?}", line.capacities));
        }
        let in_time = |seq: &u64| !claims[seq].is_due(self.clock.now_us);
        let overdue = line.blocked.iter().any(|(seq, _)| !in_time(seq));
        let next = line.blocked.iter().find(|(seq, _)| in_time(seq));
        match next {
            // Behind a claim whose deadline has passed, the next one that fits is admitted when that claim ends.
            Some((seq, mode)) if line.load.takes(*mode) && !overdue => {
                let place = claims[seq].place_of(self.resources.find(name).unwrap_or_default());
                match self.admissible.contains(&(*seq, place as u32)) {
                    true => Ok(()),
                    false => Err(format!("claim {seq} waits for {name}, where no other claim is in its way")),
                }
            }
            _ => Ok(()),
        }
    }

    /// The parts of a set tell the same story.
    fn check_set(&self, seq: u64, claim: &Record) -> Result<(), String> {
        let Some(set) = claim.set() else { return Ok(()) };
        let blocked = set.items.iter().filter(|item| !item.admitted).count() as u32;
        let waits = claim.status == Status::Waiting;
        if waits && (blocked == 0 || blocked != set.blocked) {
            return Err(format!("claim {seq} waits for {} items, and counts {}", blocked, set.blocked));
        }
        let granted = claim.was_granted();
        if set.items.iter().any(|item| (item.token > 0) != granted) {
            return Err(format!("claim {seq} was granted in part"));
        }
        for item in &set.items {
            let (resource, wants) = (self.resources.at(item.resource), item.mode);
            let slots = if let Mode::Slots { take, .. } = wants { take as usize } else { 0 };
            if granted && item.slots.len() != slots {
                return Err(format!("claim {seq} has {} slots instead of {slots}", item.slots.len()));
            }
            let phase = resource.crowd().and_then(Crowd::phase_token);
            if claim.status == Status::Active && wants == Mode::Shared && phase != Some(item.token) {
                let (own, others) = (item.token, phase.unwrap_or(0));
                return Err(format!("claim {seq} has token {own}, and the others that share have {others}"));
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
        match self.deadlines.first().map(|(deadline_us, _)| deadline_us) {
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
        let (mut held, mut awaited) = ([0; 3], [0; 3]);
        for claim in claims.values() {
            let name = self.resources.name(claim.resource);
            let bytes = claim.counted_bytes(name.len());
            if claim.status.is_final() {
                finished_bytes += bytes;
                continue;
            }
            live_bytes += bytes;
            let items = if claim.status == Status::Active { &mut held } else { &mut awaited };
            for (place, (slot, mode)) in claim.items().enumerate() {
                items
                    [[Mode::Exclusive, Mode::Shared].iter().position(|other| *other == mode).unwrap_or(2)] +=
                    1;
                let (name, bytes) = (self.resources.name(slot), if place == 0 { bytes } else { 0 });
                owners.entry(claim.owner.clone()).or_default().add(bytes);
                namespaces.entry(self.version.namespace_of(name).into()).or_default().add(bytes);
            }
        }
        if (held, awaited) != (self.held_items(), self.awaited_items()) {
            return Err("the items of live claims are miscounted".into());
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
                return Err(format!("the idempotency key of claim {seq} leads elsewhere"));
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
                return Err(format!("claim {} is {}, but its end says otherwise", claim.id, claim.status));
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
            for (slot, _) in claims[&seq].items() {
                by_resource.entry(self.resources.name(slot)).or_default().push(seq);
            }
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

/// The live claims of one resource, as the claims tell it.
#[derive(Default)]
struct Line {
    holders: Vec<u64>,
    reserved: Vec<u64>,
    blocked: Vec<(u64, Mode)>,
    /// What the admitted ones come to.
    load: Load,
    /// One of them does not fit.
    unfit: bool,
    capacities: BTreeSet<u16>,
}

impl Line {
    fn push(&mut self, seq: u64, mode: Mode, status: Status, admitted: bool) {
        if let Mode::Slots { of, .. } = mode {
            self.capacities.insert(of);
        }
        match status {
            Status::Active => self.holders.push(seq),
            _ if admitted => self.reserved.push(seq),
            _ => return self.blocked.push((seq, mode)),
        }
        self.unfit |= !self.load.takes(mode);
        self.load = self.load.with(mode);
    }
}
