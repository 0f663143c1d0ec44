//! Waiting lock requests whose connections ended with their node.
//!
//! In:    the table's waiting claims. Out: withdrawals of those that nobody waits for any more.
//! Never: touches a lock that is held: its client may know of it.
//!
//! Of plain claims, only requests that stand open give up after a while, so a waiting one with a deadline is one of them; and the
//! id of each tells on which node it was made, and by which of its processes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ClaimId, View};
use leasehold_engine::machine::{self, Instant};
use leasehold_engine::{Engine, EngineError};

/// Why a request ended whose node was silent for too long.
pub(super) const NODE_SILENT: &str = "the node on which it waited was not heard for a while";
/// How long a node may be silent before its waiting requests lose their places. They have no other deadline than their
/// `wait`, which may be hours, and a lock that is granted to one of them is held by nobody for its whole lifetime.
const SILENT_MAX: Duration = Duration::from_secs(15);
/// How often a leader looks for silent nodes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a node waits before it tries again to withdraw what its last process left behind.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Withdraws the waiting requests of this node's last process: their connections ended with it.
pub async fn withdraw_orphans(engine: Arc<Engine>) {
    loop {
        let reason = "the server was started again while it waited";
        match withdraw(&engine, reason, |id| engine.is_of_earlier_run(id)).await {
            Ok(0) => return,
            Ok(orphans) => return tracing::info!(orphans, "lock requests of the last run were withdrawn"),
            Err(EngineError::Stopping) => return,
            // Nobody knows whether there are any. That no node leads is in the log already.
            Err(EngineError::NotLeader) => {}
            Err(error) => tracing::warn!(%error, "lock requests of the last run are not withdrawn yet"),
        }
        machine::sleep(AGAIN_AFTER).await;
    }
}

/// On the leader: withdraws the waiting requests of nodes that have been silent for too long, for ever.
pub async fn withdraw_of_silent_nodes(engine: Arc<Engine>) {
    // When each other node was last heard, and whether its requests have been withdrawn since.
    let mut others: BTreeMap<u64, (Instant, bool)> = BTreeMap::new();
    let mut last_turn = Instant::now();
    loop {
        machine::sleep(LOOK_EVERY).await;
        if !engine.leads() {
            others.clear();
            last_turn = Instant::now();
            continue;
        }
        let now = Instant::now();
        // A node that was frozen itself has heard nobody, and knows nothing: it begins to count again.
        if now.saturating_duration_since(last_turn) > 3 * LOOK_EVERY {
            others.clear();
        }
        last_turn = now;
        for (node, heard) in engine.others_heard().await {
            let other = others.entry(node).or_insert((now, false));
            if heard {
                *other = (now, false);
            }
        }
        for (node, (since, withdrawn)) in &mut others {
            if *withdrawn || since.elapsed() < SILENT_MAX {
                continue;
            }
            // Its barrier proves that this node still leads, and that its table has all that was granted.
            match withdraw(&engine, NODE_SILENT, |id| engine.is_of_node(id, *node)).await {
                Ok(orphans) => {
                    *withdrawn = true;
                    if orphans > 0 {
                        tracing::info!(node, orphans, "lock requests of a silent node were withdrawn");
                    }
                }
                Err(error) => tracing::warn!(node, %error, "lock requests of a silent node wait on"),
            }
        }
    }
}

async fn withdraw(
    engine: &Engine,
    reason: &str,
    is_orphan: impl Fn(ClaimId) -> bool,
) -> Result<usize, EngineError> {
    // A waiting set may have a deadline too, and the id of a set tells nothing about nodes.
    let is_open_request = |view: &View| view.claim.deadline_us().is_some() && view.set.is_none();
    let is_orphan = |view: &View| is_open_request(view) && is_orphan(view.claim.id);
    engine.withdraw_waiting(reason, is_orphan).await
}
