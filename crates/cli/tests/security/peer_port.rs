//! The peer port under attack: silent floods, and strangers who collect what they could guess the secret by.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::common::{PATIENCE, Server, eventually};
use crate::trio::Trio;

/// Silent connections that one thread of the flood keeps to one node.
const KEPT: usize = 120;

fn nodes(server: &Server) -> Vec<Value> {
    server.get("/v1/cluster").json()["nodes"].as_array().cloned().unwrap_or_default()
}

fn peer_addresses(trio: &Trio) -> Vec<SocketAddr> {
    nodes(&trio.nodes[0]).iter().map(|node| node["address"].as_str().unwrap().parse().unwrap()).collect()
}

fn leader(server: &Server) -> Option<usize> {
    let nodes = nodes(server);
    nodes
        .iter()
        .find(|node| node["role"] == "leader")
        .and_then(|node| Some(node["id"].as_u64()? as usize - 1))
}

/// Ends other threads of a test, also when it fails.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Keeps silent connections to these ports, and calls again whenever one is closed.
fn flood(ports: &[SocketAddr], done: &AtomicBool) {
    let mut kept: Vec<(SocketAddr, TcpStream)> = Vec::new();
    while !done.load(Ordering::Relaxed) {
        kept.retain_mut(|(_, stream)| {
            matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
        });
        for port in ports {
            let missing = KEPT - kept.iter().filter(|(to, _)| to == port).count();
            for _ in 0..missing {
                let Ok(stream) = TcpStream::connect_timeout(port, Duration::from_millis(300)) else { break };
                stream.set_nonblocking(true).unwrap();
                kept.push((*port, stream));
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_flood_of_silent_callers_does_not_keep_the_nodes_from_electing_a_leader() {
    let mut trio = Trio::start();
    let ports = peer_addresses(&trio);
    let mut old = None;
    eventually("the cluster has a leader", || {
        old = leader(&trio.nodes[0]);
        old.is_some()
    });
    let old = old.unwrap();
    let others: Vec<usize> = (0..3).filter(|node| *node != old).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&done);
        for _ in 0..3 {
            scope.spawn(|| flood(&ports, &done));
        }
        // The flood has all the places that it can have.
        for port in &ports {
            let mut silent: Vec<TcpStream> = (0..64).filter_map(|_| TcpStream::connect(port).ok()).collect();
            silent.iter_mut().for_each(|stream| stream.set_read_timeout(Some(PATIENCE)).unwrap());
            assert!(matches!(silent[0].read(&mut [0]), Ok(0) | Err(_)), "a stranger gets no byte");
        }
        trio.nodes[old].kill();
        eventually("the others elect a leader while the flood goes on", || {
            let follower = &trio.nodes[others[0]];
            let reply = follower.post("/v1/claims/", &crate::common::claim_body("r", 60.0));
            leader(follower).is_some_and(|leader| leader != old) && matches!(reply.status, 201 | 202)
        });
        // A node that comes back finds the others, too.
        trio.nodes[old].restart();
        eventually("the third node is back while the flood goes on", || {
            let nodes = nodes(&trio.nodes[others[0]]);
            nodes.len() == 3 && nodes.iter().all(|node| node["role"] != "unreachable")
        });
    });
}

/// A greeting as a node sends it, framed.
fn greeting(versions: (u8, u8), node: u8) -> Vec<u8> {
    let mut greeting = b"LHPEER\r\n".to_vec();
    // Versions, formats of entries, node, nonce: numbers below 128 are one byte each.
    greeting.extend([versions.0, versions.1, 1, 1, node]);
    greeting.extend([7; 32]);
    [&(greeting.len() as u32).to_le_bytes()[..], &greeting].concat()
}

/// What a node answers to these bytes before it hangs up or waits for more.
fn answer(port: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(port).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // The node closes the connection after the time for the handshake, at the latest.
    stream.read_to_end(&mut answer).ok();
    answer
}

#[test]
fn a_stranger_who_calls_gets_nothing_to_guess_the_secret_by() {
    let trio = Trio::start();
    for port in peer_addresses(&trio) {
        // As 0.1.0 greets: that version proved itself first. As a member, as this node, as nobody.
        for node in [1, 2, 3, 99] {
            assert_eq!(answer(port, &greeting((1, 1), node)), b"", "node {node} at {port}");
        }
        let answered = answer(port, &greeting((1, 2), 2));
        // Head and greeting; where version 1 has the proof there are zeros.
        assert_eq!(answered.len(), 4 + 45 + 32, "{answered:?}");
        assert!(answered.ends_with(&[0; 32]), "{answered:?}");
        // A wrong proof is refused without a right one.
        let purpose = [&33u32.to_le_bytes()[..], &[9; 32], &[0]].concat();
        let refused = answer(port, &[greeting((1, 2), 2), purpose].concat());
        let text = String::from_utf8_lossy(&refused).into_owned();
        assert!(text.contains("the cluster secrets of the two nodes differ"), "{text}");
        assert_eq!(refused.len(), 4 + 45 + 32 + 4 + 2 + "the cluster secrets of the two nodes differ".len());
    }
}

#[test]
fn a_weak_secret_gets_a_warning_at_the_start() {
    let start = |secret: &str| {
        let dir = crate::common::TempDir::new();
        let port = leasehold_lab::port::Port::reserve().unwrap();
        let peers = format!("1={}", port.addr);
        let args = ["--node-id", "1", "--peers", &peers, "--cluster-secret", secret];
        let server = Server::start_in(&dir.path().join("data"), &args);
        let logged = server.logged();
        assert!(!logged.contains(secret), "the secret is in the log");
        logged.contains("the cluster secret is weak")
    };
    assert!(start("aaaaaaaaaaaaaaaaaaaaaaaa"));
    assert!(!start("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"));
}
