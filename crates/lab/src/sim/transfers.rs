//! Leadership changes hands while nothing is wrong: the node that is asked leads soon, with clients at work.
//!
//! In:    a cluster that no fault has hit yet. Out: what was violated, if a transfer took too long.
//! Never: waits until the node is asked again: a first question that comes to nothing must be seen.

use leasehold_engine::machine::simulated::runtime::{self, now_us};

use super::cluster::Cluster;
use super::world;
use crate::random::Random;

/// How long a transfer may take. The old leader asks again after a second.
const TRANSFER_US: u64 = 900_000;
/// How often the new leader is looked for.
const LOOK_EVERY_US: u64 = 10_000;

/// Has other nodes lead, a few times.
pub(super) fn in_calm(cluster: &mut Cluster, random: &mut Random) -> Option<String> {
    for _ in 0..random.between(1, 4) {
        runtime::run_until(now_us() + random.between(50_000, 400_000));
        let Some(leader) = cluster.leader() else { continue };
        let others: Vec<u64> = cluster.serving().into_iter().filter(|id| *id != leader).collect();
        let to = *random.pick(&others);
        let until_us = now_us() + TRANSFER_US;
        cluster.transfer(leader, to);
        while !world::node(to).is_some_and(|node| node.engine.leads()) {
            if now_us() > until_us {
                return Some(format!(
                    "slow transfer: node {to} does not lead {TRANSFER_US} us after node {leader} was asked to hand over"
                ));
            }
            runtime::run_until(now_us() + LOOK_EVERY_US);
        }
        world::count("transfer-in-calm");
    }
    None
}
