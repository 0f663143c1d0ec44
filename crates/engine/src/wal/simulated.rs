//! The log's two threads as tasks of the simulation.
//!
//! In:    appends. Out: a flush after the time that the disk takes, and now and then a round of the keeper.
//! Never: writes by itself: `flusher.rs` and `keeper.rs` do, as in the service.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Handle, SharedWal};
use crate::machine;
use crate::machine::simulated::runtime::{current_node, sleep_us};
use crate::machine::simulated::world;

/// How often the keeper looks whether there is space again.
const KEEP_EVERY_US: u64 = 1_000_000;

/// Has everything that is queued flushed when the disk is done with what came before.
pub(super) fn flush_soon(handle: &Arc<Handle>) {
    if handle.flushing.swap(true, Ordering::Relaxed) {
        return;
    }
    let handle = handle.clone();
    let took_us = world().sync_us(current_node());
    machine::spawn(async move {
        sleep_us(took_us).await;
        handle.flushing.store(false, Ordering::Relaxed);
        handle.flusher.lock().flush();
        handle.shared.keeper.work();
    });
}

/// Prepares segments as long as the log is used.
pub(super) fn keep(shared: &Arc<SharedWal>) {
    shared.keeper.work();
    let shared = Arc::downgrade(shared);
    machine::spawn(async move {
        loop {
            sleep_us(KEEP_EVERY_US).await;
            let Some(shared) = shared.upgrade() else { return };
            shared.keeper.work();
        }
    });
}
