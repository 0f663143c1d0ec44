//! The search: states are the live claims, steps are commands to a real table.
//!
//! In:    [`Bounds`]. Out: the first broken promise with its story, or the number of states on stderr.
//! Never: keeps a table in a state: a table can't be copied. Each step tells its story to a new one, from the beginning.

use std::hash::{Hash, Hasher};

#[cfg(feature = "planted")]
use leasehold_core::table::TableBug;
use leasehold_core::{
    Batch, ClaimId, Command, Ending, Guard, Item, NewSet, OnBusy, Outcome, Rejection, Settings, Stamp,
    Status, Table, Target,
};
use stateright::{Checker, HasDiscoveries, Model, Property};

use super::rules::{self, Holders, Live, Wanted};

const NAMES: [&str; 2] = ["x", "y"];

/// What a claim asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    items: Vec<(u8, Wanted)>,
    session: Option<&'static str>,
}

/// How far the search goes.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    name: &'static str,
    /// Claims in one story, ended ones included.
    claims: usize,
    shapes: Vec<Shape>,
    /// A bug that must be found.
    #[cfg(feature = "planted")]
    bug: Option<TableBug>,
}

impl Bounds {
    fn new(name: &'static str, claims: usize, shapes: Vec<Shape>) -> Self {
        Self {
            name,
            claims,
            shapes,
            #[cfg(feature = "planted")]
            bug: None,
        }
    }

    /// All modes on two resources, alone and together, without sessions. Longer stories have fewer kinds of claims.
    pub(crate) fn modes(claims: usize) -> Self {
        use Wanted::*;
        let is_long = claims > 4;
        let x =
            [None, Some(Exclusive), Some(Shared), Some(Slots(1, 2)), Some(Slots(2, 2)), Some(Slots(1, 3))];
        let y = [None, Some(Exclusive), Some(Shared), Some(Slots(1, 2))];
        let mut shapes = Vec::new();
        for x in x {
            for y in y {
                let items = x.map(|mode| (0, mode)).into_iter().chain(y.map(|mode| (1, mode)));
                shapes.push(Shape { items: items.collect(), session: None });
            }
        }
        let rare = |(resource, mode): &(u8, Wanted)| match mode {
            Slots(take, of) => *resource == 1 || (*take, *of) != (1, 2),
            _ => false,
        };
        shapes.retain(|shape| !shape.items.is_empty());
        shapes.retain(|shape| !is_long || !shape.items.iter().any(rare));
        Self::new("modes", claims, shapes)
    }

    /// Two sessions, a descendant and no session, on two resources.
    pub(crate) fn sessions(claims: usize) -> Self {
        use Wanted::*;
        let mut items = vec![
            vec![(0, Exclusive)],
            vec![(1, Exclusive)],
            vec![(1, Slots(1, 2))],
            vec![(0, Shared), (1, Exclusive)],
        ];
        if claims <= 4 {
            items.extend([vec![(0, Shared)], vec![(0, Exclusive), (1, Slots(1, 2))]]);
        }
        let mut shapes = Vec::new();
        for session in [None, Some("a"), Some("b"), Some("a/c")] {
            shapes.extend(items.iter().map(|items| Shape { items: items.clone(), session }));
        }
        Self::new("sessions", claims, shapes)
    }

    /// The same with a bug in the table.
    #[cfg(feature = "planted")]
    pub(crate) fn with(self, bug: TableBug) -> Self {
        Self { bug: Some(bug), ..self }
    }

    #[cfg(not(feature = "planted"))]
    fn table(&self) -> Table {
        Table::default()
    }

    #[cfg(feature = "planted")]
    fn table(&self) -> Table {
        let mut table = Table::default();
        if let Some(bug) = self.bug {
            table.plant(bug);
        }
        table
    }
}

/// A step of a story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The next claim has this shape.
    Claim(usize),
    /// A live claim ends, by its number.
    End(u8),
    /// All live claims before this number end by one command.
    EndBefore(u8),
}

/// Where a story has come to. Two stories with the same live claims go on alike.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    story: Vec<Step>,
    made: usize,
    live: Vec<Live>,
    /// Which modes every resource was ever held in: what is left over from then must not matter.
    held: [u8; NAMES.len()],
    broken: Option<&'static str>,
}

impl Place {
    /// Whose numbers they are does not matter.
    fn key(&self) -> impl Hash + PartialEq {
        let live = self.live.iter().map(|claim| (&claim.items, claim.session, claim.holds, &claim.slots));
        (self.made, live.collect::<Vec<_>>(), self.held, self.broken)
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// A table on its way through a story.
struct Run<'a> {
    bounds: &'a Bounds,
    table: Table,
    holders: Holders,
    shapes: Vec<&'a Shape>,
}

impl<'a> Run<'a> {
    fn new(bounds: &'a Bounds) -> Self {
        let mut run = Self { bounds, table: bounds.table(), holders: Holders::default(), shapes: Vec::new() };
        run.apply(vec![
            Command::Upgrade { version: 3 },
            Command::Configure(Settings { finished_max: 0, ..Settings::default() }),
        ]);
        run
    }

    fn apply(&mut self, commands: Vec<Command>) -> (Vec<Outcome>, Option<&'static str>) {
        let applied = self.table.apply(&Batch { stamp: Stamp::default(), commands });
        let shapes = &self.shapes;
        let items = |id: ClaimId| shapes[id.as_u128() as usize - 1].items.len();
        let broken = self.holders.step(&applied.events, items);
        (applied.outcomes, broken)
    }

    fn new_set(&self, shape: &Shape, on_busy: OnBusy) -> Command {
        let item = |(resource, mode): &(u8, Wanted)| Item {
            resource: NAMES[*resource as usize].into(),
            mode: (*mode).into(),
        };
        Command::ClaimSet(Box::new(NewSet {
            id: ClaimId::from_u128(self.shapes.len() as u128 + 1),
            items: shape.items.iter().map(item).collect(),
            owner: "o".into(),
            ttl_us: None,
            on_busy,
            data: None,
            idempotency: None,
            session: shape.session.map(Into::into),
            lapses: false,
        }))
    }

    fn step(&mut self, step: Step) -> (Vec<Outcome>, Option<&'static str>) {
        match step {
            Step::Claim(shape) => {
                let shape = &self.bounds.shapes[shape];
                let command = self.new_set(shape, OnBusy::Queue);
                self.shapes.push(shape);
                self.apply(vec![command])
            }
            Step::End(id) => {
                let target = Target::Claim(ClaimId::from_u128(id.into()));
                let (guard, ending) = (Guard::default(), Ending::Withdrawn);
                self.apply(vec![Command::Finish { target, guard, ending, reason: None, purge_data: false }])
            }
            // Claims are numbered like their ids, unless one was refused: a refused claim ends its story.
            Step::EndBefore(id) => {
                self.apply(vec![Command::Revoke { resource: None, before: u64::from(id), reason: None }])
            }
        }
    }

    /// The live claims, as the table shows them.
    fn live(&self) -> Vec<Live> {
        let mut live = Vec::new();
        for (shape, id) in self.shapes.iter().zip(1u8..) {
            let Some(view) = self.table.claim_view(ClaimId::from_u128(id.into()), 0) else { continue };
            if !view.claim.status.is_final() {
                live.push(Live {
                    id,
                    items: shape.items.clone(),
                    session: shape.session,
                    holds: view.claim.status == Status::Active,
                    slots: view.items().iter().map(|item| item.slots.clone()).collect(),
                });
            }
        }
        live
    }
}

/// Whether the slots that were granted in this step are the lowest that were free, each once.
fn slots_are_right(before: &[Live], after: &[Live]) -> bool {
    let held_before = |id: u8| before.iter().any(|claim| claim.id == id && claim.holds);
    for resource in 0..NAMES.len() as u8 {
        let mut used: Vec<u16> = Vec::new();
        let of_resource = |claim: &Live| -> Option<(u16, u16, Vec<u16>)> {
            let place = claim.items.iter().position(|(other, _)| *other == resource)?;
            match claim.items[place].1 {
                Wanted::Slots(take, of) if claim.holds => Some((take, of, claim.slots[place].clone())),
                _ => None,
            }
        };
        let (old, new): (Vec<&Live>, Vec<&Live>) = after.iter().partition(|claim| held_before(claim.id));
        for claim in old {
            used.extend(of_resource(claim).into_iter().flat_map(|(.., slots)| slots));
        }
        for (take, of, slots) in new.into_iter().filter_map(of_resource) {
            let free = (1..=of).filter(|slot| !used.contains(slot));
            if slots != free.take(take.into()).collect::<Vec<u16>>() {
                return false;
            }
            used.extend(slots);
        }
    }
    true
}

impl Model for Bounds {
    type State = Place;
    type Action = Step;

    fn init_states(&self) -> Vec<Place> {
        vec![Place { story: Vec::new(), made: 0, live: Vec::new(), held: [0; NAMES.len()], broken: None }]
    }

    fn actions(&self, place: &Place, steps: &mut Vec<Step>) {
        if place.broken.is_some() {
            return;
        }
        if place.made < self.claims {
            steps.extend((0..self.shapes.len()).map(Step::Claim));
        }
        steps.extend(place.live.iter().map(|claim| Step::End(claim.id)));
        steps.extend(place.live.iter().skip(2).map(|claim| Step::EndBefore(claim.id)));
    }

    fn next_state(&self, last: &Place, step: Step) -> Option<Place> {
        let mut run = Run::new(self);
        for step in &last.story {
            run.step(*step);
        }
        let new = match step {
            Step::Claim(shape) => Some(&self.shapes[shape]),
            _ => None,
        };
        let new_claim = new.map(|shape| Live {
            id: run.shapes.len() as u8 + 1,
            items: shape.items.clone(),
            session: shape.session,
            holds: false,
            slots: Vec::new(),
        });
        let mut broken = None;
        if let (Some(shape), Some(claim)) = (new, &new_claim) {
            broken = refused_rightly(&mut run, shape, claim, &last.live);
        }
        let (outcomes, by_events) = match broken {
            None => run.step(step),
            Some(_) => (Vec::new(), None),
        };
        let mut next = Place { live: run.live(), ..last.clone() };
        next.story.push(step);
        if let Some(claim) = &new_claim {
            next.made += 1;
            broken = broken.or_else(|| answered_rightly(outcomes.first(), claim, &last.live));
            if matches!(outcomes.first(), Some(Outcome::Rejected(_))) && broken.is_none() {
                // Nothing has changed: the story goes on without it.
                return None;
            }
        }
        broken = broken.or(by_events).or_else(|| rules::broken(&next.live));
        if broken.is_none() && !slots_are_right(&last.live, &next.live) {
            broken = Some(rules::SLOTS);
        }
        if broken.is_none() && run.table.check(false).is_err() {
            broken = Some(rules::CHECK);
        }
        for (resource, mode) in next.live.iter().filter(|claim| claim.holds).flat_map(|claim| &claim.items) {
            next.held[*resource as usize] |= match mode {
                Wanted::Exclusive => 1,
                Wanted::Shared => 2,
                Wanted::Slots(..) => 4,
            };
        }
        next.broken = broken;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // `always` takes a plain function, which can't carry a name: one for each.
        fn holds<const PLACE: usize>(_: &Bounds, place: &Place) -> bool {
            place.broken != Some(rules::ALL[PLACE])
        }
        let conditions: [fn(&Self, &Place) -> bool; rules::ALL.len()] = [
            holds::<0>,
            holds::<1>,
            holds::<2>,
            holds::<3>,
            holds::<4>,
            holds::<5>,
            holds::<6>,
            holds::<7>,
            holds::<8>,
            holds::<9>,
            holds::<10>,
            holds::<11>,
            holds::<12>,
        ];
        rules::ALL.into_iter().zip(conditions).map(|(name, holds)| Property::always(name, holds)).collect()
    }
}

/// Asks first without waiting: a refusal changes nothing, so that the same table can be asked again.
fn refused_rightly<'a>(
    run: &mut Run<'a>,
    shape: &'a Shape,
    claim: &Live,
    live: &[Live],
) -> Option<&'static str> {
    if rules::fits(claim, live) {
        return None;
    }
    let command = run.new_set(shape, OnBusy::Refuse);
    run.shapes.push(shape);
    let (outcomes, _) = run.apply(vec![command]);
    run.shapes.pop();
    match outcomes.first() {
        Some(Outcome::Rejected(Rejection::Blocked { resource, by })) => {
            let by = live.iter().find(|claim| claim.id == by.claim.id.as_u128() as u8)?;
            // The answer names somebody who is there, and wants that resource.
            let named = by.items.iter().any(|(place, _)| NAMES[*place as usize] == &**resource);
            (!named).then_some(rules::REFUSAL)
        }
        Some(Outcome::Rejected(Rejection::Capacity { .. })) => None,
        Some(Outcome::Granted(_)) => {
            run.shapes.push(shape);
            rules::broken(&run.live()).or(Some(rules::REFUSAL))
        }
        _ => Some(rules::REFUSAL),
    }
}

/// What the table says to a claim that would wait, by the live claims before it.
fn answered_rightly(outcome: Option<&Outcome>, claim: &Live, live: &[Live]) -> Option<&'static str> {
    let of = |resource: u8| {
        let items = live.iter().flat_map(|claim| &claim.items).filter(move |(other, _)| *other == resource);
        items.into_iter().find_map(|(_, mode)| if let Wanted::Slots(_, of) = mode { Some(*of) } else { None })
    };
    let wrong_number = claim.items.iter().any(|(resource, mode)| match mode {
        Wanted::Slots(_, wanted) => of(*resource).is_some_and(|present| present != *wanted),
        _ => false,
    });
    match outcome? {
        Outcome::Rejected(Rejection::Capacity { .. }) => (!wrong_number).then_some(rules::CAPACITY),
        _ if wrong_number => Some(rules::CAPACITY),
        Outcome::Rejected(Rejection::Deadlock(_)) => {
            rules::could_be_granted(live, claim).then_some(rules::FALSE_REFUSAL)
        }
        Outcome::Granted(_) if !rules::fits(claim, live) => Some(rules::OVERTAKEN),
        Outcome::Granted(_) | Outcome::Queued(_) => None,
        _ => Some(rules::REFUSAL),
    }
}

/// Searches everything within the bounds.
pub(crate) fn search(bounds: Bounds) -> Option<String> {
    let (name, claims, shapes) = (bounds.name, bounds.claims, bounds.shapes.clone());
    let checker = bounds.checker().threads(2).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let states = checker.unique_state_count();
    let bounds = format!("{claims} claims of {} shapes on {} resources", shapes.len(), NAMES.len());
    eprintln!("{name}: {bounds}: {states} states, all orders of ends");
    let (promise, path) = checker.discoveries().into_iter().next()?;
    let last = path.last_state();
    let story: Vec<String> = last.story.iter().map(|step| told(step, &shapes)).collect();
    Some(format!("broken: {promise}, after: {}", story.join("; ")))
}

fn told(step: &Step, shapes: &[Shape]) -> String {
    match step {
        Step::Claim(shape) => format!("claim {:?}", shapes[*shape]),
        step => format!("{step:?}"),
    }
}
