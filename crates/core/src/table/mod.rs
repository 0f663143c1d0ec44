//! The lock table: the only place where lock state changes.
//!
//! In:    [`Batch`](crate::Batch)es in log order, from `server/src/engine/state_machine.rs`.
//! Out:   [`Applied`]: one outcome a command, and the events in the order in which things happened.
//! Never: reads a clock, draws randomness, does I/O, iterates a hash map.
//!
//! What is state and what is derived: the claims (by sequence number, in copy-on-write pages) and a few
//! counters are the state; they alone are in a snapshot. Every index beside them (by id, by key, by resource,
//! by deadline, finished in order) is derived and rebuilt when a snapshot is loaded.

mod apply;
mod check;
mod claim;
mod claims;
mod id_index;
#[cfg(feature = "planted")]
mod planted;
mod query;
mod resource;
mod snapshot;
mod steps;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub use claim::{Claim, End, Status};
use claims::Claims;
use id_index::IdIndex;
pub use query::{ListFilter, ListPage, Sight};
pub use resource::Resource;
use resource::Resources;
pub use snapshot::{Frozen, RestoreError, Restorer, SNAPSHOT_FORMAT};

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
    /// What the operator set.
    settings: Settings,
    /// Every claim, by sequence number, that is: in order of creation.
    claims: Claims,
    /// Claim id -> sequence number.
    by_id: IdIndex,
    /// Idempotency key -> sequence number.
    by_key: BTreeMap<u128, u64>,
    /// Resource name -> holder, queue and finished claims.
    resources: Resources,
    /// Owner -> number of live claims; also keeps one copy of each name.
    owners: BTreeMap<Arc<str>, u64>,
    /// Namespace -> number of live claims.
    namespaces: BTreeMap<Box<str>, u64>,
    /// (deadline, sequence number) of every live claim that has a deadline.
    deadlines: BTreeSet<(u64, u64)>,
    /// Sequence numbers of finished claims, oldest end first.
    finished: VecDeque<u64>,
    /// Bugs that are switched on.
    #[cfg(feature = "planted")]
    planted: planted::Planted,
}

/// What one batch did.
#[derive(Debug, Default)]
pub struct Applied {
    /// One a command, in their order.
    pub outcomes: Vec<Outcome>,
    /// Everything that happened, in its order.
    pub events: Vec<Event>,
}

/// The namespace of a resource: its name up to its last `/`, empty where there is none.
pub(crate) fn namespace_of(resource: &str) -> &str {
    resource.rfind('/').map_or("", |slash| &resource[..slash])
}
