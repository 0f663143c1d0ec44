//! Commands that a follower has sent to its leader get an answer, and a true one, whatever becomes of the two.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use leasehold_lab::cluster::{Cluster, PATIENCE};
use leasehold_lab::http::request;

use crate::support::*;

/// Entries that a leader keeps behind its snapshot: only a follower that lacks more than those gets the snapshot.
const LOG_KEPT: u64 = 2000;

/// The newest entry in a snapshot of this node.
fn snapshot_index(cluster: &Cluster, node: u64) -> u64 {
    let names = std::fs::read_dir(cluster.data_dir(node).join("snapshots")).into_iter().flatten().flatten();
    let index = |name: String| name.strip_suffix(".snapshot")?.split_once('-')?.1.parse().ok();
    names.filter_map(|entry| index(entry.file_name().into_string().ok()?)).max().unwrap_or(0)
}

/// Writes through this node until its newest snapshot is so new that a follower with `applied` entries needs it.
fn outrun(cluster: &Cluster, node: u64, applied: u64) {
    let (addr, enough) = (cluster.addr(node), AtomicBool::new(false));
    let data = "x".repeat(4000);
    thread::scope(|scope| {
        for client in 0..4 {
            let (enough, data) = (&enough, &data);
            scope.spawn(move || {
                let mut round = 0;
                while !enough.load(Ordering::Acquire) {
                    round += 1;
                    let body = format!(
                        "{{\"resource\": \"fill-{client}-{round}\", \"ttl\": 0, \"user_data\": \"{data}\"}}"
                    );
                    request(addr, "POST", "/v1/claims/", &body, PATIENCE).unwrap();
                }
            });
        }
        eventually("a snapshot that the follower needs", || {
            snapshot_index(cluster, node) > applied + LOG_KEPT + 100
        });
        enough.store(true, Ordering::Release);
    });
}

/// The snapshot that a follower gets after a short cut covers what it had forwarded. It used to wait for those commands
/// for ever, and after four of them for everything else.
#[test]
fn a_follower_answers_what_a_snapshot_covers_and_serves_on() {
    let _alone = alone();
    // Slow heartbeats: the follower believes in its leader all the time.
    let cluster = cluster(3, &["--heartbeat-ms", "3000", "--snapshot-log-mib", "1"]);
    let (leader, followers) = roles(&cluster);
    let follower = followers[0];
    let applied = cluster.status(leader).unwrap()["nodes"][0]["log"].as_u64().unwrap();
    cluster.network.refuse(follower);
    let forwarded: Vec<_> = (0..5)
        .map(|number| {
            let resource = format!("forwarded-{number}");
            let asked = in_background(cluster.addr(follower), "POST", "/v1/claims/", &claim_body(&resource));
            if number < 4 {
                eventually("the leader has what was forwarded", || {
                    count(&cluster, leader, &resource, "active") == 1
                });
            }
            asked
        })
        .collect();
    eventually("a node whose commands do not come through is not ready", || {
        cluster.ask(follower, "GET", "/readyz", "").is_ok_and(|reply| reply.status == 503)
    });
    outrun(&cluster, leader, applied);
    cluster.network.accept(follower);
    for asked in forwarded {
        let reply = asked.join().unwrap().expect("every request is answered");
        assert!([201, 503, 504].contains(&reply.status), "{reply:?}");
    }
    serves(&cluster, follower, "after");
    assert!(cluster.log(follower).contains("a snapshot of the leader has come"), "no snapshot was needed");
    eventually("the node is ready again", || {
        cluster.ask(follower, "GET", "/readyz", "").is_ok_and(|reply| reply.status == 200)
    });
}
