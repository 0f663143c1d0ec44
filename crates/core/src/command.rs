//! Commands: everything that can be asked of the table, as plain data.
//!
//! In:    built by the dialects (`server/src/dialect`), packed by the proposer into one [`Batch`] an entry.
//! Out:   written to the log and applied by `table/apply.rs`.
//! Never: carries a clock reading of its own (the batch is stamped) or asks for a random number (ids come in).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::budget::{Budgets, Scope};
use crate::limits;
use crate::name::{ClaimId, Stamp};
use crate::table::FIRST_TABLE_VERSION;

/// One log entry: all commands that were waiting at one moment, under one stamp.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// When the leader packed the batch.
    pub stamp: Stamp,
    /// Applied in this order.
    pub commands: Vec<Command>,
}

/// One change asked of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Hold a resource, or queue for it, or be refused.
    Claim(NewClaim),
    /// Ask for a claim that waited: starts its ttl, if this is the first request since its promotion.
    Activate {
        /// The claim.
        id: ClaimId,
    },
    /// Start the ttl anew, optionally with another ttl or other data.
    Renew {
        /// Which claim.
        target: Target,
        /// What must hold for the command to happen.
        guard: Guard,
        /// The new ttl; `None` keeps it.
        ttl_us: Option<u64>,
        /// The new data; `None` keeps it.
        data: Option<Data>,
    },
    /// End a claim.
    Finish {
        /// Which claim.
        target: Target,
        /// What must hold for the command to happen.
        guard: Guard,
        /// The final status.
        ending: Ending,
        /// Why, in the words of whoever ended it; kept with the claim.
        reason: Option<Arc<str>>,
        /// Drop the claim's data with it.
        purge_data: bool,
    },
    /// Hold all of these resources or none of them, in one step.
    LockAll {
        /// One id and resource each.
        items: Vec<(ClaimId, Arc<str>)>,
        /// Who will hold them.
        owner: Arc<str>,
        /// For how long; `None`: until unlocked.
        ttl_us: Option<u64>,
        /// The same data for each.
        data: Option<Data>,
    },
    /// Revoke the live claims of one resource, or of all: a bounded number a command.
    Revoke {
        /// Only this resource; `None`: everywhere.
        resource: Option<Arc<str>>,
        /// Only claims created before this one number (see [`crate::Table::next_sequence`]), so that a
        /// caller who repeats the command until nothing is left never chases new claims.
        before: u64,
        /// Why, in the words of whoever asked.
        reason: Option<Arc<str>>,
    },
    /// Bring these resources up to the stamp: what is due on them ends, the next in the queue holds.
    Settle {
        /// The resources somebody is about to look at.
        resources: Vec<Arc<str>>,
    },
    /// Only move the clock: a bounded number of due claims ends.
    Tick,
    /// Change the settings of the table.
    Configure(Settings),
    // New commands come behind this line, and never between two others: their places are their numbers in the log.
    /// Raise the table version: from here on its commands and rules hold. Needs the version that it names.
    Upgrade {
        /// The new one; a lower one than the table has changes nothing.
        version: u32,
    },
    /// Change the byte budgets. Needs table version 2.
    ConfigureBudgets(Budgets),
    /// Override a byte budget, or take the override back. Needs table version 2.
    SetBudget {
        /// What it is for.
        scope: Scope,
        /// The budget; `None`: no override any more.
        bytes: Option<u64>,
    },
    /// Stands where a leader without memory took out a command that would have made the table larger: the table refuses it, so
    /// that the node that sent it is told. Needs table version 2.
    Refuse,
    /// The same as `Activate`, from a request that stands open while the claim waits: its client is told of a promotion at
    /// once. Needs table version 2.
    Await {
        /// The claim.
        id: ClaimId,
        /// How long the request stands open.
        wait_us: u64,
    },
    /// Tell the holder to let go: the claim can't be renewed any more, and its resource goes to the next when the holder has let go
    /// or its ttl is over. Ends a claim that waits. Needs table version 2.
    RevokeWhenGone {
        /// The claim.
        id: ClaimId,
        /// Why, in the words of whoever asked; kept with the claim.
        reason: Option<Arc<str>>,
    },
    /// Hold several resources together, or one in another way than exclusively, or as part of a session. Needs table
    /// version 3.
    ClaimSet(Box<NewSet>),
}

impl Command {
    /// Whether it makes the table larger. All others are taken also by a node without memory for more: a holder that can't
    /// renew loses what it holds, and what a renewal brings is bounded by the budgets.
    pub fn grows(&self) -> bool {
        matches!(self, Self::Claim(_) | Self::LockAll { .. } | Self::ClaimSet(_))
    }

    /// The table version from which on this command may stand in the log. A node that does not know that version can't
    /// read the command.
    pub fn table_version(&self) -> u32 {
        match self {
            Self::Upgrade { version } => (*version).max(2),
            Self::ConfigureBudgets(_)
            | Self::SetBudget { .. }
            | Self::Refuse
            | Self::Await { .. }
            | Self::RevokeWhenGone { .. } => 2,
            Self::Claim(NewClaim { data: Some(Data { format: Format::Secret, .. }), .. })
            | Self::LockAll { data: Some(Data { format: Format::Secret, .. }), .. } => 2,
            Self::ClaimSet(_) => 3,
            _ => FIRST_TABLE_VERSION,
        }
    }
}

/// A request to hold a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewClaim {
    /// Chosen at random by the node that received the request; a second command with it changes nothing.
    pub id: ClaimId,
    /// What to hold.
    pub resource: Arc<str>,
    /// Who asks.
    pub owner: Arc<str>,
    /// How long it stays active without renewal; `None`: until it is ended.
    pub ttl_us: Option<u64>,
    /// What to do when the resource is held.
    pub on_busy: OnBusy,
    /// The caller's data.
    pub data: Option<Data>,
    /// The client's own key, under which a retried request finds the first one's claim.
    pub idempotency: Option<Idempotency>,
}

impl NewClaim {
    /// A claim without data or idempotency key.
    pub fn new(id: ClaimId, resource: &str, owner: &str, ttl_us: Option<u64>, on_busy: OnBusy) -> Self {
        Self {
            id,
            resource: resource.into(),
            owner: owner.into(),
            ttl_us,
            on_busy,
            data: None,
            idempotency: None,
        }
    }
}

/// How a resource is wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Alone.
    #[default]
    Exclusive,
    /// Together with others who share it.
    Shared,
    /// Some of the resource's slots, together with others as long as there are enough of them.
    Slots {
        /// How many are wanted: at least one, and at most `of`.
        take: u16,
        /// How many the resource has.
        of: u16,
    },
}

impl Mode {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Slots { .. } => "slots",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots { take, of } => write!(f, "{take} of {of} slots"),
            _ => f.write_str(self.as_str()),
        }
    }
}

/// A resource, and how it is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// What to hold.
    pub resource: Arc<str>,
    /// How.
    pub mode: Mode,
}

/// A request to hold all items of a set, from the same instant to the same instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSet {
    /// Chosen at random by the node that received the request; a second command with it changes nothing.
    pub id: ClaimId,
    /// What to hold: at least one item, each resource once.
    pub items: Vec<Item>,
    /// Who asks.
    pub owner: Arc<str>,
    /// How long it stays active without renewal; `None`: until it is ended.
    pub ttl_us: Option<u64>,
    /// What to do when an item is held or reserved.
    pub on_busy: OnBusy,
    /// The caller's data.
    pub data: Option<Data>,
    /// The client's own key, under which a retried request finds the first one's claim.
    pub idempotency: Option<Idempotency>,
    /// The worker that the claim belongs to: a path (`a`, `a/b`). Waiting for oneself or for an ancestor is refused.
    pub session: Option<Arc<str>>,
    /// While it waits, it is withdrawn when its client has not asked for it for its ttl.
    pub lapses: bool,
}

/// What a claim does when its resource is held by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnBusy {
    /// Wait in the queue for as long as it takes.
    Queue,
    /// Wait in the queue, but give up (as withdrawn) after this long.
    QueueFor {
        /// The longest wait.
        wait_us: u64,
    },
    /// Don't wait: be refused.
    Refuse,
}

/// What must hold for a command to happen. Empty: nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    /// The claim's owner. Checked before the version.
    pub owner: Option<Arc<str>>,
    /// The claim's version.
    pub version: Option<u64>,
}

/// Which claim a command means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// The claim with this id.
    Claim(ClaimId),
    /// Whichever claim is active on this resource.
    Holder(Arc<str>),
}

/// How a caller may end a claim. (`expired` is the table's own.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Given up in the ordinary way; only an active claim can be released.
    Released,
    /// Given up because of an error in the client.
    Aborted,
    /// No longer wanted.
    Withdrawn,
    /// Taken away by an administrator or a monitoring process.
    Revoked,
}

/// The caller's data, kept and returned as it came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    /// How the bytes are to be read.
    pub format: Format,
    /// The bytes, as sent.
    pub bytes: Box<[u8]>,
}

/// How data is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// A JSON text, checked when it came in.
    Json,
    /// Anything.
    Bytes,
    /// Anything, and whoever knows it may end the claim: it is never shown to others. Needs table version 2.
    Secret,
}

/// A client's idempotency key, already reduced to fixed sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idempotency {
    /// A cryptographic hash of owner and key.
    pub key: u128,
    /// A hash of the request: the same key with another request is refused.
    pub fingerprint: u64,
}

/// What an operator may set, the same on every node because it travels in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// How many finished claims stay readable; the oldest go first.
    pub finished_max: u64,
    /// Waiting claims on one resource.
    pub queue_len_max: u64,
    /// Held and waiting claims of one owner.
    pub claims_per_owner_max: u64,
    /// Held and waiting claims of one namespace (a resource's name up to its last `/`).
    pub claims_per_namespace_max: u64,
    /// Held and waiting claims in all.
    pub claims_max: u64,
    /// How long a claim promoted out of the queue may leave its ttl unstarted. 0: the rhythm of its client decides, since table
    /// version 2.
    pub pickup_grace_us: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            finished_max: limits::FINISHED_MAX_DEFAULT,
            queue_len_max: limits::QUEUE_LEN_MAX_DEFAULT,
            claims_per_owner_max: limits::CLAIMS_PER_GROUP_MAX_DEFAULT,
            claims_per_namespace_max: limits::CLAIMS_PER_GROUP_MAX_DEFAULT,
            claims_max: limits::CLAIMS_MAX_DEFAULT,
            pickup_grace_us: 0,
        }
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands at {} us", self.commands.len(), self.stamp.now_us)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(id) => write!(f, "{id}"),
            Self::Holder(resource) => write!(f, "holder of {resource}"),
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::Status::from(*self).fmt(f)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(new) => write!(f, "claim {} as {} for {}", new.resource, new.id, new.owner),
            Self::Activate { id } => write!(f, "activate {id}"),
            Self::Renew { target, .. } => write!(f, "renew {target}"),
            Self::Finish { target, ending, .. } => write!(f, "finish {target} as {ending}"),
            Self::LockAll { items, owner, .. } => write!(f, "lock all of {} for {owner}", items.len()),
            Self::Revoke { resource: Some(resource), .. } => write!(f, "revoke all on {resource}"),
            Self::Revoke { resource: None, .. } => f.write_str("revoke all"),
            Self::Settle { resources } => write!(f, "settle {} resources", resources.len()),
            Self::Tick => f.write_str("tick"),
            Self::Configure(_) => f.write_str("configure"),
            Self::Upgrade { version } => write!(f, "upgrade to table version {version}"),
            Self::ConfigureBudgets(_) => f.write_str("configure budgets"),
            Self::SetBudget { scope, .. } => write!(f, "set the budget of {scope}"),
            Self::Refuse => f.write_str("refuse"),
            Self::Await { id, .. } => write!(f, "await {id}"),
            Self::RevokeWhenGone { id, .. } => write!(f, "revoke {id} when its holder is gone"),
            Self::ClaimSet(new) => {
                write!(f, "claim {} items as {} for {}", new.items.len(), new.id, new.owner)
            }
        }
    }
}
