//! The engine: makes commands durable and ordered, then applies them to the table.
//!
//! In:    [`Engine::submit`] with commands, [`Engine::read`] with questions. Out: outcomes, and what the table says.
//! Never: acknowledges what is not on disk on a majority of nodes. (One node is a majority of one.)
//!
//! 1. `propose.rs`        packs what waits into one parcel: on the leader into the log, elsewhere to the leader
//! 2. openraft            orders it (`types.rs` spells out its generics, `peer/` reaches the other nodes)
//! 3. `log_store.rs`      encodes it, `wal/` writes and syncs it
//! 4. `state_machine.rs`  applies it to the table; `in_flight.rs` tells those who wait on this node
//! 5. `snapshot_file.rs`  bounds the log: the table as one file
//!
//! Beside the road of a command:
//!
//! - `start.rs`          brings a node up
//! - `joining.rs`        has this node join its cluster; `join_mark.rs` keeps on disk that it is about to
//! - `membership.rs`     adds, moves and removes members
//! - `leadership.rs`     knows who leads
//! - `heartbeat.rs`      sends the heartbeats of a leader
//! - `upkeep.rs`         expires claims, cuts the log and moves leadership, all without a request
//! - `reads.rs`          lets reads wait until the table is new enough; `freshness.rs` knows how old it may be
//! - `withdrawals.rs`    withdraws claims that nobody waits for
//! - `table_version.rs`  lets new commands into the log once every member can read them
//! - `memory.rs`         refuses commands that would make the table too large for the machine
//! - `status.rs`         reports how all nodes are
//! - `journal.rs`        logs for operators what changes in the cluster
//! - `hops.rs`           records where the time of a traced request goes
//! - `checkup.rs`        looks at a cluster from outside

// In a simulated build, the code that the simulation replaces is compiled but not called.
#![cfg_attr(feature = "sim", allow(dead_code, unused_imports))]

pub mod checkup;
pub mod clock;
mod config;
pub mod data_dir;
mod encoding;
pub mod entry;
mod error;
pub mod freshness;
mod heartbeat;
pub mod hops;
pub mod in_flight;
mod join_mark;
mod joining;
mod journal;
mod leadership;
pub mod log_store;
pub mod machine;
pub mod membership;
mod memory;
pub mod node_state;
mod peer;
mod propose;
pub mod publish;
mod reads;
pub mod recovery;
mod runtime;
pub mod snapshot_file;
mod start;
pub mod state_machine;
mod status;
pub mod table_version;
pub mod types;
mod upkeep;
mod wakeups;
pub mod wal;
pub mod withdrawals;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::{ClaimId, Command, Outcome, Table, View};
use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;

use self::clock::TableClock;
pub use self::config::{ClusterConfig, EngineConfig};
use self::data_dir::DataDir;
pub use self::error::{EngineError, StartError};
use self::freshness::Newest;
use self::in_flight::InFlight;
use self::journal::Journal;
use self::leadership::{Leadership, Role};
use self::log_store::LogStore;
pub use self::memory::MemoryGuard;
use self::peer::Peers;
pub use self::peer::{PeerTls, Secret};
use self::propose::Proposer;
use self::reads::Barrier;
use self::runtime::EngineThread;
use self::start::Timing;
use self::state_machine::SharedTable;
pub use self::status::{ClusterStatus, MemberStatus};
use self::types::{NodeId, Raft};
use self::wal::Room;
use self::withdrawals::Withdrawals;
use crate::machine::JoinHandle;
use crate::publish::Publisher;

/// The number of a node that is alone.
pub const ALONE: NodeId = 1;
/// The default time between two heartbeats of a leader. Long enough for an idle node to sleep nearly always; a leader that
/// died is replaced in five to six of these. `wakeups.rs` has a reason for this very number.
pub const DEFAULT_HEARTBEAT: Duration = Duration::from_millis(128);
/// How long a stop waits for the last outcomes.
const STOP_MAX: Duration = Duration::from_secs(3);

/// A running node.
pub struct Engine {
    node: NodeId,
    raft: Raft,
    proposer: Arc<Proposer>,
    in_flight: Arc<InFlight>,
    leadership: Arc<Leadership>,
    barrier: Barrier,
    /// Claims that nobody waits for any more.
    withdrawals: Withdrawals,
    /// Up to when this node's table certainly has everything.
    newest: Arc<Newest>,
    peers: Arc<Peers>,
    shared: Arc<SharedTable>,
    publisher: Arc<Publisher>,
    clock: Arc<TableClock>,
    memory: Arc<MemoryGuard>,
    log: LogStore,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Whether this node takes part: it has its data, or was added without.
    admitted: AtomicBool,
    /// Whether this node is joining, and would ask again if it were removed now.
    joining: AtomicBool,
    /// Held while the members change.
    changing: tokio::sync::Mutex<()>,
    /// What operators are told of the cluster.
    journal: Arc<Journal>,
    /// Where clients reach this node.
    url: OnceLock<String>,
    config: EngineConfig,
    /// Where everything from the proposer to the table runs.
    thread: EngineThread,
    /// Held until the very end, so that no second process opens the same files.
    _data_dir: Option<DataDir>,
}

impl Engine {
    fn raft(&self) -> &Raft {
        &self.raft
    }

    fn proposer(&self) -> &Proposer {
        &self.proposer
    }

    fn table_clock(&self) -> &Arc<TableClock> {
        &self.clock
    }

    fn snapshot_dir(&self) -> PathBuf {
        self.config.data_dir.join("snapshots")
    }

    fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Acquire)
    }

    fn open(&self) {
        self.admitted.store(true, Ordering::Release);
    }

    /// Whether this node has memory for a larger table.
    pub fn memory(&self) -> &MemoryGuard {
        &self.memory
    }

    /// This node's number.
    pub fn node_id(&self) -> NodeId {
        self.node
    }

    /// The leader, as far as this node knows.
    pub fn known_leader(&self) -> Option<NodeId> {
        match self.leadership.role() {
            Role::Leads { .. } => Some(self.node),
            Role::Follows { leader } => Some(leader),
            Role::None | Role::Gone => None,
        }
    }

    /// Clients reach this node here. Without a call of this, nobody knows where.
    pub fn set_url(&self, url: &str) {
        self.url.set(url.into()).ok();
    }

    /// A new id for a claim that ends with the connection it is made on, and so with this process.
    pub fn passing_claim_id(&self) -> ClaimId {
        self.in_flight.claim_id()
    }

    /// Whether such an id was given by this node.
    pub fn is_of_node(&self, id: ClaimId, node: NodeId) -> bool {
        in_flight::is_of_node(id, node)
    }

    /// Every other member, and whether this node has heard it just now, as its leader.
    pub async fn others_heard(&self) -> BTreeMap<NodeId, bool> {
        let heard = upkeep::heard(self).await;
        let others = self.members().into_keys().filter(|id| *id != self.node);
        others.map(|id| (id, heard.contains(&id))).collect()
    }

    /// Whether such an id was given by an earlier process of this node.
    pub fn is_of_earlier_run(&self, id: ClaimId) -> bool {
        self.in_flight.is_of_earlier_run(id)
    }

    /// Makes a command durable, applies it, and tells its outcome. It is on its way at once, awaited or not.
    pub fn submit(
        &self,
        command: Command,
    ) -> impl Future<Output = Result<Outcome, EngineError>> + Send + use<> {
        self.proposer.submit(command)
    }

    /// The same for several commands, in one entry and in their order.
    pub async fn submit_many(&self, commands: Vec<Command>) -> Result<Vec<Outcome>, EngineError> {
        self.proposer.submit_many(commands).await
    }

    /// Asks this node's table, at the table's time as far as this node knows it.
    ///
    /// It has everything that this node has acknowledged. Whether it has what others did is the business of
    /// [`Engine::barrier`], which `dispatch.rs` passes before a request that only reads.
    pub fn read<T>(&self, question: impl FnOnce(&Table, u64) -> T) -> T {
        let table = self.shared.table.read();
        question(&table, self.clock.now_us())
    }

    /// Asks the table, and has it end what is due first where the answer depends on it. The question is asked
    /// anew until it finds nothing that has outlived its deadline.
    pub async fn read_settled<T>(
        &self,
        mut question: impl FnMut(&Table, u64) -> Settled<T>,
    ) -> Result<T, EngineError> {
        loop {
            match self.read(&mut question) {
                Settled::Yes(answer) => return Ok(answer),
                Settled::No(resources) => self.submit(Command::Settle { resources }).await?,
            };
        }
    }

    /// A claim as it is now: what is due on its resource is ended before anybody is told how it stands.
    pub async fn claim_settled(&self, id: ClaimId) -> Result<Option<View>, EngineError> {
        let look = |table: &Table, now_us| match table.claim_view(id, now_us) {
            Some(view) if table.is_unsettled(&view, now_us) => {
                Settled::No(view.resources().cloned().collect())
            }
            view => Settled::Yes(view),
        };
        self.read_settled(look).await
    }

    /// Runs a task on the engine's own thread, where nothing between a request and the table wakes another one. It must
    /// never take long: everybody waits meanwhile.
    pub fn spawn_near<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.thread.spawn(task)
    }

    /// Where long-polls wait.
    pub fn publisher(&self) -> &Arc<Publisher> {
        &self.publisher
    }

    /// Whether this node can take commands now, or why not.
    pub fn ready(&self) -> Result<(), EngineError> {
        if self.raft.metrics().borrow_watched().running_state.is_err() {
            Err(EngineError::Stopping)
        } else if self.known_leader().is_none() || self.is_removed() {
            Err(EngineError::NotLeader)
        } else if self.log.wal().room() == Room::Low {
            Err(EngineError::DiskFull)
        } else if self.disk_hangs().is_some() || self.proposer.is_stalled() {
            Err(EngineError::TooSlow)
        } else {
            Ok(())
        }
    }

    /// Why the node can't go on, if its log failed. Poll this: openraft's metrics change with every entry, so waiting
    /// for a change of them costs something for each entry.
    pub fn fatal(&self) -> Option<String> {
        // The engine's own thread does the same, unless its disk hangs.
        self.proposer.give_up_overdue();
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.running_state.as_ref().err().map(|fatal| plain_words(&fatal.to_string()))
    }

    /// For the simulation: returns when the node can't go on.
    #[cfg(feature = "sim")]
    pub async fn failed(&self) -> String {
        loop {
            match self.fatal() {
                Some(why) => return why,
                None => machine::sleep(Duration::from_millis(500)).await,
            }
        }
    }

    /// Hands leadership over, answers what was asked so far, then closes the log.
    pub async fn stop(&self) {
        self.step_down().await;
        self.proposer.close();
        let tasks: Vec<_> = self.tasks.lock().drain(..).collect();
        let mut tasks = tasks.into_iter();
        if let Some(mut proposer) = tasks.next()
            && machine::timeout(STOP_MAX, &mut proposer).await.is_err()
        {
            tracing::warn!("the last commands were not answered in time: their outcome is unknown");
            proposer.abort();
        }
        tasks.for_each(|task| task.abort());
        if let Err(error) = self.raft.shutdown().await {
            tracing::error!(%error, "the node did not stop cleanly");
        }
        self.log.wal().close();
    }

    /// Has the node that is the furthest take over, of those that were heard just now, so that nobody has to wait for an
    /// election.
    pub async fn step_down(&self) {
        if !self.leads() {
            return;
        }
        let Some(cluster) = &self.config.cluster else { return };
        let silence_ms = Timing::new(cluster.heartbeat).silence().as_millis() as u64;
        let members = self.members();
        let others = self.status(false).await.others.into_iter();
        let votes = |id: &NodeId| members.get(id).is_some_and(|(_, voter)| *voter);
        let there = others.filter(|(id, (_, heard))| votes(id) && heard.is_some_and(|ms| ms < silence_ms));
        let Some((id, _)) = there.max_by_key(|(_, (matched, _))| *matched) else {
            tracing::warn!("leadership could not be handed over: no other node was heard just now");
            return;
        };
        if let Err(error) = self.hand_over(id).await {
            tracing::warn!("leadership could not be handed over: {error}");
        }
    }
}

/// What openraft says of a failure ends with the words of our own log; before that it names types and ids.
pub(crate) fn plain_words(fatal: &str) -> String {
    fatal.rsplit_once("std::io::error::Error: ").map_or(fatal, |(_, why)| why).to_string()
}

/// Whether an answer can be given, or what must be settled first.
pub enum Settled<T> {
    /// The answer.
    Yes(T),
    /// Resources on which something is due.
    No(Vec<Arc<str>>),
}

#[cfg(feature = "sim")]
impl Engine {
    /// What is on its way to the disk is there as far as it got when the power goes.
    pub fn lose_power(&self) {
        self.log.wal().lose_power();
    }

    /// For how long the oldest command of this node has waited for its outcome.
    pub fn longest_wait(&self) -> Duration {
        self.proposer.oldest().map_or(Duration::ZERO, |oldest| oldest.elapsed())
    }

    /// The term that this node knows of.
    pub fn term(&self) -> u64 {
        self.raft().metrics().borrow_watched().current_term
    }

    /// The newest entry in this node's table.
    pub fn applied(&self) -> u64 {
        self.shared.applied.load(Ordering::Acquire)
    }
}
