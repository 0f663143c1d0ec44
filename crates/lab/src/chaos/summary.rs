//! How a run of faults went.
//!
//! In:    numbers of each round that was good. Out: [`Summary`], and its lines for people.
//! Never: judges a run: the checks of each round do.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::Fault;
use super::gauge::Gauge;

/// How a run went.
#[derive(Debug, Default)]
pub struct Summary {
    /// Operations of clients.
    pub operations: usize,
    /// Those whose outcome nobody knows.
    pub unknown: usize,
    /// Claims that were granted, and their holders told so.
    pub grants: usize,
    /// Of these, claims of the library, the keychain and `leasehold run`.
    pub held: BTreeMap<&'static str, usize>,
    /// Faults by kind.
    pub faults: BTreeMap<Fault, u64>,
    /// How often a node ran out of space and refused, and how often it stopped for that.
    pub full: (u64, u64),
    /// How many rounds there were.
    pub rounds: u64,
    /// How often everything was healed, and how long the slowest node took to serve after links alone had been hurt.
    pub healings: u64,
    /// See there.
    pub slowest: Duration,
    /// Claims that certainly were not made, and were looked for; stale reads that showed less than their client knew.
    pub undone: usize,
    /// See there.
    pub behind: u64,
    /// What the nodes took.
    pub gauge: Option<Gauge>,
    /// How long it took.
    pub took: Duration,
    /// The largest token of the rounds that are over.
    pub(super) token: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, unknown, grants, held, faults, full, rounds, gauge, took, .. } = self;
        writeln!(
            f,
            "{operations} operations in {} s and {rounds} rounds, {unknown} unknown, {grants} claims granted",
            took.as_secs()
        )?;
        let held: Vec<String> = held.iter().map(|(kind, times)| format!("{kind} {times}")).collect();
        writeln!(f, "of these by {}", held.join(", "))?;
        let all: u64 = faults.values().sum();
        let kinds: Vec<String> = faults.iter().map(|(kind, times)| format!("{kind} {times}")).collect();
        writeln!(f, "{all} faults: {}", kinds.join(", "))?;
        writeln!(
            f,
            "{} healings: every node served after each, {:.2?} at most after links alone were hurt",
            self.healings, self.slowest
        )?;
        writeln!(
            f,
            "{} claims were certainly not made, and none was found; {} stale reads were behind, and said so",
            self.undone, self.behind
        )?;
        write!(f, "{} times a disk was full, and {} times its node stopped", full.0, full.1)?;
        gauge.as_ref().map_or(Ok(()), |gauge| write!(f, "\n{gauge}"))
    }
}
