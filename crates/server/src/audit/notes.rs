//! Who asked: which request makes or ends a claim, until the table says what became of it.
//!
//! In:    requests under way, and the events that they cause. Out: the asker of an event, if a request of this node caused it.
//! Never: names the sender of a refused request, and never grows beyond the requests under way, the claims that wait in
//!        the table, and a bounded number of requests whose outcome nobody learned.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use leasehold_core::{ClaimId, Ending, Event, EventKind, Status};

use super::Audit;

/// Requests that ended without an outcome (their client went away) and that are still remembered: their command may be
/// in the log, so that a caller who hangs up early does not hide from the audit.
const UNSETTLED_MAX: usize = 10_000;

/// Who asked, and from which address.
#[derive(Debug, Clone)]
pub(super) struct Asker {
    pub(super) by: Arc<str>,
    pub(super) from: Arc<str>,
}

/// What a request asks for: a new claim, or the end of one.
#[derive(Debug, Clone)]
pub(super) enum Wish {
    Make,
    /// `only_of`: the table does it only if this is the claim's owner.
    End {
        ending: Ending,
        only_of: Option<Arc<str>>,
    },
}

/// Requests by claim; several may be about one claim at the same time.
#[derive(Debug, Default)]
pub(super) struct Notes {
    open: BTreeMap<(ClaimId, u64), (Wish, Asker)>,
    /// Who asked for a claim that waits: its request may end long before its turn comes.
    waiting: HashMap<ClaimId, Asker>,
    unsettled: VecDeque<(ClaimId, u64)>,
    next: u64,
}

impl Notes {
    pub(super) fn add(&mut self, claim: ClaimId, wish: Wish, asker: Asker) -> u64 {
        self.next += 1;
        self.open.insert((claim, self.next), (wish, asker));
        self.next
    }

    fn forget(&mut self, claim: ClaimId, number: u64) {
        self.open.remove(&(claim, number));
    }

    /// Keeps the note of a request without an outcome, instead of the oldest of its kind.
    fn unsettle(&mut self, claim: ClaimId, number: u64) {
        if !self.open.contains_key(&(claim, number)) {
            return;
        }
        self.unsettled.push_back((claim, number));
        while self.unsettled.len() > UNSETTLED_MAX {
            if let Some(oldest) = self.unsettled.pop_front() {
                self.open.remove(&oldest);
            }
        }
    }

    /// Who asked for what happened; a claim that starts to wait is remembered until it no longer does.
    pub(super) fn asker_of(&mut self, event: &Event) -> Option<Asker> {
        match event.kind {
            EventKind::Renewed => None,
            EventKind::Revoking => {
                self.take(event.claim, |wish| matches!(wish, Wish::End { ending: Ending::Revoked, .. }))
            }
            EventKind::Queued => {
                let asker = self.take(event.claim, |wish| matches!(wish, Wish::Make))?;
                self.waiting.insert(event.claim, asker);
                None
            }
            EventKind::Activated { .. } => {
                let waited = self.waiting.remove(&event.claim);
                waited.or_else(|| self.take(event.claim, |wish| matches!(wish, Wish::Make)))
            }
            EventKind::Ended { status, .. } => {
                self.waiting.remove(&event.claim);
                self.take(event.claim, |wish| match wish {
                    Wish::Make => false,
                    Wish::End { ending, only_of } => {
                        Status::from(*ending) == status
                            && only_of.as_ref().is_none_or(|owner| *owner == event.owner)
                    }
                })
            }
        }
    }

    fn take(&mut self, claim: ClaimId, fits: impl Fn(&Wish) -> bool) -> Option<Asker> {
        let mut of_claim = self.open.range((claim, 0)..=(claim, u64::MAX));
        let key = *of_claim.find(|(_, (wish, _))| fits(wish))?.0;
        self.open.remove(&key).map(|(_, asker)| asker)
    }

    /// Forgets the waiting claims that the table no longer has waiting: it was replaced as a whole.
    pub(super) fn keep_waiting(&mut self, waits: impl Fn(ClaimId) -> bool) {
        self.waiting.retain(|claim, _| waits(*claim));
    }

    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        (self.open.len(), self.waiting.len())
    }
}

/// The note of one request about one claim. It counts until the request's outcome is known: call [`Noted::settled`] then.
#[must_use = "the note counts while this lives"]
#[derive(Debug, Default)]
pub struct Noted(Option<Open>);

#[derive(Debug)]
struct Open {
    audit: Arc<Audit>,
    claim: ClaimId,
    number: u64,
}

impl Noted {
    pub(super) fn new(audit: Arc<Audit>, claim: ClaimId, number: u64) -> Self {
        Self(Some(Open { audit, claim, number }))
    }

    /// The table has answered: what happened is in the audit already, and nothing more will happen.
    pub fn settled(mut self) {
        if let Some(Open { audit, claim, number }) = self.0.take() {
            audit.notes.lock().forget(claim, number);
        }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        if let Some(Open { audit, claim, number }) = self.0.take() {
            audit.notes.lock().unsettle(claim, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Mode, Stamp};

    use super::*;

    fn asker(by: &str) -> Asker {
        Asker { by: by.into(), from: "192.0.2.1".into() }
    }

    fn event(claim: u128, kind: EventKind) -> Event {
        let (resource, owner) = ("r".into(), "anna".into());
        let claim = ClaimId::from_u128(claim);
        Event {
            stamp: Stamp::default(),
            kind,
            claim,
            resource,
            owner,
            token: 1,
            mode: Mode::Exclusive,
            item: 0,
            reason: None,
        }
    }

    fn ended(claim: u128, status: Status) -> Event {
        event(claim, EventKind::Ended { status, held_us: 0 })
    }

    fn end(ending: Ending, only_of: Option<&str>) -> Wish {
        Wish::End { ending, only_of: only_of.map(Into::into) }
    }

    #[test]
    fn an_end_names_the_request_that_the_table_let_through() {
        let (mut notes, claim) = (Notes::default(), ClaimId::from_u128(7));
        notes.add(claim, end(Ending::Released, Some("mallory")), asker("mallory"));
        notes.add(claim, end(Ending::Revoked, None), asker("root"));
        notes.add(claim, end(Ending::Released, Some("anna")), asker("anna"));
        let by = notes.asker_of(&ended(7, Status::Released)).map(|asker| asker.by);
        assert_eq!(by.as_deref(), Some("anna"));
        assert!(notes.asker_of(&ended(7, Status::Expired)).is_none(), "a deadline asks for nothing");
        assert!(notes.asker_of(&ended(8, Status::Released)).is_none());
    }

    #[test]
    fn every_claim_that_waits_is_remembered_and_no_other() {
        let mut notes = Notes::default();
        for claim in 0..150_000 {
            let number = notes.add(ClaimId::from_u128(claim), Wish::Make, asker("anna"));
            notes.asker_of(&event(claim, EventKind::Queued));
            notes.forget(ClaimId::from_u128(claim), number);
        }
        assert_eq!(notes.len(), (0, 150_000));
        for claim in 0..150_000 {
            let by = match claim % 2 {
                0 => {
                    notes.asker_of(&event(claim, EventKind::Activated { waited_us: 1 })).map(|asker| asker.by)
                }
                _ => notes.asker_of(&ended(claim, Status::Withdrawn)).map(|asker| asker.by),
            };
            assert_eq!(by.as_deref(), (claim % 2 == 0).then_some("anna"));
        }
        assert_eq!(notes.len(), (0, 0));
    }

    #[test]
    fn requests_without_an_outcome_are_remembered_up_to_a_limit() {
        let mut notes = Notes::default();
        for claim in 0..30_000 {
            let number = notes.add(ClaimId::from_u128(claim), Wish::Make, asker("anna"));
            notes.unsettle(ClaimId::from_u128(claim), number);
        }
        assert_eq!(notes.len(), (UNSETTLED_MAX, 0));
        assert!(notes.asker_of(&event(29_999, EventKind::Activated { waited_us: 0 })).is_some());
        assert!(notes.asker_of(&event(0, EventKind::Activated { waited_us: 0 })).is_none());
    }
}
