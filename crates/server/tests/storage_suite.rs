//! openraft's own conformance suite passes on our log store and state machine, on real files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_server::engine::awaited::Awaited;
use leasehold_server::engine::log_store::LogStore;
use leasehold_server::engine::state_machine::{Shared, StateMachine};
use leasehold_server::engine::types::TypeConfig;
use leasehold_server::engine::wal::{Wal, WalOptions};
use leasehold_server::publish::Publisher;
use openraft::StorageError;
use openraft::storage::RaftLogStorage;
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::testing::log_id;

/// A folder of its own for each case of the suite.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("leasehold-suite-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, Folder> for Builder {
    async fn build(&self) -> Result<(Folder, LogStore, StateMachine), StorageError<TypeConfig>> {
        let folder = Folder::new();
        let options = WalOptions { segment_bytes: 64 << 10, ..WalOptions::default() };
        let log =
            LogStore::open(&folder.path().join("log"), options).expect("an empty folder holds a new log");
        let snapshots = folder.path().join("snapshots");
        let awaited = Arc::new(Awaited::new(1));
        let machine = StateMachine::new(
            Arc::new(Shared::default()),
            Arc::new(Publisher::default()),
            awaited,
            snapshots,
        );
        Ok((folder, log, machine.expect("a folder for snapshots can be made")))
    }
}

#[test]
fn the_log_store_and_the_state_machine_pass_openrafts_suite() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        Suite::test_all(Builder).await.expect("the suite passes");
    });
}

/// As a full disk leaves it: the mark found room, the entries before it did not.
#[tokio::test]
async fn a_commit_mark_beyond_the_end_of_the_log_is_forgotten() {
    let folder = Folder::new();
    let dir = folder.path().join("log");
    let mut log = LogStore::open(&dir, WalOptions::default()).expect("an empty folder holds a new log");
    log.save_committed(Some(log_id::<TypeConfig>(1, 1, 9))).await.expect("a mark can be saved");
    drop(log);
    let (wal, found) = Wal::open(&dir, WalOptions::default()).expect("the log can be opened");
    assert!(found.committed.is_some(), "the mark did not reach the disk");
    drop(wal);
    let mut log = LogStore::open(&dir, WalOptions::default()).expect("the log can be opened");
    assert_eq!(log.read_committed().await.expect("it can be read"), None);
}
