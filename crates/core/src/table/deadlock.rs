//! Whether a claim that has to wait could ever be granted.
//!
//! In:    a new claim with a session. Out: nothing, or the cycle that it would close.
//! Never: guesses: it plays out, among the claims that the new one depends on, the best that can happen. A session goes on when
//!        all its claims hold, those of its descendants included, and then all of them may end; a claim without a session
//!        ends once it is granted. If the new claim is left over, it would wait for ever.
//!
//! The cost has a bound. A claim whose session has no other live claim can't close a cycle and is not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Table;
use super::claim::Status;
use super::load::Load;
#[cfg(feature = "planted")]
use super::planted::TableBug;
use super::resource::Slot;
use super::wake::Obstacle;
use crate::command::{Mode, NewSet};
use crate::limits::DEADLOCK_ITEMS_MAX;
use crate::outcome::{CycleLink, Rejection, Wait};

/// Playing out the claims may look at this many times the items that the search may visit.
const ROUNDS_MAX: usize = 20;

/// A cycle is shown up to this length.
const CYCLE_LEN_MAX: usize = 32;

/// A claim that the new one depends on.
#[derive(Debug)]
struct Node {
    state: State,
    session: Option<Arc<str>>,
    items: Vec<(Slot, Mode)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    Holds,
    Over,
}

/// The claims that the new one depends on, by sequence number; the new one is the last.
#[derive(Debug)]
struct Search<'a> {
    table: &'a Table,
    new: u64,
    nodes: BTreeMap<u64, Node>,
    /// For each resource: all its claims before this sequence number are among the nodes.
    lines: BTreeMap<Slot, u64>,
    /// The waiting claims of each session and of its descendants.
    sessions: BTreeMap<Arc<str>, Vec<u64>>,
    /// How many more items the search may visit.
    left: usize,
}

/// The search was given up.
struct TooMany;

impl Table {
    /// Refuses a claim that would wait for ever because its own session is in its way.
    pub(super) fn check_deadlock(
        &mut self,
        new: &NewSet,
        obstacles: &[Option<Obstacle>],
    ) -> Result<(), Rejection> {
        let Some(session) = &new.session else { return Ok(()) };
        if !self.sessions.has_claims(session) {
            return Ok(());
        }
        let blocked = new.items.iter().zip(obstacles).filter(|(_, obstacle)| obstacle.is_some());
        let item = |item: &crate::Item| Some((self.resources.find(&item.resource)?, item.mode));
        let items: Vec<(Slot, Mode)> = blocked.filter_map(|(wanted, _)| item(wanted)).collect();
        let mut search = Search {
            table: self,
            new: self.claims.next_seq(),
            nodes: BTreeMap::new(),
            lines: BTreeMap::new(),
            sessions: BTreeMap::new(),
            left: DEADLOCK_ITEMS_MAX,
        };
        let node = Node { state: State::Waits, session: Some(session.clone()), items };
        let found = search.gather(node).and_then(|()| search.play_out());
        match found {
            Ok(true) => Ok(()),
            Ok(false) => Err(Rejection::Deadlock(search.cycle(new))),
            Err(TooMany) => {
                self.unchecked_waits += 1;
                Ok(())
            }
        }
    }

    /// How many claims wait although the search for a deadlock was given up, since the process started.
    pub fn unchecked_waits(&self) -> u64 {
        self.unchecked_waits
    }
}

impl Search<'_> {
    /// Finds every claim that the new one depends on.
    fn gather(&mut self, new: Node) -> Result<(), TooMany> {
        let mut found = vec![self.new];
        self.nodes.insert(self.new, new);
        while let Some(seq) = found.pop() {
            let node = &self.nodes[&seq];
            let (session, waits, items) =
                (node.session.clone(), node.state == State::Waits, node.items.clone());
            for (slot, _) in items.into_iter().filter(|_| waits) {
                self.gather_line(slot, seq, &mut found)?;
            }
            if let Some(session) = session {
                self.gather_session(&session, &mut found)?;
            }
        }
        Ok(())
    }

    /// All live claims before this one on a resource.
    fn gather_line(&mut self, slot: Slot, before: u64, found: &mut Vec<u64>) -> Result<(), TooMany> {
        let from = self.lines.get(&slot).copied().unwrap_or(0);
        if from >= before {
            return Ok(());
        }
        self.lines.insert(slot, before);
        let resource = self.table.resources.at(slot);
        let line = resource.holders().chain(resource.reserved()).chain(resource.blocked());
        #[cfg(feature = "planted")]
        let line = line.filter(|seq| {
            let holds = self.table.claims.at(*seq).status == Status::Active;
            holds || !self.table.has_bug(TableBug::DeadlockByHoldersOnly)
        });
        for seq in line.filter(|seq| (from..before).contains(seq)) {
            self.visit(seq, found)?;
        }
        Ok(())
    }

    fn gather_session(&mut self, session: &Arc<str>, found: &mut Vec<u64>) -> Result<(), TooMany> {
        if self.sessions.contains_key(session) {
            return Ok(());
        }
        let mut waiting: Vec<u64> = self.table.sessions.waiting_below(session).collect();
        #[cfg(feature = "planted")]
        let ignores = self.table.has_bug(TableBug::DescendantsIgnored);
        #[cfg(feature = "planted")]
        waiting.retain(|seq| !ignores || self.table.claims.at(*seq).session() == Some(session));
        for seq in &waiting {
            self.visit(*seq, found)?;
        }
        let own = self.nodes[&self.new].session.clone();
        let goes_on_with_it = own.as_ref().is_some_and(|own| is_below(own, session));
        #[cfg(feature = "planted")]
        let goes_on_with_it = goes_on_with_it && (!ignores || own.as_ref() == Some(session));
        if goes_on_with_it {
            waiting.push(self.new);
        }
        self.sessions.insert(session.clone(), waiting);
        Ok(())
    }

    fn visit(&mut self, seq: u64, found: &mut Vec<u64>) -> Result<(), TooMany> {
        self.left = self.left.checked_sub(1).ok_or(TooMany)?;
        let claim = self.table.claims.at(seq);
        // A claim that is due is over, though no entry has ended it yet.
        if self.nodes.contains_key(&seq) || claim.is_due(self.table.clock.now_us) {
            return Ok(());
        }
        let items: Vec<(Slot, Mode)> = claim.items().collect();
        self.left = self.left.checked_sub(items.len() - 1).ok_or(TooMany)?;
        let state = if claim.status == Status::Waiting { State::Waits } else { State::Holds };
        self.nodes.insert(seq, Node { state, session: claim.session().cloned(), items });
        found.push(seq);
        Ok(())
    }

    /// Lets every claim end that can, in log order, until nothing changes. Says whether the new one is granted.
    fn play_out(&mut self) -> Result<bool, TooMany> {
        let mut work = ROUNDS_MAX * DEADLOCK_ITEMS_MAX;
        let seqs: Vec<u64> = self.nodes.keys().copied().collect();
        loop {
            let mut changed = false;
            let mut loads: BTreeMap<Slot, Load> = BTreeMap::new();
            for seq in &seqs {
                let node = &self.nodes[seq];
                work = work.checked_sub(1 + node.items.len()).ok_or(TooMany)?;
                let mut state = node.state;
                if state == State::Waits && self.fits(node, *seq, &loads) {
                    state = State::Holds;
                }
                if *seq == self.new && state == State::Holds {
                    return Ok(true);
                }
                if state == State::Holds && self.may_end(node, &mut work)? {
                    state = State::Over;
                }
                if state != State::Over {
                    for (slot, mode) in &node.items {
                        let load = loads.entry(*slot).or_default();
                        *load = load.with(*mode);
                    }
                }
                if let Some(node) = self.nodes.get_mut(seq) {
                    changed |= node.state != state;
                    node.state = state;
                }
            }
            if !changed {
                return Ok(false);
            }
        }
    }

    /// Whether a waiting claim fits with all that are left before it. The lines of all its resources are known.
    fn fits(&self, node: &Node, seq: u64, loads: &BTreeMap<Slot, Load>) -> bool {
        let known = |slot: &Slot| self.lines.get(slot).is_some_and(|until| *until >= seq);
        let takes = |(slot, mode): &(Slot, Mode)| loads.get(slot).copied().unwrap_or_default().takes(*mode);
        #[cfg(feature = "planted")]
        if self.table.has_bug(TableBug::DeadlockByEveryWait) {
            return node
                .items
                .iter()
                .all(|(slot, _)| loads.get(slot).copied().unwrap_or_default() == Load::Free);
        }
        node.items.iter().filter(|(slot, _)| known(slot)).all(takes)
    }

    fn may_end(&self, node: &Node, work: &mut usize) -> Result<bool, TooMany> {
        let Some(session) = &node.session else { return Ok(true) };
        let waiting = self.sessions.get(session).map_or(&[][..], |waiting| waiting);
        *work = work.checked_sub(waiting.len()).ok_or(TooMany)?;
        Ok(!waiting.iter().any(|seq| self.waits(*seq)))
    }

    fn waits(&self, seq: u64) -> bool {
        self.nodes.get(&seq).is_some_and(|node| node.state == State::Waits)
    }

    /// The claims that wait for each other, from the new one on.
    fn cycle(&self, new: &NewSet) -> Vec<Wait> {
        let (mut cycle, mut seen) = (Vec::new(), BTreeSet::new());
        let mut at = self.new;
        let mut link = Some(CycleLink::Wants);
        while let Some((slot, blocker)) = self.in_the_way(at)
            && seen.insert(at)
            && cycle.len() < CYCLE_LEN_MAX
        {
            if let Some(link) = link.take() {
                cycle.push(self.wait(at, slot, link, new));
            }
            match self.nodes[&blocker].state {
                State::Waits => {
                    cycle.push(self.wait(blocker, slot, CycleLink::Reserves, new));
                    at = blocker;
                }
                _ => {
                    cycle.push(self.wait(blocker, slot, CycleLink::Holds, new));
                    let Some(next) = self.waits_in_session_of(blocker) else { break };
                    (at, link) = (next, Some(CycleLink::Wants));
                }
            }
        }
        cycle
    }

    /// Where a waiting claim does not fit, and a claim that is left before it there: one that waits for the new claim if there
    /// is any, since it closes the cycle, and otherwise the first that does not fit beside it.
    fn in_the_way(&self, seq: u64) -> Option<(Slot, u64)> {
        let before = |slot: Slot| {
            let nodes = self.nodes.range(..seq).filter(|(_, node)| node.state != State::Over);
            nodes.filter_map(move |(seq, node)| {
                let (_, mode) = node.items.iter().find(|(other, _)| *other == slot)?;
                Some((*seq, *mode))
            })
        };
        let session = &self.nodes[&seq].session;
        self.nodes[&seq].items.iter().find_map(|(slot, mode)| {
            let load = before(*slot).fold(Load::Free, |load, (_, mode)| load.with(mode));
            let alone = before(*slot).filter(|(_, other)| !Load::Free.with(*other).takes(*mode));
            let mut found: Vec<u64> = alone.map(|(seq, _)| seq).collect();
            if found.is_empty() {
                // Slots are too few only together. Others tell more than the claim's own session, which has some too.
                found.extend(before(*slot).map(|(seq, _)| seq));
                let others = |seq: &u64| self.nodes[seq].session != *session;
                if found.iter().any(others) {
                    found.retain(others);
                }
            }
            let closing = found.iter().find(|seq| self.waits_for_new(**seq));
            let blocker = closing.or_else(|| found.first())?;
            (!load.takes(*mode)).then_some((*slot, *blocker))
        })
    }

    /// Whether a claim can't end before the new one is granted.
    fn waits_for_new(&self, seq: u64) -> bool {
        let waiting = self.nodes[&seq].session.as_ref().and_then(|session| self.sessions.get(session));
        waiting.is_some_and(|waiting| waiting.contains(&self.new))
    }

    /// The claim for which the session of a holder waits.
    fn waits_in_session_of(&self, holder: u64) -> Option<u64> {
        let waiting = self.sessions.get(self.nodes[&holder].session.as_ref()?)?;
        waiting.iter().rev().copied().find(|seq| self.waits(*seq))
    }

    fn wait(&self, seq: u64, slot: Slot, link: CycleLink, new: &NewSet) -> Wait {
        let known = self.table.claims.get(seq);
        Wait {
            claim: known.map_or(new.id, |claim| claim.id),
            owner: known.map_or(&new.owner, |claim| &claim.owner).clone(),
            session: self.nodes[&seq].session.clone(),
            resource: self.table.resources.name(slot).into(),
            link,
        }
    }
}

/// Whether a session is another one or one of its descendants.
fn is_below(session: &str, other: &str) -> bool {
    session.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Batch, Command, Item, OnBusy};
    use crate::name::{ClaimId, Stamp};
    use crate::outcome::Outcome;

    /// Sends claims with sessions to a table.
    struct Asker {
        table: Table,
        claims: u128,
    }

    impl Asker {
        fn claim(&mut self, session: &str, resource: &str, mode: Mode) -> Outcome {
            self.claims += 1;
            self.apply(Command::ClaimSet(Box::new(NewSet {
                id: ClaimId::from_u128(self.claims),
                items: vec![Item { resource: resource.into(), mode }],
                owner: "me".into(),
                ttl_us: None,
                on_busy: OnBusy::Queue,
                data: None,
                idempotency: None,
                session: Some(session.into()),
                lapses: false,
            })))
        }

        fn apply(&mut self, command: Command) -> Outcome {
            let stamp = Stamp { now_us: 0, wall_us: 0 };
            self.table.apply(&Batch { stamp, commands: vec![command] }).outcomes.remove(0)
        }
    }

    /// Session 0 waits for what session 1 holds, that one for session 2, and so on: each round of the game frees one of them.
    /// Beside session 0, the session `own` shares `x`, and then wants it alone.
    fn own_claim_beside_a_chain(sessions: u32) -> (Outcome, u64) {
        let mut asker = Asker { table: Table::default(), claims: 0 };
        asker.apply(Command::Upgrade { version: 3 });
        asker.claim("own", "x", Mode::Shared);
        asker.claim("0", "x", Mode::Shared);
        for number in 1..sessions {
            let granted = asker.claim(&number.to_string(), &format!("h{number}"), Mode::Exclusive);
            assert!(matches!(granted, Outcome::Granted(_)), "{granted}");
        }
        for number in 1..sessions {
            let session = (number - 1).to_string();
            let queued = asker.claim(&session, &format!("h{number}"), Mode::Exclusive);
            assert!(matches!(queued, Outcome::Queued(_)), "{queued}");
        }
        assert_eq!(asker.table.unchecked_waits(), 0, "each link of the chain was looked at");
        (asker.claim("own", "x", Mode::Exclusive), asker.table.unchecked_waits())
    }

    #[test]
    fn a_chain_that_takes_too_many_rounds_to_play_out_is_given_up() {
        let (outcome, unchecked) = own_claim_beside_a_chain(150);
        assert!(matches!(outcome, Outcome::Rejected(Rejection::Deadlock(_))), "{outcome}");
        assert_eq!(unchecked, 0);
        let (outcome, unchecked) = own_claim_beside_a_chain(300);
        assert!(matches!(outcome, Outcome::Queued(_)), "{outcome}");
        assert_eq!(unchecked, 1);
    }
}
