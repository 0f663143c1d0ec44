//! openraft's own conformance suite passes on our log store and state machine, on real files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_core::{Batch, Command, Stamp};
use leasehold_engine::entry::Proposal;
use leasehold_engine::in_flight::InFlight;
use leasehold_engine::log_store::LogStore;
use leasehold_engine::publish::Publisher;
use leasehold_engine::state_machine::{SharedTable, StateMachine};
use leasehold_engine::types::TypeConfig;
use leasehold_engine::wal::{Wal, WalOptions};
use openraft::storage::{RaftLogReader, RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::testing::log_id;
use openraft::type_config::alias::EntryOf;
use openraft::{EntryPayload, StorageError};

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
        let in_flight = Arc::new(InFlight::new(1, Arc::default()));
        let machine = StateMachine::new(
            Arc::new(SharedTable::default()),
            Arc::new(Publisher::default()),
            in_flight,
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

/// A start goes through the log piece by piece, and the next piece is read ahead. It must not be one that is cut off
/// and written anew meanwhile.
#[tokio::test]
async fn what_was_read_ahead_is_forgotten_when_the_end_of_the_log_is_cut_off() {
    let folder = Folder::new();
    let dir = folder.path().join("log");
    let open = || LogStore::open(&dir, WalOptions::default()).expect("the log can be opened");
    let mut log = open();
    log.blocking_append((0..192).map(|index| large_entry(1, index))).await.expect("entries can be appended");
    drop(log);
    // Opened anew, nothing is in memory.
    let mut log = open();
    let mut reader = log.get_log_reader().await;
    assert_eq!(terms(&mut reader, 0..64).await, [1; 64]);
    assert_eq!(terms(&mut reader, 64..128).await, [1; 64]);
    // Time for the next piece to be read.
    tokio::task::spawn_blocking(|| ()).await.expect("a thread can be waited for");
    log.truncate_after(Some(log_id::<TypeConfig>(1, 1, 127))).await.expect("the end can be cut off");
    for index in 128..256 {
        // One by one: what was written before the last one leaves the memory.
        log.blocking_append([large_entry(2, index)]).await.expect("an entry can be appended");
    }
    assert_eq!(terms(&mut reader, 128..192).await, [2; 64]);
    assert_eq!(terms(&mut reader, 192..256).await, [2; 64]);
}

/// Of several, the oldest don't stay in memory.
fn large_entry(term: u64, index: u64) -> EntryOf<TypeConfig> {
    let commands = vec![Command::Settle { resources: vec!["r".repeat(20_000).into()] }];
    let proposal = Proposal::from(Batch { stamp: Stamp::default(), commands });
    openraft::Entry {
        log_id: log_id::<TypeConfig>(term, 1, index),
        payload: EntryPayload::Normal(Arc::new(proposal)),
    }
}

async fn terms(reader: &mut LogStore, range: std::ops::Range<u64>) -> Vec<u64> {
    let entries = reader.try_get_log_entries(range.clone()).await.expect("entries can be read");
    assert!(entries.iter().map(|entry| entry.log_id.index).eq(range));
    entries.iter().map(|entry| entry.log_id.leader_id.term).collect()
}

/// A follower has two things to do when an entry has come: to say that it is on disk, for which its leader waits, and to
/// apply the one before it, for which nobody does.
#[test]
fn what_is_ready_to_run_goes_before_an_entry_that_nobody_waits_for() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (say, said) = std::sync::mpsc::channel();
    runtime.block_on(async {
        let (_folder, _log, mut machine) = Builder.build().await.expect("a state machine");
        let entry = openraft::Entry { log_id: log_id::<TypeConfig>(1, 1, 0), payload: EntryPayload::Blank };
        let say_too = say.clone();
        let apply = tokio::spawn(async move {
            machine.apply(futures_util::stream::iter([Ok((entry, None))])).await.expect("it is applied");
            say_too.send("applied").ok();
        });
        let answer = tokio::spawn(async move { say.send("answered").ok() });
        apply.await.expect("no panic");
        answer.await.expect("no panic");
    });
    assert_eq!(said.into_iter().collect::<Vec<_>>(), ["answered", "applied"]);
}
