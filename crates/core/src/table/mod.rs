//! The lock table: the only place where lock state changes.
//!
//! In:    [`Batch`](crate::Batch)es in log order, from `engine/src/state_machine.rs`.
//! Out:   [`Applied`]: one outcome a command, and the events in the order in which things happened.
//! Never: reads a clock, draws randomness, does I/O, iterates a hash map.
//!
//! What is state and what is derived: the claims (by sequence number, in copy-on-write pages), the names of their
//! resources and a few counters are the state; they alone are in a snapshot. Every index beside them (by id, by key, by resource,
//! by deadline, finished in order) is derived and rebuilt when a snapshot is loaded.

mod apply;
mod budgets;
mod check;
mod claim;
mod claim_set;
mod claims;
mod counts;
mod crowd;
mod deadlines;
mod deadlock;
mod dismantle;
mod id_index;
mod load;
mod lock_all;
mod name_index;
mod names;
mod packed;
#[cfg(feature = "planted")]
mod planted;
mod query;
mod record;
mod resource;
mod restore;
mod restore_live;
mod revoke;
mod sessions;
mod set;
mod settle;
mod snapshot;
mod steps;
mod version;
mod views;
mod wake;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use budgets::{Allowed, Share};
pub use claim::{Claim, End, Live, Polls, Revoking, Status};
use claims::Claims;
use counts::SetCounts;
use deadlines::Deadlines;
use id_index::IdIndex;
pub use id_index::seed_indexes;
#[cfg(feature = "planted")]
pub use planted::TableBug;
pub use query::{Bounds, Fate, ListFilter, ListPage, Sight, Whose};
pub use resource::Resource;
use resource::{Resources, Slot};
pub use restore::{Decoded, Decoder, RestoreError, Restorer};
use sessions::Sessions;
pub use snapshot::Frozen;
use version::Version;
pub use version::{FIRST_TABLE_VERSION, NEWEST_TABLE_VERSION};

use crate::command::Settings;
use crate::event::Event;
use crate::name::Stamp;
use crate::outcome::Outcome;

/// All resources and claims.
#[derive(Debug, Default)]
pub struct Table {
    /// The instant up to which the table has come.
    clock: Stamp,
    /// The newest fencing token: grows with every grant.
    last_token: u64,
    /// The newest version: grows with every change of any claim.
    last_version: u64,
    /// Which commands and rules hold.
    version: Version,
    /// What the operator set.
    settings: Settings,
    /// How many bytes claims may take.
    allowed: Allowed,
    /// Every claim, by sequence number, that is: in order of creation.
    claims: Claims,
    /// Claim id -> sequence number.
    by_id: IdIndex,
    /// Idempotency key -> sequence number.
    by_key: IdIndex,
    /// Resource name -> holder, queue and finished claims.
    resources: Resources,
    /// Owner -> its live claims; also keeps one copy of each name.
    owners: BTreeMap<Arc<str>, Share>,
    /// Namespace -> its live claims.
    namespaces: BTreeMap<Box<str>, Share>,
    /// The bytes that live claims count for.
    live_bytes: u64,
    /// Counts of the claims with a set: those that hold, and those that wait.
    holding_sets: SetCounts,
    waiting_sets: SetCounts,
    /// Session -> its live claims.
    sessions: Sessions,
    /// (sequence number, place) of waiting claims' items that fit, and that no entry has admitted yet: the first in line of
    /// each such resource. Part of a snapshot from version 3 on.
    admissible: BTreeSet<(u64, u32)>,
    /// Claims that wait although the search for a deadlock was given up; counts from the start of the process.
    unchecked_waits: u64,
    /// (deadline, sequence number) of every live claim that has a deadline.
    deadlines: Deadlines,
    /// Sequence numbers of finished claims, oldest end first.
    finished: VecDeque<u64>,
    /// Those of them that have data, in the same order.
    finished_with_data: VecDeque<u64>,
    /// The bytes that finished claims count for.
    finished_bytes: u64,
    /// The name that events and views named last: those of one command share its copy.
    last_name: Option<(Slot, Arc<str>)>,
    /// Resources where a claim has ended, so that others may fit now. Empty between two commands.
    woken: Vec<Slot>,
    /// What holds only while one entry is applied.
    entry: ThisEntry,
    /// Bugs that are switched on.
    #[cfg(feature = "planted")]
    planted: planted::Planted,
}

/// What one entry has done so far about claims that are due. The clock stands still within an entry: no further claim becomes
/// due.
#[derive(Debug, Default)]
struct ThisEntry {
    /// How many more items of due claims it may end.
    overdue_left: usize,
    /// How many more items it may admit.
    admissions_left: usize,
    /// In this queue, all claims before this sequence number are due, and are left for later entries.
    passed: Option<(Slot, u64)>,
    /// In this queue no claim is due.
    settled: Option<Slot>,
    /// These resources may have holders that are due and that no entry has ended yet.
    unsettled: BTreeSet<Slot>,
}

/// What one batch did.
#[derive(Debug, Default)]
pub struct Applied {
    /// One a command, in their order.
    pub outcomes: Vec<Outcome>,
    /// Everything that happened, in its order.
    pub events: Vec<Event>,
}
