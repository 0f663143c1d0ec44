//! The pass in the order of the tokens, along the line of each resource.
//!
//! In:    lives of claims with the bounds that their own operations give, sorted by their largest token. Out: the same with the
//!        lower bounds that others give, or the first that exceeds an upper one.
//! Never: looks back: of each resource only the latest bounds of the claims before are kept.
//!
//! The largest token of a claim is the newest when it is granted. So the claims are in the order of their grants, but for
//! sharers that join: these are granted at some time after the claim whose token they have.

use std::collections::BTreeMap;

use super::{Found, Life};
use crate::history::{Handle, Mode};

/// The latest of some lower bounds, and the claim that it comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Latest {
    us: u64,
    claim: Handle,
}

impl Latest {
    fn add(&mut self, other: Self) {
        *self = (*self).max(other);
    }
}

/// Bounds of ends: as they happened, and as they are dated.
#[derive(Debug, Clone, Copy, Default)]
struct Ends {
    seen: Latest,
    dated_us: u64,
    /// The latest was not released: its ttl ran.
    expired: bool,
}

impl Ends {
    fn of(life: &Life) -> Self {
        let seen = Latest { us: life.ended.at_least, claim: life.claim };
        let expired = life.finish_us == super::NEVER;
        Self { seen, dated_us: life.dated_end_us, expired }
    }

    fn add(&mut self, other: Self) {
        if other.seen > self.seen {
            (self.seen, self.expired) = (other.seen, other.expired);
        }
        self.dated_us = self.dated_us.max(other.dated_us);
    }
}

/// One resource, as far as the pass has come.
#[derive(Debug, Default)]
struct Line {
    /// The newest token, how its claim holds, and which one that is.
    newest: Option<(u64, Mode, Handle)>,
    /// Ends of all groups before the present one, and of those in it.
    before: Ends,
    present: Ends,
    /// The latest of the groups before, if it shared.
    shared_by: Option<Handle>,
    /// Ends of each slot's holders in the present group.
    slots: BTreeMap<u16, Ends>,
    /// Creations of all claims so far; of those with an older token than the newest; and of those that don't fit with the
    /// present ones.
    created: Latest,
    created_older: Latest,
    created_unfit: Latest,
    /// Creations of claims on slots, by how many they take.
    created_by_take: BTreeMap<u16, Latest>,
}

impl Line {
    /// Goes on to a claim with this token.
    fn advance(&mut self, token: u64, mode: Mode) {
        let Some((_, kind, _)) = self.newest.filter(|(newest, ..)| *newest < token) else { return };
        self.created_older = self.created;
        let same_slots =
            matches!((kind, mode), (Mode::Slots { of, .. }, Mode::Slots { of: same, .. }) if of == same);
        if same_slots {
            return;
        }
        let present = std::mem::take(&mut self.present);
        self.before.add(present);
        self.shared_by = (kind == Mode::Shared).then_some(present.seen.claim);
        self.slots.clear();
        if (kind, mode) != (Mode::Shared, Mode::Shared) {
            self.created_unfit = self.created;
        }
    }

    /// The latest creation of a claim that must have come first. `alone`: the claim wants nothing else.
    fn first_come(&self, mode: Mode, alone: bool) -> Latest {
        let mut first = self.created_unfit;
        if alone {
            first.add(self.created_older);
        }
        if let Mode::Slots { take, of } = mode {
            let unfit = self.created_by_take.range(of.saturating_sub(take) + 1..);
            unfit.for_each(|(_, created)| first.add(*created));
        }
        first
    }

    /// The ends that the grant of a claim with these slots waited for.
    fn freed(&self, slots: &[u16]) -> Ends {
        let mut freed = self.before;
        slots.iter().filter_map(|slot| self.slots.get(slot)).for_each(|ends| freed.add(*ends));
        freed
    }

    fn add(&mut self, life: &Life, (token, mode): (u64, Mode), slots: &[u16]) {
        self.newest = Some((token, mode, life.claim));
        let (created, ends) = (Latest { us: life.created.at_least, claim: life.claim }, Ends::of(life));
        self.created.add(created);
        self.present.add(ends);
        if let Mode::Slots { take, .. } = mode {
            self.created_by_take.entry(take).or_default().add(created);
        }
        slots.iter().for_each(|slot| self.slots.entry(*slot).or_default().add(ends));
    }
}

/// The newest grant with a token of its own.
#[derive(Debug, Clone, Copy, Default)]
struct Newest {
    token: u64,
    granted: Latest,
    dated_us: u64,
}

/// Carries the lower bounds.
pub(super) fn carry_bounds(lives: &mut [Life]) -> Result<(), Found> {
    check_twice(lives)?;
    let sharers = Sharers::of(lives);
    let mut newest = Newest::default();
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for life in lives.iter_mut() {
        let Some(token) = life.newest_token() else { continue };
        if token > newest.token {
            newest.token = token;
            if !life.has_token_of_its_own() {
                // Made for one of the sharers, known or not.
                let earliest_us = sharers.earliest(life, token);
                newest.granted.add(Latest { us: earliest_us, claim: life.claim });
                newest.dated_us = newest.dated_us.max(earliest_us);
            }
        }
        carry_to(life, &newest, &mut lines)?;
        if life.has_token_of_its_own() {
            newest.granted.add(Latest { us: life.granted.at_least, claim: life.claim });
            newest.dated_us = life.dated_us;
        }
    }
    Ok(())
}

fn carry_to(life: &mut Life, newest: &Newest, lines: &mut BTreeMap<String, Line>) -> Result<(), Found> {
    let (claim, alone) = (life.claim, life.items.len() == 1);
    let items: Vec<_> = life.granted_items().map(|(item, grant)| (item.clone(), grant.clone())).collect();
    for (item, grant) in &items {
        let line = lines.entry(item.resource.clone()).or_default();
        if let Some((larger, _, other)) = line.newest.filter(|(newest, ..)| *newest > grant.token) {
            let what = format!(
                "{item}: #{claim} is locked out by its token: it has {}, and #{other} had {larger} before",
                grant.token
            );
            return Err(Found::new(what, &[other, claim]));
        }
        line.advance(grant.token, item.mode);
        let first = line.first_come(item.mode, alone);
        life.created.not_before(first.us);
        if life.created.is_impossible() {
            let (resource, other) = (&item.resource, first.claim);
            let what = format!(
                "{resource}: #{claim} came before #{other} and was granted after it: not first come, first served"
            );
            return Err(Found::new(what, &[other, claim]));
        }
    }
    life.granted.not_before(life.created.at_least);
    life.granted.not_before(newest.granted.us);
    if life.granted.is_impossible() {
        let what = format!("token {} was given before a smaller one", newest.token);
        return Err(Found::new(what, &[newest.granted.claim, claim]));
    }
    life.dated_us = life.created.at_least.max(newest.dated_us);
    for (item, grant) in &items {
        let line = &lines[&item.resource];
        let freed = line.freed(&grant.slots);
        life.granted.not_before(freed.seen.us);
        life.dated_us = life.dated_us.max(freed.dated_us);
        if life.granted.is_impossible() {
            let other = freed.seen.claim;
            let why = if freed.expired { " (it was not released: its ttl ran)" } else { "" };
            let what = match line.shared_by == Some(other) && item.mode == Mode::Shared {
                true => {
                    format!("{item}: #{other} shares it and is locked out by the larger token of #{claim}")
                }
                false => format!("{item}: #{claim} was granted while #{other} certainly held{why}"),
            };
            return Err(Found::new(what, &[other, claim]));
        }
    }
    life.dated_end_us = life.earliest_end().max(life.dated_us);
    life.ended.not_before(life.dated_end_us.max(life.granted.at_least));
    if life.ended.is_impossible() {
        let what = format!("{}: #{claim} was over before it could be", life.items[0].resource);
        return Err(Found::new(what, &[claim]));
    }
    for (item, grant) in &items {
        if let Some(line) = lines.get_mut(&item.resource) {
            line.add(life, (grant.token, item.mode), &grant.slots);
        }
    }
    Ok(())
}

/// A token is made for one claim. Others have it only where they share with that one.
fn check_twice(lives: &[Life]) -> Result<(), Found> {
    let mut made_for: BTreeMap<u64, &Life> = BTreeMap::new();
    for life in lives.iter().filter(|life| life.has_token_of_its_own()) {
        let Some(token) = life.newest_token() else { continue };
        if let Some(other) = made_for.insert(token, life) {
            return Err(Found::new(format!("token {token} was given twice"), &[other.claim, life.claim]));
        }
    }
    for life in lives {
        for (item, grant) in life.granted_items().filter(|(item, _)| item.mode == Mode::Shared) {
            let Some(owner) = made_for.get(&grant.token).filter(|owner| owner.claim != life.claim) else {
                continue;
            };
            if owner.mode_on(&item.resource) != Some(Mode::Shared) {
                let what = format!("token {} was given twice", grant.token);
                return Err(Found::new(what, &[owner.claim, life.claim]));
            }
        }
    }
    Ok(())
}

/// When claims were asked for that may have been the first to share something.
struct Sharers {
    by_token: BTreeMap<u64, u64>,
    /// Of claims of which nobody knows whether they ever held, by resource.
    unknown: BTreeMap<String, u64>,
}

impl Sharers {
    fn of(lives: &[Life]) -> Self {
        let mut sharers = Self { by_token: BTreeMap::new(), unknown: BTreeMap::new() };
        for life in lives {
            let earlier = |us: &mut u64| *us = (*us).min(life.created.at_least);
            for (_, grant) in life.granted_items() {
                earlier(sharers.by_token.entry(grant.token).or_insert(super::NEVER));
            }
            for item in life.items.iter().filter(|item| life.grant.is_none() && item.mode == Mode::Shared) {
                earlier(sharers.unknown.entry(item.resource.clone()).or_insert(super::NEVER));
            }
        }
        sharers
    }

    /// The earliest instant at which a token can have been made that this claim has as a sharer.
    fn earliest(&self, life: &Life, token: u64) -> u64 {
        let known = self.by_token.get(&token).copied().unwrap_or(0);
        let shared = life.granted_items().filter(|(_, grant)| grant.token == token);
        let unknown = shared.filter_map(|(item, _)| self.unknown.get(&item.resource)).min();
        unknown.map_or(known, |unknown| known.min(*unknown))
    }
}
