//! What all parts of a simulation share: who runs, who reaches whom, and what was found wrong.
//!
//! In:    faults from `faults.rs`. Out: the fate of segments, nodes for whoever talks to one; the first violation.
//! Never: lives longer than one seed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_core::{ClaimId, Table};
use leasehold_engine::Engine;
use leasehold_engine::machine::simulated;
use leasehold_server::app::App;

use crate::history::{Handle, Item, Op};
use crate::random::Random;

/// Every so many entries the nodes' tables are compared.
const COMPARE_EVERY: u64 = 16;

/// A running node.
#[derive(Clone)]
pub(super) struct Running {
    pub(super) engine: Arc<Engine>,
    pub(super) app: Arc<App>,
}

/// The state of the world.
pub(super) struct World {
    pub(super) random: Random,
    /// Ways, from one node to another, on which nothing passes.
    pub(super) cut: BTreeSet<(u64, u64)>,
    /// Segments in a hundred that are lost.
    pub(super) loss: u64,
    /// The longest way.
    pub(super) delay_us: u64,
    /// Nodes with a slow line, and how many bytes it carries in a millisecond.
    pub(super) slow: BTreeMap<u64, u64>,
    pub(super) nodes: BTreeMap<u64, Running>,
    /// Nodes that did not start, and why.
    pub(super) refused: BTreeMap<u64, String>,
    /// Why a node did not start the last time that it did not.
    pub(super) last_refusals: BTreeMap<u64, String>,
    /// Nodes that are out of the cluster.
    pub(super) left: BTreeSet<u64>,
    /// How far each node's wall clock is ahead.
    pub(super) wall_us: BTreeMap<u64, u64>,
    /// How long a sync of each disk takes at the most.
    pub(super) sync_us: BTreeMap<u64, u64>,
    digests: BTreeMap<u64, [u8; 32]>,
    pub(super) violation: Option<String>,
    pub(super) counts: BTreeMap<&'static str, u64>,
    pub(super) ops: Vec<Op>,
    pub(super) handles: u64,
    /// Every claim that was ever asked for under an id of the client's.
    pub(super) claims: Vec<(Handle, Arc<[Item]>, ClaimId)>,
    /// Those of which the service said that nothing happened.
    pub(super) never: BTreeSet<Handle>,
    /// Claims of `clients::claim_once` of which the service said the same.
    pub(super) refused_ids: Vec<ClaimId>,
    /// When each token was acknowledged.
    pub(super) acknowledged: Vec<(u64, u64)>,
    /// How often each node was started, and when last.
    pub(super) starts: BTreeMap<u64, (u64, u64)>,
    /// When each node first served again after everything was healed.
    pub(super) served_us: BTreeMap<u64, u64>,
    /// Lock requests whose clients went away: the resource, and the process of the node that was asked.
    pub(super) ghosts: Vec<(String, u64, u64)>,
    pub(super) stop: bool,
    pub(super) clients_at_work: u64,
}

impl World {
    fn new(random: Random) -> Self {
        Self {
            random,
            cut: BTreeSet::new(),
            loss: 0,
            delay_us: 3_000,
            slow: BTreeMap::new(),
            nodes: BTreeMap::new(),
            refused: BTreeMap::new(),
            last_refusals: BTreeMap::new(),
            left: BTreeSet::new(),
            wall_us: BTreeMap::new(),
            sync_us: BTreeMap::new(),
            digests: BTreeMap::new(),
            violation: None,
            counts: BTreeMap::new(),
            ops: Vec::new(),
            handles: 0,
            claims: Vec::new(),
            never: BTreeSet::new(),
            refused_ids: Vec::new(),
            acknowledged: Vec::new(),
            starts: BTreeMap::new(),
            served_us: BTreeMap::new(),
            ghosts: Vec::new(),
            stop: false,
            clients_at_work: 0,
        }
    }
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Begins anew; the old world is dropped first.
pub(super) fn reset(random: Option<Random>) {
    let old = WORLD.with(|world| world.borrow_mut().take());
    drop(old);
    WORLD.with(|world| *world.borrow_mut() = random.map(World::new));
}

/// The nodes, if there is a world: they go before it.
pub(super) fn take_nodes() -> Option<BTreeMap<u64, Running>> {
    WORLD.with(|world| Some(std::mem::take(&mut world.borrow_mut().as_mut()?.nodes)))
}

/// Looks at the world.
pub(super) fn with<T>(look: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with(|world| look(world.borrow_mut().as_mut().expect("a simulation runs")))
}

/// The world as the nodes see it.
pub(super) struct Around;

impl simulated::World for Around {
    fn segment(&self, from: u64, to: u64, len: u64) -> Option<u64> {
        with(|world| {
            let lost = world.cut.contains(&(from, to)) || world.random.percent(world.loss);
            let line_us = |node| world.slow.get(&node).map_or(0, |bytes_per_ms| len * 1_000 / bytes_per_ms);
            let line_us = line_us(from) + line_us(to);
            let after_us = 100 + world.random.below(world.delay_us) + line_us;
            if lost {
                *world.counts.entry("segment-lost").or_default() += 1;
            }
            (!lost).then_some(after_us)
        })
    }

    /// Mostly an Ethernet's; some ways are so narrow that every frame comes in pieces.
    fn segment_len(&self) -> u64 {
        with(|world| if world.random.percent(75) { 1_448 } else { world.random.between(16, 400) })
    }

    fn wall_ahead_us(&self, node: u64) -> u64 {
        with(|world| world.wall_us.get(&node).copied().unwrap_or(0))
    }

    fn sync_us(&self, node: u64) -> u64 {
        with(|world| {
            let slow_us = world.sync_us.get(&node).copied().unwrap_or(4_000);
            50 + world.random.below(slow_us)
        })
    }

    /// After every entry on every node: the table is consistent, and the same as that of the others at this entry.
    fn applied(&self, node: u64, index: u64, table: &Table) {
        tracing::debug!("entry {index} is applied, of {} us by the table clock", table.clock().now_us);
        if let Err(wrong) = table.check(true) {
            violate(format!("table check: node {node}, entry {index}: {wrong}"));
        }
        if index.is_multiple_of(COMPARE_EVERY) {
            let digest = table.freeze().digest();
            let known = with(|world| *world.digests.entry(index).or_insert(digest));
            if known != digest {
                violate(format!(
                    "digests differ: node {node} has another table after entry {index} than a node before it"
                ));
            }
        }
    }

    fn count(&self, what: &'static str) {
        count(what);
    }
}

/// Some node that runs.
pub(super) fn any_node(random: &mut Random) -> Option<u64> {
    let up: Vec<u64> = with(|world| world.nodes.keys().copied().collect());
    (!up.is_empty()).then(|| *random.pick(&up))
}

pub(super) fn node(id: u64) -> Option<Running> {
    with(|world| world.nodes.get(&id).cloned())
}

/// Something was done to a node; a trace of the run tells it, too.
pub(super) fn count_of(node: u64, what: &'static str) {
    tracing::info!("{what} (node {node})");
    count(what);
}

pub(super) fn count(what: &'static str) {
    with(|world| *world.counts.entry(what).or_default() += 1);
}

pub(super) fn violate(what: String) {
    tracing::error!("violation: {what}");
    with(|world| {
        world.violation.get_or_insert(what);
    });
}
