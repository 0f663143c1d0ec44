//! One simulated node: takes commands from clients, gets them into the log wherever that is, and answers reads.
//!
//! In:    commands and questions. Out: outcomes, once this node's own table has them; as `engine/propose.rs`,
//!        `awaited.rs`, `reads.rs` and `clock.rs` of the server do it, in simulated time.
//! Never: sends a parcel again under another name.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ClaimId, Command, Outcome, Stamp, View};
use leasehold_server::engine::entry::{Origin, Parcel, Proposal};
use openraft::async_runtime::{AsyncRuntime, WatchReceiver};
use openraft::raft::ReadPolicy;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Bug;
use super::machine::Node;
use super::network::carry;
use super::runtime::{SimRuntime, now_us, sleep_us};
use super::types::Raft;
use super::world;

/// As `STALL_MAX` of the server.
const STALL_MAX_US: u64 = 1_000_000;
/// How long a node tries before it says that an outcome is unknown.
const PATIENCE_US: u64 = 4_000_000;

/// A running node.
pub(super) struct SimNode {
    pub(super) id: u64,
    pub(super) raft: Raft,
    pub(super) shared: Arc<Mutex<Node>>,
    pub(super) clock: Mutex<Clock>,
    pub(super) bug: Option<Bug>,
}

/// The table clock of a node while it leads.
#[derive(Debug, Default)]
pub(super) struct Clock {
    term: u64,
    now_us: u64,
    at_us: u64,
    last_us: u64,
    /// The newest parcel of this run.
    parcels: u64,
    /// How fast its crystal is, in millionths too much.
    fast_ppm: u64,
}

impl Clock {
    pub(super) fn new(fast_ppm: u64) -> Self {
        Self { fast_ppm, ..Self::default() }
    }

    fn local_us(&self) -> u64 {
        now_us() + now_us() * self.fast_ppm / 1_000_000
    }

    fn lead(&mut self, term: u64, table_us: u64) {
        if self.term != term {
            (self.term, self.now_us, self.at_us) = (term, table_us.max(self.last_us), self.local_us());
        }
    }

    fn pulse(&mut self) {
        let local_us = self.local_us();
        self.now_us += (local_us - self.at_us).min(STALL_MAX_US);
        self.at_us = local_us;
    }

    fn stamp(&mut self) -> u64 {
        self.pulse();
        self.last_us = self.now_us.max(self.last_us + 1);
        self.last_us
    }
}

impl SimNode {
    fn leader(&self) -> Option<u64> {
        self.raft.metrics().borrow_watched().current_leader
    }

    fn term(&self) -> u64 {
        self.raft.metrics().borrow_watched().current_term
    }

    fn stamp(&self) -> Stamp {
        let wall_us = now_us() + world::with(|world| world.wall_us.get(&self.id).copied().unwrap_or(0));
        let now_us = self.clock.lock().stamp();
        let now_us = if self.bug == Some(Bug::WallClock) { wall_us } else { now_us };
        Stamp { now_us, wall_us }
    }

    /// Commands into the log, once; their outcomes, or nobody knows.
    pub(super) async fn submit(self: Arc<Self>, commands: Vec<Command>) -> Option<Vec<Outcome>> {
        let (reply, mut outcome) = oneshot::channel();
        let origin = {
            let mut clock = self.clock.lock();
            clock.parcels += 1;
            let mut shared = self.shared.lock();
            shared.awaited.insert(clock.parcels, reply);
            Origin { node: self.id, run: shared.run, number: clock.parcels }
        };
        let parcel = Parcel { origin: Some(origin), commands: Arc::new(commands) };
        let end_us = now_us() + PATIENCE_US;
        while now_us() < end_us {
            match self.leader() {
                Some(leader) if leader == self.id => drop(self.propose(parcel.clone()).await),
                Some(leader) => {
                    let parcel = parcel.clone();
                    let ask = move |_| {
                        let parcel = parcel.clone();
                        async move { world::node(leader)?.propose(parcel).await }
                    };
                    carry(self.id, leader, Duration::from_millis(300), ask).await;
                }
                None => {}
            }
            match SimRuntime::timeout(Duration::from_millis(300), &mut outcome).await {
                Ok(outcomes) => return outcomes.ok(),
                Err(_) => world::count("parcel-sent-again"),
            }
        }
        self.shared.lock().awaited.remove(&origin.number);
        None
    }

    /// On the leader.
    async fn propose(&self, parcel: Parcel) -> Option<()> {
        let term = self.term();
        if self.leader() != Some(self.id) {
            return None;
        }
        if self.clock.lock().term != term {
            let caught_up = self.raft.ensure_linearizable(ReadPolicy::ReadIndex);
            SimRuntime::timeout(Duration::from_millis(300), caught_up).await.ok()?.ok()?;
            let table_us = self.shared.lock().table.clock().now_us;
            self.clock.lock().lead(term, table_us);
        }
        let proposal = Arc::new(Proposal { stamp: self.stamp(), parcels: vec![parcel] });
        let written = self.raft.client_write(proposal);
        SimRuntime::timeout(Duration::from_millis(250), written).await.ok()?.ok()?;
        Some(())
    }

    /// While it leads, its clock goes on and what is due ends.
    pub(super) async fn tick(self: Arc<Self>) {
        loop {
            sleep_us(50_000).await;
            if self.leader() != Some(self.id) || self.clock.lock().term != self.term() {
                continue;
            }
            self.clock.lock().pulse();
            let due_us = self.shared.lock().table.earliest_deadline_us();
            let now_us = match self.bug {
                Some(Bug::WallClock) => self.stamp().now_us,
                _ => self.clock.lock().now_us,
            };
            if due_us.is_some_and(|due_us| due_us <= now_us) {
                self.propose(Parcel { origin: None, commands: Arc::new(vec![Command::Tick]) }).await;
            }
        }
    }

    async fn barrier(&self) -> Option<u64> {
        let read = self.raft.ensure_linearizable(ReadPolicy::ReadIndex);
        let read = SimRuntime::timeout(Duration::from_millis(300), read).await.ok()?.ok()?;
        Some(read.index())
    }

    /// A claim as it is now, or that there is none; or no answer.
    pub(super) async fn read(self: Arc<Self>, id: ClaimId) -> Option<Option<View>> {
        let look = |node: &Self| {
            let shared = node.shared.lock();
            Some(shared.table.claim_view(id, shared.table.clock().now_us))
        };
        if self.bug == Some(Bug::StaleRead) {
            return look(&self);
        }
        let end_us = now_us() + PATIENCE_US;
        while now_us() < end_us {
            let barrier = match self.leader() {
                Some(leader) if leader == self.id => self.barrier().await,
                Some(leader) => {
                    let ask = move |_| async move { world::node(leader)?.barrier().await };
                    carry(self.id, leader, Duration::from_millis(400), ask).await
                }
                None => None,
            };
            for _ in 0..if barrier.is_some() { 50 } else { 0 } {
                if self.shared.lock().applied.map(|id| id.index) >= barrier {
                    return look(&self);
                }
                sleep_us(10_000).await;
            }
            sleep_us(20_000).await;
        }
        None
    }
}
