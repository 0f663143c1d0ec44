//! A cluster that nobody uses sleeps, also when peers are gone.
//!
//! Wake-ups are counted by the kernel: context switches of all threads of a node. Other processes of a busy machine add some,
//! so the quietest of several windows counts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirEntry};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use leasehold_lab::cluster::Cluster;

use crate::support::*;

/// What docs/operations.md promises.
const WAKEUPS_A_SECOND_MAX: f64 = 40.0;
/// How long wake-ups are counted, and how often at most.
const WINDOW: Duration = Duration::from_secs(3);
const WINDOWS: usize = 10;

/// Context switches of each thread of a process so far.
fn switches(pid: u32) -> BTreeMap<OsString, u64> {
    let threads = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")).unwrap();
    let of_one = |thread: DirEntry| {
        // A thread may end while they are counted.
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let counts = status.lines().filter(|line| line.contains("_ctxt_switches:"));
        let sum = counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum();
        Some((thread.file_name(), sum))
    };
    threads.flatten().filter_map(of_one).collect()
}

/// What was added since then; what a thread did that has ended meanwhile is not known.
fn added(before: &BTreeMap<OsString, u64>, after: &BTreeMap<OsString, u64>) -> u64 {
    after.iter().map(|(thread, count)| count - before.get(thread).unwrap_or(&0)).sum()
}

/// Every node that runs has a window in which it hardly wakes up.
fn all_sleep(cluster: &Cluster, when: &str) {
    let mut least: Vec<(u64, u32, f64)> =
        cluster.running().into_iter().map(|id| (id, cluster.pid(id).unwrap(), f64::INFINITY)).collect();
    for _ in 0..WINDOWS {
        let (start, before) =
            (Instant::now(), least.iter().map(|(_, pid, _)| switches(*pid)).collect::<Vec<_>>());
        thread::sleep(WINDOW);
        for ((_, pid, least), before) in least.iter_mut().zip(before) {
            *least = least.min(added(&before, &switches(*pid)) as f64 / start.elapsed().as_secs_f64());
        }
        if least.iter().all(|(.., least)| *least <= WAKEUPS_A_SECOND_MAX) {
            return;
        }
    }
    panic!(
        "{when}, nodes woke up more than {WAKEUPS_A_SECOND_MAX} times a second: (node, pid, a second) {least:?}"
    );
}

/// A node that has lost its majority says so.
fn is_leaderless(cluster: &Cluster, node: u64) -> bool {
    cluster.ask(node, "GET", "/readyz", "").is_ok_and(|reply| reply.status == 503)
}

#[test]
fn an_idle_cluster_sleeps_with_all_nodes_and_with_dead_ones() {
    let _alone = alone();
    let mut cluster = cluster(3, &[]);
    let (leader, followers) = roles(&cluster);
    // Nothing is held: while anything is, the leader writes the time into the log once a second.
    cluster.converge().unwrap();
    all_sleep(&cluster, "with all nodes up");
    cluster.kill(followers[0]).unwrap();
    missed(&cluster, leader, followers[0], 2000);
    all_sleep(&cluster, "with one follower dead");
    cluster.kill(leader).unwrap();
    eventually("the last node has no leader", || is_leaderless(&cluster, followers[1]));
    all_sleep(&cluster, "with only a follower left");
}

#[test]
fn an_idle_leader_whose_followers_are_dead_sleeps() {
    let _alone = alone();
    let mut cluster = cluster(3, &[]);
    let (leader, followers) = roles(&cluster);
    followers.into_iter().for_each(|node| cluster.kill(node).unwrap());
    eventually("the leader has no majority", || is_leaderless(&cluster, leader));
    all_sleep(&cluster, "with only the leader left");
}
