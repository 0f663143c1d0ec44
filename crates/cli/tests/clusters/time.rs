//! Time in a cluster: no lease ends before its holder thinks so, and it stands still while nobody could renew.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use leasehold_lab::cluster::{Cluster, PATIENCE};
use leasehold_lab::turns;
use serde_json::Value;

/// A claim with this ttl, and when its holder began to count.
struct Lease {
    path: String,
    ttl: Duration,
    counted_from: Instant,
}

fn hold(cluster: &Cluster, ttl: u64) -> Lease {
    let counted_from = Instant::now();
    let node = cluster.ids()[0];
    let body = format!("{{\"resource\": \"held\", \"ttl\": {ttl}}}");
    let reply = cluster.ask(node, "POST", "/v1/claims/", &body).unwrap();
    assert_eq!(reply.status, 201, "{reply:?}");
    let path = format!("/{}", reply.json()["url"].as_str().unwrap().splitn(4, '/').nth(3).unwrap());
    Lease { path, ttl: Duration::from_secs(ttl), counted_from }
}

fn look(cluster: &Cluster, node: u64, lease: &Lease) -> Option<Value> {
    let reply = cluster.ask(node, "GET", &lease.path, "").ok()?;
    (reply.status == 200).then(|| reply.json())
}

/// It is over at last, and not before its holder gave it up.
fn ends_in_its_own_time(cluster: &Cluster, lease: &Lease) {
    loop {
        let node = cluster.running()[0];
        if let Some(claim) = look(cluster, node, lease) {
            if claim["status"] == "expired" {
                assert!(lease.counted_from.elapsed() >= lease.ttl, "it ended early: {claim:#}");
                return;
            }
            assert_eq!(claim["status"], "active");
        }
        assert!(lease.counted_from.elapsed() < PATIENCE, "it never ends");
        thread::sleep(Duration::from_millis(20));
    }
}

fn cluster() -> Cluster {
    Cluster::start(Path::new(env!("CARGO_BIN_EXE_leasehold")), 3, &[]).unwrap()
}

#[test]
fn a_lease_outlives_its_leader_and_ends_in_its_own_time() {
    let _turn = turns::take();
    let mut cluster = cluster();
    let lease = hold(&cluster, 3);
    let leader = cluster.leader().unwrap();
    cluster.kill(leader).unwrap();
    ends_in_its_own_time(&cluster, &lease);
}

#[test]
fn time_stands_still_while_no_leader_exists() {
    let _turn = turns::take();
    let mut cluster = cluster();
    let lease = hold(&cluster, 3);
    for id in cluster.ids() {
        cluster.kill(id).unwrap();
    }
    // Longer than the ttl: nobody could renew in this time.
    thread::sleep(lease.ttl + Duration::from_secs(1));
    for id in cluster.ids() {
        cluster.spawn(id).unwrap();
    }
    let leader = cluster.leader().unwrap();
    let claim = look(&cluster, leader, &lease).unwrap();
    assert_eq!(claim["status"], "active", "its holder could not renew: {claim:#}");
    ends_in_its_own_time(&cluster, &lease);
}

#[test]
fn a_majority_that_is_cut_off_or_frozen_ends_nobodys_lease() {
    let _turn = turns::take();
    let mut cluster = cluster();
    let lease = hold(&cluster, 4);
    // Each node by itself: nobody leads a majority.
    for id in cluster.ids() {
        cluster.isolate(&[id]);
    }
    thread::sleep(lease.ttl + Duration::from_secs(1));
    cluster.network.heal();
    let leader = cluster.leader().unwrap();
    assert_eq!(look(&cluster, leader, &lease).unwrap()["status"], "active");
    // All of them stopped at once, as a frozen host does.
    let renewed = cluster.ask(leader, "PATCH", &lease.path, "{\"ttl\": 4}").unwrap();
    assert_eq!(renewed.status, 200, "{renewed:?}");
    for id in cluster.ids() {
        cluster.pause(id).unwrap();
    }
    thread::sleep(lease.ttl + Duration::from_secs(1));
    for id in cluster.ids() {
        cluster.resume(id).unwrap();
    }
    let leader = cluster.leader().unwrap();
    assert_eq!(look(&cluster, leader, &lease).unwrap()["status"], "active");
    ends_in_its_own_time(&cluster, &lease);
}
