//! The files of release 0.1.0 are read as they are, and written again byte for byte while the table version is the first.
//!
//! In:    `golden/0.1.0/data`, the data directory of a node of that release (see the README there).

use std::fs;
use std::path::{Path, PathBuf};

use leasehold_core::{Status, Table};
use leasehold_engine::entry::Origins;
use leasehold_engine::log_store::LogStore;
use leasehold_engine::snapshot_file;
use leasehold_engine::wal::WalOptions;
use openraft::EntryPayload;
use openraft::storage::{RaftLogReader, RaftLogStorage, RaftLogStorageExt};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/0.1.0/data");
/// What a segment of a running node has; the zeros at its end are not in the golden file.
const SEGMENT_BYTES: u64 = 8 << 20;

/// A folder of its own, removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("leasehold-released-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// The log as that release left it.
fn old_log(folder: &Folder) -> LogStore {
    let path = folder.0.join("00000001.log");
    fs::copy(Path::new(GOLDEN).join("log/00000001.log"), &path).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(SEGMENT_BYTES).unwrap();
    LogStore::open(&folder.0, WalOptions::default()).unwrap()
}

fn old_snapshot() -> PathBuf {
    let mut files = fs::read_dir(Path::new(GOLDEN).join("snapshots")).unwrap();
    files.next().unwrap().unwrap().path()
}

#[tokio::test]
async fn a_log_of_release_0_1_0_is_read_and_written_as_it_is() {
    let (from, to) = (Folder::new("log"), Folder::new("again"));
    let mut old = old_log(&from);
    let range = old.wal().entries();
    let entries = old.try_get_log_entries(range.clone()).await.unwrap();
    assert!(entries.len() >= 2, "{range:?}");
    let mut new = LogStore::open(&to.0, WalOptions::default()).unwrap();
    // The log begins behind its snapshot.
    new.purge(old.get_log_state().await.unwrap().last_purged_log_id.unwrap()).await.unwrap();
    new.blocking_append(entries).await.unwrap();
    let (expected, found) = (old.wal().read(range.clone()).unwrap(), new.wal().read(range).unwrap());
    assert_eq!(found, expected, "other bytes than release 0.1.0 writes");
    old.wal().close();
    new.wal().close();
}

#[tokio::test]
async fn a_snapshot_of_release_0_1_0_is_read_and_written_as_it_is() {
    let folder = Folder::new("snapshot");
    let (meta, origins, table) = snapshot_file::load(&old_snapshot()).unwrap();
    assert_eq!(table.version(), 1);
    table.check(false).unwrap();
    let again = snapshot_file::write(&folder.0, &meta, &origins, &table.freeze()).unwrap();
    let (found, expected) = (fs::read(again.path).unwrap(), fs::read(old_snapshot()).unwrap());
    assert_eq!(found, expected, "other bytes than release 0.1.0 writes");
}

#[tokio::test]
async fn snapshot_and_log_of_release_0_1_0_make_its_table() {
    let folder = Folder::new("table");
    let (_, mut origins, mut table): (_, Origins, Table) = snapshot_file::load(&old_snapshot()).unwrap();
    let mut log = old_log(&folder);
    for entry in log.try_get_log_entries(..).await.unwrap() {
        if let EntryPayload::Normal(proposal) = &entry.payload {
            let parcels = origins.first_of(proposal);
            table.apply_all(proposal.stamp, parcels.iter().map(|parcel| &**parcel.commands));
        }
    }
    log.wal().close();
    table.check(true).unwrap();
    assert_eq!((table.count(Status::Active), table.count(Status::Waiting)), (2, 2));
    let (main, later) = (table.holder_view("db/main", 0).unwrap(), table.holder_view("db/later", 0).unwrap());
    assert_eq!((main.claim.token, later.claim.token), (1, 3));
    assert_eq!(&*main.claim.data.unwrap().bytes, br#"{"pid":1}"#);
}
