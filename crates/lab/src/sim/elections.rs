//! Elections after a cut, with nothing else wrong: all nodes miss a leader for seconds, and then reach each other at once.
//!
//! In:    a cluster that no fault has hit yet. Out: what was violated, if it took too many elections until somebody led.
//! Never: hurts anything but links: every node that votes is up, so nobody stands in the way of the first who is elected.

use leasehold_engine::machine::simulated::runtime::{self, now_us};

use super::cluster::{Cluster, NODES_MAX};
use super::world;
use crate::random::Random;

/// How long nothing passes. A node that has heard nobody for eight election timeouts calls for votes less often.
const CUT_US: (u64, u64) = (2_500_000, 6_000_000);
/// How long a cluster may take to have a leader that everybody follows.
const LEAD_US: u64 = 2_000_000;
/// Elections until then. One is enough, as a rule; two nodes may call for votes at the same time.
const TERMS_MAX: u64 = 4;
/// How often the leader is looked for.
const LOOK_EVERY_US: u64 = 5_000;

/// Cuts all links, a few times.
pub(super) fn after_cuts(cluster: &Cluster, random: &mut Random) -> Option<String> {
    for _ in 0..random.between(2, 5) {
        runtime::run_until(now_us() + random.between(50_000, 400_000));
        let pairs = (1..=NODES_MAX).flat_map(|from| (1..=NODES_MAX).map(move |to| (from, to)));
        world::with(|world| world.cut.extend(pairs));
        runtime::run_until(now_us() + random.between(CUT_US.0, CUT_US.1));
        let (before, until_us) = (term(cluster), now_us() + LEAD_US);
        world::with(|world| world.cut.clear());
        while !cluster.agrees() {
            if now_us() > until_us {
                return Some(format!("slow election: not all nodes serve {LEAD_US} us after a cut"));
            }
            runtime::run_until(now_us() + LOOK_EVERY_US);
        }
        let terms = term(cluster) - before;
        if terms > TERMS_MAX {
            return Some(format!("hasty votes: it took {terms} elections to have a leader after a cut"));
        }
        world::count("elected-after-cut");
    }
    None
}

/// The newest term that any node knows of.
fn term(cluster: &Cluster) -> u64 {
    let nodes = cluster.serving().into_iter().filter_map(world::node);
    nodes.map(|node| node.engine.term()).max().unwrap_or(0)
}
