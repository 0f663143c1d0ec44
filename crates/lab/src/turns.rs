//! Turns: how many clusters the tests of one program run at a time.
//!
//! In:    tests that start a cluster. Out: a turn for each, when there is one.
//! Never: lets more run than a small machine carries: each cluster is three or more processes and their clients. They wait for
//!        each other most of the time, so two clusters take hardly longer than one.

use std::sync::{Condvar, Mutex, PoisonError};

const CLUSTERS_MAX: usize = 2;

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// A test's turn, given back when this is dropped.
#[derive(Debug)]
#[must_use = "the turn ends when this is dropped"]
pub struct Turn(());

/// Waits for a turn.
pub fn take() -> Turn {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let full = |running: &mut usize| *running >= CLUSTERS_MAX;
    *ENDED.wait_while(running, full).unwrap_or_else(PoisonError::into_inner) += 1;
    Turn(())
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}
