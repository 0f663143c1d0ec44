//! What became of the backups that a node makes by itself (`backups.rs`).

use std::sync::atomic::AtomicU64;

/// What became of backups, for the metrics.
#[derive(Debug, Default)]
pub struct Counts {
    /// Seconds between two backups; 0: none are made.
    pub every_s: AtomicU64,
    /// When the last good one was made, in unix seconds; 0: never.
    pub last_good_s: AtomicU64,
    /// Its bytes.
    pub last_bytes: AtomicU64,
    /// Good ones since the start.
    pub done: AtomicU64,
    /// Those that failed.
    pub failed: AtomicU64,
}
