//! Byte budgets: how much of a node's memory claims may take.
//!
//! In:    an operator's flags ([`Budgets`]) and overrides ([`Scope`]), as commands in the log, from table version 2 on.
//! Out:   plain data for the table, and the one rule by which bytes are counted.
//! Never: depends on a machine; two nodes with different budgets would disagree about one log.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits;

/// What claims may take, in counted bytes (see [`counted_bytes`]). Overrides of a [`Scope`] go before these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budgets {
    /// Held and waiting claims in all.
    pub total: u64,
    /// Held and waiting claims of one owner.
    pub per_owner: u64,
    /// Held and waiting claims of one namespace (a resource's name up to its last `/`).
    pub per_namespace: u64,
    /// Finished claims. Beyond it the oldest lose their data, and are forgotten when none has data any more.
    pub finished: u64,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            total: limits::BYTES_MAX_DEFAULT,
            per_owner: limits::BYTES_PER_OWNER_MAX_DEFAULT,
            per_namespace: limits::BYTES_PER_NAMESPACE_MAX_DEFAULT,
            finished: limits::FINISHED_BYTES_MAX_DEFAULT,
        }
    }
}

/// What an override is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scope {
    /// All held and waiting claims together.
    Total,
    /// All finished claims together.
    Finished,
    /// Each owner whose name starts with this. The longest prefix counts.
    Owner(Arc<str>),
    /// Each namespace whose name starts with this. The longest prefix counts.
    Namespace(Arc<str>),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Total => f.write_str("total"),
            Self::Finished => f.write_str("finished"),
            Self::Owner(prefix) => write!(f, "owner {prefix}"),
            Self::Namespace(prefix) => write!(f, "namespace {prefix}"),
        }
    }
}

/// A budget, and what is taken of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Counted bytes.
    pub used: u64,
    /// The budget.
    pub max: u64,
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes are used", self.used, self.max)
    }
}

/// The bytes that a claim counts for: the names of its resource and owner, its data, its reason and what an idempotency key takes,
/// all beyond the first [`limits::BYTES_FREE`]. Small claims count for nothing: their number has a limit of its own.
pub fn counted_bytes(names: usize, data: usize, reason: usize, has_key: bool) -> u64 {
    let key = if has_key { limits::KEY_BYTES } else { 0 };
    (names + data + reason + key).saturating_sub(limits::BYTES_FREE) as u64
}
