//! What clients saw: each operation with the instants of its call and its return.
//!
//! In:    recorded by the clients of `chaos/` and of `sim/`. Out: read by `linear.rs`, and printed a line each.
//! Never: calls an unknown outcome a failure: an answer that did not come is [`Answer::Unknown`], and has no return.

use std::fmt;

/// One claim as the clients know it: a number that they gave it. Its id and token come later, or never.
pub type Handle = u64;

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Hold the resource, or queue for it.
    Claim {
        /// How long it stays without renewal; `None`: until it is ended.
        ttl_us: Option<u64>,
    },
    /// Start the ttl anew.
    Renew {
        /// The ttl from now on.
        ttl_us: u64,
    },
    /// Release, or withdraw.
    Finish,
    /// Look at it.
    Read,
}

/// What was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The claim waits in the queue.
    Waiting,
    /// The claim holds. (To a renewal: and its ttl began anew.)
    Active {
        /// Its fencing token.
        token: u64,
    },
    /// The claim is over: by this very call, if that was to finish it.
    Done,
    /// The claim was over before.
    Over,
    /// Another claim holds the resource, and this one came to nothing.
    Refused,
    /// Nobody knows such a claim.
    Gone,
    /// There was no answer: it may have happened, may yet happen, or not.
    Unknown,
}

/// One operation.
#[derive(Debug, Clone)]
pub struct Op {
    /// Which client.
    pub client: u64,
    /// On what.
    pub resource: String,
    /// Of which claim.
    pub claim: Handle,
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
        let Self { client, resource, claim, call, called_us, returned_us, answer } = self;
        write!(f, "{called_us}")?;
        match answer {
            Answer::Unknown => f.write_str("..?")?,
            _ => write!(f, "..{returned_us}")?,
        }
        write!(f, " client {client} {resource} #{claim} {call:?} -> {answer:?}")
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
