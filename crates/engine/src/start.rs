//! How a node starts: its data, openraft, the tasks, and then the cluster that it joins.
//!
//! In:    [`EngineConfig`]. Out: a running [`Engine`], or why it can't run.
//! Never: lets a node vote that may have lost its data (`membership.rs` decides).

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::Command;
use leasehold_core::table::seed_indexes;
use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;

use crate::clock::TableClock;
use crate::data_dir::DataDir;
use crate::freshness::Newest;
use crate::heartbeat::Heartbeat;
use crate::in_flight::InFlight;
use crate::journal::Journal;
use crate::leadership::{Leadership, LeadershipWatch, Patience, Role};
use crate::log_store::LogStore;
use crate::peer::{Door, PeerNetwork, PeerServer, Peers};
use crate::propose::Proposer;
use crate::publish::{Listener, Publisher};
use crate::reads::Barrier;
use crate::runtime::EngineThread;
use crate::state_machine::{SharedTable, StateMachine};
use crate::types::{NodeId, Raft};
use crate::wal::WalOptions;
use crate::withdrawals::Withdrawals;
use crate::{
    ClusterConfig, Engine, EngineConfig, EngineError, MemoryGuard, Secret, StartError, machine, memory,
    snapshot_file, table_version, upkeep,
};

/// How long a start may take to apply its log.
const RECOVERY_MAX: Duration = Duration::from_secs(600);
/// A node that is alone sends no heartbeats; times that are counted in them are those of a second.
const ALONE_HEARTBEAT: Duration = Duration::from_secs(1);
/// How long clients wait for a leader to come back before they are told that there is none.
const LEADERLESS_MAX: Duration = Duration::from_secs(3);
/// Entries that stay in the log behind a snapshot, so that a node that was away for a moment need not copy everything.
const LOG_KEPT: u64 = if cfg!(feature = "sim") { 20 } else { 2000 };
/// Entries in one message: each may have a megabyte.
const ENTRIES_PER_MESSAGE: u64 = 16;

impl Engine {
    /// Opens the data directory, replays what is there and takes this node's place in its cluster.
    pub async fn start(config: EngineConfig) -> Result<Arc<Self>, StartError> {
        let (data_dir, node) = open_data_dir(&config)?;
        seed_indexes(machine::random());
        let alone = config.cluster.is_none();
        let log = LogStore::open(&config.data_dir.join("log"), log_options(alone, &config.listeners))?;
        let clock = Arc::new(TableClock::default());
        let shared = Arc::new(SharedTable { clock: clock.clone(), ..SharedTable::default() });
        let publisher = Arc::new(Publisher::new(config.listeners.clone()));
        let newest = Arc::new(Newest::default());
        let in_flight = Arc::new(InFlight::new(node, newest.clone()));
        let snapshot_dir = config.data_dir.join("snapshots");
        let machine =
            StateMachine::new(shared.clone(), publisher.clone(), in_flight.clone(), snapshot_dir.clone())?;
        // openraft would report a damaged snapshot without its file and place: look first.
        snapshot_file::newest(&snapshot_dir)?;
        let (secret, tls, heartbeat) = match &config.cluster {
            Some(cluster) => (cluster.secret.clone(), cluster.tls.clone(), cluster.heartbeat),
            None => (Secret::nobody_knows(), None, ALONE_HEARTBEAT),
        };
        let door = Arc::new(Door::new(node, secret, tls, shared.versions.clone()));
        let peers = Arc::new(Peers::new(door.clone(), heartbeat));
        let thread = EngineThread::start()?;
        let network = PeerNetwork(peers.clone());
        let timing = Timing::new(heartbeat);
        let raft = thread.run(start_raft(node, alone, timing, network, log.clone(), machine)).await?;
        let leadership = Arc::new(Leadership::default());
        let memory = Arc::new(MemoryGuard::new(config.memory_max_bytes));
        let proposer = Proposer::new(
            in_flight.clone(),
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
            in_flight,
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
            joining: AtomicBool::new(false),
            changing: tokio::sync::Mutex::default(),
            journal: Arc::new(Journal::new(node, timing.silence())),
            url: OnceLock::new(),
            config,
            thread,
            _data_dir: data_dir,
        });
        engine.take_place(timing, door).await?;
        Ok(engine)
    }

    /// Starts to follow, to lead or to ask for admission: whatever this node's data and its cluster call for.
    async fn take_place(self: &Arc<Self>, timing: Timing, door: Arc<Door>) -> Result<(), StartError> {
        let initialized = self.raft.is_initialized().await.map_err(fatal)?;
        let alone = self.config.cluster.is_none();
        if alone && initialized && self.members().len() > 1 {
            return Err(StartError::Raft(
                "its data directory is that of a node of a cluster. Start it with --peer-listen and the cluster's secret, \
                 as before"
                    .into(),
            ));
        }
        // Before any peer can ask: a node that has its data must not be taken for one that has lost it.
        if alone || initialized {
            self.open();
        }
        // A node with peers gets to know from its leader what was committed, and that may take as long as it takes.
        if alone {
            self.recover_alone(initialized).await?;
        }
        self.memory.look();
        self.spawn_tasks(timing);
        match &self.config.cluster {
            None => self.wait_until_leading().await,
            Some(cluster) => self.join_peers(cluster, door, initialized).await,
        }
    }

    /// Elects a cluster of one and applies its log.
    async fn recover_alone(&self, initialized: bool) -> Result<(), StartError> {
        if initialized {
            // A cluster of one need not wait for a leader that might still live.
            self.raft.trigger().elect(false).await.map_err(fatal)?;
        } else {
            let members = BTreeMap::from([(self.node, openraft::impls::BasicNode::default())]);
            self.raft.initialize(members).await.map_err(fatal)?;
        }
        self.raft.wait_for_recovery(Some(RECOVERY_MAX)).await.map_err(fatal)?;
        Ok(())
    }

    /// Starts the tasks that every node runs on the engine's thread.
    fn spawn_tasks(self: &Arc<Self>, timing: Timing) {
        let watch = LeadershipWatch {
            raft: self.raft.clone(),
            leadership: self.leadership.clone(),
            clock: self.clock.clone(),
            shared: self.shared.clone(),
            in_flight: self.in_flight.clone(),
            proposer: self.proposer.clone(),
            peers: self.peers.clone(),
            wal: self.log.wal().clone(),
            patience: Patience { silence: timing.silence(), leaderless: LEADERLESS_MAX },
            journal: self.config.cluster.is_some().then(|| self.journal.clone()),
        };
        let heartbeat = Heartbeat {
            raft: self.raft.clone(),
            clock: self.clock.clone(),
            interval: timing.heartbeat(),
            lease: timing.lease(),
        };
        let tasks = [
            self.thread.spawn(self.proposer.clone().run(self.raft.clone())),
            self.thread.spawn(watch.run()),
            self.thread.spawn(heartbeat.run()),
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
    }

    /// Opens the port for peers and joins the cluster (`joining.rs`).
    async fn join_peers(
        self: &Arc<Self>,
        cluster: &ClusterConfig,
        door: Arc<Door>,
        initialized: bool,
    ) -> Result<(), StartError> {
        let bound = machine::net::bind(cluster.listen).map_err(|error| {
            let why = format!("can't listen for peers on {}: {error}", cluster.listen);
            std::io::Error::new(error.kind(), why)
        })?;
        // Behind mutual TLS no stranger gets as far as the handshake.
        let (listen, secret, warns) = (cluster.listen, cluster.secret.clone(), cluster.tls.is_none());
        machine::blocking(move || secret.prepare(warns)).await?;
        let server = Arc::new(PeerServer { engine: self.clone(), door });
        let serve = self.thread.spawn(async move {
            match machine::net::listen(bound) {
                Ok(listener) => server.run(listener).await,
                Err(error) => tracing::error!(%error, "can't listen for peers on {listen}"),
            }
        });
        let enter = self.thread.spawn(self.clone().enter(cluster.clone(), initialized));
        self.tasks.lock().extend([serve, enter]);
        Ok(())
    }

    /// A node that is alone is ready when it leads.
    async fn wait_until_leading(&self) -> Result<(), StartError> {
        while !matches!(self.leadership.role(), Role::Leads { .. }) {
            if let Err(error) = &self.raft.metrics().borrow_watched().running_state {
                return Err(fatal(error));
            }
            machine::sleep(Duration::from_millis(2)).await;
        }
        // On a full disk it has to wait, and the node starts all the same.
        if let Err(error) = self.raise_table_version().await {
            tracing::warn!(%error, "the table version could not be raised yet; trying again");
        }
        self.configure().await.map_err(fatal)
    }

    /// The settings of the leader hold for the table.
    pub(crate) async fn configure(&self) -> Result<(), EngineError> {
        if *self.shared.table.read().settings() != self.config.settings {
            self.submit(Command::Configure(self.config.settings.clone())).await?;
        }
        let budgets = self.config.budgets;
        if self.table_version() >= 2 && self.shared.table.read().budgets() != budgets {
            self.submit(Command::ConfigureBudgets(budgets)).await?;
        }
        Ok(())
    }
}

/// An error of openraft that ends the start.
fn fatal(error: impl std::fmt::Display) -> StartError {
    StartError::Raft(error.to_string())
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
    Ok((None, config.cluster.as_ref().map_or(crate::ALONE, |cluster| cluster.node)))
}

/// How long everything takes between nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    heartbeat_ms: u64,
}

impl Timing {
    pub(crate) fn new(heartbeat: Duration) -> Self {
        Self { heartbeat_ms: heartbeat.as_millis() as u64 }
    }

    fn heartbeat(self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }

    /// A follower whose leader's lease is over waits for a random time between these before it asks for votes.
    fn election_ms(self) -> (u64, u64) {
        (2 * self.heartbeat_ms, 3 * self.heartbeat_ms)
    }

    /// openraft's rule: for this long after a leader was heard, nobody votes for another one.
    fn lease(self) -> Duration {
        Duration::from_millis(self.election_ms().1)
    }

    /// A node that has heard no leader for this long must expect that the others have elected another one.
    pub(crate) fn silence(self) -> Duration {
        2 * self.lease()
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
        // How long a heartbeat may take. `heartbeat.rs` sends them; openraft itself only ticks, five times in this, where
        // there may be an election to begin.
        heartbeat_interval: election_timeout_min - 1,
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
    let config = config.validate().map_err(fatal)?;
    let raft = Raft::new(node, Arc::new(config), network, log, machine).await;
    raft.map_err(fatal)
}
