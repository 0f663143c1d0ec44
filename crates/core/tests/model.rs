//! The table against a naive model: long random stories, compared after every entry.
//!
//! In:    stories from `naive/steps.rs`. Out: the first difference, shrunk to a short story.
//! Never: trusts the model alone: what must hold of any lock table is checked beside it, without knowing the rules.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod naive;

use std::collections::BTreeMap;

use leasehold_core::table::Restorer;
use leasehold_core::{Batch, ClaimId, Event, EventKind, Outcome, Rejection, Stamp, Status, Table, View};
use naive::Model;
use naive::compare::{Row, State, answer};
use naive::steps::{Step, story};
use proptest::prelude::*;

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

/// A table and a model on the same road.
#[derive(Default)]
struct Run {
    table: Table,
    model: Model,
    stamp: Stamp,
    /// Claims that are over, as they were when they ended.
    over: BTreeMap<ClaimId, Row>,
    last_token: u64,
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
        one_holder_and_it_came_first(&state.rows, self.table.clock().now_us);
        if !self.model.backlog {
            nothing_outlives_its_deadline(&state.rows, self.table.clock().now_us);
        }
    }

    fn snapshot(&mut self) {
        let frozen = self.table.freeze();
        let mut restorer = Restorer::default();
        frozen.chunks().for_each(|chunk| restorer.push(&chunk).unwrap());
        self.table = restorer.finish().unwrap();
        assert_eq!(self.table.freeze().digest(), frozen.digest());
        self.table.check(self.model.backlog).unwrap();
        assert_eq!(State::of_table(&self.table), State::of_model(&self.model));
    }

    fn tokens_only_grow(&mut self, events: &[Event]) {
        for event in events.iter().filter(|event| matches!(event.kind, EventKind::Activated { .. })) {
            assert!(event.token > self.last_token, "token {} after {}", event.token, self.last_token);
            self.last_token = event.token;
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

/// Waits that are over don't count: they may have been passed over, and will end.
fn one_holder_and_it_came_first(rows: &[Row], now_us: u64) {
    let mut first: BTreeMap<&str, &Row> = BTreeMap::new();
    let over = |row: &Row| row.status == Status::Waiting && row.deadline_us.is_some_and(|due| due <= now_us);
    for row in rows.iter().filter(|row| !row.status.is_final() && !over(row)) {
        let holder = *first.entry(&row.resource).or_insert(row);
        assert_eq!(holder.status, Status::Active, "{} waits for a free resource", holder.id);
        assert!(holder.id == row.id || row.status == Status::Waiting, "two hold {}", row.resource);
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
            | Rejection::VersionMismatch(view) => vec![view],
            _ => Vec::new(),
        },
        Outcome::Revoked { .. } | Outcome::Done => Vec::new(),
    }
}
