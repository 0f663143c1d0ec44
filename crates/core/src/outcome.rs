//! Outcomes: what the table answers to the caller of one command.
//!
//! In:    made by `table/apply.rs`.
//! Out:   rendered by the dialect that sent the command.
//! Never: knows a status code of HTTP, and never means "something broke": a rejection is an answer.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::budget::Used;
use crate::command::Mode;
use crate::name::ClaimId;
use crate::table::{Claim, Status};

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
    /// What it wants or holds, if it came with a mode, several resources or a session. A claim without is exclusive, on the
    /// claim's resource.
    pub set: Option<Box<SetView>>,
}

/// The items of a claim, as they stood at the instant of its [`View`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetView {
    /// In the order asked; the first one's resource is the claim's.
    pub items: Vec<ItemView>,
    /// The worker that the claim belongs to.
    pub session: Option<Arc<str>>,
    /// While it waits, it is withdrawn at its deadline unless its client asks for it before.
    pub lapses: bool,
}

/// One item of a claim, as it stood at the instant of its [`View`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemView {
    /// The resource.
    pub resource: Arc<str>,
    /// How it is wanted or held.
    pub mode: Mode,
    /// The slots that it was granted, from 1 on, in order; empty unless it has or had some.
    pub slots: Vec<u16>,
    /// Its fencing token; 0 before the grant.
    pub token: u64,
    /// Its place among the claims that wait there, 1 = next; `None` unless the claim waits.
    pub position: Option<u64>,
}

impl View {
    /// The items of a claim that came with some; none for a plain one.
    pub fn items(&self) -> &[ItemView] {
        self.set.as_ref().map_or(&[], |set| &set.items)
    }

    /// The worker that it belongs to.
    pub fn session(&self) -> Option<&Arc<str>> {
        self.set.as_ref()?.session.as_ref()
    }

    /// The fencing token to show for the whole claim: none before the grant, nor where the tokens of its items differ.
    pub fn token(&self) -> Option<u64> {
        let token = self.items().first().map_or(self.claim.token, |item| item.token);
        (token > 0 && self.items().iter().all(|item| item.token == token)).then_some(token)
    }

    /// Every resource of the claim.
    pub fn resources(&self) -> impl Iterator<Item = &Arc<str>> {
        let own = self.items().is_empty().then_some(&self.claim.resource);
        own.into_iter().chain(self.items().iter().map(|item| &item.resource))
    }
}

/// One step of a deadlock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The claim.
    pub claim: ClaimId,
    /// Whose it is.
    pub owner: Arc<str>,
    /// The worker that it belongs to.
    pub session: Option<Arc<str>>,
    /// The resource that it is about.
    pub resource: Arc<str>,
    /// What the claim has to do with it.
    pub link: CycleLink,
}

/// How one step of a deadlock follows from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CycleLink {
    /// The claim waits for the resource. It is the refused one, or its session can't go on, nor end the claim before.
    Wants,
    /// The claim holds the resource that the one before waits for.
    Holds,
    /// The claim came before the one before, and waits too.
    Reserves,
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
    /// The ttl was restarted.
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
    /// Claims were revoked.
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
    /// 1: another claim holds the resource, or reserves it if it waits itself: this one.
    Busy(Box<View>),
    /// 2: the claim exists but waits for its turn behind a holder.
    Waiting(Box<View>),
    /// 3: there is no such claim.
    Unknown(ClaimId),
    /// 4: nobody holds the resource; the last that did, if it is remembered, is this one.
    NotHeld(Arc<str>, Option<Box<View>>),
    /// 5: the claim is over.
    Final(Box<View>),
    /// 6: the claim belongs to another owner.
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
    /// 21: this item of a set is held, or reserved if the claim named here waits itself.
    Blocked {
        /// The item's resource.
        resource: Arc<str>,
        /// The first claim in the way.
        by: Box<View>,
    },
    /// 22: the claim would wait for its own session for ever: the cycle, beginning with the refused claim.
    Deadlock(Vec<Wait>),
    /// 23: the resource has another number of slots while somebody holds or wants some.
    Capacity {
        /// The resource.
        resource: Arc<str>,
        /// How many it has.
        of: u16,
    },
    /// 24: the resource is shared, or held in slots or as part of a set: only the claim's id can change that.
    NotAlone(Box<View>),
    /// 25: claims on this resource are over but not all of them are settled yet: ask again.
    Unsettled(Arc<str>),
    /// 26: the resource has too many holders.
    HoldersFull(u64),
    /// 27: the set is empty, has too many items, or asks for a number of slots that makes no sense.
    BadItems,
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
            Self::Blocked { .. } => 21,
            Self::Deadlock(_) => 22,
            Self::Capacity { .. } => 23,
            Self::NotAlone(_) => 24,
            Self::Unsettled(_) => 25,
            Self::HoldersFull(_) => 26,
            Self::BadItems => 27,
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Claim { id, status, token, .. } = &self.claim;
        write!(f, "{id} {status}")?;
        if self.set.is_none() && *token > 0 {
            write!(f, " token={token}")?;
        }
        if let Some(position) = self.position {
            write!(f, " position={position}")?;
        }
        self.items().iter().try_for_each(|item| write!(f, " {item}"))
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { claim, owner, resource, .. } = self;
        match self.link {
            CycleLink::Wants => write!(f, "{claim} of {owner} waits for {resource}"),
            CycleLink::Holds => write!(f, "{resource} is held by {claim} of {owner}"),
            CycleLink::Reserves => write!(f, "{resource} is reserved by {claim} of {owner}"),
        }
    }
}

impl fmt::Display for ItemView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, mode, slots, token, position } = self;
        write!(f, "[{resource} {mode}")?;
        if !slots.is_empty() {
            write!(f, " slots={slots:?}")?;
        }
        if *token > 0 {
            write!(f, " token={token}")?;
        }
        if let Some(position) = position {
            write!(f, " position={position}")?;
        }
        f.write_str("]")
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

impl Rejection {
    /// Which limit is reached, and what to do about it. Nothing for the other rejections.
    fn fmt_limit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull(max) => write!(f, "the queue is full: at most {max} may wait (--queue-len-max)"),
            Self::OwnerFull(max) => {
                write!(f, "this owner may have at most {max} claims (--claims-per-owner-max): release some")
            }
            Self::NamespaceFull(max) => write!(
                f,
                "this namespace may have at most {max} claims (--claims-per-namespace-max): release some"
            ),
            Self::TableFull(max) => {
                write!(f, "the service may have at most {max} claims (--claims-max): release some")
            }
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
            Self::OverridesFull(max) => write!(
                f,
                "there may be at most {max} overrides of budgets: remove one (`leasehold limits unset`)"
            ),
            Self::NoMemory => f.write_str(
                "the leader's memory is full: it accepts only changes that need no more of it, such as renewals and \
                 releases",
            ),
            Self::HoldersFull(max) => write!(f, "a resource may have at most {max} holders: try again later"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(by) if by.claim.status == Status::Waiting => {
                write!(f, "reserved by {}, who came first", by.claim.owner)
            }
            Self::Busy(holder) => write!(f, "held by {}", holder.claim.owner),
            Self::Waiting(view) => write!(f, "waiting, position {}", view.position.unwrap_or(0)),
            Self::Unknown(id) => write!(f, "no claim {id}"),
            Self::NotHeld(resource, _) => write!(f, "nobody holds {resource}"),
            Self::Final(view) => write!(f, "already {}", view.claim.status),
            Self::NotOwner(view) => write!(f, "owned by {}", view.claim.owner),
            Self::VersionMismatch(view) => {
                write!(f, "the version is {}, not the one given", view.claim.version)
            }
            Self::KeyReused(_) => f.write_str("the idempotency key was used for another request"),
            Self::Repeated(resource) => write!(f, "{resource} is named twice"),
            Self::QueueFull(_)
            | Self::OwnerFull(_)
            | Self::NamespaceFull(_)
            | Self::TableFull(_)
            | Self::OwnerBytes(_)
            | Self::NamespaceBytes(_)
            | Self::TableBytes(_)
            | Self::OverridesFull(_)
            | Self::NoMemory
            | Self::HoldersFull(_) => self.fmt_limit(f),
            Self::TooEarly(version) => {
                write!(f, "this needs table version {version}: upgrade every node of the cluster")
            }
            Self::Revoking(_) => f.write_str("the claim is being revoked"),
            Self::Blocked { resource, by } if by.claim.status == Status::Waiting => {
                write!(f, "{resource} is reserved by {}, who came first", by.claim.owner)
            }
            Self::Blocked { resource, by } => write!(f, "{resource} is held by {}", by.claim.owner),
            Self::Deadlock(cycle) => {
                f.write_str("the claim would wait for itself for ever")?;
                cycle.iter().try_for_each(|wait| write!(f, "; {wait}"))
            }
            Self::Capacity { resource, of: 1 } => write!(f, "{resource} has 1 slot"),
            Self::Capacity { resource, of } => write!(f, "{resource} has {of} slots"),
            Self::NotAlone(view) => {
                let holds = if view.claim.status == Status::Waiting { "wanted" } else { "held" };
                write!(f, "{holds} by {} in a way that only the claim's own URL can change", view.claim.owner)
            }
            Self::Unsettled(resource) => write!(f, "claims on {resource} are still ending: try again"),
            Self::BadItems => {
                f.write_str("the claim names no resource, too many, or a wrong number of slots")
            }
        }
    }
}
