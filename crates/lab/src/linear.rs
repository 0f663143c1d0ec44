//! The checker: could all of this have happened one after the other, to a lock with a queue and growing tokens?
//!
//! In:    a [`History`]. Out: nothing, or the first [`Violation`], with the operations that prove it.
//! Never: searches. A fencing token says which grant came before which, so the order is known and only the instants
//!        are not: every claim was created at C, granted at G and ended at E, somewhere within what its client saw.
//!
//! The model, as orders between instants:
//!
//! | | |
//! |---|---|
//! | a claim | C ≤ G ≤ E |
//! | one holder at a time | on one resource, E of a token ≤ G of the next |
//! | first come, first served | on one resource, C of a token ≤ C of the next |
//! | tokens grow everywhere | G of a token ≤ G of the next, whatever the resource |
//! | no lease ends early | unless somebody ended it, E ≥ S + ttl, and E ≥ the call of each acknowledged renewal + its ttl |
//!
//! S ≤ G is the instant that the grant is dated: that of the entry which makes it, and a moment passes before an entry is
//! agreed on and seen. Who is told "waiting" meanwhile is told the truth, so that such an answer bounds G and not S. S is
//! not before the claim was asked for, nor before the holder before it was over as it is dated, nor before a smaller token's.
//!
//! And every answer bounds the others: its point lies between call and return. "Waiting" says C ≤ return and call ≤ G;
//! "active" G ≤ return and call ≤ E; "over" E ≤ return. Such orders and bounds can be met exactly if no lower bound,
//! carried along the orders, exceeds an upper one: one pass in the order of the tokens decides it. An answer that is
//! unknown bounds nothing from above. So a history passes if and only if it is linearizable, as far as grants that
//! somebody was told of go; grants that nobody was told of are given every freedom.

use std::collections::BTreeMap;
use std::fmt;

use crate::history::{Answer, Call, Handle, History, Op};

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
    resource: String,
    token: Option<u64>,
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
    refused: Option<(u64, u64)>,
}

impl Life {
    fn new(op: &Op) -> Self {
        Self {
            claim: op.claim,
            resource: op.resource.clone(),
            token: None,
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
            refused: None,
        }
    }

    /// Learns from one operation.
    fn learn(&mut self, op: &Op) -> Result<(), String> {
        let &Op { call, answer, called_us, returned_us, .. } = op;
        if let Call::Claim { ttl_us } = call {
            self.ttl_us = ttl_us;
            // Asked for again, it may have been made by the first call.
            self.asked_us = self.asked_us.min(called_us);
            self.created.at_least = self.asked_us;
        }
        if call == Call::Finish && !matches!(answer, Answer::Gone | Answer::Waiting | Answer::Refused) {
            self.finish_us = self.finish_us.min(called_us);
        }
        match answer {
            Answer::Waiting => {
                self.created.not_after(returned_us);
                self.granted.not_before(called_us);
                self.waiting_us = self.waiting_us.max(called_us);
            }
            Answer::Active { token } => {
                if self.token.is_some_and(|known| known != token) {
                    return Err(format!("the token of claim #{} changed to {token}", self.claim));
                }
                self.token = Some(token);
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

    /// The earliest date of an end that the model allows, given the earliest date of the grant.
    fn earliest_end(&self) -> u64 {
        let of_ttl = self.ttl_us.map_or(NEVER, |ttl_us| self.dated_us.saturating_add(ttl_us));
        let expiry = of_ttl.max(self.renewed_until_us);
        if self.finished { self.finish_us } else { self.finish_us.min(expiry) }
    }
}

/// Says whether a history is linearizable, and what breaks it if it is not.
pub fn check(history: &History) -> Result<(), Violation> {
    let mut lives = learn(history)?;
    carry_bounds(history, &mut lives)?;
    check_overtaken(history, &lives)?;
    check_refusals(history, &lives)
}

fn violation(history: &History, what: String, claims: &[Handle]) -> Violation {
    let mut proof: Vec<Op> =
        history.ops.iter().filter(|op| claims.contains(&op.claim)).take(40).cloned().collect();
    proof.sort_by_key(|op| op.called_us);
    Violation { what, proof }
}

fn learn(history: &History) -> Result<Vec<Life>, Violation> {
    let mut lives: BTreeMap<Handle, Life> = BTreeMap::new();
    let mut ops: Vec<&Op> = history.ops.iter().collect();
    ops.sort_by_key(|op| (op.returned_us, op.called_us));
    for op in ops {
        let life = lives.entry(op.claim).or_insert_with(|| Life::new(op));
        life.learn(op).map_err(|what| violation(history, what, &[op.claim]))?;
    }
    let mut lives: Vec<Life> = lives.into_values().collect();
    lives.sort_by_key(|life| life.token);
    Ok(lives)
}

/// The pass in order of the tokens.
fn carry_bounds(history: &History, lives: &mut [Life]) -> Result<(), Violation> {
    let mut newest: Option<usize> = None;
    let mut newest_on: BTreeMap<String, usize> = BTreeMap::new();
    for place in 0..lives.len() {
        let Some(token) = lives[place].token else { continue };
        let before = newest_on.insert(lives[place].resource.clone(), place).map(|place| lives[place].clone());
        let before_anywhere = newest.replace(place).map(|place| lives[place].clone());
        let life = &mut lives[place];
        let fail = |what: String, other: &Life| violation(history, what, &[other.claim, life.claim]);
        if let Some(other) = before_anywhere.as_ref().filter(|other| other.token == Some(token)) {
            return Err(fail(format!("token {token} was given twice"), other));
        }
        let resource = &life.resource;
        let mut created = life.created;
        if let Some(before) = &before {
            created.not_before(before.created.at_least);
            if created.is_impossible() {
                let what = format!(
                    "{resource}: #{} came before #{} and was granted after it: not first come, first served",
                    life.claim, before.claim
                );
                return Err(fail(what, before));
            }
        }
        let mut granted = life.granted;
        granted.not_before(created.at_least);
        if let Some(before) = &before_anywhere {
            granted.not_before(before.granted.at_least);
            if granted.is_impossible() {
                return Err(fail(format!("token {token} was given before a smaller one"), before));
            }
        }
        if let Some(before) = &before {
            granted.not_before(before.ended.at_least);
            if granted.is_impossible() {
                let why = if before.finish_us == NEVER { " (it was not released: its ttl ran)" } else { "" };
                let what = format!(
                    "{resource}: #{} was granted while #{} certainly held{why}",
                    life.claim, before.claim
                );
                return Err(fail(what, before));
            }
        }
        (life.created, life.granted) = (created, granted);
        let smaller_us = before_anywhere.as_ref().map_or(0, |other| other.dated_us);
        let free_us = before.as_ref().map_or(0, |other| other.dated_end_us);
        life.dated_us = created.at_least.max(smaller_us).max(free_us);
        life.dated_end_us = life.earliest_end().max(life.dated_us);
        life.ended.not_before(life.dated_end_us.max(granted.at_least));
        if life.granted.is_impossible() || life.ended.is_impossible() {
            let what = format!("{}: #{} was over before it could be", life.resource, life.claim);
            return Err(violation(history, what, &[life.claim]));
        }
    }
    Ok(())
}

/// Claims that still waited when others, which came later, already held.
fn check_overtaken(history: &History, lives: &[Life]) -> Result<(), Violation> {
    let waiting = lives.iter().filter(|life| life.token.is_none() && life.waiting_us > 0);
    for life in waiting {
        let overtook = lives.iter().find(|other| {
            other.token.is_some()
                && other.resource == life.resource
                && other.created.at_least > life.created.at_most
                && other.granted.at_most < life.waiting_us
        });
        if let Some(other) = overtook {
            let what = format!(
                "{}: #{} holds and came after #{}, which waits: not first come, first served",
                life.resource, other.claim, life.claim
            );
            return Err(violation(history, what, &[life.claim, other.claim]));
        }
    }
    Ok(())
}

/// A refusal says that somebody held.
fn check_refusals(history: &History, lives: &[Life]) -> Result<(), Violation> {
    let mut on: BTreeMap<&str, Vec<&Life>> = BTreeMap::new();
    lives.iter().for_each(|life| on.entry(&life.resource).or_default().push(life));
    for life in lives {
        let Some((called_us, returned_us)) = life.refused else { continue };
        let held = on[life.resource.as_str()].iter().any(|other| {
            other.claim != life.claim
                && other.refused.is_none()
                && other.created.at_least.max(other.granted.at_least) <= returned_us
                && other.ended.at_most >= called_us
        });
        if !held {
            let what = format!("{}: #{} was refused although nobody held", life.resource, life.claim);
            return Err(violation(history, what, &[life.claim]));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `claim call..return what answer`, all on one resource unless said otherwise.
    fn op(claim: Handle, (called_us, returned_us): (u64, u64), call: Call, answer: Answer) -> Op {
        Op { client: claim, resource: "r".into(), claim, call, called_us, returned_us, answer }
    }

    const CLAIM: Call = Call::Claim { ttl_us: Some(1000) };
    const FOREVER: Call = Call::Claim { ttl_us: None };

    fn active(token: u64) -> Answer {
        Answer::Active { token }
    }

    fn verdict(ops: &[Op]) -> Result<(), String> {
        check(&History { ops: ops.to_vec() }).map_err(|violation| violation.what)
    }

    #[track_caller]
    fn caught(ops: &[Op], how: &str) {
        let what = verdict(ops).expect_err("this can't have happened");
        assert!(what.contains(how), "caught as: {what}");
    }

    /// One holds, the other waits, is granted after the release, and expires.
    fn good() -> Vec<Op> {
        vec![
            op(1, (0, 10), CLAIM, active(1)),
            op(2, (20, 30), CLAIM, Answer::Waiting),
            op(2, (40, 50), Call::Read, Answer::Waiting),
            op(1, (100, 120), Call::Finish, Answer::Done),
            op(2, (110, 130), Call::Read, active(2)),
            op(3, (140, 150), CLAIM, Answer::Refused),
            op(2, (1150, 1160), Call::Read, Answer::Over),
            op(4, (1170, 1180), CLAIM, active(3)),
        ]
    }

    #[test]
    fn what_can_have_happened_passes() {
        verdict(&good()).unwrap();
        verdict(&[]).unwrap();
    }

    #[test]
    fn two_holders_are_caught() {
        let mut ops = good();
        ops[4] = op(2, (60, 90), Call::Read, active(2));
        ops.retain(|op| op.answer != Answer::Waiting || op.call == CLAIM);
        caught(&ops, "certainly held");
    }

    #[test]
    fn a_grant_that_overlaps_the_release_passes_and_one_before_it_is_caught() {
        let two = |granted| {
            [op(1, (0, 10), FOREVER, active(1)), op(1, (50, 90), Call::Finish, Answer::Done), granted]
        };
        verdict(&two(op(2, (20, 60), CLAIM, active(2)))).unwrap();
        caught(&two(op(2, (20, 40), CLAIM, active(2))), "certainly held");
    }

    #[test]
    fn a_release_whose_outcome_is_unknown_may_have_happened_at_any_time_or_never() {
        let unknown = |granted| {
            [op(1, (0, 10), FOREVER, active(1)), op(1, (50, 50), Call::Finish, Answer::Unknown), granted]
        };
        verdict(&unknown(op(2, (9000, 9010), CLAIM, active(2)))).unwrap();
        verdict(&unknown(op(2, (9000, 9010), CLAIM, Answer::Waiting))).unwrap();
        caught(&unknown(op(2, (20, 40), CLAIM, active(2))), "certainly held");
    }

    #[test]
    fn a_token_that_goes_back_or_comes_twice_is_caught() {
        let other =
            |answer, (call, ret)| Op { resource: "other".into(), ..op(2, (call, ret), CLAIM, answer) };
        caught(&[op(1, (0, 10), CLAIM, active(7)), other(active(3), (20, 30))], "before a smaller one");
        caught(&[op(1, (0, 10), CLAIM, active(7)), other(active(7), (0, 10))], "given twice");
        verdict(&[op(1, (0, 10), CLAIM, active(7)), other(active(3), (5, 30))]).unwrap();
    }

    #[test]
    fn an_acknowledged_claim_that_is_lost_is_caught() {
        let mut ops = good();
        ops.push(op(4, (1190, 1200), Call::Read, Answer::Gone));
        caught(&ops, "is lost");
        // What nobody acknowledged may be unknown.
        verdict(&[op(1, (0, 0), CLAIM, Answer::Unknown), op(1, (5, 6), Call::Read, Answer::Gone)]).unwrap();
    }

    #[test]
    fn overtaking_in_the_queue_is_caught() {
        let queue = [
            op(1, (0, 10), FOREVER, active(1)),
            op(2, (20, 30), CLAIM, Answer::Waiting),
            op(3, (40, 50), CLAIM, Answer::Waiting),
            op(1, (60, 70), Call::Finish, Answer::Done),
            op(3, (80, 90), Call::Read, active(2)),
        ];
        let mut both = queue.to_vec();
        both.push(op(3, (100, 110), Call::Finish, Answer::Done));
        both.push(op(2, (120, 130), Call::Read, active(3)));
        caught(&both, "first come");
        let mut still_waits = queue.to_vec();
        still_waits.push(op(2, (95, 100), Call::Read, Answer::Waiting));
        caught(&still_waits, "first come");
    }

    #[test]
    fn a_stale_read_is_caught() {
        let mut ops = good();
        ops.push(op(2, (135, 140), Call::Read, Answer::Waiting));
        assert!(verdict(&ops).is_err(), "it was told that it holds");
        let mut ops = good();
        ops.push(op(1, (125, 140), Call::Read, active(1)));
        assert!(verdict(&ops).is_err(), "it was told that it is over");
    }

    #[test]
    fn an_end_before_the_ttl_as_the_holder_counts_it_is_caught() {
        let mut ops = good();
        ops[6] = op(2, (900, 910), Call::Read, Answer::Over);
        caught(&ops, "over before");
        let renewed = |granted| {
            [
                op(1, (0, 10), CLAIM, active(1)),
                op(1, (500, 600), Call::Renew { ttl_us: 1000 }, active(1)),
                op(2, granted, CLAIM, active(2)),
            ]
        };
        verdict(&renewed((1490, 1500))).unwrap();
        caught(&renewed((1400, 1499)), "its ttl ran");
    }

    #[test]
    fn a_grant_may_be_dated_before_it_is_seen_but_not_before_its_holder_was_gone() {
        let handed_over = |over| {
            [
                op(1, (0, 10), CLAIM, active(1)),
                op(2, (20, 30), CLAIM, Answer::Waiting),
                op(1, (100, 300), Call::Finish, Answer::Done),
                op(2, (200, 210), Call::Read, Answer::Waiting),
                op(2, (290, 310), Call::Read, active(2)),
                op(2, over, Call::Read, Answer::Over),
            ]
        };
        verdict(&handed_over((1150, 1160))).unwrap();
        caught(&handed_over((1050, 1090)), "over before");
    }

    #[test]
    fn a_refusal_while_nobody_held_is_caught() {
        let freed = [
            op(1, (0, 10), CLAIM, active(1)),
            op(1, (20, 30), Call::Finish, Answer::Done),
            op(2, (40, 50), CLAIM, Answer::Refused),
        ];
        caught(&freed, "nobody held");
    }

    #[test]
    fn a_claim_that_was_asked_for_twice_may_have_been_made_by_the_first_call() {
        let asked = |first| {
            [
                op(1, (first, 1500), CLAIM, Answer::Over),
                op(2, (40, 50), CLAIM, Answer::Refused),
                op(1, (1600, 1700), CLAIM, Answer::Over),
            ]
        };
        verdict(&asked(20)).unwrap();
        caught(&asked(60), "nobody held");
    }
}
