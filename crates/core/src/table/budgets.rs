//! The table's side of byte budgets: what is used, what is allowed, and what finished claims give back.
//!
//! In:    calls from `apply.rs` and `steps.rs`, with the bytes that a claim counts for.
//! Out:   counts that are right at every version, since they are derived; refusals from version 2 on.
//! Never: looks at a name for a claim that counts for nothing, as nearly all do.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Table;
use super::record::{RareBytes, Record};
use super::set::Set;
use crate::budget::{Budgets, Scope, Used, counted_bytes};
use crate::command::{Data, NewClaim, NewSet};
use crate::limits::BUDGET_OVERRIDES_MAX;
use crate::outcome::{Outcome, Rejection};

/// The table version from which on budgets hold.
pub(super) const SINCE_VERSION: u32 = 2;

/// What one owner, or one namespace, has at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Live claims.
    pub(super) claims: u64,
    /// The bytes that they count for.
    pub(super) bytes: u64,
}

impl Share {
    /// Adds a claim that counts for `bytes`.
    pub(super) fn add(&mut self, bytes: u64) {
        self.claims += 1;
        self.bytes += bytes;
    }

    /// Takes a claim away. Says whether none is left.
    pub(super) fn is_empty_without(&mut self, bytes: u64) -> bool {
        self.claims -= 1;
        self.bytes -= bytes;
        self.claims == 0
    }
}

/// What an operator allows: replicated, and part of every snapshot from version 2 on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Allowed {
    /// From the flags of the leader.
    budgets: Budgets,
    /// From `leasehold limits`.
    total: Option<u64>,
    finished: Option<u64>,
    /// By prefix.
    owners: BTreeMap<Arc<str>, u64>,
    namespaces: BTreeMap<Arc<str>, u64>,
}

impl Allowed {
    pub(super) fn total(&self) -> u64 {
        self.total.unwrap_or(self.budgets.total)
    }

    pub(super) fn finished(&self) -> u64 {
        self.finished.unwrap_or(self.budgets.finished)
    }

    pub(super) fn owner(&self, owner: &str) -> u64 {
        by_prefix(&self.owners, owner).unwrap_or(self.budgets.per_owner)
    }

    pub(super) fn namespace(&self, namespace: &str) -> u64 {
        by_prefix(&self.namespaces, namespace).unwrap_or(self.budgets.per_namespace)
    }

    /// How many overrides there are; a snapshot with more is no sound one.
    pub(super) fn overrides_len(&self) -> usize {
        self.owners.len() + self.namespaces.len()
    }
}

/// What stands under the longest prefix of a name.
fn by_prefix(map: &BTreeMap<Arc<str>, u64>, name: &str) -> Option<u64> {
    let mut end = name;
    loop {
        let (prefix, bytes) = map.range::<str, _>((Bound::Unbounded, Bound::Included(end))).next_back()?;
        if name.starts_with(&**prefix) {
            return Some(*bytes);
        }
        // Every prefix of the name that is left is one of what both have in common.
        let common = prefix.bytes().zip(end.bytes()).take_while(|(one, other)| one == other).count();
        let cut = (0..=common).rev().find(|at| end.is_char_boundary(*at)).unwrap_or(0);
        end = &end[..cut];
    }
}

impl NewClaim {
    /// The bytes that it would count for.
    pub(super) fn counted_bytes(&self) -> u64 {
        let data = self.data.as_ref().map_or(0, |data| data.bytes.len());
        counted_bytes(self.resource.len() + self.owner.len(), data, 0, self.idempotency.is_some())
    }
}

impl NewSet {
    /// The bytes that it would count for.
    pub(super) fn counted_bytes(&self) -> u64 {
        let data = self.data.as_ref().map_or(0, |data| data.bytes.len());
        let first = self.items.first().map_or(0, |item| item.resource.len());
        counted_bytes(
            first + self.owner.len() + self.set_bytes() as usize,
            data,
            0,
            self.idempotency.is_some(),
        )
    }

    /// The part of them that its items and its session take.
    pub(super) fn set_bytes(&self) -> u32 {
        let items = self.items.iter().map(|item| (item.resource.len(), item.mode));
        Set::count_bytes(items, self.session.as_deref())
    }
}

/// The bytes that one claim of an all-or-nothing command would count for.
pub(super) fn bytes_of_item(resource: &str, owner: &str, data: Option<&Data>) -> u64 {
    counted_bytes(resource.len() + owner.len(), data.map_or(0, |data| data.bytes.len()), 0, false)
}

impl Record {
    /// The bytes that it counts for, with a resource's name of this length.
    pub(super) fn counted_bytes(&self, name_len: usize) -> u64 {
        self.rare_bytes().counted(name_len + self.owner.len())
    }

    /// The same with data of this length.
    pub(super) fn counted_bytes_with(&self, name_len: usize, data_len: usize) -> u64 {
        RareBytes { data: data_len, ..self.rare_bytes() }.counted(name_len + self.owner.len())
    }

    /// Whether it has data to lose.
    pub(super) fn has_data(&self) -> bool {
        self.rare_bytes().data > 0
    }
}

impl Table {
    fn budgets_hold(&self) -> bool {
        self.version.number() >= SINCE_VERSION
    }

    /// What is used of the budgets: of all live claims, and of the finished ones.
    pub fn bytes_used(&self) -> (Used, Used) {
        (
            Used { used: self.live_bytes, max: self.allowed.total() },
            Used { used: self.finished_bytes, max: self.allowed.finished() },
        )
    }

    /// Owners of claims, in order, from this name on.
    pub fn owners_from(&self, name: &str) -> impl Iterator<Item = &str> {
        self.owners.range::<str, _>((Bound::Included(name), Bound::Unbounded)).map(|(owner, _)| &**owner)
    }

    /// What an owner uses of its budget.
    pub fn bytes_of_owner(&self, owner: &str) -> Used {
        let used = self.owners.get(owner).map_or(0, |share| share.bytes);
        Used { used, max: self.allowed.owner(owner) }
    }

    /// What a namespace uses of its budget.
    pub fn bytes_of_namespace(&self, namespace: &str) -> Used {
        let used = self.namespaces.get(namespace).map_or(0, |share| share.bytes);
        Used { used, max: self.allowed.namespace(namespace) }
    }

    /// The budgets without overrides.
    pub fn budgets(&self) -> Budgets {
        self.allowed.budgets
    }

    /// Every override.
    pub fn budget_overrides(&self) -> Vec<(Scope, u64)> {
        let Allowed { total, finished, owners, namespaces, .. } = &self.allowed;
        let single = [(Scope::Total, *total), (Scope::Finished, *finished)].into_iter();
        let single = single.filter_map(|(scope, bytes)| Some((scope, bytes?)));
        let owners = owners.iter().map(|(prefix, bytes)| (Scope::Owner(prefix.clone()), *bytes));
        let namespaces = namespaces.iter().map(|(prefix, bytes)| (Scope::Namespace(prefix.clone()), *bytes));
        single.chain(owners).chain(namespaces).collect()
    }

    // ---- refusals

    /// Checks that `more` bytes fit the budgets of the table, the namespace and the owner.
    pub(super) fn check_bytes(&self, resource: &str, owner: &str, more: u64) -> Result<(), Rejection> {
        if more == 0 || !self.budgets_hold() {
            return Ok(());
        }
        self.check_total_bytes(more)?;
        self.check_namespace_bytes(resource, more)?;
        self.check_owner_bytes(owner, more)
    }

    pub(super) fn check_total_bytes(&self, more: u64) -> Result<(), Rejection> {
        let (live, _) = self.bytes_used();
        if self.fits(live, more) { Ok(()) } else { Err(Rejection::TableBytes(live)) }
    }

    pub(super) fn check_namespace_bytes(&self, resource: &str, more: u64) -> Result<(), Rejection> {
        let used = self.bytes_of_namespace(self.version.namespace_of(resource));
        if self.fits(used, more) { Ok(()) } else { Err(Rejection::NamespaceBytes(used)) }
    }

    pub(super) fn check_owner_bytes(&self, owner: &str, more: u64) -> Result<(), Rejection> {
        let used = self.bytes_of_owner(owner);
        if self.fits(used, more) { Ok(()) } else { Err(Rejection::OwnerBytes(used)) }
    }

    /// Nothing more always fits: a lowered budget takes nothing away.
    fn fits(&self, Used { used, max }: Used, more: u64) -> bool {
        more == 0 || !self.budgets_hold() || used.saturating_add(more) <= max
    }

    /// Moves the counts of a live claim whose data was replaced.
    pub(super) fn recount_live(&mut self, seq: u64, before: u64, after: u64) {
        if before == after {
            return;
        }
        let claim = self.claims.at(seq);
        let namespace = self.version.namespace_of(self.resources.name(claim.resource));
        let moved = |bytes: u64| bytes - before + after;
        if let Some(share) = self.namespaces.get_mut(namespace) {
            share.bytes = moved(share.bytes);
        }
        if let Some(share) = self.owners.get_mut(&claim.owner) {
            share.bytes = moved(share.bytes);
        }
        self.live_bytes = moved(self.live_bytes);
    }

    // ---- finished claims

    /// A claim of a snapshot is over, and ended behind all that were counted before.
    pub(super) fn count_finished(&mut self, seq: u64) {
        let claim = self.claims.at(seq);
        let bytes = claim.counted_bytes(self.resources.name(claim.resource).len());
        if claim.has_data() {
            self.finished_with_data.push_back(seq);
        }
        self.finished_bytes += bytes;
    }

    /// The oldest of those claims is about to be forgotten.
    pub(super) fn uncount_finished(&mut self, seq: u64, claim: &Record) {
        self.finished_bytes -= claim.counted_bytes(self.resources.name(claim.resource).len());
        if self.finished_with_data.front() == Some(&seq) {
            self.finished_with_data.pop_front();
        }
    }

    /// Takes finished claims back into their budget: the oldest lose their data; when none has data any more, the oldest
    /// are forgotten. At most `max` at a time, which is more than the entry ended.
    pub(super) fn trim_finished(&mut self, max: usize) {
        if !self.budgets_hold() {
            return;
        }
        for _ in 0..max {
            if self.finished_bytes <= self.allowed.finished() {
                break;
            }
            match self.finished_with_data.pop_front() {
                Some(seq) => self.drop_data(seq),
                None => self.forget_oldest(),
            }
        }
    }

    /// A claim that is about to end loses its data.
    pub(super) fn purge_data(&mut self, seq: u64) {
        let slot = self.claims.at(seq).resource;
        let name_len = self.resources.name(slot).len();
        let before = self.claims.at(seq).counted_bytes(name_len);
        let after = self.claims.update(seq, |claim| claim.set_data(None)).counted_bytes(name_len);
        self.recount_live(seq, before, after);
    }

    fn drop_data(&mut self, seq: u64) {
        let slot = self.claims.at(seq).resource;
        let name_len = self.resources.name(slot).len();
        let before = self.claims.at(seq).counted_bytes(name_len);
        let after = self.claims.update(seq, |claim| claim.set_data(None)).counted_bytes(name_len);
        self.finished_bytes -= before - after;
    }

    // ---- settings

    pub(super) fn configure_budgets(&mut self, budgets: Budgets) -> Result<Outcome, Rejection> {
        self.require_budgets()?;
        self.allowed.budgets = budgets;
        Ok(Outcome::Done)
    }

    pub(super) fn set_budget(&mut self, scope: &Scope, bytes: Option<u64>) -> Result<Outcome, Rejection> {
        self.require_budgets()?;
        let full = self.allowed.overrides_len() >= BUDGET_OVERRIDES_MAX;
        let (map, prefix) = match scope {
            Scope::Total => {
                self.allowed.total = bytes;
                return Ok(Outcome::Done);
            }
            Scope::Finished => {
                self.allowed.finished = bytes;
                return Ok(Outcome::Done);
            }
            Scope::Owner(prefix) => (&mut self.allowed.owners, prefix),
            Scope::Namespace(prefix) => (&mut self.allowed.namespaces, prefix),
        };
        match bytes {
            Some(_) if full && !map.contains_key(prefix) => {
                return Err(Rejection::OverridesFull(BUDGET_OVERRIDES_MAX as u64));
            }
            Some(bytes) => drop(map.insert(prefix.clone(), bytes)),
            None => drop(map.remove(prefix)),
        }
        Ok(Outcome::Done)
    }

    /// A leader sends no such command before; were one to come all the same, every node refuses it.
    fn require_budgets(&self) -> Result<(), Rejection> {
        if self.budgets_hold() { Ok(()) } else { Err(Rejection::TooEarly(SINCE_VERSION)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_counts() {
        let map = |prefixes: &[&str]| prefixes.iter().map(|p| (Arc::from(*p), p.len() as u64)).collect();
        let prefixes = map(&["", "ab", "aba", "abc", "abcde", "b", "gr\u{fc}n", "gr\u{fc}"]);
        let longest = |name: &str| by_prefix(&prefixes, name);
        for (name, expected) in [
            ("abcd", 3),
            ("abcdef", 5),
            ("abd", 2),
            ("a", 0),
            ("", 0),
            ("zz", 0),
            ("b", 1),
            ("gr\u{fc}ner", 5),
            ("gr\u{fc}", 4),
            ("gr\u{fb}", 0),
        ] {
            assert_eq!(longest(name), Some(expected), "{name}");
        }
        assert_eq!(by_prefix(&map(&["ab"]), "ac"), None);
        assert_eq!(by_prefix(&map(&[]), "ac"), None);
    }
}
