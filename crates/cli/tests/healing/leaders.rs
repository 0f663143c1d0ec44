//! A leader that goes, and what is said of the leader that was.

use leasehold_lab::cluster::Cluster;

use crate::support::*;

/// A leader that stops used to hand over to the member with the highest number among those with the whole log, dead or
/// not, and waited for it in vain.
#[test]
fn a_leader_that_stops_hands_over_to_a_node_that_is_there() {
    let _alone = alone();
    // Of five, so that the successor has its majority at once, without the two that went.
    let mut cluster = cluster(5, &[]);
    let (leader, mut followers) = roles(&cluster);
    let dead = followers.pop().unwrap();
    // Nothing is held, so no time is stamped: all followers have the whole log, also the one that is dead.
    cluster.converge().unwrap();
    cluster.kill(dead).unwrap();
    missed(&cluster, leader, dead, 1000);
    cluster.terminate(leader).unwrap();
    let log = cluster.log(leader);
    assert!(!log.contains("could not be handed over"), "{log}");
    let handed_to = |id: &u64| {
        log.contains(&format!("this node no longer leads: it handed leadership over to node {id} at"))
    };
    let successor = followers.into_iter().find(handed_to).unwrap_or_else(|| panic!("{log}"));
    let elected = format!("this node leads now: node {leader} at");
    eventually("the successor says why it leads", || cluster.log(successor).contains(&elected));
    serves(&cluster, successor, "after");
}

/// Whom a node calls leader, and what it calls itself.
fn says(cluster: &Cluster, node: u64) -> (Option<u64>, String) {
    let status = cluster.status(node).unwrap();
    let nodes = status["nodes"].as_array().unwrap();
    let own = nodes.iter().find(|found| found["id"] == node).unwrap();
    (status["leader"].as_u64(), own["role"].as_str().unwrap().into())
}

/// Waits until a node that was the leader knows that it is none.
fn knows_that_it_leads_nobody(cluster: &Cluster, node: u64) {
    let leads_nobody = (None, "candidate".to_string());
    eventually("the old leader calls nobody leader", || says(cluster, node) == leads_nobody);
    let metrics = cluster.ask(node, "GET", "/metrics", "").unwrap().body;
    for line in [
        "leasehold_raft_has_leader 0",
        "leasehold_raft_role{role=\"leader\"} 0",
        "leasehold_raft_role{role=\"candidate\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is missing");
    }
    let ready = cluster.ask(node, "GET", "/readyz", "").unwrap();
    assert!(ready.status == 503 && ready.body.contains("leader: no leader is known"), "{ready:?}");
}

/// It called itself leader for as long as it ran, and the alert for a missing leader stayed silent.
#[test]
fn a_leader_whose_followers_are_dead_does_not_call_itself_leader() {
    let _alone = alone();
    let mut cluster = cluster(3, &[]);
    let (leader, followers) = roles(&cluster);
    followers.iter().for_each(|id| cluster.kill(*id).unwrap());
    knows_that_it_leads_nobody(&cluster, leader);
    // How long it has not heard of them is still told.
    let nodes = cluster.status(leader).unwrap()["nodes"].clone();
    for node in nodes.as_array().unwrap().iter().filter(|node| node["id"] != leader) {
        assert!(node["role"] == "unreachable" && node["last_contact_ms"].is_u64(), "{node}");
    }
    cluster.spawn(followers[0]).unwrap();
    cluster.leader_among(&[leader, followers[0]]).unwrap();
    serves(&cluster, leader, "after");
}

#[test]
fn a_leader_that_is_cut_off_does_not_call_itself_leader() {
    let _alone = alone();
    let cluster = cluster(3, &[]);
    let (leader, followers) = roles(&cluster);
    cluster.isolate(&[leader]);
    knows_that_it_leads_nobody(&cluster, leader);
    let new = cluster.leader_among(&followers).unwrap();
    assert_ne!(new, leader);
    eventually("the new leader calls itself leader", || says(&cluster, new) == (Some(new), "leader".into()));
}
