//! Whether every node serves: it acknowledges a write and a read.
//!
//! In:    nodes, once everything is healed. Out: a violation for each that takes too long, from the moment of healing or from
//!        its own start, whichever was later.
//! Never: waits for one answer only: a client asks again, and so does this.

use std::sync::Arc;

use leasehold_core::{ClaimId, Command, NewClaim, OnBusy};
use leasehold_engine::Engine;
use leasehold_engine::machine::simulated::runtime::{self, now_us, sleep_us};

use super::world;

/// How long a node may take to serve after everything was healed, however long a cut has lasted.
pub(super) const SERVE_US: u64 = 2_000_000;
/// How often a node is asked.
const ASK_EVERY_US: u64 = 100_000;

/// Asks these nodes until each has served, and says which of them takes too long.
pub(super) fn watch(nodes: &[u64]) {
    let healed_us = now_us();
    for node in nodes.iter().copied() {
        world::with(|world| world.served_us.remove(&node));
        runtime::spawn_on(0, async move {
            let served = || world::with(|world| world.served_us.get(&node).copied());
            for round in 0.. {
                if served().is_some() {
                    return count(served().unwrap_or(0) - healed_us);
                }
                let started_us = world::with(|world| world.starts.get(&node).map_or(0, |start| start.1));
                // One that has stopped is no live member, and starts again.
                let is_live = !world::with(|world| world.refused.contains_key(&node));
                if is_live && now_us() > healed_us.max(started_us) + SERVE_US {
                    return world::violate(format!(
                        "a node does not serve: node {node}, {SERVE_US} us after everything was healed"
                    ));
                }
                if let Some(running) = world::node(node) {
                    ask(node, running.engine, round);
                }
                sleep_us(ASK_EVERY_US).await;
            }
        });
    }
}

fn count(took_us: u64) {
    world::count(match took_us / 1_000_000 {
        0 => "served-within-1-s",
        1 => "served-within-2-s",
        2 => "served-within-3-s",
        _ => "served-later",
    });
}

/// A node that acknowledges no write and no read, if there is one.
pub(super) fn idle_node(nodes: &[u64]) -> Option<u64> {
    world::with(|world| world.served_us.clear());
    for (round, _) in (0..SERVE_US / ASK_EVERY_US).enumerate() {
        let served = |node: &u64| world::with(|world| world.served_us.contains_key(node));
        if nodes.iter().all(served) {
            return None;
        }
        for node in nodes.iter().copied().filter(|node| !served(node)) {
            if let Some(running) = world::node(node) {
                ask(node, running.engine, 1_000 + round as u64);
            }
        }
        runtime::run_until(now_us() + ASK_EVERY_US);
    }
    nodes.iter().copied().find(|node| world::with(|world| !world.served_us.contains_key(node)))
}

/// Has a node write and read once.
fn ask(node: u64, engine: Arc<Engine>, round: u64) {
    let number = world::with(|world| world.starts.get(&node).map_or(0, |start| start.0)) << 32 | round;
    runtime::spawn_on(node, async move {
        let id = ClaimId::from_u128(u128::MAX - (u128::from(node) << 64) - u128::from(number));
        let resource = format!("served by {node}/{number}");
        let new = NewClaim::new(id, &resource, "check", Some(0), OnBusy::Queue);
        if engine.submit(Command::Claim(new)).await.is_ok() && engine.barrier().await.is_ok() {
            world::with(|world| *world.served_us.entry(node).or_insert(now_us()));
        }
    });
}
