//! `?stale=true` reads say how old they may be, and that is never too little.

use std::time::Instant;

use leasehold_lab::cluster::Cluster;

use crate::support::*;

/// Grants a claim through this node. Tells when it was acknowledged.
fn acknowledged(cluster: &Cluster, node: u64, resource: &str) -> Instant {
    eventually("a claim is granted", || {
        let reply = cluster.ask(node, "POST", "/v1/claims/", &claim_body(resource)).unwrap();
        // One that was answered "unknown" before holds the resource.
        matches!(reply.status, 201 | 202)
    });
    Instant::now()
}

/// Reads this node's own table until the check has seen enough: where it lacks the claim, it must say that it may be as old
/// as the claim's acknowledgement.
fn reads_are_honest(cluster: &Cluster, node: u64, resource: &str, acknowledged: Instant) {
    let path = format!("/v1/claims/?resource={resource}&stale=true");
    let mut lacking = 0;
    for _ in 0..100 {
        let age = acknowledged.elapsed().as_secs_f64();
        let reply = cluster.ask(node, "GET", &path, "").unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
        let shown = reply.header("leasehold-staleness").expect("a stale read says how old it may be");
        if reply.json().as_array().unwrap().is_empty() {
            lacking += 1;
            let bound = shown.parse::<f64>();
            assert!(
                shown == "unknown" || bound.as_ref().is_ok_and(|bound| *bound >= age),
                "node {node} lacks what was acknowledged {age} s ago, and says that it is {shown} s old at most"
            );
        } else {
            assert!(shown == "unknown" || shown.parse::<f64>().is_ok_and(|bound| bound >= 0.0), "{shown}");
        }
    }
    assert!(lacking > 0, "the node was never behind");
}

#[test]
fn a_node_that_was_started_again_does_not_know_how_old_its_table_is() {
    let _alone = alone();
    let mut cluster = cluster(3, &[]);
    let (leader, followers) = roles(&cluster);
    serves(&cluster, followers[0], "before");
    cluster.kill(followers[0]).unwrap();
    let at = acknowledged(&cluster, leader, "missed");
    cluster.isolate(&[followers[0]]);
    cluster.spawn(followers[0]).unwrap();
    reads_are_honest(&cluster, followers[0], "missed", at);
    cluster.network.heal();
    serves(&cluster, followers[0], "after");
}

#[test]
fn a_leader_that_was_frozen_does_not_call_its_table_new() {
    let _alone = alone();
    let mut cluster = cluster(3, &[]);
    let (leader, followers) = roles(&cluster);
    serves(&cluster, leader, "before");
    cluster.pause(leader).unwrap();
    let successor = cluster.leader_among(&followers).unwrap();
    let at = acknowledged(&cluster, successor, "missed");
    cluster.isolate(&[leader]);
    cluster.resume(leader).unwrap();
    reads_are_honest(&cluster, leader, "missed", at);
    cluster.network.heal();
    serves(&cluster, leader, "after");
}

/// Where nothing is wrong, the bound is known on every node, and small soon.
#[test]
fn a_node_that_is_asked_finds_out_how_old_its_table_is() {
    let _alone = alone();
    let cluster = cluster(3, &[]);
    for node in cluster.ids() {
        eventually("a bound of less than ten seconds", || {
            let reply = cluster.ask(node, "GET", "/v1/claims/?stale=true", "").unwrap();
            reply.header("leasehold-staleness").unwrap().parse::<f64>().is_ok_and(|bound| bound < 10.0)
        });
    }
}
