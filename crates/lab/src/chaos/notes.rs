//! What everybody who claims something shares, and the book in which each writes down what it asked and was told.
//!
//! In:    calls and answers. Out: operations for the `History`, and the ids of claims to be looked at again.
//! Never: calls an unknown outcome a failure, and never gives two claims the same number.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::history::{Answer, Call, Handle, Item, Op};
use crate::random::Random;

/// What all of a round share.
#[derive(Debug)]
pub struct SharedRound {
    /// Where the nodes are.
    pub nodes: Vec<SocketAddr>,
    /// When the run began: instants count from here.
    pub start: Instant,
    /// Which round it is: every round has resources of its own, so that its history stands by itself.
    pub round: u64,
    /// How long a client rests between two claims, at most.
    pub rest_ms: u64,
    /// Set when everybody is to finish.
    pub stop: AtomicBool,
    /// The newest number of a claim.
    pub handles: AtomicU64,
    /// Operations that were answered.
    pub answered: AtomicU64,
    /// Answers that no client should get.
    pub odd: Mutex<Vec<String>>,
    /// Resources on which a claim certainly was not made, though a client asked for it.
    pub undone: Mutex<Vec<String>>,
    /// Stale reads that showed less than their client knew.
    pub behind: AtomicU64,
}

impl SharedRound {
    /// Microseconds since the run began.
    pub fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// A plain claim that is about to be made.
    pub fn begin(&self, resource: &str) -> Held {
        self.begin_items(Item::alone(resource))
    }

    /// Any claim that is about to be made.
    pub fn begin_items(&self, items: Arc<[Item]>) -> Held {
        Held { handle: self.handles.fetch_add(1, Ordering::Relaxed), items }
    }

    /// Remembers what nobody should ever see.
    pub fn odd(&self, what: String) {
        self.odd.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// A claim on this resource certainly was not made.
    pub(super) fn note_undone(&self, resource: String) {
        self.undone.lock().unwrap_or_else(PoisonError::into_inner).push(resource);
    }

    /// All of these so far.
    pub(super) fn undone(&self) -> Vec<String> {
        self.undone.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A stale read showed less than its client knew.
    pub(super) fn count_behind(&self) {
        self.behind.fetch_add(1, Ordering::Relaxed);
    }

    /// Every node's address, for `LEASEHOLD_ADDR`; another one first for each number.
    pub fn urls(&self, number: u64) -> Vec<String> {
        let mut urls: Vec<String> = self.nodes.iter().map(|node| format!("http://{node}")).collect();
        let first = number as usize % urls.len();
        urls.rotate_left(first);
        urls
    }
}

/// A claim, as it is written down.
#[derive(Debug)]
pub struct Held {
    /// Its number.
    pub handle: Handle,
    /// What it wants.
    pub items: Arc<[Item]>,
}

impl Held {
    /// The first resource that it wants: the only one of a plain claim.
    pub fn resource(&self) -> &str {
        &self.items[0].resource
    }
}

/// A claim whose id is known: (handle, id, items).
pub type Known = (Handle, String, Arc<[Item]>);

/// What one client saw.
#[derive(Debug)]
pub struct Notebook {
    /// Which client.
    pub number: u64,
    /// What it shares with the others.
    pub shared: Arc<SharedRound>,
    /// Its operations.
    pub ops: Vec<Op>,
    /// Its claims, where it was told their ids.
    pub ids: Vec<Known>,
}

impl Notebook {
    /// An empty one.
    pub fn new(number: u64, shared: Arc<SharedRound>) -> Self {
        Self { number, shared, ops: Vec::new(), ids: Vec::new() }
    }

    /// Writes down an operation that returns now, or whose answer never came.
    pub fn note(&mut self, held: &Held, call: Call, called_us: u64, answer: Answer) {
        if answer != Answer::Unknown {
            self.shared.answered.fetch_add(1, Ordering::Relaxed);
        }
        let (client, claim, items) = (self.number, held.handle, held.items.clone());
        let returned_us = if answer == Answer::Unknown { u64::MAX } else { self.shared.now_us() };
        self.ops.push(Op { client, items, claim, call, called_us, returned_us, answer });
    }

    /// The claim's id is known.
    pub fn known(&mut self, held: &Held, id: &str) {
        self.ids.push((held.handle, id.into(), held.items.clone()));
    }
}

/// What the library, the keychain and `leasehold run` compete for, among themselves and with plain claims.
pub fn holder_name(round: u64, random: &mut Random) -> String {
    match random.below(4) {
        0 => format!("r{round}s{}", random.below(3)),
        _ => format!("r{round}h{}", random.below(2)),
    }
}
