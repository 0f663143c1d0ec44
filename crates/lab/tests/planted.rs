//! The checks can fail: bugs that are planted on purpose are each found within so many seeds.

#![allow(clippy::print_stdout, reason = "which seed finds a bug is worth knowing")]

use leasehold_lab::sim::{self, Bug};

/// Every bug is found within these.
const SEEDS: u64 = 40;

#[track_caller]
fn is_found(bug: Bug) {
    for seed in 1..=SEEDS {
        let run = || sim::run(seed, Some(bug)).violation;
        // A table that is wrong enough stops with an assertion of its own: that is found, too.
        match std::panic::catch_unwind(run) {
            Ok(None) => {}
            Ok(Some(violation)) => {
                println!("{bug:?}: seed {seed}: {}", violation.lines().next().unwrap_or_default());
                return;
            }
            Err(_) => {
                println!("{bug:?}: seed {seed}: an assertion of the table");
                return;
            }
        }
    }
    panic!("{bug:?} was not found in {SEEDS} seeds");
}

#[test]
fn an_acknowledgement_before_the_sync_is_found() {
    is_found(Bug::AckBeforeFsync);
}

#[test]
fn expiry_by_the_wall_clock_is_found() {
    is_found(Bug::WallClock);
}

#[test]
fn a_stale_read_is_found() {
    is_found(Bug::StaleRead);
}

#[test]
fn a_second_grant_after_a_failover_is_found() {
    is_found(Bug::GrantTwice);
}

#[test]
fn a_queue_that_serves_the_last_first_is_found() {
    is_found(Bug::Lifo);
}

#[test]
fn tokens_that_begin_anew_after_a_restore_are_found() {
    is_found(Bug::TokenReset);
}
