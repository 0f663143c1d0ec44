//! Outcomes: what the table answers to the caller of one command.
//!
//! In:    made by `table/apply.rs`.
//! Out:   rendered by the dialect that sent the command.
//! Never: knows a status code of HTTP, and never means "something broke": a rejection is an answer.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::budget::Used;
use crate::name::ClaimId;
use crate::table::Claim;

/// A claim as it stood at one instant of the table clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The claim.
    pub claim: Claim,
    /// Its place in the queue, 1 = next; `None` unless it waits.
    pub position: Option<u64>,
    /// How many claims wait behind it; 0 unless it is active.
    pub waiters: u64,
    /// The instant.
    pub now_us: u64,
}

/// The answer to one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The claim holds its resource.
    Granted(Box<View>),
    /// The claim waits in the queue.
    Queued(Box<View>),
    /// The same request came before (by claim id or idempotency key): this is its claim now.
    Existing(Box<View>),
    /// The claim is active, and was.
    Active(Box<View>),
    /// The ttl started anew.
    Renewed(Box<View>),
    /// The claim is over, as asked.
    Finished(Box<View>),
    /// All of them are held, in the order asked. To a retry: those of its claims that are remembered, as they
    /// are now.
    LockedAll(Vec<View>),
    /// None was taken: the first that could not be, by its place in the list, and why.
    LockedNone {
        /// Place in the list.
        index: usize,
        /// Why.
        rejection: Rejection,
    },
    /// So many claims were revoked.
    Revoked {
        /// How many.
        count: u64,
        /// Whether some were left for the next command.
        more: bool,
    },
    /// The clock moved, or the settings changed.
    Done,
    /// The table said no: what was asked for did not happen.
    Rejected(Rejection),
    /// The claim is active, and its holder is told to let go.
    Revoking(Box<View>),
}

/// Why the table said no. The numbers are stable: clients may rely on them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rejection {
    /// 1: another claim holds the resource: this one.
    Busy(Box<View>),
    /// 2: the claim exists but waits for its turn behind a holder.
    Waiting(Box<View>),
    /// 3: there is no such claim.
    Unknown(ClaimId),
    /// 4: nobody holds the resource; the last that did, if it is remembered, is this one.
    NotHeld(Arc<str>, Option<Box<View>>),
    /// 5: the claim is over.
    Final(Box<View>),
    /// 6: the claim belongs to somebody else.
    NotOwner(Box<View>),
    /// 7: the claim changed since the caller last looked.
    VersionMismatch(Box<View>),
    /// 8: the idempotency key was used for another request.
    KeyReused(ClaimId),
    /// 9: the same resource stands twice in one all-or-nothing command.
    Repeated(Arc<str>),
    /// 10: the resource's queue is full.
    QueueFull(u64),
    /// 11: the owner has too many claims.
    OwnerFull(u64),
    /// 12: the namespace has too many claims.
    NamespaceFull(u64),
    /// 13: the table has too many claims.
    TableFull(u64),
    /// 14: the owner's claims take too many bytes.
    OwnerBytes(Used),
    /// 15: the namespace's claims take too many bytes.
    NamespaceBytes(Used),
    /// 16: all claims together take too many bytes.
    TableBytes(Used),
    /// 17: the command needs this table version.
    TooEarly(u32),
    /// 18: there are too many overrides of budgets.
    OverridesFull(u64),
    /// 19: the leader has no memory for a larger table.
    NoMemory,
    /// 20: the claim is to let go, and can't be renewed or picked up any more.
    Revoking(Box<View>),
}

impl Rejection {
    /// The stable number of this rejection.
    pub fn code(&self) -> u16 {
        match self {
            Self::Busy(_) => 1,
            Self::Waiting(_) => 2,
            Self::Unknown(_) => 3,
            Self::NotHeld(..) => 4,
            Self::Final(_) => 5,
            Self::NotOwner(_) => 6,
            Self::VersionMismatch(_) => 7,
            Self::KeyReused(_) => 8,
            Self::Repeated(_) => 9,
            Self::QueueFull(_) => 10,
            Self::OwnerFull(_) => 11,
            Self::NamespaceFull(_) => 12,
            Self::TableFull(_) => 13,
            Self::OwnerBytes(_) => 14,
            Self::NamespaceBytes(_) => 15,
            Self::TableBytes(_) => 16,
            Self::TooEarly(_) => 17,
            Self::OverridesFull(_) => 18,
            Self::NoMemory => 19,
            Self::Revoking(_) => 20,
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Claim { id, status, token, .. } = &self.claim;
        write!(f, "{id} {status}")?;
        if *token > 0 {
            write!(f, " token={token}")?;
        }
        match self.position {
            Some(position) => write!(f, " position={position}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted(view) => write!(f, "granted {view}"),
            Self::Queued(view) => write!(f, "queued {view}"),
            Self::Existing(view) => write!(f, "existing {view}"),
            Self::Active(view) => write!(f, "active {view}"),
            Self::Renewed(view) => write!(f, "renewed {view}"),
            Self::Finished(view) => write!(f, "finished {view}"),
            Self::LockedAll(views) => write!(f, "locked all {}", views.len()),
            Self::LockedNone { index, rejection } => write!(f, "locked none: item {index}: {rejection}"),
            Self::Revoked { count, more: false } => write!(f, "revoked {count}"),
            Self::Revoked { count, more: true } => write!(f, "revoked {count}, more to come"),
            Self::Done => f.write_str("done"),
            Self::Rejected(rejection) => write!(f, "rejected: {rejection}"),
            Self::Revoking(view) => write!(f, "revoking {view}"),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(holder) => write!(f, "held by {}", holder.claim.owner),
            Self::Waiting(view) => write!(f, "waiting, position {}", view.position.unwrap_or(0)),
            Self::Unknown(id) => write!(f, "no claim {id}"),
            Self::NotHeld(resource, _) => write!(f, "nobody holds {resource}"),
            Self::Final(view) => write!(f, "already {}", view.claim.status),
            Self::NotOwner(view) => write!(f, "owned by {}", view.claim.owner),
            Self::VersionMismatch(view) => write!(f, "the version is {}", view.claim.version),
            Self::KeyReused(_) => f.write_str("the idempotency key was used for another request"),
            Self::Repeated(resource) => write!(f, "{resource} stands twice in the list"),
            Self::QueueFull(max) => write!(f, "the queue is full ({max})"),
            Self::OwnerFull(max) => write!(f, "the owner has too many claims ({max})"),
            Self::NamespaceFull(max) => write!(f, "the namespace has too many claims ({max})"),
            Self::TableFull(max) => write!(f, "the table has too many claims ({max})"),
            Self::OwnerBytes(used) => {
                write!(
                    f,
                    "no room in the byte budget of this owner: {used} (--bytes-per-owner-max, or `leasehold limits`)"
                )
            }
            Self::NamespaceBytes(used) => {
                write!(
                    f,
                    "no room in the byte budget of this namespace: {used} (--bytes-per-namespace-max, or `leasehold limits`)"
                )
            }
            Self::TableBytes(used) => {
                write!(
                    f,
                    "no room in the byte budget of all claims: {used} (--bytes-max, or `leasehold limits`)"
                )
            }
            Self::TooEarly(version) => write!(f, "this needs table version {version}"),
            Self::OverridesFull(max) => write!(f, "there are too many overrides of budgets ({max})"),
            Self::NoMemory => {
                f.write_str("the leader's memory is full: only what makes the table no larger is taken")
            }
            Self::Revoking(_) => f.write_str("the claim is being revoked"),
        }
    }
}
