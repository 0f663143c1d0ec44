//! The last half hour in steps of ten seconds: what the charts of the dashboard show.
//!
//! In:    events, with the wall time of their entry, also those replayed at a start. Out: sums a step.
//! Never: decides anything by wall time; it is for display.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_core::{Event, EventKind, Status};
use serde_json::{Value, json};

use leasehold_engine::clock::wall_us;
use leasehold_engine::publish::Listener;

/// Seconds a step.
pub const STEP_SECONDS: u64 = 10;
/// Steps that are kept.
pub const STEPS: usize = 180;

/// Sums by step.
#[derive(Debug)]
pub struct Series {
    steps: Box<[Step]>,
}

#[derive(Debug, Default)]
struct Step {
    /// Which one it is, counted from 1970; a later one takes its place.
    number: AtomicU64,
    granted: AtomicU64,
    queued: AtomicU64,
    expired: AtomicU64,
    revoked: AtomicU64,
    ended: AtomicU64,
    waited_us: AtomicU64,
    waited_max_us: AtomicU64,
    /// Left a queue: granted after a wait, or ended before it was granted.
    unqueued: AtomicU64,
    /// Ended after it had held.
    freed: AtomicU64,
    held_us: AtomicU64,
    held_max_us: AtomicU64,
}

impl Default for Series {
    fn default() -> Self {
        Self { steps: (0..STEPS).map(|_| Step::default()).collect() }
    }
}

impl Step {
    fn all(&self) -> [&AtomicU64; 11] {
        [
            &self.granted,
            &self.queued,
            &self.expired,
            &self.revoked,
            &self.ended,
            &self.waited_us,
            &self.waited_max_us,
            &self.unqueued,
            &self.freed,
            &self.held_us,
            &self.held_max_us,
        ]
    }

    fn count(&self, event: &Event) {
        let add = |counter: &AtomicU64, more: u64| {
            counter.fetch_add(more, Ordering::Relaxed);
        };
        match event.kind {
            EventKind::Queued => add(&self.queued, 1),
            EventKind::Renewed | EventKind::Revoking => {}
            EventKind::Activated { waited_us } => {
                add(&self.granted, 1);
                add(&self.waited_us, waited_us);
                add(&self.unqueued, u64::from(waited_us > 0));
                self.waited_max_us.fetch_max(waited_us, Ordering::Relaxed);
            }
            EventKind::Ended { status, held_us } => {
                add(&self.ended, 1);
                let had_held = event.token > 0;
                add(if had_held { &self.freed } else { &self.unqueued }, 1);
                add(&self.held_us, held_us);
                self.held_max_us.fetch_max(held_us, Ordering::Relaxed);
                match status {
                    Status::Expired => add(&self.expired, 1),
                    Status::Revoked => add(&self.revoked, 1),
                    _ => {}
                }
            }
        }
    }
}

impl Listener for Series {
    fn applied(&self, _index: u64, events: &[Event]) {
        let Some(first) = events.first() else { return };
        let number = first.stamp.wall_us / 1_000_000 / STEP_SECONDS;
        let step = &self.steps[number as usize % STEPS];
        // Only the thread that applies writes.
        let before = step.number.load(Ordering::Relaxed);
        if before > number {
            return;
        }
        if before < number {
            step.all().into_iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
            step.number.store(number, Ordering::Release);
        }
        // One event for each item: the first one stands for the claim.
        events.iter().filter(|event| event.item == 0).for_each(|event| step.count(event));
    }
}

impl Series {
    /// Everything, oldest step first; the last one is not over yet.
    pub fn to_json(&self) -> Value {
        let newest = wall_us() / 1_000_000 / STEP_SECONDS;
        let oldest = newest.saturating_sub(STEPS as u64 - 1);
        let column = |pick: fn(&Step) -> &AtomicU64| -> Vec<u64> {
            let value = |number: u64| {
                let step = &self.steps[number as usize % STEPS];
                let valid = step.number.load(Ordering::Acquire) == number;
                if valid { pick(step).load(Ordering::Relaxed) } else { 0 }
            };
            (oldest..=newest).map(value).collect()
        };
        let seconds = |pick: fn(&Step) -> &AtomicU64| -> Vec<f64> {
            column(pick).into_iter().map(|us| us as f64 / 1e6).collect()
        };
        json!({
            "start": oldest * STEP_SECONDS,
            "step": STEP_SECONDS,
            "granted": column(|step| &step.granted),
            "queued": column(|step| &step.queued),
            "expired": column(|step| &step.expired),
            "revoked": column(|step| &step.revoked),
            "ended": column(|step| &step.ended),
            "unqueued": column(|step| &step.unqueued),
            "freed": column(|step| &step.freed),
            "waited": seconds(|step| &step.waited_us),
            "waited_max": seconds(|step| &step.waited_max_us),
            "held": seconds(|step| &step.held_us),
            "held_max": seconds(|step| &step.held_max_us),
        })
    }
}
