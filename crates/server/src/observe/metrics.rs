//! Counters and histograms of one node.
//!
//! In:    events and syncs from the engine, answered requests from `serve/connection.rs`. Out: numbers for `exposition.rs`.
//! Never: has a label that a stranger can choose: dialects, outcomes and status codes are closed lists.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use leasehold_core::{Event, EventKind, Status};

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
    /// Time held.
    pub(crate) hold: Histogram,
    /// From the entry that freed a resource being packed to the next holder being told.
    pub(crate) hand_over: Histogram,
    /// From an entry being packed to being applied.
    pub(crate) commit: Histogram,
    /// Write and fdatasync of the log.
    pub(crate) sync: Histogram,
    pub(crate) synced_bytes: AtomicU64,
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
            hold: Histogram::default(),
            hand_over: Histogram::default(),
            commit: Histogram::default(),
            sync: Histogram::default(),
            synced_bytes: AtomicU64::new(0),
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

    fn count(&self, event: &Event) {
        let add = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
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

impl Listener for Metrics {
    fn applied(&self, _index: u64, events: &[Event]) {
        let (Some(engine), Some(first)) = (self.engine.get(), events.first()) else { return };
        let mut hand_overs = 0;
        let mut freed: Option<&Event> = None;
        for event in events {
            self.count(event);
            // A resource passes on in the same breath: the next event is its next holder's.
            hand_overs += u64::from(
                matches!(event.kind, EventKind::Activated { .. })
                    && freed.is_some_and(|freed| Arc::ptr_eq(&freed.resource, &event.resource)),
            );
            freed = Some(event).filter(|event| matches!(event.kind, EventKind::Ended { .. }));
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
