//! Events: what changed, in the order in which it changed.
//!
//! In:    pushed by `table/apply.rs` while it applies.
//! Out:   `engine/src/publish.rs` wakes long-polls with them and feeds streams, metrics and audit.
//! Never: asks for anything; an event is past tense.

use std::fmt;
use std::sync::Arc;

use crate::command::Mode;
use crate::name::{ClaimId, Stamp};
use crate::table::Status;

/// Something that happened to one claim: one event for each of its items, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When it was applied.
    pub stamp: Stamp,
    /// What happened.
    pub kind: EventKind,
    /// To which claim.
    pub claim: ClaimId,
    /// On which resource.
    pub resource: Arc<str>,
    /// Of whom.
    pub owner: Arc<str>,
    /// The fencing token of the claim on this resource; 0 before its grant.
    pub token: u64,
    /// How it wants or holds the resource.
    pub mode: Mode,
    /// Which of the claim's items this is about: 0 is the first, and the only one of most claims.
    pub item: u16,
    /// Why it ended, or is to end, in the words of whoever ended it.
    pub reason: Option<Arc<str>>,
}

/// What happened to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It joined its resource's queue.
    Queued,
    /// It holds its resource, after having waited this long.
    Activated {
        /// Time in the queue.
        waited_us: u64,
    },
    /// Its ttl started anew.
    Renewed,
    /// It is over.
    Ended {
        /// Its final status.
        status: Status,
        /// How long it was active.
        held_us: u64,
    },
    /// It holds its resource, and is to let go.
    Revoking,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { claim, resource, token, .. } = self;
        let mode = |f: &mut fmt::Formatter<'_>| match self.mode {
            Mode::Exclusive => Ok(()),
            mode => write!(f, " ({mode})"),
        };
        match self.kind {
            EventKind::Queued => write!(f, "queued {claim} on {resource}"),
            EventKind::Activated { .. } => write!(f, "active {claim} on {resource} token={token}"),
            EventKind::Renewed => write!(f, "renewed {claim} on {resource} token={token}"),
            EventKind::Revoking => write!(f, "revoking {claim} on {resource} token={token}"),
            EventKind::Ended { status, .. } if *token == 0 => write!(f, "{status} {claim} on {resource}"),
            EventKind::Ended { status, .. } => write!(f, "{status} {claim} on {resource} token={token}"),
        }?;
        mode(f)
    }
}
