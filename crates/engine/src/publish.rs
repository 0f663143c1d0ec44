//! The publisher: tells whoever waits for a claim that its turn has come, or that it is over.
//!
//! In:    events of each applied entry, in order. Out: wake-ups, one a waiter, in the order of the events; and all
//!        events to those who listen to every one (streams, metrics, audit).
//! Never: blocks the table, and never wakes anyone who has nothing to do: there is no herd.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use leasehold_core::{ClaimId, Event, EventKind};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::wal::Flushed;

/// Whoever waits for one claim: a ticket, and how to wake its owner.
type Waiting = Vec<(u64, Wake)>;

/// How somebody is woken.
#[derive(Debug)]
enum Wake {
    /// Who waits for one claim.
    One(oneshot::Sender<()>),
    /// Who waits for any of many.
    Any(Arc<Notify>),
}

/// Someone who hears of everything that happens: a stream, the metrics, the audit.
pub trait Listener: std::fmt::Debug + Send + Sync {
    /// What one entry of the log changed. Called on the thread that applies entries: it must not wait for anything.
    ///
    /// Entries are applied anew when a node starts: an index that came before is the same entry again.
    fn applied(&self, index: u64, events: &[Event]);

    /// The table was replaced as a whole: what happened in between is not told event by event.
    fn replaced(&self) {}

    /// The log wrote and synced so much.
    fn flushed(&self, _flushed: Flushed) {}
}

/// Waiters by claim.
#[derive(Debug, Default)]
pub struct Publisher {
    listeners: Vec<Arc<dyn Listener>>,
    waiters: Mutex<HashMap<ClaimId, Waiting>>,
    /// How many there are, so that entries nobody waits for cost one look.
    count: AtomicUsize,
    next_ticket: AtomicU64,
}

/// Someone who waits for a claim to become active or to end.
#[derive(Debug)]
pub struct Waiter {
    publisher: Arc<Publisher>,
    claim: ClaimId,
    ticket: u64,
    woken: oneshot::Receiver<()>,
}

/// Someone who waits for any of many claims to become active, to end, or to be told to let go.
#[derive(Debug)]
pub struct Watch {
    publisher: Arc<Publisher>,
    claims: Vec<ClaimId>,
    ticket: u64,
    bell: Arc<Notify>,
}

impl Publisher {
    /// A publisher that tells these everything.
    pub fn new(listeners: Vec<Arc<dyn Listener>>) -> Self {
        Self { listeners, ..Self::default() }
    }

    /// Starts to wait. Register before the command is sent: what happens in between is not missed.
    pub fn wait_for(self: &Arc<Self>, claim: ClaimId) -> Waiter {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (wake, woken) = oneshot::channel();
        self.count.fetch_add(1, Ordering::SeqCst);
        self.waiters.lock().entry(claim).or_default().push((ticket, Wake::One(wake)));
        Waiter { publisher: self.clone(), claim, ticket, woken }
    }

    /// Starts to wait for all of these. Register before looking at them: what happens in between is not missed.
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

    /// Forgets who has this ticket.
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

    /// Tells what the entry with this index changed, and wakes whoever waits for it.
    pub fn publish(&self, index: u64, events: &[Event]) {
        for listener in &self.listeners {
            listener.applied(index, events);
        }
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        for event in events {
            match event.kind {
                EventKind::Activated { .. } => self.wake_turns(event.claim),
                EventKind::Ended { .. } | EventKind::Revoking => self.wake(event.claim),
                EventKind::Queued | EventKind::Renewed => {}
            }
        }
    }

    /// Wakes those who wait for a claim's turn. Those who wait for the end of any of many have nothing to hear.
    fn wake_turns(&self, claim: ClaimId) {
        let woken: Waiting = {
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
        // In an order that is the same each time: the simulation relies on it.
        claims.sort_unstable();
        claims.into_iter().for_each(|claim| self.wake(claim));
    }
}

impl Waiter {
    /// Returns when the claim became active or ended, or everyone was woken.
    pub async fn woken(&mut self) {
        // The sender goes only with the entry in the map, that is, with a wake-up.
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
