//! Memory: a node whose table is too large for its machine goes on, and takes nothing that would make the table larger.
//!
//! In:    what the process has in memory, looked at twice a second. Out: whether commands that make the table larger are taken
//!        (`propose.rs`): on the leader those of every node, elsewhere a node's own.
//! Never: decides what `apply` does: renewals, releases and ticks pass, and what is in the log is applied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Engine;
use super::wakeups::sleep_about;
use crate::machine;

/// How often a node looks. At 100 MB a second, as fast as a log grows, half a second takes 50 MB.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The default limit: this fraction of the memory of the machine, or of the process's control group. The rest is for requests,
/// for the log's cache, and for the pages that a snapshot keeps while they change.
const PART_OF_ALL: (u64, u64) = (3, 4);

/// A full node takes all commands again when its memory is one part in this many below the limit.
const RELIEF: u64 = 20;

/// Whether there is memory for a larger table.
#[derive(Debug)]
pub struct MemoryGuard {
    /// With more than this in memory, the node is full.
    max_bytes: u64,
    full: AtomicBool,
}

impl MemoryGuard {
    /// A guard with an operator's limit, or one that fits the machine.
    pub(super) fn new(max_bytes: Option<u64>) -> Self {
        let of_all = |all: u64| all / PART_OF_ALL.1 * PART_OF_ALL.0;
        let max_bytes = max_bytes.or_else(|| machine::memory_bytes().map(of_all)).unwrap_or(u64::MAX);
        Self { max_bytes, full: AtomicBool::default() }
    }

    /// Whether the node refuses commands that make the table larger.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// The limit.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Looks now.
    pub(super) fn look(&self) {
        let Some(used) = machine::resident_bytes() else { return };
        let max = self.max_bytes;
        let was_full = self.is_full();
        let full = if was_full { used > max - max / RELIEF } else { used > max };
        self.full.store(full, Ordering::Relaxed);
        match (was_full, full) {
            (false, true) => tracing::error!(
                used,
                max,
                "this node's memory is full: claims are refused (507) as long as it leads; renewals and releases are \
                 accepted. Lower the budgets (`leasehold limits`), or give it more memory (--memory-max-mib)"
            ),
            (true, false) => tracing::info!(used, max, "there is memory again: claims are accepted"),
            _ => {}
        }
    }
}

/// Looks again and again.
pub(super) async fn watch(engine: Arc<Engine>) {
    loop {
        sleep_about(LOOK_EVERY).await;
        engine.memory.look();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_without_a_setting_fits_the_machine() {
        let max = MemoryGuard::new(None).max_bytes();
        let all = machine::memory_bytes().expect("this machine has memory");
        assert!((all / 2..all).contains(&max), "{max} of {all}");
    }

    #[test]
    fn a_process_beyond_its_limit_is_full() {
        let guard = MemoryGuard::new(Some(1 << 10));
        guard.look();
        assert!(guard.is_full());
        let roomy = MemoryGuard::new(Some(u64::MAX));
        roomy.look();
        assert!(!roomy.is_full());
    }
}
