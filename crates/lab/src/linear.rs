//! The checker: could all of this have happened one after the other, to locks with queues and growing tokens?
//!
//! In:    a [`History`]. Out: nothing, or the first [`Violation`], with the operations that prove it.
//! Never: searches. A fencing token says which grant came before which, so the order is known and only the instants
//!        are not: every claim was created at C, granted at G and ended at E, somewhere within what its client saw. That
//!        holds for all its items: a set has one C, one G and one E.
//!
//! The model, as orders between instants:
//!
//! | | |
//! |---|---|
//! | a claim | C ≤ G ≤ E |
//! | compatible holders only | on one resource, E of a group ≤ G of the next; in slots, E of a slot's holder ≤ G of its next |
//! | nobody overtakes | on one resource, C of a token ≤ C of the next, if the two don't fit together or the next wants nothing else |
//! | tokens grow everywhere | G of a token ≤ G of the next, whatever the resource |
//! | no lease ends early | unless somebody ended it, E ≥ S + ttl, and E ≥ the call of each acknowledged renewal + its ttl |
//!
//! A group is what may hold together: one exclusive claim, the sharers of one token, or holders of slots with nobody else
//! between their tokens. A set that waits elsewhere may be passed by claims that fit with it; a claim on one resource waits only
//! because of claims before it, and these are in the way of all later ones, too.
//!
//! S ≤ G is the instant that the grant is dated: that of the entry which makes it, and a moment passes before an entry is
//! agreed on and seen. Who is told "waiting" meanwhile is told the truth, so that such an answer bounds G and not S. S is
//! not before the claim was asked for, nor before the holder before it was over as it is dated, nor before a smaller token's.
//!
//! And every answer bounds the others: its point lies between call and return. "Waiting" says C ≤ return and call ≤ G;
//! "active" G ≤ return and call ≤ E; "over" E ≤ return. Such orders and bounds can be met exactly if no lower bound,
//! carried along the orders, exceeds an upper one: one pass in the order of the tokens decides it (`lines.rs`). An answer that is
//! unknown bounds nothing from above. So a history of exclusive claims passes if and only if it is linearizable, as far as
//! grants that somebody was told of go; grants that nobody was told of are given every freedom, and so is the order among
//! sharers with one token.

mod lines;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::history::{Answer, Call, Grant, Handle, History, Item, Mode, Op};

/// Never, as an upper bound.
const NEVER: u64 = u64::MAX;

/// Something that can't have happened.
#[derive(Debug)]
pub struct Violation {
    /// Which promise is broken.
    pub what: String,
    /// The operations of the claims that prove it.
    pub proof: Vec<Op>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        self.proof.iter().try_for_each(|op| writeln!(f, "  {op}"))
    }
}

impl std::error::Error for Violation {}

/// What is wrong, and the claims that prove it.
struct Found {
    what: String,
    claims: Vec<Handle>,
}

impl Found {
    fn new(what: String, claims: &[Handle]) -> Self {
        Self { what, claims: claims.to_vec() }
    }
}

/// An instant that lies between two others, and which.
#[derive(Debug, Clone, Copy)]
struct Between {
    at_least: u64,
    at_most: u64,
}

impl Between {
    const ANY: Self = Self { at_least: 0, at_most: NEVER };

    fn not_before(&mut self, us: u64) {
        self.at_least = self.at_least.max(us);
    }

    fn not_after(&mut self, us: u64) {
        self.at_most = self.at_most.min(us);
    }

    fn is_impossible(self) -> bool {
        self.at_least > self.at_most
    }
}

/// All that is known about one claim.
#[derive(Debug, Clone)]
struct Life {
    claim: Handle,
    items: Arc<[Item]>,
    grant: Option<Arc<[Grant]>>,
    /// When it was first asked for.
    asked_us: u64,
    created: Between,
    granted: Between,
    ended: Between,
    /// The grant is not dated before this, and neither is the end.
    dated_us: u64,
    dated_end_us: u64,
    ttl_us: Option<u64>,
    /// The earliest call that may have ended it.
    finish_us: u64,
    /// Whether a client's call has certainly ended it.
    finished: bool,
    /// The latest end of a ttl that was acknowledged, counted as the holder does: from the call.
    renewed_until_us: u64,
    /// It is known to wait at this instant.
    waiting_us: u64,
    /// The latest end of a ttl that a waiting claim's client was granted by asking.
    asked_until_us: u64,
    refused: Option<(u64, u64)>,
}

impl Life {
    fn new(op: &Op) -> Self {
        Self {
            claim: op.claim,
            items: op.items.clone(),
            grant: None,
            asked_us: NEVER,
            created: Between::ANY,
            granted: Between::ANY,
            ended: Between::ANY,
            dated_us: 0,
            dated_end_us: 0,
            ttl_us: None,
            finish_us: NEVER,
            finished: false,
            renewed_until_us: 0,
            waiting_us: 0,
            asked_until_us: 0,
            refused: None,
        }
    }

    /// Learns from one operation.
    fn learn(&mut self, op: &Op) -> Result<(), String> {
        let &Op { call, called_us, returned_us, .. } = op;
        if let Call::Claim { ttl_us } = call {
            self.ttl_us = ttl_us;
            // Asked for again, it may have been made by the first call.
            self.asked_us = self.asked_us.min(called_us);
            self.created.at_least = self.asked_us;
        }
        if call == Call::Finish && !matches!(op.answer, Answer::Gone | Answer::Waiting | Answer::Refused) {
            self.finish_us = self.finish_us.min(called_us);
        }
        match &op.answer {
            Answer::Waiting => {
                self.created.not_after(returned_us);
                self.granted.not_before(called_us);
                self.waiting_us = self.waiting_us.max(called_us);
                if let Call::Activate { ttl_us } = call {
                    self.asked_until_us = self.asked_until_us.max(called_us.saturating_add(ttl_us));
                }
            }
            Answer::Active(grant) => {
                self.learn_grant(grant)?;
                self.created.not_after(returned_us);
                self.granted.not_after(returned_us);
                self.ended.not_before(called_us);
                if let Call::Renew { ttl_us } = call {
                    self.renewed_until_us = self.renewed_until_us.max(called_us.saturating_add(ttl_us));
                }
            }
            Answer::Done => {
                self.ended.not_after(returned_us);
                self.finished |= call == Call::Finish;
            }
            Answer::Over => self.ended.not_after(returned_us),
            Answer::Refused => self.refused = Some((called_us, returned_us)),
            Answer::Gone if self.created.at_most < called_us => {
                return Err(format!("claim #{} was acknowledged and is lost", self.claim));
            }
            Answer::Gone | Answer::Unknown => {}
        }
        Ok(())
    }

    /// What a client was shown of a grant is whole, makes sense, and stays the same.
    fn learn_grant(&mut self, grant: &Arc<[Grant]>) -> Result<(), String> {
        let claim = self.claim;
        if self.grant.as_ref().is_some_and(|known| known != grant) {
            let tokens: Vec<u64> = grant.iter().map(|item| item.token).collect();
            return Err(format!("the token of claim #{claim}, or a slot, changed to {tokens:?}"));
        }
        if grant.len() != self.items.len() || grant.iter().any(|item| item.token == 0) {
            return Err(format!("claim #{claim} holds a part of its set"));
        }
        let newest = grant.iter().map(|item| item.token).max();
        for (item, granted) in self.items.iter().zip(grant.iter()) {
            let (take, of) = if let Mode::Slots { take, of } = item.mode { (take, of) } else { (0, 0) };
            let slots: BTreeSet<u16> =
                granted.slots.iter().copied().filter(|slot| (1..=of).contains(slot)).collect();
            if slots.len() != usize::from(take) || granted.slots.len() != slots.len() {
                return Err(format!("claim #{claim} wants {item} and has slots {:?}", granted.slots));
            }
            if item.mode != Mode::Shared && Some(granted.token) != newest {
                return Err(format!("claim #{claim} has token {} for {item}: not a new one", granted.token));
            }
        }
        self.grant = Some(grant.clone());
        Ok(())
    }

    /// Its items, each with what it was granted of it.
    fn granted_items(&self) -> impl Iterator<Item = (&Item, &Grant)> {
        self.items.iter().zip(self.grant.as_deref().unwrap_or(&[]))
    }

    /// Its largest token.
    fn newest_token(&self) -> Option<u64> {
        self.grant.as_ref()?.iter().map(|item| item.token).max()
    }

    /// Whether its largest token was certainly made for it, and not for somebody it shares with.
    fn has_token_of_its_own(&self) -> bool {
        self.items.iter().any(|item| item.mode != Mode::Shared)
    }

    fn mode_on(&self, resource: &str) -> Option<Mode> {
        self.items.iter().find(|item| item.resource == resource).map(|item| item.mode)
    }

    /// The earliest date of an end that the model allows, given the earliest date of the grant.
    fn earliest_end(&self) -> u64 {
        let of_ttl = self.ttl_us.map_or(NEVER, |ttl_us| self.dated_us.saturating_add(ttl_us));
        let expiry = of_ttl.max(self.renewed_until_us);
        if self.finished { self.finish_us } else { self.finish_us.min(expiry) }
    }
}

/// Says whether a history is linearizable, and what breaks it if it is not.
pub fn check(history: &History) -> Result<(), Violation> {
    find(history).map_err(|Found { what, claims }| {
        let of_these = history.ops.iter().filter(|op| claims.contains(&op.claim));
        let mut proof: Vec<Op> = of_these.take(40).cloned().collect();
        proof.sort_by_key(|op| op.called_us);
        Violation { what, proof }
    })
}

fn find(history: &History) -> Result<(), Found> {
    let mut lives = learn(history)?;
    lines::carry_bounds(&mut lives)?;
    lives.iter().try_for_each(check_lapsed)?;
    let mut on: BTreeMap<&str, Vec<&Life>> = BTreeMap::new();
    for life in &lives {
        life.items.iter().for_each(|item| on.entry(&item.resource).or_default().push(life));
    }
    for (resource, lives) in &on {
        check_overtaken(resource, lives)?;
        check_phases(resource, lives)?;
    }
    let is_plain = |life: &Life| life.items.len() == 1 && life.items[0].mode == Mode::Exclusive;
    let mixed: BTreeSet<&str> = lives
        .iter()
        .filter(|life| !is_plain(life))
        .flat_map(|life| life.items.iter().map(|item| item.resource.as_str()))
        .collect();
    lives.iter().try_for_each(|life| check_refusal(life, &on, &mixed))
}

fn learn(history: &History) -> Result<Vec<Life>, Found> {
    let mut lives: BTreeMap<Handle, Life> = BTreeMap::new();
    let mut ops: Vec<&Op> = history.ops.iter().collect();
    ops.sort_by_key(|op| (op.returned_us, op.called_us));
    for op in ops {
        let life = lives.entry(op.claim).or_insert_with(|| Life::new(op));
        life.learn(op).map_err(|what| Found::new(what, &[op.claim]))?;
    }
    let mut lives: Vec<Life> = lives.into_values().collect();
    // Of equal tokens, the claim comes first for which the token was made.
    lives.sort_by_key(|life| (life.newest_token(), !life.has_token_of_its_own()));
    Ok(lives)
}

/// A waiting claim is not withdrawn while its client asks for it: unless somebody ended it, it waits for its ttl and, if it
/// is granted meanwhile, holds for longer.
fn check_lapsed(life: &Life) -> Result<(), Found> {
    if life.grant.is_some() || life.asked_until_us.min(life.finish_us) <= life.ended.at_most {
        return Ok(());
    }
    let what =
        format!("{}: #{} was withdrawn although its client asked for it", life.items[0].resource, life.claim);
    Err(Found::new(what, &[life.claim]))
}

/// Claims that still waited when others, which came later, already held, although these don't fit with them, or although
/// they wait for nothing else.
fn check_overtaken(resource: &str, lives: &[&Life]) -> Result<(), Found> {
    // Those who held, by mode: the latest creation among the first so many grants.
    let mut held: BTreeMap<Mode, Vec<(u64, u64, Handle)>> = BTreeMap::new();
    for life in lives.iter().filter(|life| life.grant.is_some()) {
        let Some(mode) = life.mode_on(resource) else { continue };
        held.entry(mode).or_default().push((life.granted.at_most, life.created.at_least, life.claim));
    }
    for grants in held.values_mut() {
        grants.sort_unstable();
        let mut latest = (0, 0);
        for (_, created_us, claim) in grants {
            latest = latest.max((*created_us, *claim));
            (*created_us, *claim) = latest;
        }
    }
    for life in lives.iter().filter(|life| life.waiting_us > 0) {
        let Some(mode) = life.mode_on(resource) else { continue };
        for (other, grants) in &held {
            if life.items.len() > 1 && mode.fits_with(*other) {
                continue;
            }
            let before = grants.partition_point(|(granted_us, ..)| *granted_us < life.waiting_us);
            let Some((_, created_us, claim)) = before.checked_sub(1).map(|last| grants[last]) else {
                continue;
            };
            if created_us > life.created.at_most {
                let what = format!(
                    "{resource}: #{claim} holds and came after #{}, which waits: not first come, first served",
                    life.claim
                );
                return Err(Found::new(what, &[life.claim, claim]));
            }
        }
    }
    Ok(())
}

/// Claims have one token only if from the first of them to the last somebody shared all the time.
fn check_phases(resource: &str, lives: &[&Life]) -> Result<(), Found> {
    let mut phases: BTreeMap<u64, Vec<&Life>> = BTreeMap::new();
    for life in lives.iter().filter(|life| life.mode_on(resource) == Some(Mode::Shared)) {
        let token = life
            .granted_items()
            .find(|(item, _)| item.resource == resource)
            .map_or(0, |(_, grant)| grant.token);
        phases.entry(token).or_default().push(life);
    }
    // Nobody knows whether these held.
    let unknown = phases.remove(&0).unwrap_or_default();
    for (token, mut sharers) in phases {
        sharers.sort_by_key(|life| life.granted.at_least);
        let mut last: Option<(u64, Handle)> = None;
        for life in sharers {
            let from_us = life.granted.at_least;
            if let Some((until_us, other)) = last.filter(|(until_us, _)| *until_us < from_us) {
                let between = |life: &&&Life| life.asked_us <= from_us && life.ended.at_most >= until_us;
                if !unknown.iter().any(|life| between(&life)) {
                    let what = format!(
                        "{resource}: #{other} and #{} have token {token}, and between them nobody shared it",
                        life.claim
                    );
                    return Err(Found::new(what, &[other, life.claim]));
                }
            }
            last = last.max(Some((life.ended.at_most, life.claim)));
        }
    }
    Ok(())
}

/// A refusal says that others held or reserved one of the items, so that this one did not fit.
fn check_refusal(life: &Life, on: &BTreeMap<&str, Vec<&Life>>, mixed: &BTreeSet<&str>) -> Result<(), Found> {
    let Some((called_us, returned_us)) = life.refused else { return Ok(()) };
    let in_the_way = |item: &Item| {
        let others = on[item.resource.as_str()].iter().filter(|other| {
            other.claim != life.claim
                && other.refused.is_none()
                && other.created.at_least <= returned_us
                && other.ended.at_most >= called_us
        });
        // Among claims that want one resource alone, nobody waits where nobody holds.
        let plain = !mixed.contains(item.resource.as_str());
        let mut others = others.filter(|other| !plain || other.granted.at_least <= returned_us);
        let mode_of = |other: &&Life| other.mode_on(&item.resource).unwrap_or(Mode::Exclusive);
        match item.mode {
            Mode::Slots { take, of } => {
                let taken = others.try_fold(0, |sum, other| match mode_of(other) {
                    Mode::Slots { take, of: same } if same == of => Some(sum + u64::from(take)),
                    _ => None,
                });
                taken.is_none_or(|taken| taken + u64::from(take) > u64::from(of))
            }
            mode => others.any(|other| !mode.fits_with(mode_of(other))),
        }
    };
    if life.items.iter().any(in_the_way) {
        return Ok(());
    }
    let what = format!("{}: #{} was refused although nobody held", life.items[0].resource, life.claim);
    Err(Found::new(what, &[life.claim]))
}

#[cfg(test)]
mod tests;
