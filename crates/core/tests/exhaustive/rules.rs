//! What must hold of the live claims, said in the plainest way.
//!
//! In:    claims in log order, and the events of one step. Out: the name of the promise that is broken.
//! Never: knows how the table finds out.

use leasehold_core::{ClaimId, Event, EventKind, Mode};

/// A live claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Live {
    pub(crate) id: u8,
    /// Resource and mode.
    pub(crate) items: Vec<(u8, Wanted)>,
    pub(crate) session: Option<&'static str>,
    pub(crate) holds: bool,
    /// Of each item, while it holds.
    pub(crate) slots: Vec<Vec<u16>>,
}

/// [`Mode`], in a form that can be hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Wanted {
    Exclusive,
    Shared,
    Slots(u16, u16),
}

impl From<Wanted> for Mode {
    fn from(wanted: Wanted) -> Self {
        match wanted {
            Wanted::Exclusive => Self::Exclusive,
            Wanted::Shared => Self::Shared,
            Wanted::Slots(take, of) => Self::Slots { take, of },
        }
    }
}

pub(crate) const COMPATIBLE: &str = "compatible holders only";
pub(crate) const OVERTAKEN: &str = "nobody overtakes";
pub(crate) const CAUSE: &str = "no wait without a cause";
pub(crate) const FIRST: &str = "every claim is granted once everybody before it is over";
pub(crate) const WHOLE: &str = "a set is granted as a whole";
pub(crate) const ORDER: &str = "grants of one step follow the log order";
pub(crate) const TOKENS: &str = "equal tokens only within one shared phase, and larger ones otherwise";
pub(crate) const SLOTS: &str = "the lowest free slots, and each once";
pub(crate) const CAPACITY: &str = "the first live slot claim sets the number of slots";
pub(crate) const DEADLOCK: &str = "no deadlock between sessions that were let in";
pub(crate) const FALSE_REFUSAL: &str = "no refusal of a claim that could have been granted";
pub(crate) const REFUSAL: &str = "a claim that does not wait is refused if and only if it would have to";
pub(crate) const CHECK: &str = "the table's own invariants";

/// Every promise.
pub(crate) const ALL: [&str; 13] = [
    COMPATIBLE,
    OVERTAKEN,
    CAUSE,
    FIRST,
    WHOLE,
    ORDER,
    TOKENS,
    SLOTS,
    CAPACITY,
    DEADLOCK,
    FALSE_REFUSAL,
    REFUSAL,
    CHECK,
];

/// Whether these fit together on one resource.
fn together(modes: &[Wanted]) -> bool {
    match modes {
        [] | [_] => true,
        modes if modes.iter().all(|mode| *mode == Wanted::Shared) => true,
        modes => {
            let mut sum = 0;
            modes.iter().all(|mode| match mode {
                Wanted::Slots(take, of) => {
                    sum += take;
                    sum <= *of
                }
                _ => false,
            })
        }
    }
}

fn on(resource: u8, claims: &[Live]) -> Vec<Wanted> {
    let items = claims.iter().flat_map(|claim| &claim.items);
    items.filter(|(other, _)| *other == resource).map(|(_, mode)| *mode).collect()
}

/// Whether a claim fits, on each of its resources, with all of these taken together.
pub(crate) fn fits(claim: &Live, before: &[Live]) -> bool {
    claim.items.iter().all(|(resource, mode)| {
        let mut modes = on(*resource, before);
        modes.push(*mode);
        together(&modes)
    })
}

/// What must hold after every step.
pub(crate) fn broken(claims: &[Live]) -> Option<&'static str> {
    let holders: Vec<Live> = claims.iter().filter(|claim| claim.holds).cloned().collect();
    let resources = claims.iter().flat_map(|claim| &claim.items).map(|(resource, _)| *resource);
    for resource in resources {
        if !together(&on(resource, &holders)) {
            return Some(COMPATIBLE);
        }
    }
    for (place, claim) in claims.iter().enumerate() {
        match (claim.holds, fits(claim, &claims[..place])) {
            (true, false) => return Some(OVERTAKEN),
            (false, true) if place == 0 => return Some(FIRST),
            (false, true) => return Some(CAUSE),
            _ => {}
        }
    }
    if !all_can_end(claims) {
        return Some(DEADLOCK);
    }
    None
}

/// Whether a claim may end: it holds, and so do all claims of its session and of that one's descendants.
fn may_end(claim: &Live, claims: &[Live]) -> bool {
    let goes_on = |session: &str| {
        let below = |other: &str| other == session || other.starts_with(&format!("{session}/"));
        claims.iter().filter(|other| other.session.is_some_and(below)).all(|other| other.holds)
    };
    claim.holds && claim.session.is_none_or(goes_on)
}

/// Plays out every order of ends until there is one after which `done` says yes.
fn search(claims: &[Live], done: &dyn Fn(&[Live]) -> bool) -> bool {
    let mut claims = claims.to_vec();
    for place in 0..claims.len() {
        claims[place].holds = fits(&claims[place], &claims[..place]);
    }
    done(&claims)
        || (0..claims.len()).any(|place| {
            let mut rest = claims.clone();
            may_end(&claims[place], &claims) && {
                rest.remove(place);
                search(&rest, done)
            }
        })
}

fn all_can_end(claims: &[Live]) -> bool {
    search(claims, &|left| left.is_empty())
}

/// Whether a new claim could be granted some day, if it were let in.
pub(crate) fn could_be_granted(claims: &[Live], new: &Live) -> bool {
    let mut with_it = claims.to_vec();
    with_it.push(new.clone());
    search(&with_it, &|left| left.iter().all(|claim| claim.id != new.id || claim.holds))
}

/// Who holds what, by the events of the whole story.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    /// Claim, resource, mode, token.
    items: Vec<(ClaimId, String, Mode, u64)>,
    largest_token: u64,
}

impl Holders {
    /// Follows the events of one step. `items`: how many items a claim has.
    pub(crate) fn step(
        &mut self,
        events: &[Event],
        items: impl Fn(ClaimId) -> usize,
    ) -> Option<&'static str> {
        let mut last = None;
        let mut place = 0;
        while place < events.len() {
            let event = &events[place];
            match event.kind {
                EventKind::Activated { .. } => {
                    let grant: Vec<&Event> =
                        events[place..].iter().take_while(|other| other.claim == event.claim).collect();
                    if grant.len() != items(event.claim) {
                        return Some(WHOLE);
                    }
                    if last.is_some_and(|last| last > event.claim) {
                        return Some(ORDER);
                    }
                    last = Some(event.claim);
                    if !grant.iter().all(|event| self.is_token_right(event)) {
                        return Some(TOKENS);
                    }
                    for event in &grant {
                        self.items.push((event.claim, event.resource.to_string(), event.mode, event.token));
                        self.largest_token = self.largest_token.max(event.token);
                    }
                    place += grant.len();
                }
                EventKind::Ended { .. } => {
                    self.items.retain(|(claim, ..)| *claim != event.claim);
                    place += 1;
                }
                _ => place += 1,
            }
        }
        None
    }

    fn is_token_right(&self, event: &Event) -> bool {
        let sharers = self.items.iter().filter(|(_, resource, mode, _)| {
            *resource == *event.resource && event.mode == Mode::Shared && *mode == Mode::Shared
        });
        match sharers.map(|(.., token)| *token).next() {
            Some(token) => event.token == token,
            None => event.token > self.largest_token,
        }
    }
}
