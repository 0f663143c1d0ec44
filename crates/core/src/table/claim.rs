//! One claim: a request to hold a resource, from its queue to its final status.
//!
//! In:    unpacked from a [`Record`](super::record::Record), as the table keeps it, or read from a snapshot.
//! Out:   views for callers, and the claims of a snapshot, field by field in this order.
//! Never: kept in the table: a record takes half the room.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::command::{Data, Ending, Idempotency};
use crate::limits;
use crate::name::ClaimId;

/// Stands for "no ttl" and "no deadline" in the packed fields of a claim.
pub(super) const NEVER: u64 = u64::MAX;

/// Where a claim is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Status {
    /// In the queue.
    Waiting,
    /// Holds its resource.
    Active,
    /// Final: abandoned because of an error in its client.
    Aborted,
    /// Final: its ttl ran out.
    Expired,
    /// Final: given up in the ordinary way.
    Released,
    /// Final: taken away.
    Revoked,
    /// Final: no longer wanted.
    Withdrawn,
}

impl Status {
    /// Every status, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Active,
        Self::Aborted,
        Self::Expired,
        Self::Released,
        Self::Revoked,
        Self::Withdrawn,
    ];

    /// Whether nothing can change any more.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Waiting | Self::Active)
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Active => "active",
            Self::Aborted => "aborted",
            Self::Expired => "expired",
            Self::Released => "released",
            Self::Revoked => "revoked",
            Self::Withdrawn => "withdrawn",
        }
    }

    /// The status with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl From<Ending> for Status {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Released => Self::Released,
            Ending::Aborted => Self::Aborted,
            Ending::Withdrawn => Self::Withdrawn,
            Ending::Revoked => Self::Revoked,
        }
    }
}

/// One request to hold a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its name in URLs.
    pub id: ClaimId,
    /// What it wants to hold.
    pub resource: Arc<str>,
    /// Who made it.
    pub owner: Arc<str>,
    /// How long it stays active without renewal; packed, see [`Claim::ttl_us`].
    pub(super) ttl_us: u64,
    /// While it waits: when it gives up. While it is active: when it expires. Packed.
    pub(super) deadline_us: u64,
    /// When it was made, on the table clock.
    pub created_us: u64,
    /// The same on the wall clock.
    pub created_wall_us: u64,
    /// When it became active, on the table clock; means nothing before (see its token).
    pub activated_us: u64,
    /// The same on the wall clock.
    pub activated_wall_us: u64,
    /// When it last was renewed (or became active), on the wall clock.
    pub renewed_wall_us: u64,
    /// The fencing token of its grant; 0 before.
    pub token: u64,
    /// The table's version of its last change.
    pub version: u64,
    /// What the caller sent along.
    pub data: Option<Arc<Data>>,
    /// Under which key a retried request finds it.
    pub idempotency: Option<Arc<Idempotency>>,
    /// How it ended.
    pub end: Option<End>,
    /// How often it was renewed.
    pub renewals: u32,
    /// Where it is.
    pub status: Status,
    /// Promoted out of the queue, and its client has not asked for it since: its first request starts the ttl.
    pub unpicked: bool,
    /// Its place in its page; page and slot make the sequence number.
    pub(super) slot: u8,
    /// What few live claims have. Not in a snapshot of version 1; behind the claims of a page in later ones.
    #[serde(skip)]
    pub live: Option<Arc<Live>>,
}

/// What a live claim may have since table version 2, and few have: it goes with the claim's end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// When its client polled it while it waits.
    pub polls: Option<Polls>,
    /// It holds its resource, and is to let go.
    pub revoking: Option<Revoking>,
}

/// A revocation that waits for the holder to let go, or for the end of the ttl.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoking {
    /// Why, in the words of whoever asked.
    pub reason: Option<Arc<str>>,
}

/// When the client of a waiting claim polled it, on the table clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Polls {
    /// Last; an open request counts as asking until its wait is over.
    pub last_us: u64,
    /// The longest pause between two requests, the creation included; at most half of [`limits::PICKUP_US_MAX`].
    pub longest_us: u64,
}

impl Polls {
    /// Another request, which stands open for `open_us`.
    pub(super) fn again(before: Option<Self>, created_us: u64, now_us: u64, open_us: u64) -> Self {
        let (last_us, longest_us) =
            before.map_or((created_us, 0), |before| (before.last_us, before.longest_us));
        let pause_us = now_us.saturating_sub(last_us).min(limits::PICKUP_US_MAX / 2);
        Self { last_us: now_us.saturating_add(open_us), longest_us: longest_us.max(pause_us) }
    }

    /// How long a promoted claim stays active for its client to come by, whatever its ttl is. An open request is told at once.
    pub(super) fn pickup_us(&self, now_us: u64) -> u64 {
        if self.last_us > now_us { 0 } else { 2 * self.longest_us }
    }
}

/// How a claim ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// When, on the table clock.
    pub ended_us: u64,
    /// When, on the wall clock.
    pub ended_wall_us: u64,
    /// Why, in the words of whoever ended it.
    pub reason: Option<Arc<str>>,
}

impl Claim {
    /// How long it stays active without renewal; `None`: until it is ended.
    pub fn ttl_us(&self) -> Option<u64> {
        (self.ttl_us != NEVER).then_some(self.ttl_us)
    }

    /// While it waits: when it gives up. While it is active: when it expires.
    pub fn deadline_us(&self) -> Option<u64> {
        (self.deadline_us != NEVER).then_some(self.deadline_us)
    }

    /// What is left of the time for which it stays active, as of `now_us`; `None` unless it is active and has a ttl.
    pub fn left_us(&self, now_us: u64) -> Option<u64> {
        left_us(self.status, self.ttl_us, self.deadline_us, now_us)
    }

    /// Whether it is active and is to let go.
    pub fn is_revoking(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.revoking.is_some())
    }

    /// Why it ended, or is to end, in the words of whoever ended it.
    pub fn reason(&self) -> Option<&Arc<str>> {
        let revoking = self.live.as_ref().and_then(|live| live.revoking.as_ref());
        let ended = self.end.as_ref().and_then(|end| end.reason.as_ref());
        ended.or(revoking.and_then(|revoking| revoking.reason.as_ref()))
    }

    /// How long it was in the queue, or is, as of `now_us`.
    pub fn waited_us(&self, now_us: u64) -> u64 {
        let until = match &self.end {
            _ if self.was_granted() => self.activated_us,
            Some(end) => end.ended_us,
            None => now_us,
        };
        until.saturating_sub(self.created_us)
    }

    /// How long it was active, or is, as of `now_us`; `None` if it never was.
    pub fn held_us(&self, now_us: u64) -> Option<u64> {
        let until = self.end.as_ref().map_or(now_us, |end| end.ended_us);
        self.was_granted().then(|| until.saturating_sub(self.activated_us))
    }

    /// Whether it holds its resource or ever did. Its instant can't tell: a table's first stamp may be zero.
    fn was_granted(&self) -> bool {
        self.token > 0
    }

    /// Whether its deadline has come.
    pub fn is_due(&self, now_us: u64) -> bool {
        !self.status.is_final() && self.deadline_us <= now_us
    }
}

/// What is left of an active claim. A ttl of zero ends a microsecond after it began, and has nothing left all the same.
pub(super) fn left_us(status: Status, ttl_us: u64, deadline_us: u64, now_us: u64) -> Option<u64> {
    let left_us = deadline_us.saturating_sub(now_us).saturating_sub(u64::from(ttl_us == 0));
    (status == Status::Active && deadline_us != NEVER).then_some(left_us)
}
