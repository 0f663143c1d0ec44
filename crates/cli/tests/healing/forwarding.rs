//! Commands that a follower has sent to its leader get an answer, and a true one, whatever becomes of the two.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use leasehold_lab::cluster::{Cluster, PATIENCE, Setup};
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
    // Slow heartbeats: the follower believes in its leader all the time. One that does not gives up on what it forwarded.
    let cluster = cluster(3, &["--heartbeat-ms", "10000", "--snapshot-log-mib", "1"]);
    let (leader, followers) = roles(&cluster);
    let follower = followers[0];
    // The leader may still have its whole log when the follower is back; then there was nothing to see.
    let needed = (0..5).any(|round| {
        cut_and_outrun(&cluster, leader, follower, round);
        cluster.log(follower).contains("a snapshot from the leader has arrived")
    });
    assert!(needed, "no snapshot was needed");
    eventually("the node is ready again", || {
        cluster.ask(follower, "GET", "/readyz", "").is_ok_and(|reply| reply.status == 200)
    });
}

fn cut_and_outrun(cluster: &Cluster, leader: u64, follower: u64, round: u32) {
    let applied = cluster.status(leader).unwrap()["nodes"][0]["log"].as_u64().unwrap();
    cluster.network.refuse(follower);
    let forwarded: Vec<_> = (0..5)
        .map(|number| {
            let resource = format!("forwarded-{round}-{number}");
            let asked = in_background(cluster.addr(follower), "POST", "/v1/claims/", &claim_body(&resource));
            if number < 4 {
                eventually("the leader has what was forwarded", || {
                    count(cluster, leader, &resource, "active") == 1
                });
            }
            asked
        })
        .collect();
    outrun(cluster, leader, applied);
    // The leader keeps its log as long as it is about to send it to somebody: until its next calls have failed.
    let calls = cluster.network.calls(follower);
    eventually("the leader calls in vain", || cluster.network.calls(follower) > calls + 6);
    cluster.network.accept(follower);
    for asked in forwarded {
        let reply = asked.join().unwrap().expect("every request is answered");
        assert!([201, 503, 504].contains(&reply.status), "{reply:?}");
    }
    serves(cluster, follower, &format!("after-{round}"));
}

/// A follower whose commands get as far as its leader, and whose outcomes never come.
#[test]
fn a_node_whose_commands_do_not_come_through_is_not_ready() {
    let _alone = alone();
    let cluster = cluster(3, &["--heartbeat-ms", "10000"]);
    let (leader, followers) = roles(&cluster);
    let ready = || cluster.ask(followers[0], "GET", "/readyz?verbose", "").unwrap();
    assert_eq!(ready().status, 200);
    cluster.network.refuse(followers[0]);
    let asked = in_background(cluster.addr(followers[0]), "POST", "/v1/claims/", &claim_body("stuck"));
    eventually("the leader has what was forwarded", || count(&cluster, leader, "stuck", "active") == 1);
    eventually("the node says that its commands do not get through", || {
        let reply = ready();
        reply.status == 503 && reply.body.contains("[-]engine failed: commands do not get through")
    });
    assert_eq!(asked.join().unwrap().expect("every request is answered").status, 504);
    cluster.network.accept(followers[0]);
    eventually("the node is ready again, though nobody has asked it for anything", || ready().status == 200);
}

/// What is left of the log's last segment, once there is no spare one behind it. A segment is zeroed before it is used: its
/// last byte that is not zero is where the log ends.
fn room_left(cluster: &Cluster, node: u64) -> Option<usize> {
    let names = std::fs::read_dir(cluster.data_dir(node).join("log")).unwrap().flatten();
    let logs =
        names.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "log"));
    let bytes = std::fs::read(logs.max()?).ok()?;
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    (used > 1024).then_some(bytes.len() - used)
}

/// A parcel whose first answer was lost is sent again and refused, since the leader's disk has become full meanwhile. The
/// first copy is committed all the same: nobody may say that nothing happened.
#[test]
fn a_parcel_that_is_refused_the_second_time_is_not_called_undone() {
    let _alone = alone();
    // Clients are refused when less than this is left of the log, and there is no next segment.
    const LOW_ROOM: usize = 1 << 20;
    let small = 1;
    let args = &["--heartbeat-ms", "3000", "--snapshot-log-mib", "500"];
    let (binary, envs, proxies, small_disk) = (binary(), &[], true, Some(small));
    let setup = Setup { binary, nodes: 3, args, envs, proxies, small_disk };
    let cluster = Cluster::start_as(&setup).unwrap();
    if cluster.leader().unwrap() != small {
        let reply = cluster.ask(2, "POST", "/v1/cluster/leader", "{\"id\": 1}").unwrap();
        assert_eq!(reply.status, 204, "{reply:?}");
    }
    let (leader, followers) = roles(&cluster);
    assert_eq!(leader, small);
    let (witness, follower) = (followers[0], followers[1]);
    let (_, disk) = cluster.small_disk().unwrap();
    disk.fill().unwrap();
    let data = |kib: usize| "x".repeat(kib << 10);
    let mut round = 0;
    let mut write = |kib| {
        round += 1;
        let body =
            format!("{{\"resource\": \"fill-{round}\", \"ttl\": 600, \"user_data\": \"{}\"}}", data(kib));
        let reply = cluster.ask(leader, "POST", "/v1/claims/", &body).unwrap();
        assert_eq!(reply.status, 201, "{}", reply.head);
    };
    // Both segments: the one in use, and the one that was prepared before the disk was full.
    loop {
        match room_left(&cluster, leader) {
            Some(left) if left < LOW_ROOM + (60 << 10) => break,
            Some(left) if left < LOW_ROOM + (200 << 10) => write(8),
            _ => write(60),
        }
    }
    // The first answer is lost for good.
    cluster.network.cuts_last();
    cluster.network.refuse(follower);
    // A full leader hands over if it has heard a majority of others within two seconds.
    missed(&cluster, leader, follower, 2500);
    cluster.network.mute(leader, follower);
    let body = format!("{{\"resource\": \"in-doubt\", \"ttl\": 600, \"user_data\": \"{}\"}}", data(62));
    let asked = in_background(cluster.addr(follower), "POST", "/v1/claims/", &body);
    eventually("the first copy is committed", || count(&cluster, witness, "in-doubt", "active") == 1);
    let refused = cluster.ask(leader, "POST", "/v1/claims/", &claim_body("refused")).unwrap();
    assert_eq!(refused.status, 507, "the disk is full by now: {refused:?}");
    cluster.network.unmute(leader, follower);
    let reply = asked.join().unwrap().unwrap();
    assert_eq!(
        (reply.status, reply.json()["type"].as_str()),
        (504, Some("urn:leasehold:problem:outcome-unknown")),
        "{reply:?}"
    );
    assert_eq!(count(&cluster, witness, "in-doubt", "active"), 1);
}
