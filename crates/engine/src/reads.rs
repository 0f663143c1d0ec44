//! The read barrier: after it, this node's table has everything that any node acknowledged before it.
//!
//! In:    reads that wait. Out: the moment at which they may look. One question to the majority serves all waiting reads.
//! Never: trusts a clock: the leader asks a majority whether it still leads.

use std::time::Duration;

use openraft::raft::ReadPolicy;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::leadership::Role;
use super::peer::{Ask, PeerAnswer};
use super::{Engine, EngineError, hops};
use crate::machine::{self, Instant};

/// How long this node may take to catch up with its leader before it asks again which node leads.
const APPLY_MAX: Duration = Duration::from_secs(2);

/// How long one barrier may take. A read that arrives during a barrier waits for the next one: twice as long at most.
const BARRIER_MAX: Duration = Duration::from_secs(3);
/// How long a read may wait.
const READ_MAX: Duration = Duration::from_secs(6);
/// How long the leader may take to confirm with a majority that it leads.
const CONFIRM_MAX: Duration = Duration::from_secs(2);

/// A stale read starts no new barrier if the table is known to be no older than this.
const NEW_ENOUGH: Duration = Duration::from_millis(100);

/// Tells a waiting read that the table is new enough, or that it never will be.
type ReadWaiter = oneshot::Sender<Result<(), EngineError>>;

/// Reads that wait for the next barrier.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    waiting: Mutex<Vec<ReadWaiter>>,
    wake: Notify,
}

impl Barrier {
    /// Starts a barrier without waiting for it, unless one has just ended or is under way.
    pub(super) fn pass_for_nobody(&self, newest: Option<Instant>) {
        if newest.is_some_and(|at| at.elapsed() < NEW_ENOUGH) {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            waiting.push(oneshot::channel().0);
            self.wake.notify_one();
        }
    }
}

impl Engine {
    /// Whether this node is a cluster of one. Then its table is always new enough.
    pub fn is_alone(&self) -> bool {
        self.leadership.is_alone()
    }

    /// Returns when this node's table has everything that was acknowledged before the call, by any node.
    pub async fn barrier(&self) -> Result<(), EngineError> {
        #[cfg(feature = "sim")]
        if crate::machine::simulated::is_planted(crate::machine::simulated::Bug::StaleRead) {
            return Ok(());
        }
        // A cluster of one acknowledges only what its own table has applied.
        if self.is_alone() {
            return Ok(());
        }
        let (reply, passed) = oneshot::channel();
        let traced = hops::current().map(|request| (request, Instant::now()));
        self.barrier.waiting.lock().push(reply);
        self.barrier.wake.notify_one();
        // The timeout also ends reads while the engine's thread waits for its disk.
        let passed = machine::timeout(READ_MAX, passed).await;
        if let Some((request, asked)) = traced {
            request.note("barrier", asked, Instant::now());
        }
        match passed {
            Ok(passed) => passed.unwrap_or(Err(EngineError::Stopping)),
            Err(_) => Err(EngineError::TooSlow),
        }
    }

    /// Serves waiting reads for ever, all of them with one question.
    pub(super) async fn serve_barriers(self: std::sync::Arc<Self>) {
        loop {
            self.barrier.wake.notified().await;
            let waiting = std::mem::take(&mut *self.barrier.waiting.lock());
            if waiting.is_empty() {
                continue;
            }
            let asked = Instant::now();
            let passed = machine::timeout(BARRIER_MAX, self.pass()).await;
            let passed = passed.unwrap_or(Err(EngineError::NotLeader));
            if passed.is_ok() {
                self.newest.note(asked);
            }
            waiting.into_iter().for_each(|reply| drop(reply.send(passed.clone())));
        }
    }

    async fn pass(&self) -> Result<(), EngineError> {
        loop {
            let passed = match self.leadership.role() {
                Role::Gone => return Err(EngineError::NotLeader),
                Role::None => None,
                Role::Leads { .. } => self.leader_barrier().await.ok(),
                Role::Follows { leader } => {
                    let asked = tokio::select! {
                        biased;
                        asked = self.peers.ask(leader, &Ask::Barrier) => asked,
                        // If the leader is gone, ask the next one without waiting for this one's timeout.
                        () = self.leadership.reader.notified() => continue,
                    };
                    let passed = match asked {
                        Ok(PeerAnswer::Barrier { index, now_us }) => Some((index, now_us)),
                        _ => None,
                    };
                    self.leadership.leader_took(passed.is_some());
                    passed
                }
            };
            if let Some((index, now_us)) = passed
                && machine::timeout(APPLY_MAX, self.shared.wait_applied(index)).await.is_ok()
            {
                self.clock.told(now_us);
                return Ok(());
            }
            let changed = self.leadership.reader.notified();
            machine::timeout(Duration::from_millis(20), changed).await.ok();
        }
    }

    /// On the leader: the newest entry that may have been acknowledged, and the table's time, once a majority has
    /// confirmed that it still leads.
    pub(super) async fn leader_barrier(&self) -> Result<(u64, u64), EngineError> {
        if !matches!(self.leadership.role(), Role::Leads { .. }) {
            return Err(EngineError::NotLeader);
        }
        let confirmed = self.raft().ensure_linearizable(ReadPolicy::ReadIndex);
        let Ok(Ok(read)) = machine::timeout(CONFIRM_MAX, confirmed).await else {
            return Err(EngineError::NotLeader);
        };
        Ok((read.index(), self.clock.now_us()))
    }
}
