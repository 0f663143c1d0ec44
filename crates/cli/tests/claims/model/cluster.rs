//! A cluster of three: sets wait on through the loss of a leader, and every node tells the same of them.

use std::path::Path;
use std::time::{Duration, Instant};

use leasehold_lab::cluster::{Cluster, PATIENCE};
use leasehold_lab::turns;

#[test]
fn a_set_that_waits_is_granted_as_one_after_its_leader_was_killed() {
    let _turn = turns::take();
    let mut cluster = Cluster::start(Path::new(env!("CARGO_BIN_EXE_leasehold")), 3, &[]).unwrap();
    let leader = cluster.leader().unwrap();
    let others: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != leader).collect();
    let ask = |cluster: &Cluster, node: u64, method: &str, path: &str, body: &str| {
        // A new cluster raises its table version within moments, and a new leader takes a moment.
        let start = Instant::now();
        loop {
            match cluster.ask(node, method, path, body) {
                Ok(reply) if reply.status != 503 => return reply,
                reply => assert!(start.elapsed() < PATIENCE, "{reply:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let path = |url: &serde_json::Value| format!("/{}", url.as_str().unwrap().splitn(4, '/').nth(3).unwrap());
    let holder = ask(&cluster, leader, "POST", "/v1/claims/", r#"{"resource": "b", "ttl": 600}"#);
    let words =
        r#"{"resources": ["a", "b", {"resource": "c", "take": 2, "of": 5}], "ttl": 600, "session": "w"}"#;
    let set = ask(&cluster, others[0], "POST", "/v1/claims/", words);
    assert_eq!(set.status, 202, "{set:?}");
    let behind = ask(&cluster, others[1], "POST", "/v1/claims/", r#"{"resource": "a", "ttl": 600}"#);
    assert_eq!(behind.status, 202, "{behind:?}");
    cluster.kill(leader).unwrap();
    let (holder, set, behind) =
        (path(&holder.json()["url"]), path(&set.json()["url"]), path(&behind.json()["url"]));
    let reply = ask(&cluster, others[0], "PATCH", &holder, r#"{"status": "released"}"#);
    assert_eq!(reply.status, 204, "{reply:?}");
    cluster.spawn(leader).unwrap();
    cluster.settle().unwrap();
    for node in cluster.ids() {
        let seen = ask(&cluster, node, "GET", &set, "").json();
        assert_eq!(
            (&seen["status"], &seen["session"]),
            (&"active".into(), &"w".into()),
            "node {node}: {seen}"
        );
        assert_eq!(seen["items"][2]["slots"], serde_json::json!([1, 2]));
        assert!(seen["items"].as_array().unwrap().iter().all(|item| item["token"].is_u64()), "{seen}");
        assert_eq!(ask(&cluster, node, "GET", &behind, "").json()["status"], "waiting");
        let refused =
            ask(&cluster, node, "POST", "/v1/claims/", r#"{"resource": "a", "ttl": 9, "session": "w/x"}"#);
        assert_eq!(refused.status, 409, "{refused:?}");
        assert!(refused.body.contains("deadlock"), "{refused:?}");
    }
    cluster.converge().unwrap();
}
