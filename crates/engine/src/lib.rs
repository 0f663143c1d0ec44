//! The engine: makes commands durable and ordered, then applies them to the table.
//!
//! In:    [`Engine::submit`] with commands, [`Engine::read`] with questions. Out: outcomes, and what the table says.
//! Never: acknowledges what is not on disk on a majority of nodes. (One node is a majority of one.)
//!
//! 1. `propose.rs`        packs what waits into one parcel: on the leader into the log, elsewhere to the leader
//! 2. openraft            orders it (`types.rs` spells out its generics, `peer/` reaches the other nodes)
//! 3. `log_store.rs`      encodes it, `wal/` writes and syncs it
//! 4. `state_machine.rs`  applies it to the table; `awaited.rs` tells those who wait on this node
//! 5. `snapshot_file.rs`  bounds the log: the table as one file
//!
//! Beside the road: `upkeep.rs` lets claims expire and bounds the log without any request, `leadership.rs` knows who leads, `reads.rs` lets reads wait until the table is new enough (`freshness.rs`: how old it may be),
//! `withdrawals.rs` takes back what nobody waits for, `membership.rs` lets nodes in and out (`joining.rs`: who is on its way), `status.rs` tells how all of them are,
//! `table_version.rs` lets new commands into the log once every member can read them, `memory.rs` refuses to grow beyond the machine.

// What a simulated machine replaces is still built, and nobody calls it.
#![cfg_attr(feature = "sim", allow(dead_code, unused_imports))]

pub mod awaited;
pub mod clock;
pub mod data_dir;
mod encoding;
pub mod entry;
pub mod freshness;
mod joining;
mod leadership;
pub mod log_store;
pub mod machine;
pub mod membership;
mod memory;
pub mod observed;
mod peer;
mod propose;
pub mod publish;
mod reads;
pub mod recovery;
mod runtime;
pub mod snapshot_file;
pub mod state_machine;
mod status;
pub mod table_version;
pub mod types;
mod upkeep;
pub mod wal;
pub mod withdrawals;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::table::seed_indexes;
use leasehold_core::{Budgets, ClaimId, Command, Outcome, Settings, Table, View};
use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use self::awaited::Awaited;
use self::clock::TableClock;
use self::data_dir::{DataDir, DataDirError};
use self::freshness::Newest;
use self::leadership::{Leadership, Patience, Role, Watch};
use self::log_store::LogStore;
pub use self::memory::MemoryGuard;
use self::peer::{Door, PeerNetwork, PeerServer, Peers};
pub use self::peer::{PeerTls, Secret};
use self::propose::Proposer;
use self::reads::Barrier;
use self::runtime::EngineThread;
use self::state_machine::{Shared, StateMachine};
pub use self::status::{ClusterStatus, MemberStatus};
use self::types::{NodeId, Raft};
use self::wal::{Room, WalError, WalOptions};
use self::withdrawals::Withdrawals;
use crate::machine::JoinHandle;
use crate::publish::{Listener, Publisher};

/// The number of a node that is alone.
pub const ALONE: NodeId = 1;
/// How long a start may take to apply its log.
const RECOVERY_MAX: Duration = Duration::from_secs(600);
/// Nobody hears the heartbeats of a node that is alone, and it is elected at its start: openraft need not look at its clock
/// more often.
const ALONE_HEARTBEAT: Duration = Duration::from_secs(1);
/// How often a node looks whether its log has failed. Until it stops, every request fails.
const FAILED_LOOK_EVERY: Duration = Duration::from_millis(500);
/// Clients wait so long for a leader to come back before they are told that there is none.
const LEADERLESS_MAX: Duration = Duration::from_secs(3);
/// How long a stop waits for the last outcomes.
const STOP_MAX: Duration = Duration::from_secs(3);
/// Entries that stay in the log behind a snapshot, so that a node that was away for a moment need not copy everything.
const LOG_KEPT: u64 = if cfg!(feature = "sim") { 20 } else { 2000 };
/// Entries in one message: each may have a megabyte.
const ENTRIES_PER_MESSAGE: u64 = 16;

/// How an engine is set up.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// What travels in the log.
    pub settings: Settings,
    /// The same, from table version 2 on.
    pub budgets: Budgets,
    /// The memory with which the node takes nothing that makes the table larger; `None`: what fits the machine.
    pub memory_max_bytes: Option<u64>,
    /// A snapshot is taken when the log has grown by this much, or by a third of the last snapshot.
    pub snapshot_log_bytes: u64,
    /// Who hears of every event.
    pub listeners: Vec<Arc<dyn Listener>>,
    /// The other nodes; `None`: there are none.
    pub cluster: Option<ClusterConfig>,
}

/// How a node finds the others.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// This node's number.
    pub node: NodeId,
    /// Where it listens for peers.
    pub listen: SocketAddr,
    /// Where peers reach it.
    pub advertise: String,
    /// The first members of a new cluster, with this one; empty for a node that joins.
    pub peers: BTreeMap<NodeId, String>,
    /// A member to ask to be let in.
    pub join: Option<String>,
    /// What all nodes know.
    pub secret: Secret,
    /// Certificates, if connections between nodes are to be encrypted.
    pub tls: Option<PeerTls>,
    /// How often a leader shows that it is there; everything else follows from it.
    pub heartbeat: Duration,
}

/// Why the engine gave no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum EngineError {
    /// Nothing happened: there is no leader.
    #[error("no node leads now: a majority of the nodes must be up and reach each other")]
    NotLeader,
    /// Nothing happened: too much waits already.
    #[error("too many commands are waiting")]
    Overloaded,
    /// Nothing happened: there is no room in the log.
    #[error("the disk of the data directory is full; free space there")]
    DiskFull,
    /// Nothing happened: the node is shutting down.
    #[error("this node is shutting down")]
    Stopping,
    /// It may have happened, or may yet: ask again under the same id.
    #[error("the outcome is unknown: the answer was lost")]
    Unknown,
    // New ones come last: nodes of other versions know the others by their places.
    /// Nothing happened: it needs a newer table version, and this member can't read it.
    #[error("node {node} (version {version}) can't read this yet: upgrade it")]
    MemberTooOld {
        /// The member.
        node: NodeId,
        /// The release that it runs.
        version: String,
    },
    /// Nothing happened: it needs a newer table version, and this member may be too old to read it.
    #[error("this needs every node of the cluster to be upgraded, and node {node} does not answer")]
    MemberAway {
        /// The member.
        node: NodeId,
    },
    /// Nothing happened: it needs a newer table version, which is being raised.
    #[error("the last node was upgraded just now: try again in a moment")]
    Upgrading,
    /// Nothing happened: there is no memory for a larger table.
    #[error("this node's memory is full: only what makes the table no larger is taken")]
    MemoryFull,
    /// Nothing happened: the command could not be sent towards the log in time.
    #[error("commands do not get through from this node: ask another one")]
    TooSlow,
}

impl EngineError {
    /// Whether it is certain that nothing happened.
    pub fn is_certain(&self) -> bool {
        *self != Self::Unknown
    }
}

/// Why an engine can't start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The data directory can't be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The log can't be read.
    #[error(transparent)]
    Log(#[from] WalError),
    /// A snapshot can't be read, or a file not be made.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// openraft does not start.
    #[error("the consensus engine does not start: {0}")]
    Raft(String),
}

/// A running node.
pub struct Engine {
    node: NodeId,
    raft: Raft,
    proposer: Arc<Proposer>,
    awaited: Arc<Awaited>,
    leadership: Arc<Leadership>,
    barrier: Barrier,
    /// Claims that nobody waits for any more.
    withdrawals: Withdrawals,
    /// Up to when this node's table certainly has everything.
    newest: Arc<Newest>,
    peers: Arc<Peers>,
    shared: Arc<Shared>,
    publisher: Arc<Publisher>,
    clock: Arc<TableClock>,
    memory: Arc<MemoryGuard>,
    log: LogStore,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Whether this node takes part: it has its data, or was let in without.
    admitted: AtomicBool,
    /// Held while the members change.
    changing: tokio::sync::Mutex<()>,
    /// Where clients reach this node.
    url: OnceLock<String>,
    config: EngineConfig,
    /// Where everything from the proposer to the table runs.
    thread: EngineThread,
    /// Held until the very end, so that no second process opens the same files.
    _data_dir: Option<DataDir>,
}

impl Engine {
    /// Opens the data directory, replays what is there and takes this node's place in its cluster.
    pub async fn start(config: EngineConfig) -> Result<Arc<Self>, StartError> {
        let (data_dir, node) = open_data_dir(&config)?;
        seed_indexes(machine::random());
        let alone = config.cluster.is_none();
        let log = LogStore::open(&config.data_dir.join("log"), log_options(alone, &config.listeners))?;
        let clock = Arc::new(TableClock::default());
        let shared = Arc::new(Shared { clock: clock.clone(), ..Shared::default() });
        let publisher = Arc::new(Publisher::new(config.listeners.clone()));
        let newest = Arc::new(Newest::default());
        let awaited = Arc::new(Awaited::new(node, newest.clone()));
        let snapshot_dir = config.data_dir.join("snapshots");
        let machine =
            StateMachine::new(shared.clone(), publisher.clone(), awaited.clone(), snapshot_dir.clone())?;
        // openraft would report a damaged snapshot without its file and place: look first.
        snapshot_file::newest(&snapshot_dir)?;
        let (secret, tls, heartbeat) = match &config.cluster {
            Some(cluster) => (cluster.secret.clone(), cluster.tls.clone(), cluster.heartbeat),
            None => (Secret::nobody_knows(), None, ALONE_HEARTBEAT),
        };
        let door = Arc::new(Door::new(node, secret, tls, shared.versions.clone()));
        let peers = Arc::new(Peers::new(door.clone()));
        let thread = EngineThread::start()?;
        let network = PeerNetwork(peers.clone());
        let timing = Timing::new(heartbeat);
        let raft = thread.run(start_raft(node, alone, timing, network, log.clone(), machine)).await?;
        let leadership = Arc::new(Leadership::default());
        let memory = Arc::new(MemoryGuard::new(config.memory_max_bytes));
        let proposer = Proposer::new(
            awaited.clone(),
            leadership.clone(),
            peers.clone(),
            clock.clone(),
            log.wal().clone(),
            (memory.clone(), shared.versions.clone()),
        );
        let engine = Arc::new(Self {
            node,
            raft,
            proposer: Arc::new(proposer),
            awaited,
            leadership,
            barrier: Barrier::default(),
            withdrawals: Withdrawals::default(),
            newest,
            peers,
            shared,
            publisher,
            clock,
            memory,
            log,
            tasks: Mutex::default(),
            admitted: AtomicBool::new(false),
            changing: tokio::sync::Mutex::default(),
            url: OnceLock::new(),
            config,
            thread,
            _data_dir: data_dir,
        });
        engine.take_place(timing, door).await?;
        Ok(engine)
    }

    async fn take_place(self: &Arc<Self>, timing: Timing, door: Arc<Door>) -> Result<(), StartError> {
        let fatal = |error: &dyn std::fmt::Display| StartError::Raft(error.to_string());
        let raft = &self.raft;
        let initialized = raft.is_initialized().await.map_err(|error| fatal(&error))?;
        let alone = self.config.cluster.is_none();
        if alone && initialized && self.members().len() > 1 {
            return Err(StartError::Raft(
                "this data is of one node of a cluster: start it with --peer-listen and the cluster's secret, as \
                 before"
                    .into(),
            ));
        }
        // Before any peer can ask: a node that has its data must not be taken for one that has lost it.
        if alone || initialized {
            self.open();
        }
        if alone {
            if initialized {
                // A cluster of one need not wait for a leader that might still live.
                raft.trigger().elect(false).await.map_err(|error| fatal(&error))?;
            } else {
                let members = BTreeMap::from([(self.node, openraft::impls::BasicNode::default())]);
                raft.initialize(members).await.map_err(|error| fatal(&error))?;
            }
        }
        // A node with peers gets to know from its leader what was committed, and that may take as long as it takes.
        if alone {
            raft.wait_for_recovery(Some(RECOVERY_MAX)).await.map_err(|error| fatal(&error))?;
        }
        self.memory.look();
        let watch = Watch {
            raft: raft.clone(),
            leadership: self.leadership.clone(),
            clock: self.clock.clone(),
            shared: self.shared.clone(),
            awaited: self.awaited.clone(),
            proposer: self.proposer.clone(),
            peers: self.peers.clone(),
            wal: self.log.wal().clone(),
            patience: Patience { silence: timing.silence(), leaderless: LEADERLESS_MAX },
        };
        let tasks = [
            self.thread.spawn(self.proposer.clone().run(raft.clone())),
            self.thread.spawn(watch.run()),
            self.thread.spawn(upkeep::tick(self.clone())),
            self.thread.spawn(self.clone().serve_barriers()),
            self.thread.spawn(self.clone().send_withdrawals()),
            self.thread.spawn(upkeep::take_snapshots(self.clone())),
            self.thread.spawn(upkeep::hand_over_when_full(self.clone())),
            self.thread.spawn(upkeep::take_back(self.clone())),
            self.thread.spawn(table_version::raise(self.clone())),
            self.thread.spawn(memory::watch(self.clone())),
        ];
        self.tasks.lock().extend(tasks);
        match &self.config.cluster {
            None => self.wait_until_leading().await,
            Some(cluster) => {
                let bound = machine::net::bind(cluster.listen).map_err(|error| {
                    let why = format!("can't listen for peers on {}: {error}", cluster.listen);
                    std::io::Error::new(error.kind(), why)
                })?;
                // Behind mutual TLS no stranger gets as far as the handshake.
                let (secret, warns) = (cluster.secret.clone(), cluster.tls.is_none());
                machine::blocking(move || secret.prepare(warns)).await?;
                let server = Arc::new(PeerServer { engine: self.clone(), door });
                let serve = self.thread.spawn(async move {
                    match machine::net::listen(bound) {
                        Ok(listener) => server.run(listener).await,
                        Err(error) => tracing::error!(%error, "the peer port can't be used"),
                    }
                });
                let enter = self.thread.spawn(self.clone().enter(cluster.clone(), initialized));
                self.tasks.lock().extend([serve, enter]);
                Ok(())
            }
        }
    }

    /// A node that is alone is ready when it leads.
    async fn wait_until_leading(&self) -> Result<(), StartError> {
        while !matches!(self.leadership.role(), Role::Leads { .. }) {
            if let Err(fatal) = &self.raft.metrics().borrow_watched().running_state {
                return Err(StartError::Raft(fatal.to_string()));
            }
            machine::sleep(Duration::from_millis(2)).await;
        }
        // On a full disk it has to wait, and the node starts all the same.
        if let Err(error) = self.raise_table_version().await {
            tracing::warn!(%error, "the table version could not be raised yet");
        }
        self.configure().await.map_err(|error| StartError::Raft(error.to_string()))
    }

    /// The settings of the leader hold for the table.
    async fn configure(&self) -> Result<(), EngineError> {
        if *self.shared.table.read().settings() != self.config.settings {
            self.submit(Command::Configure(self.config.settings.clone())).await?;
        }
        let budgets = self.config.budgets;
        if self.table_version() >= 2 && self.shared.table.read().budgets() != budgets {
            self.submit(Command::ConfigureBudgets(budgets)).await?;
        }
        Ok(())
    }

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

    /// Clients reach this node here.
    pub fn set_url(&self, url: &str) {
        self.url.set(url.into()).ok();
    }

    /// A new id for a claim that ends with the connection it is made on, and so with this process.
    pub fn passing_claim_id(&self) -> ClaimId {
        self.awaited.claim_id()
    }

    /// Whether such an id was given by this node.
    pub fn is_of_node(&self, id: ClaimId, node: NodeId) -> bool {
        awaited::is_of_node(id, node)
    }

    /// Every other member, and whether this node has heard it just now, as its leader.
    pub async fn others_heard(&self) -> BTreeMap<NodeId, bool> {
        let heard = upkeep::heard(self).await;
        let others = self.members().into_keys().filter(|id| *id != self.node);
        others.map(|id| (id, heard.contains(&id))).collect()
    }

    /// Whether such an id was given by an earlier process of this node.
    pub fn is_of_earlier_run(&self, id: ClaimId) -> bool {
        self.awaited.is_of_earlier_run(id)
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
            Some(view) if table.is_unsettled(&view.claim, now_us) => Settled::No(vec![view.claim.resource]),
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
        } else if self.known_leader().is_none() {
            Err(EngineError::NotLeader)
        } else if self.log.wal().room() == Room::Low {
            Err(EngineError::DiskFull)
        } else if self.disk_hangs().is_some() || self.proposer.is_stalled() {
            Err(EngineError::TooSlow)
        } else {
            Ok(())
        }
    }

    /// Returns when the node can't go on: its log failed.
    ///
    /// Looks now and then instead of waiting for a change: openraft's metrics change with every entry.
    pub async fn failed(&self) -> String {
        let metrics = self.raft.metrics();
        loop {
            if let Err(fatal) = &metrics.borrow_watched().running_state {
                return fatal.to_string();
            }
            // The engine's own thread does the same, unless its disk hangs.
            self.proposer.give_up_overdue();
            machine::sleep(FAILED_LOOK_EVERY).await;
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
            tracing::warn!("the last commands were not acknowledged in time");
            proposer.abort();
        }
        tasks.for_each(|task| task.abort());
        if let Err(error) = self.raft.shutdown().await {
            tracing::error!(%error, "the consensus engine did not shut down cleanly");
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
            tracing::warn!("no other node was heard just now: leadership is not handed over");
            return;
        };
        if let Err(error) = self.transfer(id).await {
            tracing::warn!(%error, "leadership could not be handed over");
        }
    }
}

/// Whether an answer can be given, or what must be settled first.
pub enum Settled<T> {
    /// The answer.
    Yes(T),
    /// Resources on which something is due.
    No(Vec<Arc<str>>),
}

/// A cluster of one has nothing to do while its own disk syncs but to gather the next entry, which happens in the
/// sockets: the engine's own thread writes and syncs. With peers it depends on who leads (`leadership.rs`).
fn log_options(alone: bool, listeners: &[Arc<dyn Listener>]) -> WalOptions {
    let listeners = listeners.to_vec();
    let tell = move |flushed| listeners.iter().for_each(|listener| listener.flushed(flushed));
    let options =
        WalOptions { flush_in_caller: alone, observe: Some(Arc::new(tell)), ..WalOptions::default() };
    // Small, so that a simulated minute fills many segments, and a full disk is soon noticed.
    #[cfg(feature = "sim")]
    let options = WalOptions { segment_bytes: 8 << 10, low_room_bytes: 3 << 10, ..options };
    options
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

    /// The newest entry in this node's table.
    pub fn applied(&self) -> u64 {
        self.shared.applied.load(Ordering::Acquire)
    }
}

/// Takes the data directory, and finds out whose it is.
#[cfg(not(feature = "sim"))]
fn open_data_dir(config: &EngineConfig) -> Result<(Option<DataDir>, NodeId), StartError> {
    let data_dir = DataDir::open(&config.data_dir)?;
    let node = data_dir.node_id(config.cluster.as_ref().map(|cluster| cluster.node))?;
    Ok((Some(data_dir), node))
}

/// A simulated disk is nobody else's.
#[cfg(feature = "sim")]
fn open_data_dir(config: &EngineConfig) -> Result<(Option<DataDir>, NodeId), StartError> {
    Ok((None, config.cluster.as_ref().map_or(ALONE, |cluster| cluster.node)))
}

/// How long everything takes between nodes.
#[derive(Debug, Clone, Copy)]
struct Timing {
    heartbeat_ms: u64,
}

impl Timing {
    fn new(heartbeat: Duration) -> Self {
        Self { heartbeat_ms: heartbeat.as_millis() as u64 }
    }

    /// A follower that hears nothing for this long, and then for a random part of as long again, asks for votes.
    fn election_ms(self) -> (u64, u64) {
        (4 * self.heartbeat_ms, 6 * self.heartbeat_ms)
    }

    /// After this long without a word, by then others may have elected a leader.
    fn silence(self) -> Duration {
        Duration::from_millis(2 * self.election_ms().1)
    }
}

async fn start_raft(
    node: NodeId,
    alone: bool,
    timing: Timing,
    network: PeerNetwork,
    log: LogStore,
    machine: StateMachine,
) -> Result<Raft, StartError> {
    let (election_timeout_min, election_timeout_max) = timing.election_ms();
    let config = openraft::Config {
        cluster_name: "leasehold".into(),
        heartbeat_interval: timing.heartbeat_ms,
        election_timeout_min,
        election_timeout_max,
        snapshot_policy: openraft::SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: if alone { 0 } else { LOG_KEPT },
        purge_batch_size: 1,
        max_payload_entries: ENTRIES_PER_MESSAGE,
        broadcast_submitted_on_append: Some(true),
        // A leader sends entries while it still syncs them itself. One that was killed in between must not go on in its
        // old term: it would give the same term and index to another entry, and nodes would differ for good.
        enable_leader_restore: Some(false),
        enable_pre_vote: Some(true),
        ..openraft::Config::default()
    };
    let config = config.validate().map_err(|error| StartError::Raft(error.to_string()))?;
    let raft = Raft::new(node, Arc::new(config), network, log, machine).await;
    raft.map_err(|error| StartError::Raft(error.to_string()))
}
