//! The bytes of table version 3: log entries and snapshots with modes, slots, sets and sessions.
//!
//! In:    `golden/0.2.0`: an entry's bytes in hex, and a snapshot. `UPDATE_GOLDEN=1` writes them anew, which only a build before the
//!        release of 0.2.0 may do: nodes of that release read and write these bytes for as long as anybody upgrades from it.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold_core::{
    Batch, ClaimId, Command, Data, Format, Idempotency, Item, Mode, NewSet, OnBusy, Stamp, Status, Table,
};
use leasehold_engine::entry::{Origin, Origins, Parcel, Proposal};
use leasehold_engine::log_store::LogStore;
use leasehold_engine::snapshot_file;
use leasehold_engine::types::TypeConfig;
use leasehold_engine::wal::WalOptions;
use openraft::EntryPayload;
use openraft::storage::{RaftLogReader, RaftLogStorageExt};
use openraft::testing::log_id;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/0.2.0");

fn set(id: u128, items: &[(&str, Mode)], session: Option<&str>) -> Command {
    let items = items.iter().map(|(resource, mode)| Item { resource: (*resource).into(), mode: *mode });
    Command::ClaimSet(Box::new(NewSet {
        id: ClaimId::from_u128(id),
        items: items.collect(),
        owner: "ann".into(),
        ttl_us: Some(600_000_000),
        on_busy: OnBusy::Queue,
        data: None,
        idempotency: None,
        session: session.map(Into::into),
        lapses: true,
    }))
}

/// Each word of the model once: holders that share, slots, a set that waits and reserves, a session, a key and data.
fn commands() -> Vec<Command> {
    let slots = |take, of| Mode::Slots { take, of };
    let mut keyed = set(5, &[("keyed", Mode::Exclusive)], Some("worker/7"));
    if let Command::ClaimSet(new) = &mut keyed {
        new.data = Some(Data { format: Format::Json, bytes: br#"{"pid":1}"#[..].into() });
        new.idempotency = Some(Idempotency { key: u128::MAX - 6, fingerprint: 99 });
        new.lapses = false;
    }
    vec![
        set(1, &[("db", Mode::Shared)], None),
        set(2, &[("db", Mode::Shared), ("boards", slots(2, 5))], Some("worker")),
        set(3, &[("free", Mode::Exclusive), ("db", Mode::Exclusive), ("boards", slots(3, 5))], None),
        set(4, &[("boards", slots(1, 5))], None),
        keyed,
    ]
}

fn stamp(now_us: u64) -> Stamp {
    Stamp { now_us, wall_us: 1_700_000_000_000_000 + now_us }
}

/// A folder of its own, removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("leasehold-version-3-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// The bytes that stand under this name; written first, if that is asked for.
fn golden(name: &str, found: &[u8]) -> Vec<u8> {
    let path = Path::new(GOLDEN).join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(GOLDEN).unwrap();
        fs::write(&path, found).unwrap();
    }
    fs::read(path).unwrap()
}

#[tokio::test]
async fn an_entry_with_sets_is_written_as_it_was_and_read_again() {
    let folder = Folder::new("log");
    let origin = Some(Origin { node: 1, run: 2, number: 3 });
    let parcel = Parcel { origin, commands: Arc::new(commands()) };
    let payload = EntryPayload::Normal(Arc::new(Proposal::new(stamp(5), vec![parcel])));
    let entry = openraft::Entry { log_id: log_id::<TypeConfig>(1, 1, 0), payload };
    let mut log = LogStore::open(&folder.0, WalOptions::default()).unwrap();
    log.blocking_append([entry.clone()]).await.unwrap();
    let written = log.wal().read(0..1).unwrap();
    let mut hex = String::new();
    for byte in written.iter().flat_map(|(_, bytes)| bytes.iter()) {
        write!(hex, "{byte:02x}").unwrap();
    }
    hex.push('\n');
    assert_eq!(hex.as_bytes(), golden("entry.hex", hex.as_bytes()), "other bytes than 0.2.0 writes");
    assert_eq!(log.try_get_log_entries(0..1).await.unwrap(), [entry]);
    log.wal().close();
}

#[test]
fn a_snapshot_with_sets_is_written_as_it_was_and_read_again() {
    let folder = Folder::new("snapshot");
    let mut table = Table::default();
    table.apply(&Batch { stamp: stamp(1), commands: vec![Command::Upgrade { version: 3 }] });
    table.apply(&Batch { stamp: stamp(2), commands: commands() });
    assert_eq!((table.version(), table.count(Status::Active), table.count(Status::Waiting)), (3, 3, 2));
    let (meta, origins) = (Default::default(), Origins::default());
    let file = snapshot_file::write(&folder.0, &meta, &origins, &table.freeze()).unwrap();
    let bytes = fs::read(&file.path).unwrap();
    assert!(bytes == golden("table.snapshot", &bytes), "other bytes than 0.2.0 writes");
    let (_, _, loaded) = snapshot_file::load(&Path::new(GOLDEN).join("table.snapshot")).unwrap();
    loaded.check(false).unwrap();
    assert_eq!(loaded.freeze().digest(), table.freeze().digest());
    let waiting = loaded.claim_view(ClaimId::from_u128(3), 3).unwrap();
    assert_eq!((waiting.claim.status, waiting.items().len()), (Status::Waiting, 3));
    let mut reserving =
        loaded.resource("free").unwrap().reserved().map(|seq| loaded.view_at(seq, 3).claim.id);
    assert_eq!(reserving.next(), Some(waiting.claim.id), "what is free is reserved after a start, too");
    let held = loaded.claim_view(ClaimId::from_u128(2), 3).unwrap();
    assert_eq!(
        (&held.items()[1].slots, held.session().map(|session| &**session)),
        (&vec![1, 2], Some("worker"))
    );
}
