//! Damaged and invented bytes where the engine reads its disk: an error or a value, never a panic, never much memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold_core::table::Restorer;
use leasehold_core::{Batch, ClaimId, Command, NewClaim, OnBusy, Stamp, Table};
use leasehold_engine::entry::{Origin, Origins, Parcel, Proposal};
use leasehold_engine::log_store::LogStore;
use leasehold_engine::snapshot_file;
use leasehold_engine::types::TypeConfig;
use leasehold_engine::wal::{Record, Wal, WalOptions};
use leasehold_lab::mutate::mutated;
use leasehold_lab::random::Random;
use openraft::EntryPayload;
use openraft::type_config::alias::{LogIdOf, SnapshotMetaOf};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("leasehold-fuzz-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn claims() -> Vec<Command> {
    let claim = |number: u128| {
        let (resource, owner) = (format!("r{}", number % 3), format!("owner {number}"));
        let id = ClaimId::from_u128(number << 64 | number);
        Command::Claim(NewClaim::new(id, &resource, &owner, Some(5_000_000), OnBusy::Queue))
    };
    (1..40).map(claim).collect()
}

fn table() -> Table {
    let mut table = Table::default();
    table.apply(&Batch { stamp: Stamp { now_us: 1_000, wall_us: 5 }, commands: claims() });
    table.apply(&Batch { stamp: Stamp { now_us: 6_000_000, wall_us: 6 }, commands: vec![Command::Tick] });
    table
}

#[test]
fn a_table_of_mutated_bytes_is_refused_or_consistent() {
    let chunks: Vec<Vec<u8>> = table().freeze().chunks().collect();
    let mut random = Random::new(1);
    let mut restored = 0;
    for _ in 0..3_000 {
        let mut restorer = Restorer::default();
        let damaged = random.below(chunks.len() as u64) as usize;
        let pushed = chunks.iter().enumerate().try_for_each(|(place, chunk)| {
            let bytes = if place == damaged { mutated(&chunks, &mut random) } else { chunk.clone() };
            restorer.push(&bytes)
        });
        if pushed.is_ok()
            && let Ok(table) = restorer.finish()
        {
            restored += 1;
            table.check(true).unwrap();
        }
    }
    assert!(restored > 0, "not even harmless changes are taken: the corpus is broken");
}

/// A node writes snapshots in the background; meanwhile its leader may send it a newer one.
#[test]
fn a_snapshot_that_is_done_late_leaves_the_newer_one_in_place() {
    let folder = Folder::new("late");
    let of = |index| {
        let leader_id = openraft::impls::leader_id_adv::LeaderId { term: 1, node_id: 1 };
        let last_log_id = Some(LogIdOf::<TypeConfig> { leader_id, index });
        SnapshotMetaOf::<TypeConfig> { last_log_id, ..SnapshotMetaOf::<TypeConfig>::default() }
    };
    for index in [80, 40] {
        snapshot_file::write(&folder.0, &of(index), &Origins::default(), &table().freeze()).unwrap();
    }
    let (meta, _) = snapshot_file::newest(&folder.0).unwrap().unwrap();
    assert_eq!(meta.last_log_id, of(80).last_log_id);
    snapshot_file::write(&folder.0, &of(120), &Origins::default(), &table().freeze()).unwrap();
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1, "older ones go");
}

#[test]
fn a_mutated_snapshot_file_is_refused_or_loads() {
    let folder = Folder::new("snapshot");
    let meta = SnapshotMetaOf::<TypeConfig>::default();
    let file = snapshot_file::write(&folder.0, &meta, &Origins::default(), &table().freeze()).unwrap();
    let corpus = vec![fs::read(&file.path).unwrap()];
    let (mut random, path) = (Random::new(2), folder.0.join("mutated"));
    for _ in 0..2_000 {
        fs::write(&path, mutated(&corpus, &mut random)).unwrap();
        if let Ok((_, _, table)) = snapshot_file::load(&path) {
            table.check(true).unwrap();
        }
    }
}

/// An entry as `log_store.rs` writes it: format, log id, payload.
fn entry(index: u64) -> Vec<u8> {
    let parcel =
        Parcel { origin: Some(Origin { node: 1, run: 5, number: index }), commands: Arc::new(claims()) };
    let proposal = Arc::new(Proposal::new(Stamp { now_us: 7, wall_us: 8 }, vec![parcel]));
    let payload: EntryPayload<Arc<Proposal>, u64, openraft::BasicNode> = EntryPayload::Normal(proposal);
    let leader_id = openraft::impls::leader_id_adv::LeaderId { term: 1, node_id: 1 };
    let log_id = LogIdOf::<TypeConfig> { leader_id, index };
    postcard::to_extend(&(log_id, &payload), vec![2]).unwrap()
}

fn options() -> WalOptions {
    WalOptions { segment_bytes: 64 << 10, ..WalOptions::default() }
}

fn write_log(dir: &Path, payload: Vec<u8>) {
    fs::remove_dir_all(dir).ok();
    fs::create_dir_all(dir).unwrap();
    let (wal, _) = Wal::open(dir, options()).unwrap();
    let (done, written) = std::sync::mpsc::channel();
    wal.append(vec![Record::Entry { index: 0, payload: payload.into() }], move |result| {
        done.send(result).unwrap();
    });
    written.recv().unwrap().unwrap();
    wal.close();
}

#[test]
fn a_log_of_mutated_entries_is_refused_or_opens() {
    let folder = Folder::new("entries");
    let corpus = vec![entry(0)];
    let dir = folder.0.join("log");
    write_log(&dir, corpus[0].clone());
    assert!(LogStore::open(&dir, options()).is_ok(), "the corpus itself is not understood");
    let mut random = Random::new(3);
    for _ in 0..150 {
        let mut payload = mutated(&corpus, &mut random);
        payload.truncate(32 << 10);
        write_log(&dir, payload);
        LogStore::open(&dir, options()).ok();
    }
}

#[test]
fn a_log_with_mutated_files_is_refused_or_opens() {
    let folder = Folder::new("files");
    let (whole, dir) = (folder.0.join("whole"), folder.0.join("log"));
    write_log(&whole, entry(0));
    let files: Vec<(PathBuf, Vec<u8>)> = fs::read_dir(&whole)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.file_name().unwrap().into(), fs::read(&path).unwrap()))
        .collect();
    let mut random = Random::new(4);
    for _ in 0..300 {
        fs::remove_dir_all(&dir).ok();
        fs::create_dir_all(&dir).unwrap();
        let damaged = random.below(files.len() as u64) as usize;
        for (place, (name, bytes)) in files.iter().enumerate() {
            let bytes = if place == damaged {
                mutated(std::slice::from_ref(bytes), &mut random)
            } else {
                bytes.clone()
            };
            fs::write(dir.join(name), bytes).unwrap();
        }
        LogStore::open(&dir, options()).ok();
    }
}
