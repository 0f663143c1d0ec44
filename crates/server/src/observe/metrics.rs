//! Counters and histograms of one node.
//!
//! In:    events and syncs from the engine, answered requests from `serve/connection.rs`. Out: numbers for `exposition.rs`.
//! Never: has a label that a stranger can choose: dialects, outcomes and status codes are closed lists.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use leasehold_core::{Event, EventKind, Mode, Status};

use super::Dialect;
use super::histogram::Histogram;
use leasehold_engine::Engine;
use leasehold_engine::clock::wall_us;
use leasehold_engine::publish::Listener;
use leasehold_engine::wal::Flushed;

/// The status codes that any dialect answers; whatever else is counted as 0.
pub const CODES: [u16; 32] = [
    200, 201, 202, 204, 304, 400, 401, 403, 404, 405, 406, 408, 409, 411, 412, 413, 414, 415, 422, 423, 425,
    429, 431, 500, 501, 502, 503, 504, 505, 507, 509, 0,
];

/// The ways to hold a resource, as labels.
pub const MODES: [&str; 3] = ["exclusive", "shared", "slots"];

/// What happened to items of one mode.
#[derive(Debug, Default)]
pub struct ItemCounts {
    /// They had to queue.
    pub(crate) queued: AtomicU64,
    /// They were granted.
    pub(crate) granted: AtomicU64,
    /// They ended after they had been granted.
    pub(crate) freed: AtomicU64,
    /// They ended in the queue.
    pub(crate) unqueued: AtomicU64,
    /// Time in the queue of those that were granted.
    pub(crate) wait: Histogram,
}

/// The numbers of one node, since it started.
#[derive(Debug)]
pub struct Metrics {
    /// Answers, by dialect and code.
    pub(crate) requests: [[AtomicU64; CODES.len()]; Dialect::ALL.len()],
    /// Connections now.
    pub connections: AtomicUsize,
    pub(crate) queued: AtomicU64,
    pub(crate) granted: AtomicU64,
    pub(crate) renewed: AtomicU64,
    /// By final status.
    pub(crate) ended: [AtomicU64; Status::ALL.len()],
    /// Time in the queue of those who were granted what they waited for.
    pub(crate) wait: Histogram,
    /// What happened to items, by mode: a claim has one or more of them.
    pub(crate) items: [ItemCounts; MODES.len()],
    /// Time held.
    pub(crate) hold: Histogram,
    /// From the entry that freed a resource being packed to the next holder being told.
    pub(crate) hand_over: Histogram,
    /// From an entry being packed to being applied.
    pub(crate) commit: Histogram,
    /// Write and fdatasync of the log.
    pub(crate) sync: Histogram,
    pub(crate) synced_bytes: AtomicU64,
    /// Claims that were refused because they would have waited for their own session for ever.
    pub(crate) deadlocks: AtomicU64,
    /// Set when the node has started: what it replays before did not happen now.
    engine: OnceLock<Weak<Engine>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            connections: AtomicUsize::new(0),
            queued: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
            ended: std::array::from_fn(|_| AtomicU64::new(0)),
            wait: Histogram::default(),
            items: Default::default(),
            hold: Histogram::default(),
            hand_over: Histogram::default(),
            commit: Histogram::default(),
            sync: Histogram::default(),
            synced_bytes: AtomicU64::new(0),
            deadlocks: AtomicU64::new(0),
            engine: OnceLock::new(),
        }
    }
}

impl Metrics {
    /// From now on, events are news.
    pub fn started(&self, engine: &Arc<Engine>) {
        self.engine.set(Arc::downgrade(engine)).ok();
    }

    /// Counts an answer.
    pub fn answered(&self, dialect: Dialect, code: u16) {
        let code = CODES.iter().position(|known| *known == code).unwrap_or(CODES.len() - 1);
        self.requests[dialect as usize][code].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a claim that was refused because of a deadlock.
    pub fn deadlock_refused(&self) {
        self.deadlocks.fetch_add(1, Ordering::Relaxed);
    }

    /// One event for each item; the first one stands for the claim.
    fn count(&self, event: &Event) {
        let add = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        let items = &self.items[match event.mode {
            Mode::Exclusive => 0,
            Mode::Shared => 1,
            Mode::Slots { .. } => 2,
        }];
        match event.kind {
            EventKind::Queued => add(&items.queued),
            EventKind::Renewed | EventKind::Revoking => {}
            EventKind::Activated { waited_us } => {
                add(&items.granted);
                items.wait.observe_us(waited_us);
            }
            EventKind::Ended { .. } => add(if event.token > 0 { &items.freed } else { &items.unqueued }),
        }
        if event.item > 0 {
            return;
        }
        match event.kind {
            EventKind::Queued => add(&self.queued),
            EventKind::Renewed => add(&self.renewed),
            // It is counted when it has ended.
            EventKind::Revoking => {}
            EventKind::Activated { waited_us } => {
                add(&self.granted);
                self.wait.observe_us(waited_us);
            }
            EventKind::Ended { status, held_us } => {
                add(&self.ended[status as usize]);
                if event.token > 0 {
                    self.hold.observe_us(held_us);
                }
            }
        }
    }
}

/// How far a look for the end before a hand-over goes back.
const LOOK_BACK_MAX: usize = 64;

/// Whether a claim was granted what has ended just before. A resource passes on in the same breath: between its end and its next
/// holder stand only other ends and grants.
fn is_hand_over(event: &Event, before: &[Event]) -> bool {
    if event.item > 0 || !matches!(event.kind, EventKind::Activated { .. }) {
        return false;
    }
    let same_breath = before
        .iter()
        .rev()
        .take(LOOK_BACK_MAX)
        .take_while(|other| matches!(other.kind, EventKind::Ended { .. } | EventKind::Activated { .. }));
    let mut ends = same_breath.filter(|other| matches!(other.kind, EventKind::Ended { .. }));
    // Nearly always the same copy of the name; those of sets have copies of their own.
    ends.any(|end| Arc::ptr_eq(&end.resource, &event.resource) || end.resource == event.resource)
}

impl Listener for Metrics {
    fn applied(&self, _index: u64, events: &[Event]) {
        let (Some(engine), Some(first)) = (self.engine.get(), events.first()) else { return };
        let mut hand_overs = 0;
        for (place, event) in events.iter().enumerate() {
            self.count(event);
            hand_overs += u64::from(is_hand_over(event, &events[..place]));
        }
        // A follower learns of entries later, and one that catches up much later.
        if engine.upgrade().is_some_and(|engine| engine.leads()) {
            let took_us = wall_us().saturating_sub(first.stamp.wall_us);
            self.commit.observe_us(took_us);
            (0..hand_overs).for_each(|_| self.hand_over.observe_us(took_us));
        }
    }

    fn flushed(&self, flushed: Flushed) {
        self.sync.observe_us(flushed.took.as_micros() as u64);
        self.synced_bytes.fetch_add(flushed.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_code_is_counted_too() {
        let metrics = Metrics::default();
        metrics.answered(Dialect::Dss, 299);
        assert_eq!(metrics.requests[Dialect::Dss as usize][CODES.len() - 1].load(Ordering::Relaxed), 1);
    }
}
