//! The checks can fail: bugs that are planted on purpose are each found within so many seeds, by a check that names what
//! was violated.

#![allow(clippy::print_stdout, reason = "which seed finds a bug is worth knowing")]

#[path = "planted/histories.rs"]
mod histories;

use leasehold_lab::sim::many::run_caught;
use leasehold_lab::sim::{self, Bug};

/// Every bug is found within these.
const SEEDS: u64 = 300;

/// Looks for a bug; the first of the violations that a check with one of these words names counts. A part of the service that
/// notices by itself and stops, or clients that get no further, are not enough.
#[track_caller]
fn is_found(bug: Bug, checks: &[&str]) {
    is_found_from(&[], bug, checks);
}

/// The same for a bug that few seeds meet: the one that found it last goes first, which any change of the engine may end.
#[track_caller]
fn is_found_from(named: &[u64], bug: Bug, checks: &[&str]) {
    let mut others = Vec::new();
    for seed in named.iter().copied().chain(1..=SEEDS) {
        let found = run_caught(seed, Some(bug)).map(|report| report.violation);
        let found = found.unwrap_or_else(Some).unwrap_or_default();
        let line = found.lines().next().unwrap_or_default().to_string();
        if checks.iter().any(|check| line.contains(check)) {
            println!("{bug:?}: seed {seed}: {line}");
            return;
        }
        if !line.is_empty() {
            others.push(format!("seed {seed}: {line}"));
        }
    }
    panic!("{bug:?} was not found in {SEEDS} seeds by {checks:?}; what was found instead: {others:#?}");
}

#[test]
fn without_a_bug_the_same_seeds_find_nothing() {
    let summary = sim::many::run_all(&(1..=12).collect::<Vec<_>>());
    assert!(summary.failed.is_empty(), "{summary}");
}

#[test]
fn an_acknowledgement_before_the_sync_is_found() {
    // Mostly the node itself is the first to see it, when it starts again, or openraft: a follower does not have any more
    // what it had said it has.
    let checks = [
        "damaged by nobody",
        "follower log reversion",
        "was acknowledged and is lost",
        "digests differ",
        "history: ",
    ];
    is_found(Bug::AckBeforeFsync, &checks);
}

#[test]
fn expiry_by_the_wall_clock_is_found() {
    is_found(Bug::WallClock, &["was over before it could be", "its ttl ran", "certainly held"]);
}

#[test]
fn a_stale_read_is_found() {
    is_found(Bug::StaleRead, &["history: ", "stale lease"]);
}

#[test]
fn a_second_grant_after_a_failover_is_found() {
    is_found(Bug::GrantTwice, &["table check: ", "certainly held"]);
}

#[test]
fn a_queue_that_serves_the_last_first_is_found() {
    is_found(Bug::Lifo, &["not first come, first served"]);
}

#[test]
fn tokens_that_begin_anew_after_a_restore_are_found() {
    is_found(
        Bug::TokenReset,
        &["before a smaller one", "was given twice", "table check: ", "digests differ"],
    );
}

#[test]
fn an_age_that_is_too_small_is_found() {
    is_found(Bug::FalseFreshness, &["false age"]);
}

#[test]
fn a_parcel_that_happens_twice_is_found() {
    is_found(Bug::ParcelTwice, &["happened twice"]);
}

#[test]
fn a_follower_that_waits_for_ever_after_a_snapshot_is_found() {
    is_found_from(&[20_071], Bug::WedgedFollower, &["a node does not serve", "never answered"]);
}

#[test]
fn a_refusal_of_what_is_done_is_found() {
    is_found(Bug::RefusedYetDone, &["refused yet done"]);
}

#[test]
fn a_link_that_stays_stuck_after_healing_is_found() {
    is_found(Bug::StuckLinks, &["a node does not serve"]);
}

#[test]
fn a_read_of_a_lease_without_the_barrier_is_found() {
    is_found(Bug::StaleLease, &["stale lease"]);
}

#[test]
fn a_lock_that_is_granted_to_nobody_is_found() {
    is_found(Bug::GhostLock, &["ghost lock"]);
}

#[test]
fn votes_that_depose_each_new_leader_are_found() {
    is_found(Bug::HastyVotes, &["hasty votes"]);
}
