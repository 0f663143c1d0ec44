//! Reading the table: views of claims, lists in pages, ranges of resources.
//!
//! In:    names, ids, filters, and the reader's instant. Out: clones that outlive the table's lock.
//! Never: changes anything, and never walks far in one call: a list stops after a number of claims and says where
//!        to go on, so that whoever holds the table's lock can let writers pass.

use std::ops::Bound;
use std::sync::Arc;

use super::Table;
use super::claim::Status;
use super::claims::PAGE_BITS;
use super::record::Record;
use super::resource::{Resource, Slot};
use crate::command::Settings;
use crate::limits::SETTLED_HOLDERS_MAX;
use crate::name::{ClaimId, Stamp};
use crate::outcome::View;

/// Which claims a list shows: those that match everything that is set. Bounds are inclusive.
#[derive(Debug, Clone, Default)]
pub struct ListFilter {
    /// On this resource.
    pub resource: Option<Arc<str>>,
    /// In this status.
    pub status: Option<Status>,
    /// Bounds on what is left of an active claim's ttl.
    pub left_us: Bounds,
    /// Bounds on the time of creation, wall clock.
    pub created_wall_us: Bounds,
    /// Bounds on the time active.
    pub active_us: Bounds,
    /// Bounds on the time waiting.
    pub waiting_us: Bounds,
}

/// The least and the most, each if it is set. Either may be negative, though no value is.
pub type Bounds = (Option<i64>, Option<i64>);

/// A list in the making: filled by [`Table::list`], call by call, until it is done.
#[derive(Debug, Clone)]
pub struct ListPage {
    /// What was found so far, in order of creation.
    pub views: Vec<View>,
    /// Whether more claims match beyond this page.
    pub more: bool,
    /// Whether the page is complete.
    pub done: bool,
    next_seq: u64,
    skip: u64,
    limit: usize,
}

impl ListPage {
    /// A page of `limit` claims after the first `offset`.
    pub fn new(offset: u64, limit: usize) -> Self {
        Self { views: Vec::new(), more: false, done: false, next_seq: 0, skip: offset, limit }
    }

    /// Takes a matching claim; `false` once the page is complete.
    fn take(&mut self, view: impl FnOnce() -> View) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
        } else if self.views.len() == self.limit {
            self.more = true;
            self.done = true;
        } else {
            self.views.push(view());
        }
        !self.done
    }
}

impl ListFilter {
    /// Whether a claim matches everything but the resource: whoever wants those of one walks through no others.
    fn matches(&self, claim: &Record, now_us: u64) -> bool {
        let within = |value: Option<u64>, bounds: Bounds| match (value, bounds) {
            (_, (None, None)) => true,
            (None, _) => false,
            (Some(value), (min, max)) => {
                let value = i64::try_from(value).unwrap_or(i64::MAX);
                min.is_none_or(|min| min <= value) && max.is_none_or(|max| value <= max)
            }
        };
        self.status.is_none_or(|status| status == claim.status)
            && within(claim.left_us(now_us), self.left_us)
            && within(Some(claim.created_wall_us()), self.created_wall_us)
            && within(claim.held_us(now_us), self.active_us)
            && within(Some(claim.waited_us(now_us)), self.waiting_us)
    }

    /// Whether a page without claims of the wanted status can be passed over, and a whole page be counted.
    fn is_status_alone(&self) -> bool {
        self.resource.is_none()
            && [self.left_us, self.created_wall_us, self.active_us, self.waiting_us] == [(None, None); 4]
    }
}

/// What somebody who waits for the end of a claim wants to know of it.
#[derive(Debug, Clone)]
pub struct Fate<'a> {
    /// What it is on and whose it is.
    pub whose: Whose<'a>,
    /// Where it is.
    pub status: Status,
    /// Whether it is active and is to let go.
    pub is_revoking: bool,
    /// Why it ended, or is to end.
    pub reason: Option<&'a str>,
}

/// What a claim is on and whose it is: who may do something with it needs the right on every resource.
#[derive(Debug, Clone)]
pub struct Whose<'a> {
    /// The only resource of nearly all claims.
    pub resource: &'a str,
    /// Those of a set's other items.
    pub others: Vec<&'a str>,
    /// Who made it.
    pub owner: &'a str,
}

impl<'a> Whose<'a> {
    /// All of its resources.
    pub fn resources(&self) -> impl Iterator<Item = &'a str> {
        std::iter::once(self.resource).chain(self.others.iter().copied())
    }
}

/// Which claims a reader may see, by resource and owner; `None`: all of them. A reader sees a set who sees all its resources.
pub type Sight<'a> = Option<&'a dyn Fn(&str, &str) -> bool>;

/// What one call of a list looks for.
struct Wanted<'a> {
    filter: &'a ListFilter,
    sees: Sight<'a>,
    now_us: u64,
}

impl Table {
    fn is_wanted(&self, claim: &Record, wanted: &Wanted<'_>) -> bool {
        let sees = |sees: &dyn Fn(&str, &str) -> bool| {
            claim.items().all(|(slot, _)| sees(self.resources.name(slot), &claim.owner))
        };
        wanted.filter.matches(claim, wanted.now_us) && wanted.sees.is_none_or(sees)
    }
}

impl Table {
    /// The instant up to which the table has come.
    pub fn clock(&self) -> Stamp {
        self.clock
    }

    /// What the operator set.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The number that the next claim will get.
    pub fn next_sequence(&self) -> u64 {
        self.claims.next_seq()
    }

    /// The newest fencing token.
    pub fn last_token(&self) -> u64 {
        self.last_token
    }

    /// How many claims are held or waiting.
    pub fn live(&self) -> u64 {
        self.count(Status::Waiting) + self.count(Status::Active)
    }

    /// How many claims are in this status.
    pub fn count(&self, status: Status) -> u64 {
        self.claims.count(status)
    }

    /// How many resources have a claim, finished ones included.
    pub fn resource_count(&self) -> usize {
        self.resources.len()
    }

    /// How many claims are held or waiting in a resource's namespace.
    pub fn live_in_namespace_of(&self, resource: &str) -> u64 {
        self.namespaces.get(self.version.namespace_of(resource)).map_or(0, |share| share.claims)
    }

    /// The earliest instant at which something changes by itself: a claim ends, or waits for the next entry to be granted.
    pub fn earliest_deadline_us(&self) -> Option<u64> {
        match self.admissible.is_empty() {
            true => self.deadlines.first().map(|(deadline_us, _)| deadline_us),
            false => Some(self.clock.now_us),
        }
    }

    /// What a claim is on, and whose it is: both as long as there is any trace of it.
    pub fn whose(&self, id: ClaimId) -> Option<Whose<'_>> {
        Some(self.whose_is(self.claims.at(self.find(id)?)))
    }

    fn whose_is<'a>(&'a self, claim: &'a Record) -> Whose<'a> {
        let others = claim.items().skip(1).map(|(slot, _)| self.resources.name(slot)).collect();
        Whose { resource: self.resources.name(claim.resource), others, owner: &claim.owner }
    }

    /// Where a claim is on its way, without a copy of it.
    pub fn fate(&self, id: ClaimId) -> Option<Fate<'_>> {
        let claim = self.claims.at(self.find(id)?);
        Some(Fate {
            whose: self.whose_is(claim),
            status: claim.status,
            is_revoking: claim.revoking().is_some(),
            reason: claim.reason().map(|reason| &**reason),
        })
    }

    /// A claim by its id, as of `now_us`.
    pub fn claim_view(&self, id: ClaimId, now_us: u64) -> Option<View> {
        self.find(id).map(|seq| self.view_at(seq, now_us))
    }

    /// A claim by its sequence number, as of `now_us`.
    pub fn view_at(&self, seq: u64, now_us: u64) -> View {
        View { now_us: now_us.max(self.clock.now_us), ..self.view(seq) }
    }

    /// Whether a reader at `now_us` would see what no longer holds: the claim's own deadline has passed, or that
    /// of a holder of one of its resources. `Settle` them first. Of a large crowd it looks at the first
    /// [`SETTLED_HOLDERS_MAX`]: as many as a command would settle.
    pub fn is_unsettled(&self, view: &View, now_us: u64) -> bool {
        let due = |seq: u64| self.claims.at(seq).is_due(now_us);
        let held_too_long = |name: &Arc<str>| {
            let holders = self.resources.get(name).map(Resource::holders);
            holders.is_some_and(|holders| holders.take(SETTLED_HOLDERS_MAX).any(due))
        };
        let nothing_is_due = self.earliest_deadline_us().is_none_or(|due_us| due_us > now_us);
        !view.claim.status.is_final()
            && !nothing_is_due
            && (view.claim.is_due(now_us) || view.resources().any(held_too_long))
    }

    /// A resource by its name.
    pub fn resource(&self, name: &str) -> Option<&Resource> {
        self.resources.get(name)
    }

    /// The holder of a resource, as of `now_us`.
    pub fn holder_view(&self, resource: &str, now_us: u64) -> Option<View> {
        self.resources.get(resource)?.active().map(|seq| self.view_at(seq, now_us))
    }

    /// The resources whose names start with `prefix`, in order, from the one after `after` on.
    pub fn resources_after<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a str, &'a Resource)> {
        let start = after.map_or(Bound::Included(prefix), Bound::Excluded);
        self.resources.range(start).take_while(move |(name, _)| name.starts_with(prefix))
    }

    /// The claim that held a resource last, of those that are over.
    pub(super) fn last_holder(&self, slot: Option<Slot>) -> Option<View> {
        self.resources.at(slot?).last_holder().map(|seq| self.view(seq))
    }

    /// Goes on filling `page` for about `budget` claims; call again until it is done.
    pub fn list(&self, filter: &ListFilter, page: &mut ListPage, now_us: u64, budget: usize) {
        self.list_seen(filter, None, page, now_us, budget);
    }

    /// The same, for a reader who may see only some of the claims: the others are neither shown nor counted.
    pub fn list_seen(
        &self,
        filter: &ListFilter,
        sees: Sight<'_>,
        page: &mut ListPage,
        now_us: u64,
        budget: usize,
    ) {
        let wanted = Wanted { filter, sees, now_us };
        match filter.resource.as_ref().map(|name| self.resources.get(name)) {
            Some(Some(resource)) => self.list_resource(resource, &wanted, page, budget.max(1)),
            Some(None) => page.done = true,
            None => self.list_all(&wanted, page, budget),
        }
    }

    /// Finished claims stand in the order of their ends, so each call picks out the oldest that are left.
    fn list_resource(
        &self,
        resource: &Resource,
        looked_for: &Wanted<'_>,
        page: &mut ListPage,
        budget: usize,
    ) {
        let Wanted { filter, now_us, .. } = *looked_for;
        let wanted = |status: Status| filter.status.is_none_or(|filter| filter == status);
        let final_wanted = filter.status.is_none_or(Status::is_final);
        let mut seqs: Vec<u64> = Vec::new();
        seqs.extend(resource.finished().filter(|_| final_wanted));
        seqs.extend(resource.holders().filter(|_| wanted(Status::Active)));
        seqs.extend(resource.queue().filter(|_| wanted(Status::Waiting)));
        seqs.retain(|seq| *seq >= page.next_seq);
        let more = seqs.len() > budget;
        if more {
            let (_, next_seq, _) = seqs.select_nth_unstable(budget);
            page.next_seq = *next_seq;
            seqs.truncate(budget);
        }
        seqs.sort_unstable();
        for seq in seqs {
            if self.is_wanted(self.claims.at(seq), looked_for) && !page.take(|| self.view_at(seq, now_us)) {
                return;
            }
        }
        page.done = !more;
    }

    fn list_all(&self, wanted: &Wanted<'_>, page: &mut ListPage, budget: usize) {
        let Wanted { filter, sees, now_us } = *wanted;
        let mut left = budget;
        let countable = filter.is_status_alone() && sees.is_none();
        for (number, claims) in self.claims.pages_from(page.next_seq) {
            if left == 0 {
                page.next_seq = number << PAGE_BITS;
                return;
            }
            let matching = filter.status.map(|status| u64::from(claims.counts[status as usize]));
            let all = claims.claims.len() as u64;
            // Nothing to see here, or everything of it lies before the offset: pass over the whole page.
            let skippable = if countable { matching.unwrap_or(all) } else { matching.unwrap_or(1) };
            if skippable == 0 || (countable && skippable <= page.skip) {
                page.skip -= skippable;
                left = left.saturating_sub(2);
                continue;
            }
            left = left.saturating_sub(claims.claims.len());
            for claim in &claims.claims {
                let seq = number << PAGE_BITS | u64::from(claim.slot);
                if self.is_wanted(claim, wanted) && !page.take(|| self.view_at(seq, now_us)) {
                    return;
                }
            }
        }
        page.done = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Batch, Command, Item, Mode, NewSet, OnBusy};
    use crate::name::Stamp;

    /// A resource with so many sharers, the last of which is due after a second, and a writer that waits for them.
    fn crowd_and_writer(sharers: usize) -> (Table, ClaimId) {
        let claim = |number: usize, mode, ttl_us| {
            Command::ClaimSet(Box::new(NewSet {
                id: ClaimId::from_u128(number as u128),
                items: vec![Item { resource: "x".into(), mode }],
                owner: "me".into(),
                ttl_us: Some(ttl_us),
                on_busy: OnBusy::Queue,
                data: None,
                idempotency: None,
                session: None,
                lapses: false,
            }))
        };
        let mut commands = vec![Command::Upgrade { version: 3 }];
        commands.extend((1..sharers).map(|number| claim(number, Mode::Shared, 60_000_000)));
        commands.push(claim(sharers, Mode::Shared, 1_000_000));
        commands.push(claim(sharers + 1, Mode::Exclusive, 60_000_000));
        let mut table = Table::default();
        table.apply(&Batch { stamp: Stamp { now_us: 0, wall_us: 0 }, commands });
        (table, ClaimId::from_u128(sharers as u128 + 1))
    }

    #[test]
    fn a_reader_looks_at_as_many_holders_as_a_command_settles() {
        let is_unsettled = |sharers: usize, now_us: u64| {
            let (table, writer) = crowd_and_writer(sharers);
            let view = table.claim_view(writer, now_us);
            assert!(view.as_ref().is_some_and(|view| view.claim.status == Status::Waiting));
            view.is_some_and(|view| table.is_unsettled(&view, now_us))
        };
        assert!(!is_unsettled(SETTLED_HOLDERS_MAX, 999_999), "nothing is due yet");
        assert!(is_unsettled(SETTLED_HOLDERS_MAX, 1_000_000));
        assert!(!is_unsettled(SETTLED_HOLDERS_MAX + 1, 1_000_000), "the tick ends what stands further back");
    }
}
