//! A full disk, for real: each test runs again inside a mount namespace of its own, on a tmpfs of 1 MiB.

use std::process::Command;

use leasehold_engine::wal::Room;

use super::*;

const DISK_VARIABLE: &str = "LEASEHOLD_TEST_SMALL_DISK";
const SEGMENT: u64 = 128 << 10;
const LOW: u64 = 16 << 10;

/// Runs the named test of this binary on a small disk. Without `unshare` it fails: it must not look passed.
fn on_a_small_disk(test: &str) {
    let disk = TempDir::new();
    let script = r#"mount -t tmpfs -o size=1m small "$LEASEHOLD_TEST_SMALL_DISK" && exec "$@""#;
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("wal::full_disk::{test}"), "--ignored", "--nocapture"])
        .env(DISK_VARIABLE, &disk.0)
        .output()
        .expect("this test needs `unshare` (util-linux) and user namespaces");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "on the small disk: {text}");
}

fn small_disk() -> PathBuf {
    std::env::var_os(DISK_VARIABLE).expect("run by on_a_small_disk only").into()
}

fn open(disk: &Path) -> (Wal, Recovered) {
    let options = WalOptions { segment_bytes: SEGMENT, low_room_bytes: LOW, ..WalOptions::default() };
    Wal::open(&disk.join("log"), options).unwrap()
}

/// Takes all space there is, until it is removed.
fn fill(disk: &Path) -> PathBuf {
    let ballast = disk.join("ballast");
    let error = fs::write(&ballast, vec![1; 2 << 20]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    ballast
}

/// Appends until the disk is full; gives the index that did not fit.
fn append_until_full(wal: &Wal, from: u64) -> u64 {
    for index in from.. {
        let before = wal.room();
        if let Err(error) = append(wal, vec![entry(index, [5; 2000])]) {
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            assert_ne!(before, Room::Enough, "it was said before");
            assert_eq!(wal.room(), Room::Low);
            let lack = wal.no_room().expect("the disk is full");
            assert_eq!(lack.needed_bytes, SEGMENT);
            assert!(lack.free_bytes.unwrap() < SEGMENT, "{lack}");
            assert!(error.to_string().contains(&lack.to_string()), "{error}");
            return index;
        }
    }
    unreachable!("a disk of 1 MiB never filled up")
}

#[test]
fn a_full_disk_refuses_appends_and_the_log_works_again_when_there_is_space() {
    on_a_small_disk("space_goes_and_comes_back");
}

#[test]
#[ignore = "run on a small disk by the test above"]
fn space_goes_and_comes_back() {
    let disk = small_disk();
    let (wal, _) = open(&disk);
    append(&wal, vec![entry(0, "x"), vote("v")]).unwrap();
    let ballast = fill(&disk);
    let stopped = append_until_full(&wal, 1);
    // Small things still fit, and what was acknowledged is there.
    append(&wal, vec![vote("w")]).unwrap();
    assert_eq!(wal.read(0..u64::MAX).unwrap().len() as u64, stopped);

    // So it is after a restart on the full disk.
    drop(wal);
    let (wal, recovered) = open(&disk);
    assert_eq!((recovered.entries, recovered.vote, recovered.torn), (0..stopped, Some(bytes("w")), None));
    eventually("room is low again", || wal.room() == Room::Low);
    assert!(append(&wal, vec![entry(stopped, [5; 2000])]).is_err());

    fs::remove_file(ballast).unwrap();
    eventually("there is room", || wal.room() == Room::Enough);
    append(&wal, vec![entry(stopped, [5; 2000])]).unwrap();
    assert_eq!(wal.no_room(), None);
    drop(wal);
    assert_eq!(open(&disk).1.entries, 0..stopped + 1);
}

#[test]
fn a_purge_makes_room_on_a_full_disk() {
    on_a_small_disk("purging_frees_space");
}

#[test]
#[ignore = "run on a small disk by the test above"]
fn purging_frees_space() {
    let disk = small_disk();
    let (wal, _) = open(&disk);
    let mut next = 0;
    for _ in 0..3 {
        next = append_until_full(&wal, next);
        append(&wal, vec![purge(next - 1)]).unwrap();
        eventually("there is room", || wal.room() == Room::Enough);
    }
    append(&wal, vec![entry(next, "x")]).unwrap();
    drop(wal);
    assert_eq!(open(&disk).1.entries, next..next + 1);
}

#[test]
fn a_huge_append_on_a_full_disk_is_refused_and_leaves_the_log_whole() {
    on_a_small_disk("a_huge_append_does_not_fit");
}

#[test]
#[ignore = "run on a small disk by the test above"]
fn a_huge_append_does_not_fit() {
    let disk = small_disk();
    let (wal, _) = open(&disk);
    append(&wal, vec![entry(0, "x")]).unwrap();
    let error = append(&wal, vec![entry(1, vec![1; 2 << 20])]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    append(&wal, vec![entry(1, "small")]).unwrap();
    drop(wal);
    let (_wal, recovered) = open(&disk);
    assert_eq!((recovered.entries, recovered.torn), (0..2, None));
}
