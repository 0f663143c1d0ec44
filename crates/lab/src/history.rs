//! What clients saw: each operation with the instants of its call and its return.
//!
//! In:    recorded by the clients of `chaos/` and of `sim/`. Out: read by `linear.rs`, and printed a line each.
//! Never: calls an unknown outcome a failure: an answer that did not come is [`Answer::Unknown`], and has no return.

use std::fmt;
use std::sync::Arc;

/// One claim as the clients know it: a number that they gave it. Its id and token come later, or never.
pub type Handle = u64;

/// How a claim wants a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Together with others who share it.
    Shared,
    /// Some of its slots.
    Slots {
        /// How many.
        take: u16,
        /// How many there are.
        of: u16,
    },
}

impl Mode {
    /// Whether two claims can hold one resource at the same time.
    pub fn fits_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Shared, Self::Shared) => true,
            (Self::Slots { take, of }, Self::Slots { take: more, of: same }) => {
                of == same && take.saturating_add(more) <= of
            }
            _ => false,
        }
    }
}

/// A resource, and how a claim wants it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    /// The resource.
    pub resource: String,
    /// How.
    pub mode: Mode,
}

impl Item {
    /// What a plain claim wants.
    pub fn alone(resource: &str) -> Arc<[Self]> {
        Arc::new([Self { resource: resource.into(), mode: Mode::Exclusive }])
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        match self.mode {
            Mode::Exclusive => Ok(()),
            Mode::Shared => f.write_str("(shared)"),
            Mode::Slots { take, of } => write!(f, "({take} of {of})"),
        }
    }
}

/// What a claim was granted of one of its items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Its fencing token; 0: none was shown.
    pub token: u64,
    /// Its slots.
    pub slots: Vec<u16>,
}

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Hold all items, or queue for them.
    Claim {
        /// How long it stays without renewal; `None`: until it is ended.
        ttl_us: Option<u64>,
    },
    /// Start the ttl anew.
    Renew {
        /// The ttl from now on.
        ttl_us: u64,
    },
    /// Ask for a claim that waits: whoever asks stays in line for its ttl from now on.
    Activate {
        /// The ttl.
        ttl_us: u64,
    },
    /// Release, or withdraw.
    Finish,
    /// Look at it.
    Read,
}

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The claim waits in the queue.
    Waiting,
    /// The claim holds: what it was shown of each item, in order. (To a renewal: and its ttl began anew.)
    Active(Arc<[Grant]>),
    /// The claim is over: by this very call, if that was to finish it.
    Done,
    /// The claim was over before.
    Over,
    /// Other claims hold or reserve an item, and this one came to nothing.
    Refused,
    /// Nobody knows such a claim.
    Gone,
    /// There was no answer: it may have happened, may yet happen, or not.
    Unknown,
}

impl Answer {
    /// A plain claim holds.
    pub fn active(token: u64) -> Self {
        Self::Active(Arc::new([Grant { token, slots: Vec::new() }]))
    }

    /// The tokens that it shows.
    pub fn tokens(&self) -> impl Iterator<Item = u64> {
        let items = if let Self::Active(items) = self { &items[..] } else { &[] };
        items.iter().map(|item| item.token)
    }
}

/// One operation.
#[derive(Debug, Clone)]
pub struct Op {
    /// Which client.
    pub client: u64,
    /// Of which claim.
    pub claim: Handle,
    /// What that claim wants, in order.
    pub items: Arc<[Item]>,
    /// What was asked.
    pub call: Call,
    /// When it was (first) sent.
    pub called_us: u64,
    /// When the answer was there. An unknown outcome never returns.
    pub returned_us: u64,
    /// What was answered.
    pub answer: Answer,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, claim, items, call, called_us, returned_us, answer } = self;
        write!(f, "{called_us}")?;
        match answer {
            Answer::Unknown => f.write_str("..?")?,
            _ => write!(f, "..{returned_us}")?,
        }
        write!(f, " client {client}")?;
        items.iter().try_for_each(|item| write!(f, " {item}"))?;
        write!(f, " #{claim} {call:?} -> {answer}")
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Active(items) = self else { return write!(f, "{self:?}") };
        f.write_str("Active")?;
        for Grant { token, slots } in items.iter() {
            write!(f, " {token}")?;
            if !slots.is_empty() {
                write!(f, " {slots:?}")?;
            }
        }
        Ok(())
    }
}

/// All operations of a run.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// In no particular order.
    pub ops: Vec<Op>,
}

impl History {
    /// How many outcomes nobody knows.
    pub fn unknown(&self) -> usize {
        self.ops.iter().filter(|op| op.answer == Answer::Unknown).count()
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ops.iter().try_for_each(|op| writeln!(f, "{op}"))
    }
}
