//! Links that were cut, and peers that were gone: every node serves again as soon as the bytes pass, over new connections.
//!
//! Connections that a cut has hit stay silent for ever in these tests ([`Network::cuts_last`]).
//!
//! [`Network::cuts_last`]: leasehold_lab::proxy::Network::cuts_last

use leasehold_lab::cluster::Cluster;

use crate::support::*;

/// Every node that runs takes writes and reads.
fn all_serve(cluster: &Cluster, when: &str) {
    for node in cluster.running() {
        serves(cluster, node, when);
        eventually("a read", || cluster.ask(node, "GET", "/v1/claims/", "").is_ok_and(|r| r.status == 200));
    }
}

/// Asks this node for something until it says that nobody leads: then its connections are full of bytes that do not pass.
fn until_cut_off(cluster: &Cluster, node: u64) {
    eventually("a node that is cut off says so", || {
        let reply = cluster.ask(node, "POST", "/v1/claims/", &claim_body("cut-off")).unwrap();
        assert_ne!(reply.status, 201, "a minority granted something");
        reply.json()["type"] == "urn:leasehold:problem:no-leader"
    });
}

#[test]
fn a_follower_that_was_cut_off_serves_again() {
    let _alone = alone();
    let cluster = cluster(3, &[]);
    cluster.network.cuts_last();
    let (leader, followers) = roles(&cluster);
    all_serve(&cluster, "before");
    cluster.isolate(&[followers[0]]);
    until_cut_off(&cluster, followers[0]);
    serves(&cluster, leader, "meanwhile");
    cluster.network.heal();
    all_serve(&cluster, "after");
    cluster.converge().unwrap();
}

#[test]
fn all_links_are_cut_and_heal() {
    let _alone = alone();
    let cluster = cluster(3, &[]);
    cluster.network.cuts_last();
    all_serve(&cluster, "before");
    cluster.ids().into_iter().for_each(|node| cluster.isolate(&[node]));
    cluster.ids().into_iter().for_each(|node| until_cut_off(&cluster, node));
    cluster.network.heal();
    all_serve(&cluster, "after");
}

/// Votes must not wait for connections of the time before the cut.
#[test]
fn the_leader_is_killed_as_soon_as_the_links_have_healed() {
    let _alone = alone();
    let mut cluster = cluster(3, &[]);
    cluster.network.cuts_last();
    all_serve(&cluster, "before");
    cluster.ids().into_iter().for_each(|node| cluster.isolate(&[node]));
    cluster.ids().into_iter().for_each(|node| until_cut_off(&cluster, node));
    cluster.network.heal();
    let leader = cluster.leader().unwrap();
    cluster.kill(leader).unwrap();
    all_serve(&cluster, "after");
}

/// A follower hears its leader and can't ask it anything; then its leader can't be heard.
#[test]
fn links_are_cut_one_way_and_heal() {
    let _alone = alone();
    let cluster = cluster(3, &[]);
    cluster.network.cuts_last();
    let (leader, followers) = roles(&cluster);
    all_serve(&cluster, "before");
    for (from, to) in [(followers[0], leader), (leader, followers[1])] {
        cluster.cut(from, to);
        let asked = in_background(cluster.addr(followers[0]), "POST", "/v1/claims/", &claim_body("asked"));
        asked.join().unwrap().expect("every request is answered");
        cluster.network.heal();
        all_serve(&cluster, &format!("after-{from}-{to}"));
    }
    cluster.converge().unwrap();
}

/// A peer whose process is down is not called without a pause, and is called at once when it is back.
#[test]
fn a_peer_that_is_down_is_not_stormed_with_calls() {
    let _alone = alone();
    let cluster = cluster(3, &[]);
    let (leader, followers) = roles(&cluster);
    serves(&cluster, leader, "before");
    cluster.network.refuse(followers[0]);
    let before = cluster.network.calls(followers[0]);
    // Several times the longest pause.
    missed(&cluster, leader, followers[0], 5000);
    let calls = cluster.network.calls(followers[0]) - before;
    // Some for each purpose of each of the two others, at most a few a second; without pauses there are thousands.
    assert!(calls < 300, "{calls} calls to a peer that is down");
    cluster.network.accept(followers[0]);
    all_serve(&cluster, "after");
}
