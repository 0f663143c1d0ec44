//! Logs as an operator reads them at 3 a.m.: one line for each change, with names and reasons, and no noise.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use leasehold_lab::cluster::Cluster;
use leasehold_lab::port::Port;
use serde_json::Value;

use crate::common::{Server, TempDir, eventually};

fn binary() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_BIN_EXE_leasehold"))
}

/// Waits until a node's log has this in a line.
fn logs(cluster: &Cluster, node: u64, words: &str) {
    eventually(&format!("node {node} logs '{words}'"), || {
        let found = cluster.log(node).contains(words);
        if !found && std::env::var_os("SHOW").is_some() {
            eprintln!("--- node {node} without '{words}':\n{}", cluster.log(node));
        }
        found
    });
}

fn name(cluster: &Cluster, node: u64) -> String {
    format!("node {node} at {}", cluster.peer_address(node))
}

/// What a node said, without the times.
fn messages(cluster: &Cluster, node: u64) -> Vec<String> {
    let log = cluster.log(node);
    log.lines().filter_map(|line| line.split_once(": ").map(|(_, message)| message.to_string())).collect()
}

/// A peer is lost once, then back once, and so on.
fn lost_and_back_take_turns(cluster: &Cluster, node: u64) {
    let mut lost: BTreeMap<u64, bool> = BTreeMap::new();
    for message in messages(cluster, node) {
        if message.starts_with("this node no longer leads") || message.starts_with("listening on") {
            lost.clear();
        }
        let about = message.strip_prefix("node ").and_then(|rest| rest.split(' ').next()?.parse().ok());
        let Some(id) = about else { continue };
        if message.contains(" is lost: ") {
            assert_ne!(lost.insert(id, true), Some(true), "twice lost:\n{}", cluster.log(node));
        } else if message.contains(" is back after ") {
            assert_eq!(
                lost.insert(id, false),
                Some(true),
                "back, and not lost before:\n{}",
                cluster.log(node)
            );
        }
    }
}

/// No insides of types, no library's words, no line twice in a row.
fn reads_well(cluster: &Cluster) {
    for node in cluster.ids() {
        let log = cluster.log(node);
        for noise in ["Some(", "openraft", "panicked"] {
            assert!(!log.contains(noise), "node {node} says {noise}:\n{log}");
        }
        let said = messages(cluster, node);
        for (one, next) in said.iter().zip(said.iter().skip(1)) {
            assert_ne!(one, next, "node {node} repeats itself:\n{log}");
        }
        lost_and_back_take_turns(cluster, node);
        assert!(said.len() < 80, "node {node} says {} lines:\n{log}", said.len());
    }
}

/// Waits until the leader is one that was there before, and every node is heard.
fn settled(cluster: &Cluster) -> (u64, u64) {
    cluster.converge().unwrap();
    let leader = cluster.leader().unwrap();
    let follower = cluster.running().into_iter().find(|id| *id != leader).unwrap();
    (leader, follower)
}

#[test]
fn a_cluster_tells_of_each_loss_each_return_and_each_leader_once_and_why() {
    let mut cluster = Cluster::start(binary(), 3, &[]).unwrap();
    let (leader, follower) = settled(&cluster);
    logs(&cluster, leader, "this node leads now: elected");
    for node in cluster.ids() {
        logs(&cluster, node, "ready: this node takes requests");
        logs(&cluster, node, "this node votes now, one of 3");
        let log = cluster.log(node);
        assert!(log.find("listening on").unwrap() < log.find("ready: this node").unwrap(), "{log}");
    }
    logs(&cluster, follower, &format!("{} leads now", name(&cluster, leader)));

    // Killed, and started again.
    cluster.kill(follower).unwrap();
    let lost = format!("{} is lost: not heard for", name(&cluster, follower));
    logs(&cluster, leader, &lost);
    logs(&cluster, leader, "2 of 3 voters are left, 2 are needed");
    cluster.spawn(follower).unwrap();
    logs(&cluster, leader, &format!("{} is back after", name(&cluster, follower)));

    // Paused: the follower knows that it was not its leader's fault.
    let (leader, follower) = settled(&cluster);
    let before = cluster.log(leader).matches("is lost: ").count();
    cluster.pause(follower).unwrap();
    eventually("the paused node is missed", || cluster.log(leader).matches("is lost: ").count() > before);
    cluster.resume(follower).unwrap();
    logs(&cluster, follower, "this node stood still for");

    // Cut off: it says that it can't be used, and when it can again.
    let (_, follower) = settled(&cluster);
    cluster.isolate(&[follower]);
    logs(&cluster, follower, "was not heard for");
    logs(&cluster, follower, "not ready for");
    cluster.network.heal();
    logs(&cluster, follower, "ready again after");

    // A leader that stops says where leadership went, and its successor why it leads.
    let (leader, _) = settled(&cluster);
    let named = name(&cluster, leader);
    cluster.terminate(leader).unwrap();
    let next = cluster.leader().unwrap();
    let handed = format!("this node no longer leads: it handed leadership over to {}", name(&cluster, next));
    assert!(cluster.log(leader).contains(&handed), "{}", cluster.log(leader));
    logs(&cluster, next, &format!("this node leads now: {named} handed over"));
    cluster.spawn(leader).unwrap();
    settled(&cluster);
    reads_well(&cluster);
}

#[test]
fn nodes_that_come_and_go_are_named_on_every_node() {
    let mut cluster = Cluster::start(binary(), 3, &[]).unwrap();
    // Changes of the members are news to a node once it has its own place.
    (1..=3).for_each(|node| logs(&cluster, node, "this node votes now, one of 3"));
    cluster.join(4).unwrap();
    cluster.converge().unwrap();
    let named = name(&cluster, 4);
    logs(&cluster, 4, "this node has joined its cluster");
    logs(&cluster, 4, "this node votes now, one of 4");
    for node in 1..=3 {
        logs(&cluster, node, &format!("{named} has joined the cluster"));
        logs(&cluster, node, &format!("{named} votes now, one of 4"));
    }
    let (leader, _) = settled(&cluster);
    let other = if leader == 4 { 1 } else { 4 };
    let reply = cluster.ask(leader, "DELETE", &format!("/v1/cluster/nodes/{other}"), "").unwrap();
    assert_eq!(reply.status, 204, "{reply:?}");
    logs(&cluster, leader, &format!("asked to change the cluster: remove node {other}"));
    logs(&cluster, leader, &format!("{} was removed; 3 voters are left", name(&cluster, other)));
    logs(&cluster, other, "this node was removed from its cluster, and stays out");
    reads_well(&cluster);
}

#[test]
fn a_node_that_starts_alone_is_not_ready_although_its_log_names_a_leader() {
    let mut cluster = Cluster::start(binary(), 3, &[]).unwrap();
    settled(&cluster);
    (1..=3).for_each(|node| cluster.kill(node).unwrap());
    let ready = "ready: this node takes requests";
    let before = cluster.log(1).matches(ready).count();
    cluster.spawn(1).unwrap();
    logs(&cluster, 1, "not ready yet for");
    assert_eq!(cluster.log(1).matches(ready).count(), before, "{}", cluster.log(1));
}

#[test]
fn a_node_that_waits_for_its_peers_names_them_and_is_not_ready() {
    let dir = TempDir::new();
    let (own, missing) = (Port::reserve().unwrap(), Port::reserve().unwrap());
    let peers = format!("1={},2={}", own.addr, missing.addr);
    let secret = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let flags = ["--node-id", "1", "--peers", &peers, "--cluster-secret", secret];
    let server = Server::start_in(&dir.path().join("data"), &flags);
    eventually("it says for whom it waits", || server.logged().contains("waiting for the other nodes"));
    eventually("it says that it is not ready", || server.logged().contains("not ready yet for"));
    assert_eq!(server.get("/readyz").status, 503);
    let log = server.logged();
    assert!(log.contains(&missing.addr.to_string()), "{log}");
    assert_eq!(log.matches("waiting for the other nodes").count(), 1, "{log}");
    assert!(!log.contains("ready: this node takes requests"), "{log}");
    // It warned every second of lock requests that a new node can't have.
    assert!(!log.contains("lock requests of the last run"), "{log}");
}

#[test]
fn json_lines_are_for_programs_and_debug_shows_no_library() {
    let server = Server::start_with(&["--log-format", "json"]);
    eventually("it is ready", || server.logged().contains("ready: this node takes requests"));
    for line in server.logged().lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for field in ["timestamp", "level", "message", "target"] {
            assert!(line[field].is_string(), "{field} is missing in {line}");
        }
    }
    let dir = TempDir::new();
    let log = dir.path().join("log");
    let mut child = Command::new(binary())
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(dir.path().join("data"))
        .env("RUST_LOG", "debug")
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let read = || fs::read_to_string(&log).unwrap();
    eventually("it is ready", || read().contains("ready: this node takes requests"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(read().contains(" DEBUG leasehold"), "{}", read());
    let strangers: Vec<String> =
        read().lines().filter(|line| !line.contains(" leasehold")).map(ToString::to_string).collect();
    assert!(strangers.is_empty(), "{strangers:#?}");
}
