//! What can go wrong, each in a kind of its own.
//!
//! In:    responses, broken connections, timers. Out: [`Error`] and [`Lost`].
//! Never: calls an outcome failed that is only unknown.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a call did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// Not acquired: the server had queued the claim, and its time to wait is over. The claim leaves the queue. If no server
    /// ever took the claim, the error is one of the next three instead.
    #[error("'{resource}' was not free within {}", seconds(*.waited))]
    Timeout {
        /// What was asked for.
        resource: String,
        /// How long it waited.
        waited: Duration,
    },
    /// No server could be reached, or none answered: whether anyone holds the resource is not known.
    #[error("no server answers: {0}")]
    Unreachable(String),
    /// The server refused the request, which certainly did not happen: for good (4xx), or it could not serve for as long as it
    /// was asked (503, 507).
    #[error("the server refuses ({status}): {detail}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Its words.
        detail: String,
    },
    /// The claim would have waited for ever: what it waits for is held by its own worker, or by one that waits for this worker.
    /// It is not in the queue.
    #[error("{detail}")]
    Deadlock {
        /// The server's words.
        detail: String,
        /// The claims of the cycle, beginning with the refused one, as far as the caller may read them.
        cycle: Vec<Blocker>,
    },
    /// The claim is over, in this final status.
    #[error("the claim is over: {0}")]
    Ended(String),
    /// The claim is no longer certain to hold its resource.
    #[error("the claim is lost: {0}")]
    Lost(Lost),
    /// The request was sent and nothing came back in time: it may have happened. A claim ends with its ttl in any case.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// A signal ended the claim, or its manager was shut down.
    #[error("the claim was aborted")]
    Aborted,
    /// This manager already has a claim on the resource; one at a time.
    #[error("this manager already has a claim on '{0}'; release it first, or use another manager")]
    AlreadyClaimed(String),
    /// The manager has been shut down.
    #[error("the lock manager has been shut down")]
    Closed,
}

impl Error {
    /// A word for programs; it never changes.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::Timeout { .. } => "timeout",
            Self::Unreachable(_) => "unreachable",
            Self::Refused { .. } => "refused",
            Self::Deadlock { .. } => "deadlock",
            Self::Ended(_) => "ended",
            Self::Lost(_) => "lost",
            Self::Unknown(_) => "unknown",
            Self::Aborted => "aborted",
            Self::AlreadyClaimed(_) => "already-claimed",
            Self::Closed => "closed",
        }
    }
}

/// One step of a deadlock: a claim, and what it has to do with a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Blocker {
    /// The claim's id.
    pub claim: Option<String>,
    /// Who made it.
    pub owner: Option<String>,
    /// The worker that it belongs to.
    pub session: Option<String>,
    /// The resource that it is about.
    pub resource: Option<String>,
    /// `wants`: the claim waits for it. `holds`: it has it. `reserves`: it waits for it too, and comes first.
    pub link: Option<String>,
}

/// Why a claim is lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// Its ttl is about to run out and no renewal got through.
    #[error("it could not be renewed in time{}", because(.0))]
    NotRenewed(Option<String>),
    /// The server says that it is over: revoked, expired, or ended by somebody else.
    #[error("the server says that it is over: {0}")]
    Ended(String),
    /// It was held for as long as it may be.
    #[error("it was held for as long as `max_hold` allows")]
    MaxHold,
    /// A signal, or the end of its manager.
    #[error("it was aborted by a signal, or by the end of its manager")]
    Aborted,
}

impl Lost {
    /// A word for programs; it never changes.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NotRenewed(_) => "not-renewed",
            Self::Ended(_) => "ended",
            Self::MaxHold => "max-hold",
            Self::Aborted => "aborted",
        }
    }
}

fn because(trouble: &Option<String>) -> String {
    trouble.as_ref().map_or(String::new(), |trouble| format!(": {trouble}"))
}

fn seconds(duration: Duration) -> String {
    format!("{} s", (duration.as_secs_f64() * 1e3).round() / 1e3)
}
