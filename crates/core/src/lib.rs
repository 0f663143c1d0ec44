//! The lock table of Leasehold: a pure, deterministic state machine.
//!
//! In:    [`Batch`]es of [`Command`]s in log order, each stamped by the leader.
//! Out:   one [`Outcome`] a command for its caller, and [`Event`]s for everyone who watches.
//! Never: reads a clock, draws randomness, does I/O, iterates a hash map. The same log gives the same
//!        table on every node, bit for bit; [`table::Frozen::digest`] proves it.
//!
//! ```
//! use leasehold_core::{Batch, ClaimId, Command, NewClaim, OnBusy, Outcome, Stamp, Table};
//!
//! let mut table = Table::default();
//! let claim = NewClaim::new(ClaimId::from_u128(1), "db/main", "alice", Some(10_000_000), OnBusy::Queue);
//! let batch = Batch { stamp: Stamp { now_us: 1, wall_us: 0 }, commands: vec![Command::Claim(claim)] };
//! let applied = table.apply(&batch);
//! assert!(matches!(&applied.outcomes[0], Outcome::Granted(view) if view.claim.token == 1));
//! ```

mod budget;
mod command;
mod event;
pub mod limits;
mod name;
mod outcome;
pub mod table;

pub use budget::{Budgets, Scope, Used, counted_bytes};
pub use command::{
    Batch, Command, Data, Ending, Format, Guard, Idempotency, Item, Mode, NewClaim, NewSet, OnBusy, Settings,
    Target,
};
pub use event::{Event, EventKind};
pub use name::{ClaimId, ParseClaimIdError, Stamp};
pub use outcome::{CycleLink, ItemView, Outcome, Rejection, SetView, View, Wait};
pub use table::{Applied, Claim, End, Status, Table};
