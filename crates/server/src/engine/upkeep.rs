//! What happens without any request: claims expire, and the log is cut.
//!
//! In:    the table's earliest deadline, the length of the log. Out: ticks, which end what is due; snapshots.
//! Never: ends a claim itself: a tick is a command like any other, and the table decides.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::Command;

use super::leadership::Role;
use super::state_machine::NO_DEADLINE;
use super::{Engine, snapshot_file};
use crate::outside::{self, Instant};

/// Entries are stamped at least this often while anything is held that has a deadline.
const STAMP_EVERY_US: u64 = 1_000_000;
/// The shortest pause before the clock is looked at again: what the timer can tell apart.
const TICK_PAUSE_MIN: Duration = Duration::from_millis(1);
/// A snapshot is so many times as large as the log that makes it due, in a large table. A start applies that log: with
/// fewer it takes longer; with more, snapshots are most of what is written. So they are up to three times the log
/// while claims are renewed, and four times what they end up with while the table grows.
const SNAPSHOT_TO_LOG: u64 = 3;

/// Moves the table clock when something is due, so that expiry and hand-over need no request.
pub(super) async fn tick(engine: Arc<Engine>) {
    let mut last_us = 0;
    let mut configured = None;
    loop {
        let Role::Leads { term } = engine.leadership.role() else {
            engine.leadership.ticker.notified().await;
            continue;
        };
        if configured != Some(term) {
            configured = Some(term);
            if let Err(error) = engine.configure().await {
                tracing::warn!(%error, "the settings of this node could not be made the table's");
            }
        }
        let deadline_us = engine.shared.earliest_deadline_us.load(Ordering::Acquire);
        if deadline_us == NO_DEADLINE {
            tokio::select! {
                biased;
                () = engine.shared.deadline_moved.notified() => {}
                () = engine.leadership.ticker.notified() => {}
            }
            continue;
        }
        last_us = engine.shared.table.read().clock().now_us.max(last_us);
        let next_us = deadline_us.min(last_us + STAMP_EVERY_US);
        if next_us > engine.clock.now_us() {
            // A clock that stands still, since its leader has not pulsed for a while, must not be asked again at once.
            let at = engine.clock.instant_of(next_us).max(Instant::now() + TICK_PAUSE_MIN);
            tokio::select! {
                biased;
                () = outside::sleep_until(at) => {}
                () = engine.shared.deadline_moved.notified() => {}
                () = engine.leadership.ticker.notified() => {}
            }
        } else if let Err(error) = engine.submit(Command::Tick).await {
            tracing::warn!(%error, "the clock of the table could not be moved");
            outside::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Takes a snapshot when the log has become long, so that it can be cut.
pub(super) async fn take_snapshots(engine: Arc<Engine>) {
    let dir = engine.snapshot_dir();
    // What the last snapshot left behind for nodes that were away for a moment does not count as growth.
    let mut left = 0;
    loop {
        outside::sleep(Duration::from_millis(250)).await;
        let bytes = engine.log.wal().log_bytes();
        left = bytes.min(left);
        let last = snapshot_file::newest_len(&dir).unwrap_or(0);
        if bytes - left < engine.config.snapshot_log_bytes.max(last / SNAPSHOT_TO_LOG) {
            continue;
        }
        let mut progress = engine.raft.watch_snapshot_progress();
        if engine.raft.trigger().snapshot().await.is_err() {
            return;
        }
        let _ = outside::timeout(Duration::from_secs(120), progress.changed()).await;
        left = engine.log.wal().log_bytes();
    }
}
