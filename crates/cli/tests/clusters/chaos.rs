//! Random faults on real nodes under clients of all dialects, for a short while; `make chaos MINUTES=n` goes on for longer.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_lab::chaos::{Fault, Pace, Plan, run};
use leasehold_lab::cluster::{Cluster, PATIENCE};
use leasehold_lab::register::{Tally, play};

const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");

/// `libfaketime`, which Debian's package `faketime` brings (`make test-tools`).
fn faketime() -> PathBuf {
    let found = fs::read_dir("/usr/lib").unwrap().flatten();
    let found =
        found.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
    found.expect("wall clocks can't jump without the Debian package faketime: make test-tools installs it")
}

#[test]
fn whatever_fails_histories_of_all_dialects_are_linearizable_and_the_nodes_agree() {
    let plan = Plan {
        binary: BINARY.into(),
        length: Duration::from_secs(20),
        nodes: 3,
        seed: 20_261_116,
        clients: 2,
        holders: 1,
        pace: Pace::Storm,
        // The disk of a follower, and then that of the leader.
        first: vec![
            Fault::Isolate,
            Fault::FullDisk,
            Fault::KillLeader,
            Fault::HalfOpen,
            Fault::Reset,
            Fault::Pause,
            Fault::Refuse,
            Fault::Mute,
            Fault::FullDisk,
        ],
        without: Vec::new(),
        // A machine that is busy may take its time; `make chaos` is strict.
        healed_within: 2 * PATIENCE,
        faketime: Some(faketime()),
        verbose: false,
    };
    let summary = run(&plan).unwrap();
    assert!(summary.operations > 200 && summary.faults.len() > 3, "too little happened: {summary}");
    assert!(summary.full.0 > 1, "the disk was not full twice: {summary}");
    assert!(summary.held.len() == 3 && summary.held.values().all(|claims| *claims > 0), "{summary}");
}

/// The lock alone does not keep a client that was stopped from writing late: nothing can, but the register itself.
#[test]
fn updates_are_lost_without_the_fence_check_and_none_with_it() {
    let cluster = Cluster::start(Path::new(BINARY), 1, &[]).unwrap();
    let node = cluster.addr(1);
    let without = play(node, "without", 20, false).unwrap();
    assert_eq!(without, Tally { acknowledged: 30, lost: 10, fenced_off: 0 });
    let with = play(node, "with", 20, true).unwrap();
    assert_eq!(with, Tally { acknowledged: 20, lost: 0, fenced_off: 10 });
}
