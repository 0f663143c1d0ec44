//! The table against a naive model: long random stories, compared after every entry.
//!
//! In:    stories from `naive/steps.rs`. Out: the first difference, shrunk to a short story.
//! Never: trusts the model alone: what must hold of any lock table is checked beside it, without knowing the rules.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod naive;

use std::collections::BTreeMap;

use leasehold_core::table::Restorer;
use leasehold_core::{
    Batch, ClaimId, Command, Event, EventKind, Mode, Outcome, Rejection, Stamp, Status, Table, View,
};
use naive::Model;
use naive::compare::{Row, State, answer};
use naive::steps::{Step, story, story_of_crowds, story_of_sets};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_does_what_the_model_does(steps in story(300)) {
        let mut run = Run::default();
        for step in steps {
            run.step(step);
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_does_what_the_model_does_with_sets(steps in story_of_sets(300)) {
        let mut run = Run::default();
        for step in steps {
            run.step(step);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// The model does not say in which entry a crowd is admitted, only that all of it is, and in order.
    #[test]
    fn a_crowd_is_settled_in_the_end(steps in story_of_crowds(40)) {
        let (mut table, mut stamp) = (Table::default(), Stamp::default());
        for step in steps {
            let Step::Entry { now_us, commands, .. } = step else {
                table = restored(&table);
                continue;
            };
            stamp.now_us = stamp.now_us.saturating_add_signed(now_us);
            table.apply(&Batch { stamp, commands });
            table.check(true).unwrap();
            holders_fit_together(&State::of_table(&table).rows);
        }
        let mut entries = 0;
        while table.earliest_deadline_us().is_some_and(|due_us| due_us <= table.clock().now_us) {
            table.apply(&Batch { stamp, commands: vec![Command::Tick] });
            entries += 1;
            assert!(entries < 1_000, "the table is never settled");
        }
        table.check(false).unwrap();
        whoever_fits_holds(&State::of_table(&table).rows, table.clock().now_us);
    }
}

/// Stories that never meet a rule prove nothing about it.
#[test]
fn stories_of_sets_meet_every_rule() {
    let mut runner = TestRunner::deterministic();
    let mut met: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..40 {
        let (mut table, mut stamp) = (Table::default(), Stamp::default());
        for step in story_of_sets(300).new_tree(&mut runner).unwrap().current() {
            let Step::Entry { now_us, commands, .. } = step else { continue };
            stamp.now_us = stamp.now_us.saturating_add_signed(now_us);
            let applied = table.apply(&Batch { stamp, commands });
            for outcome in &applied.outcomes {
                let word = match outcome {
                    Outcome::Rejected(rejection) => format!("rejected {}", rejection.code()),
                    Outcome::Granted(view) => format!("granted {}", view.items().len()),
                    Outcome::Queued(view) => format!("queued {}", view.items().len()),
                    _ => continue,
                };
                *met.entry(word).or_default() += 1;
            }
            for event in &applied.events {
                let word = match event.kind {
                    EventKind::Activated { waited_us } if waited_us > 0 => {
                        format!("handed over {}", event.mode.as_str())
                    }
                    EventKind::Ended { status, .. } => format!("{status} {}", event.mode.as_str()),
                    _ => continue,
                };
                *met.entry(word).or_default() += 1;
            }
        }
    }
    let rejections =
        [9, 10, 11, 12, 13, 14, 15, 16, 17, 21, 22, 23, 24, 27].map(|code| format!("rejected {code}"));
    let sizes = [0, 1, 2, 3].into_iter().flat_map(|len| [format!("granted {len}"), format!("queued {len}")]);
    let modes = ["exclusive", "shared", "slots"].into_iter().flat_map(|mode| {
        [format!("handed over {mode}"), format!("expired {mode}"), format!("withdrawn {mode}")]
    });
    for word in rejections.into_iter().chain(sizes).chain(modes) {
        assert!(met.get(&word).is_some_and(|count| *count >= 3), "{word} was hardly met: {met:?}");
    }
}

/// A table and a model on the same road.
#[derive(Default)]
struct Run {
    table: Table,
    model: Model,
    stamp: Stamp,
    /// Claims that are over, as they were when they ended.
    over: BTreeMap<ClaimId, Row>,
    last_token: u64,
    /// Tokens of those who share a resource at the moment.
    sharers: BTreeMap<(String, ClaimId), u64>,
}

impl Run {
    fn step(&mut self, step: Step) {
        let Step::Entry { now_us, wall_us, commands } = step else { return self.snapshot() };
        let wall_us = now_us.saturating_add(wall_us);
        self.stamp.now_us = self.stamp.now_us.saturating_add_signed(now_us);
        self.stamp.wall_us = self.stamp.wall_us.saturating_add_signed(wall_us);
        let batch = Batch { stamp: self.stamp, commands };
        let applied = self.table.apply(&batch);
        let (answers, events) = self.model.apply(&batch);
        for (place, outcome) in applied.outcomes.iter().enumerate() {
            assert_eq!(answer(outcome), answers[place], "command {place}: {:?}", batch.commands[place]);
        }
        assert_eq!(applied.outcomes.len(), answers.len());
        assert_eq!(applied.events, events);
        self.table.check(self.model.backlog).unwrap();
        let state = State::of_table(&self.table);
        assert_eq!(state, State::of_model(&self.model));
        applied.outcomes.iter().flat_map(shown).for_each(nothing_shown_is_overdue);
        self.tokens_only_grow(&applied.events);
        self.final_is_final(&state.rows);
        holders_fit_together(&state.rows);
        whoever_fits_holds(&state.rows, self.table.clock().now_us);
        if !self.model.backlog {
            nothing_outlives_its_deadline(&state.rows, self.table.clock().now_us);
        }
    }

    fn snapshot(&mut self) {
        self.table = restored(&self.table);
        self.table.check(self.model.backlog).unwrap();
        assert_eq!(State::of_table(&self.table), State::of_model(&self.model));
    }

    /// Each grant has a larger token than all before, but for items that join a shared phase.
    fn tokens_only_grow(&mut self, events: &[Event]) {
        let mut place = 0;
        while place < events.len() {
            let event = &events[place];
            let of_claim = |other: &&Event| other.claim == event.claim && other.kind == event.kind;
            let items: Vec<&Event> = events[place..].iter().take_while(of_claim).collect();
            place += items.len();
            match event.kind {
                EventKind::Activated { .. } => {
                    for item in &items {
                        let key = (item.resource.to_string(), item.claim);
                        let phase = self.sharers.iter().find(|((resource, _), _)| *resource == key.0);
                        match phase {
                            Some((_, token)) if item.mode == Mode::Shared => assert_eq!(item.token, *token),
                            _ => assert!(item.token > self.last_token, "{item:?} after {}", self.last_token),
                        }
                    }
                    for item in &items {
                        self.last_token = self.last_token.max(item.token);
                        if item.mode == Mode::Shared {
                            self.sharers.insert((item.resource.to_string(), item.claim), item.token);
                        }
                    }
                }
                EventKind::Ended { .. } => self.sharers.retain(|(_, claim), _| *claim != event.claim),
                _ => {}
            }
        }
        assert_eq!(self.table.last_token(), self.last_token);
    }

    fn final_is_final(&mut self, rows: &[Row]) {
        let over: BTreeMap<ClaimId, &Row> =
            rows.iter().filter(|row| row.status.is_final()).map(|row| (row.id, row)).collect();
        // A forgotten claim's id may come again.
        self.over.retain(|id, _| over.contains_key(id));
        for (id, row) in over {
            let first = self.over.entry(id).or_insert_with(|| row.clone());
            if first.version == row.version {
                // It may lose its data, to its budget, and never gets other data.
                if row.data.is_none() {
                    first.data = None;
                }
                assert_eq!(first, row, "a claim that was over has changed");
            } else {
                assert!(first.created != row.created || first.token != row.token || first.token == 0);
                *first = row.clone();
            }
        }
    }
}

fn restored(table: &Table) -> Table {
    let frozen = table.freeze();
    let mut restorer = Restorer::default();
    frozen.chunks().for_each(|chunk| restorer.push(&chunk).unwrap());
    let restored = restorer.finish().unwrap();
    assert_eq!(restored.freeze().digest(), frozen.digest());
    restored
}

/// What a claim wants.
fn wants(row: &Row) -> Vec<(&str, Mode)> {
    if row.items.is_empty() {
        return vec![(&row.resource, Mode::Exclusive)];
    }
    row.items.iter().map(|item| (&*item.resource, item.mode)).collect()
}

/// Modes of several claims on one resource, added up.
#[derive(Default, Clone, Copy)]
struct Sum {
    claims: u32,
    sharers: u32,
    slots: u32,
    of: u32,
    slot_claims: u32,
}

impl Sum {
    fn add(&mut self, mode: Mode) {
        self.claims += 1;
        match mode {
            Mode::Exclusive => {}
            Mode::Shared => self.sharers += 1,
            Mode::Slots { take, of } => {
                self.slots += u32::from(take);
                self.of = of.into();
                self.slot_claims += 1;
            }
        }
    }

    fn fits(self) -> bool {
        let slots = self.slot_claims == self.claims && self.slots <= self.of;
        self.claims <= 1 || self.sharers == self.claims || slots
    }
}

fn holders_fit_together(rows: &[Row]) {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.status == Status::Active) {
        for (resource, mode) in wants(row) {
            let sum = sums.entry(resource).or_default();
            sum.add(mode);
            assert!(sum.fits(), "{} does not fit on {resource}", row.id);
        }
    }
}

/// The one rule: a claim holds if and only if it fits, on each of its resources, with all live claims that came before it.
/// Waits that are over don't count: they may have been passed over, and will end.
fn whoever_fits_holds(rows: &[Row], now_us: u64) {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    let over = |row: &Row| row.status == Status::Waiting && row.deadline_us.is_some_and(|due| due <= now_us);
    for row in rows.iter().filter(|row| !row.status.is_final() && !over(row)) {
        let mut fits = true;
        for (resource, mode) in wants(row) {
            let sum = sums.entry(resource).or_default();
            sum.add(mode);
            fits &= sum.fits();
        }
        assert_eq!(row.status == Status::Active, fits, "{row:?}");
    }
}

fn nothing_outlives_its_deadline(rows: &[Row], now_us: u64) {
    for row in rows {
        assert!(row.deadline_us.is_none_or(|deadline_us| deadline_us > now_us), "{row:?} at {now_us}");
    }
}

/// Also during a backlog.
fn nothing_shown_is_overdue(view: &View) {
    assert!(!view.claim.is_due(view.now_us), "{view:?} was shown after its deadline");
}

/// Every claim that an outcome shows.
fn shown(outcome: &Outcome) -> Vec<&View> {
    match outcome {
        Outcome::Granted(view)
        | Outcome::Queued(view)
        | Outcome::Existing(view)
        | Outcome::Active(view)
        | Outcome::Renewed(view)
        | Outcome::Finished(view)
        | Outcome::Revoking(view) => vec![view],
        Outcome::LockedAll(views) => views.iter().collect(),
        Outcome::LockedNone { rejection, .. } | Outcome::Rejected(rejection) => match rejection {
            Rejection::Busy(view)
            | Rejection::Waiting(view)
            | Rejection::NotHeld(_, Some(view))
            | Rejection::Final(view)
            | Rejection::NotOwner(view)
            | Rejection::Revoking(view)
            | Rejection::NotAlone(view)
            | Rejection::Blocked { by: view, .. }
            | Rejection::VersionMismatch(view) => vec![view],
            _ => Vec::new(),
        },
        Outcome::Revoked { .. } | Outcome::Done => Vec::new(),
    }
}
