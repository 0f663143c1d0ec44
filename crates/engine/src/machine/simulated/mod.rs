//! The machine as a seed makes it, for the simulation in `crates/lab`. No build of the service has it.
//!
//! In:    the same calls as `machine.rs` and `files.rs` take; faults from the simulation.
//! Out:   answers in a time of its own, from disks that lose, tear, fill up and flip bits, over connections that fail.
//! Never: asks the real machine for anything.

pub mod files;
mod instant;
pub mod net;
mod openraft_runtime;
pub mod runtime;
mod watch;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use leasehold_core::Table;

/// A bug that can be planted: each must be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// An entry counts as written before it is on disk.
    AckBeforeFsync,
    /// Leases end by the wall clock.
    WallClock,
    /// Reads look at the nearest table.
    StaleRead,
    /// After a failover the new leader's first entry grants what is held.
    GrantTwice,
    /// The last of the queue is first.
    Lifo,
    /// A table restored from a snapshot counts its tokens from 1.
    TokenReset,
    /// A parcel that is sent again happens again.
    ParcelTwice,
    /// A table counts as new because its leader was heard.
    FalseFreshness,
    /// A follower waits for ever for parcels that a snapshot covers.
    WedgedFollower,
    /// A parcel that was sent twice and refused once counts as not done.
    RefusedYetDone,
    /// A link on which an answer was waited for in vain is used on, and TCP gives up on nothing by itself.
    StuckLinks,
    /// Reads of leases look at the nearest table.
    StaleLease,
    /// A waiting request whose client has gone is withdrawn once, whether or not that arrives.
    GhostLock,
    /// A node without a leader calls for votes whenever its state changes, and forgets that it led itself.
    HastyVotes,
}

/// What is around the nodes.
pub trait World {
    /// When a segment of so many bytes arrives, in microseconds from now; `None`: it is lost.
    fn segment(&self, from: u64, to: u64, len: u64) -> Option<u64>;
    /// The longest segment that the next connection's way through the network takes.
    fn segment_len(&self) -> u64;
    /// How far a node's wall clock is ahead, in microseconds.
    fn wall_ahead_us(&self, node: u64) -> u64;
    /// How long the next sync of a node's disk takes, in microseconds.
    fn sync_us(&self, node: u64) -> u64;
    /// A node has applied an entry, and this is its table now.
    fn applied(&self, node: u64, index: u64, table: &Table);
    /// Something happened that is worth counting.
    fn count(&self, what: &'static str);
}

thread_local! {
    static WORLD: RefCell<Option<Rc<dyn World>>> = const { RefCell::new(None) };
    static TERMS: RefCell<std::collections::BTreeMap<u64, u64>> = const { RefCell::new(std::collections::BTreeMap::new()) };
    static BUG: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Puts the nodes of this thread into a world, or takes them out of it.
pub fn enter(world: Option<Rc<dyn World>>, bug: Option<Bug>) {
    WORLD.with(|now| *now.borrow_mut() = world);
    BUG.with(|now| now.set(bug));
    TERMS.with(|terms| terms.borrow_mut().clear());
}

/// The world around.
pub fn world() -> Rc<dyn World> {
    WORLD.with(|world| world.borrow().clone()).expect("a simulation runs")
}

/// The node whose task runs has applied an entry.
pub(crate) fn applied(index: u64, table: &Table) {
    world().applied(runtime::current_node(), index, table);
}

/// Whether the node whose task runs sees an entry of this term for the first time.
#[cfg(feature = "planted")]
pub(crate) fn is_new_term(term: u64) -> bool {
    let node = runtime::current_node();
    TERMS.with(|terms| terms.borrow_mut().insert(node, term)).is_some_and(|before| before != term)
}

/// Whether this bug is planted.
pub fn is_planted(bug: Bug) -> bool {
    BUG.with(|planted| planted.get() == Some(bug))
}
