//! Every small story there is: an exhaustive search over the real table, with the crate `stateright`.
//!
//! In:    bounds: how many claims, which items, which sessions; `CLAIMS=5` raises the number. Out: the first story that breaks
//!        a promise, and the number of states.
//! Never: asks the table why. What must hold is worked out in `exhaustive/rules.rs` from the live claims alone.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test, and its bounds"
)]

#[path = "exhaustive/rules.rs"]
mod rules;
#[path = "exhaustive/search.rs"]
mod search;

use search::{Bounds, search};

/// Claims in a story, unless the environment says otherwise.
fn claims(default: usize) -> usize {
    std::env::var("CLAIMS").ok().map_or(default, |text| text.parse().unwrap())
}

#[test]
fn no_story_of_modes_and_sets_breaks_a_promise() {
    let found = search(Bounds::modes(claims(4)));
    assert!(found.is_none(), "{}", found.unwrap());
}

#[test]
fn no_story_of_sessions_breaks_a_promise() {
    let found = search(Bounds::sessions(claims(4)));
    assert!(found.is_none(), "{}", found.unwrap());
}

/// A search that finds nothing proves nothing unless it would have found something.
#[cfg(feature = "planted")]
#[test]
fn every_planted_bug_is_found_within_the_same_bounds() {
    use leasehold_core::table::TableBug::*;
    for bug in [
        WriterBesideReader,
        OneSlotTooMany,
        PartOfASet,
        OvertakenSet,
        NewTokenInAPhase,
        SameTokenAcrossPhases,
        CapacityIgnored,
        SlotsNotFreed,
        WaitingEndDoesNotWake,
        WakesAfterEach,
    ] {
        let found = search(Bounds::modes(claims(4)).with(bug));
        eprintln!("{bug:?}: {}", found.expect("the bug is found"));
    }
    for bug in [DeadlockByHoldersOnly, DeadlockByEveryWait, DescendantsIgnored] {
        let found = search(Bounds::sessions(claims(4)).with(bug));
        eprintln!("{bug:?}: {}", found.expect("the bug is found"));
    }
}
