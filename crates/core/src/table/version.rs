//! The table version: which commands and rules hold, the same on every node because it is part of the table.
//!
//! In:    [`Command::Upgrade`](crate::Command::Upgrade), which the leader proposes once every member can read it.
//! Out:   the version that `apply.rs` asks before it follows a newer rule, and that a snapshot has as its format.
//! Never: depends on the build, the memory or the flags of a node. Two builds that know a version do the same under it.
//!
//! | version | what it adds |
//! |---|---|
//! | 1 | everything in release 0.1.0 |
//! | 2 | `Upgrade`; byte budgets (`budgets.rs`): `ConfigureBudgets`, `SetBudget`, and their rules; `Refuse`; |
//! |   | `Await`, and pick-up by the rhythm of the client: requests for a waiting claim are part of the table; |
//! |   | `RevokeWhenGone`; data that proves ownership (`Format::Secret`); |
//! |   | the name of a lease may contain slashes: `a/leases/b/c` counts for the namespace `a/leases` |
//! | 3 | `ClaimSet`: modes, sets, slots and sessions; a `Revoke` wakes whoever waits after its last end |

use super::Table;
use crate::outcome::{Outcome, Rejection};

/// The version of every table that was never upgraded: what release 0.1.0 reads and writes.
pub const FIRST_TABLE_VERSION: u32 = 1;

/// The newest version that this build knows. It reads this one and every older one.
pub const NEWEST_TABLE_VERSION: u32 = 3;

/// The version from which on names of leases may contain slashes.
const WHOLE_NAMES_SINCE: u32 = 2;

/// A name up to its first segment `leases` behind another segment; all of it where there is none.
fn of_leases(namespace: &str) -> &str {
    match namespace.find("/leases/") {
        Some(slash) => &namespace[..slash + "/leases".len()],
        None => namespace,
    }
}

/// A table's version. A new table has the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u32);

impl Default for Version {
    fn default() -> Self {
        Self(FIRST_TABLE_VERSION)
    }
}

impl Version {
    /// The version with this number, if this build knows it.
    pub(super) fn known(number: u32) -> Option<Self> {
        (FIRST_TABLE_VERSION..=NEWEST_TABLE_VERSION).contains(&number).then_some(Self(number))
    }

    pub(super) fn number(self) -> u32 {
        self.0
    }

    /// The namespace of a resource: its name up to its last `/`, empty where there is none. From version 2 on, what stands
    /// behind the first `/leases/` is a name, whatever slashes it has: they open no further namespaces with limits
    /// of their own.
    pub(super) fn namespace_of(self, resource: &str) -> &str {
        let namespace = resource.rfind('/').map_or("", |slash| &resource[..slash]);
        if self.0 >= WHOLE_NAMES_SINCE { of_leases(namespace) } else { namespace }
    }
}

impl Table {
    /// Which commands and rules hold.
    pub fn version(&self) -> u32 {
        self.version.number()
    }

    /// Refuses what a table of an older version has no place for.
    pub(super) fn require_version(&self, version: u32) -> Result<(), Rejection> {
        if self.version.number() < version { Err(Rejection::TooEarly(version)) } else { Ok(()) }
    }

    /// Whether the rhythm of a waiting claim's client decides how long a promotion waits for it.
    pub(super) fn picks_up_by_rhythm(&self) -> bool {
        self.version.number() >= 2
    }

    /// Whether a command that ends several claims wakes those behind them after the last of them.
    pub(super) fn wakes_after_the_last(&self) -> bool {
        self.version.number() >= 3
    }

    /// The version never goes back. The engine refuses entries of a version that this build does not know.
    pub(super) fn upgrade(&mut self, version: u32) -> Outcome {
        if version > self.version.number() {
            let before = self.version;
            self.version = Version::known(version).expect("no entry of an unknown table version is applied");
            if before.0 < WHOLE_NAMES_SINCE && version >= WHOLE_NAMES_SINCE {
                self.join_namespaces_of_leases();
            }
        }
        Outcome::Done
    }

    /// Counts live claims by the namespaces of version 2. All claims of one namespace are in one of those, too.
    fn join_namespaces_of_leases(&mut self) {
        for (namespace, share) in std::mem::take(&mut self.namespaces) {
            let joined = self.namespaces.entry(of_leases(&namespace).into()).or_default();
            joined.claims += share.claims;
            joined.bytes += share.bytes;
        }
    }
}
