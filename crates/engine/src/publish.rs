//! The publisher: wakes the requests that wait for a claim when its turn has come, or when it is over.
//!
//! In:    events of each applied entry, in order. Out: one wake-up for each waiter, in the order of the events; all events
//!        to the listeners (streams, metrics, audit).
//! Never: blocks the table, or wakes a waiter that has nothing to do.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use leasehold_core::{ClaimId, Event, EventKind};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::wal::Flushed;

/// The waiters of one claim: a ticket each, and how to wake its owner.
type ClaimWaiters = Vec<(u64, Wake)>;

/// How a waiter is woken.
#[derive(Debug)]
enum Wake {
    /// It waits for one claim.
    One(oneshot::Sender<()>),
    /// It waits for any of many claims.
    Any(Arc<Notify>),
}

/// Hears every event: a stream, the metrics, the audit.
pub trait Listener: std::fmt::Debug + Send + Sync {
    /// The events of one log entry. Called on the thread that applies entries: it must not block.
    ///
    /// A node applies entries again when it starts: the same index is the same entry.
    fn applied(&self, index: u64, events: &[Event]);

    /// The table was replaced by a snapshot: the events in between are not told.
    fn replaced(&self) {}

    /// The log has written and synced this much.
    fn flushed(&self, _flushed: Flushed) {}
}

/// Waiters by claim.
#[derive(Debug, Default)]
pub struct Publisher {
    listeners: Vec<Arc<dyn Listener>>,
    waiters: Mutex<HashMap<ClaimId, ClaimWaiters>>,
    /// How many there are. Without any, an entry costs one look at this.
    count: AtomicUsize,
    next_ticket: AtomicU64,
}

/// Waits for a claim to become active or to end.
#[derive(Debug)]
pub struct Waiter {
    publisher: Arc<Publisher>,
    claim: ClaimId,
    ticket: u64,
    woken: oneshot::Receiver<()>,
}

/// Waits for any of many claims to become active, to end, or to be revoked.
#[derive(Debug)]
pub struct Watch {
    publisher: Arc<Publisher>,
    claims: Vec<ClaimId>,
    ticket: u64,
    bell: Arc<Notify>,
}

impl Publisher {
    /// A publisher with these listeners.
    pub fn new(listeners: Vec<Arc<dyn Listener>>) -> Self {
        Self { listeners, ..Self::default() }
    }

    /// Starts to wait. Call this before the command is sent, so that no event is missed.
    pub fn wait_for(self: &Arc<Self>, claim: ClaimId) -> Waiter {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (wake, woken) = oneshot::channel();
        self.count.fetch_add(1, Ordering::SeqCst);
        self.waiters.lock().entry(claim).or_default().push((ticket, Wake::One(wake)));
        Waiter { publisher: self.clone(), claim, ticket, woken }
    }

    /// Starts to wait for all of these. Call this before looking at the claims, so that no event is missed.
    pub fn watch(self: &Arc<Self>, claims: Vec<ClaimId>) -> Watch {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let bell = Arc::new(Notify::new());
        self.count.fetch_add(claims.len(), Ordering::SeqCst);
        let mut waiters = self.waiters.lock();
        for claim in &claims {
            waiters.entry(*claim).or_default().push((ticket, Wake::Any(bell.clone())));
        }
        drop(waiters);
        Watch { publisher: self.clone(), claims, ticket, bell }
    }

    /// Removes the waiter with this ticket.
    fn forget(&self, claims: &[ClaimId], ticket: u64) {
        let mut waiters = self.waiters.lock();
        for claim in claims {
            let Some(list) = waiters.get_mut(claim) else { continue };
            let before = list.len();
            list.retain(|(known, _)| *known != ticket);
            self.count.fetch_sub(before - list.len(), Ordering::SeqCst);
            if list.is_empty() {
                waiters.remove(claim);
            }
        }
    }

    /// Tells the events of the entry with this index, and wakes the claims' waiters.
    pub fn publish(&self, index: u64, events: &[Event]) {
        for listener in &self.listeners {
            listener.applied(index, events);
        }
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        // A claim has one event for each of its items, and its waiters wait for the claim.
        for event in events.iter().filter(|event| event.item == 0) {
            match event.kind {
                EventKind::Activated { .. } => self.wake_turns(event.claim),
                EventKind::Ended { .. } | EventKind::Revoking => self.wake(event.claim),
                EventKind::Queued | EventKind::Renewed => {}
            }
        }
    }

    /// Wakes those that wait for a claim's turn. Those that wait for the end of any of many claims sleep on.
    fn wake_turns(&self, claim: ClaimId) {
        let woken: ClaimWaiters = {
            let mut waiters = self.waiters.lock();
            let Some(list) = waiters.get_mut(&claim) else { return };
            let woken = list.extract_if(.., |(_, waiter)| matches!(waiter, Wake::One(_))).collect();
            if list.is_empty() {
                waiters.remove(&claim);
            }
            woken
        };
        for (_, waiter) in woken {
            self.count.fetch_sub(1, Ordering::SeqCst);
            if let Wake::One(waiter) = waiter {
                waiter.send(()).ok();
            }
        }
    }

    fn wake(&self, claim: ClaimId) {
        let woken = self.waiters.lock().remove(&claim).unwrap_or_default();
        for (_, waiter) in woken {
            self.count.fetch_sub(1, Ordering::SeqCst);
            match waiter {
                Wake::One(waiter) => drop(waiter.send(())),
                Wake::Any(bell) => bell.notify_one(),
            }
        }
    }

    /// Wakes everyone: the table was replaced as a whole, or the node is shutting down.
    pub fn wake_all(&self) {
        self.listeners.iter().for_each(|listener| listener.replaced());
        let mut claims: Vec<ClaimId> = self.waiters.lock().keys().copied().collect();
        // The simulation needs the same order each time.
        claims.sort_unstable();
        claims.into_iter().for_each(|claim| self.wake(claim));
    }
}

impl Waiter {
    /// Returns when the claim became active or ended, or everyone was woken.
    pub async fn woken(&mut self) {
        // The sender is dropped only together with its entry in the map, which is a wake-up.
        (&mut self.woken).await.ok();
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.publisher.forget(&[self.claim], self.ticket);
    }
}

impl Watch {
    /// Returns when something happened to any of the claims since the watch began, or everyone was woken.
    pub async fn rung(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.publisher.forget(&self.claims, self.ticket);
    }
}
