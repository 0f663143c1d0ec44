//! What a run of faults is to be: how long, how many, how fast.
//!
//! In:    the flags of `bin/chaos.rs`, or a test. Out: [`Plan`], read by the run and its clients.
//! Never: changes while a run is under way.

use std::path::PathBuf;
use std::time::Duration;

use super::Fault;

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The `leasehold` to run.
    pub binary: PathBuf,
    /// How long faults go on.
    pub length: Duration,
    /// How many nodes.
    pub nodes: u64,
    /// What the faults and the clients draw from. (Real processes: the same seed is not the same run.)
    pub seed: u64,
    /// Clients of each dialect.
    pub clients: u64,
    /// Of each of those who hold for others: the library, the keychain and `leasehold run`.
    pub holders: u64,
    /// How fast faults follow each other, and the clients work.
    pub pace: Pace,
    /// Faults that come first, whatever the seed says.
    pub first: Vec<Fault>,
    /// Faults that never come up.
    pub without: Vec<Fault>,
    /// How soon every node must serve after its links were healed.
    pub healed_within: Duration,
    /// `libfaketime`, where wall clocks are to jump.
    pub faketime: Option<PathBuf>,
    /// Whether every fault is told when it happens.
    pub verbose: bool,
}

/// How fast things happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// One fault after the other, most of them before the last one is healed.
    Storm,
    /// Some quiet after each fault, and one node whose process is never ended: for an hour under watch.
    Soak,
}

impl Pace {
    pub(super) fn fault_ms(self) -> (u64, u64) {
        match self {
            Self::Storm => (200, 2500),
            Self::Soak => (200, 4000),
        }
    }

    pub(super) fn quiet_ms(self) -> (u64, u64) {
        match self {
            Self::Storm => (0, 1),
            Self::Soak => (3000, 12_000),
        }
    }

    pub(super) fn healed_percent(self) -> u64 {
        match self {
            Self::Storm => 60,
            Self::Soak => 80,
        }
    }

    pub(super) fn rest_ms(self) -> u64 {
        match self {
            Self::Storm => 10,
            Self::Soak => 30,
        }
    }

    pub(super) fn spared(self) -> Option<u64> {
        match self {
            Self::Storm => None,
            Self::Soak => Some(1),
        }
    }

    /// Flags of the nodes. Tables and snapshots stay small, so that both are full and written often, early in the run.
    pub(super) fn args(self) -> &'static [&'static str] {
        match self {
            Self::Storm => &["--snapshot-log-mib", "1"],
            Self::Soak => &["--snapshot-log-mib", "4", "--finished-max", "10000"],
        }
    }
}
