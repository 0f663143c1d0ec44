//! The engine: makes commands durable and ordered, then applies them to the table.
//!
//! In:    [`Engine::submit`] with commands, [`Engine::read`] with questions. Out: outcomes, and what the table says.
//! Never: acknowledges what is not on disk on a majority of nodes. (One node is a majority of one.)
//!
//! 1. `propose.rs`        packs what waits into one stamped entry
//! 2. openraft            orders it (`types.rs` spells out its generics, `network.rs` reaches peers)
//! 3. `log_store.rs`      encodes it, `wal/` writes and syncs it
//! 4. `state_machine.rs`  applies it to the table, hands outcomes and events on
//! 5. `snapshot_file.rs`  bounds the log: the table as one file

pub mod clock;
pub mod data_dir;
pub mod log_store;
mod network;
mod propose;
mod runtime;
pub mod snapshot_file;
pub mod state_machine;
pub mod types;
pub mod wal;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::{Command, Outcome, Settings, Table};
use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use self::clock::TableClock;
use self::data_dir::{DataDir, DataDirError};
use self::log_store::LogStore;
use self::network::NoPeers;
use self::propose::Proposer;
use self::runtime::EngineThread;
use self::state_machine::{NO_DEADLINE, Shared, StateMachine};
use self::types::{NodeId, Raft};
use self::wal::{Room, WalError, WalOptions};
use crate::publish::{Listener, Publisher};

/// This node, until there are more.
const THIS_NODE: NodeId = 1;
/// Entries are stamped at least this often while anything is held that has a deadline.
const STAMP_EVERY_US: u64 = 1_000_000;
/// How long a start may take to apply its log.
const RECOVERY_MAX: Duration = Duration::from_secs(600);

/// How an engine is set up.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// What travels in the log.
    pub settings: Settings,
    /// A snapshot is taken when the log has grown by this much, or by half of the last snapshot.
    pub snapshot_log_bytes: u64,
    /// Who hears of every event.
    pub listeners: Vec<Arc<dyn Listener>>,
}

/// Why the engine gave no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Nothing happened: this node does not lead.
    #[error("this node can't order commands now: it is not the leader")]
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
    raft: Raft,
    proposer: Arc<Proposer>,
    shared: Arc<Shared>,
    publisher: Arc<Publisher>,
    clock: Arc<TableClock>,
    log: LogStore,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Where everything from the proposer to the table runs.
    thread: EngineThread,
    /// Held until the very end, so that no second process opens the same files.
    _data_dir: DataDir,
}

impl Engine {
    /// Opens the data directory, replays what is there and starts to lead.
    pub async fn start(config: EngineConfig) -> Result<Arc<Self>, StartError> {
        let data_dir = DataDir::open(&config.data_dir)?;
        let log = LogStore::open(&config.data_dir.join("log"), log_options())?;
        let (shared, publisher) =
            (Arc::new(Shared::default()), Arc::new(Publisher::new(config.listeners.clone())));
        let snapshot_dir = config.data_dir.join("snapshots");
        let machine = StateMachine::new(shared.clone(), publisher.clone(), snapshot_dir.clone())?;
        // openraft would report a damaged snapshot without its file and place: look first.
        snapshot_file::newest(&snapshot_dir)?;
        let thread = EngineThread::start()?;
        let raft = thread.run(start_raft(log.clone(), machine)).await?;
        let clock = Arc::new(TableClock::default());
        let proposer = Arc::new(Proposer::new(clock.clone(), log.wal().clone()));
        let engine = Self {
            raft,
            proposer,
            shared,
            publisher,
            clock,
            log,
            tasks: Mutex::default(),
            thread,
            _data_dir: data_dir,
        };
        let engine = Arc::new(engine);
        engine.lead(&config).await?;
        Ok(engine)
    }

    async fn lead(self: &Arc<Self>, config: &EngineConfig) -> Result<(), StartError> {
        let raft_error = |error: &dyn std::fmt::Display| StartError::Raft(error.to_string());
        self.raft.wait_for_recovery(Some(RECOVERY_MAX)).await.map_err(|error| raft_error(&error))?;
        // The time while no node led did not count.
        self.clock.resume_from(self.shared.table.read().clock().now_us);
        let tasks = [
            self.thread.spawn(self.proposer.clone().run(self.raft.clone())),
            self.thread.spawn(tick(self.clone())),
            self.thread.spawn(take_snapshots(self.clone(), config.clone())),
        ];
        self.tasks.lock().extend(tasks);
        if *self.shared.table.read().settings() != config.settings {
            let configured = self.submit(Command::Configure(config.settings.clone())).await;
            configured.map_err(|error| raft_error(&error))?;
        }
        Ok(())
    }

    /// Makes a command durable, applies it, and tells its outcome.
    pub async fn submit(&self, command: Command) -> Result<Outcome, EngineError> {
        self.proposer.submit(command).await
    }

    /// The same for several commands, in one entry and in their order.
    pub async fn submit_many(&self, commands: Vec<Command>) -> Result<Vec<Outcome>, EngineError> {
        self.proposer.submit_many(commands).await
    }

    /// Asks the table, at an instant that is not before any acknowledgement so far.
    ///
    /// A cluster of one acknowledges what its own table has applied, so its table is as new as any answer.
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

    /// Where long-polls wait.
    pub fn publisher(&self) -> &Arc<Publisher> {
        &self.publisher
    }

    /// Whether this node can take commands now, or why not.
    pub fn ready(&self) -> Result<(), EngineError> {
        if self.raft.metrics().borrow_watched().running_state.is_err() {
            Err(EngineError::Stopping)
        } else if !self.raft.is_leader() {
            Err(EngineError::NotLeader)
        } else if self.log.wal().room() == Room::Low {
            Err(EngineError::DiskFull)
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
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Answers what was asked so far, then closes the log.
    pub async fn stop(&self) {
        self.proposer.close();
        let tasks: Vec<_> = self.tasks.lock().drain(..).collect();
        let mut tasks = tasks.into_iter();
        if let Some(proposer) = tasks.next() {
            proposer.await.ok();
        }
        tasks.for_each(|task| task.abort());
        // The last entries may still be on their way to their callers.
        self.submit_fence().await;
        if let Err(error) = self.raft.shutdown().await {
            tracing::error!(%error, "the consensus engine did not shut down cleanly");
        }
        self.log.wal().close();
    }

    /// Waits until everything proposed before is applied.
    async fn submit_fence(&self) {
        let fence = self.raft.write_blank();
        if tokio::time::timeout(Duration::from_secs(3), fence).await.is_err() {
            tracing::warn!("the last commands were not acknowledged in time");
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

/// A cluster of one has nothing to do while its own disk syncs but to gather the next entry, and that happens on
/// other threads: the engine's own thread writes and syncs.
fn log_options() -> WalOptions {
    WalOptions { flush_in_caller: true, ..WalOptions::default() }
}

async fn start_raft(log: LogStore, machine: StateMachine) -> Result<Raft, StartError> {
    let config = openraft::Config {
        cluster_name: "leasehold".into(),
        heartbeat_interval: 50,
        election_timeout_min: 200,
        election_timeout_max: 400,
        snapshot_policy: openraft::SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: 0,
        purge_batch_size: 1,
        enable_pre_vote: Some(true),
        ..openraft::Config::default()
    };
    let config = config.validate().map_err(|error| StartError::Raft(error.to_string()))?;
    let fatal = |error: &dyn std::fmt::Display| StartError::Raft(error.to_string());
    let raft = Raft::new(THIS_NODE, Arc::new(config), NoPeers, log, machine).await.map_err(|e| fatal(&e))?;
    if !raft.is_initialized().await.map_err(|error| fatal(&error))? {
        let members = BTreeMap::from([(THIS_NODE, openraft::impls::BasicNode::default())]);
        raft.initialize(members).await.map_err(|error| fatal(&error))?;
    } else {
        // A cluster of one need not wait for a leader that might still live.
        raft.trigger().elect(false).await.map_err(|error| fatal(&error))?;
    }
    Ok(raft)
}

/// Moves the table clock when something is due, so that expiry and hand-over need no request.
async fn tick(engine: Arc<Engine>) {
    let mut last_us = 0;
    loop {
        let deadline_us = engine.shared.earliest_deadline_us.load(Ordering::Acquire);
        if deadline_us == NO_DEADLINE {
            engine.shared.deadline_moved.notified().await;
            continue;
        }
        last_us = engine.shared.table.read().clock().now_us.max(last_us);
        let next_us = deadline_us.min(last_us + STAMP_EVERY_US);
        if next_us > engine.clock.now_us() {
            let at = tokio::time::Instant::from_std(engine.clock.instant_of(next_us));
            tokio::select! {
                () = tokio::time::sleep_until(at) => {}
                () = engine.shared.deadline_moved.notified() => {}
            }
        } else if let Err(error) = engine.submit(Command::Tick).await {
            tracing::warn!(%error, "the clock of the table could not be moved");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Takes a snapshot when the log has become long, so that it can be cut.
async fn take_snapshots(engine: Arc<Engine>, config: EngineConfig) {
    let dir: PathBuf = config.data_dir.join("snapshots");
    let mut ticker = tokio::time::interval(Duration::from_millis(250));
    ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticker.tick().await;
        let enough = config.snapshot_log_bytes.max(newest_snapshot_bytes(&dir) / 2);
        if engine.log.wal().log_bytes() < enough {
            continue;
        }
        let mut progress = engine.raft.watch_snapshot_progress();
        if engine.raft.trigger().snapshot().await.is_err() {
            return;
        }
        let _ = tokio::time::timeout(Duration::from_secs(120), progress.changed()).await;
    }
}

fn newest_snapshot_bytes(dir: &Path) -> u64 {
    let newest = snapshot_file::newest(dir).ok().flatten();
    newest.and_then(|(_, file)| std::fs::metadata(file.path).ok()).map_or(0, |metadata| metadata.len())
}
