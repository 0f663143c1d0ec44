//! Three real nodes that are one cluster.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]

use leasehold_lab::port::Port;

use crate::common::{Server, TempDir, eventually};

/// A cluster of three.
pub struct Trio {
    pub nodes: [Server; 3],
    /// Where they listen for each other.
    _ports: [Port; 3],
    _dir: TempDir,
}

impl Trio {
    /// Starts them; returns when all three vote.
    pub fn start() -> Self {
        let dir = TempDir::new();
        let ports = [(); 3].map(|()| Port::reserve().unwrap());
        let peers: Vec<String> = (1..).zip(&ports).map(|(id, port)| format!("{id}={}", port.addr)).collect();
        let nodes = ["1", "2", "3"].map(|id| {
            let secret = "a secret of this test, as long as it takes";
            let args = ["--node-id", id, "--peers", &peers.join(","), "--cluster-secret", secret];
            Server::start_in(&dir.path().join(id), &args)
        });
        eventually("three nodes that vote", || {
            let nodes = nodes[0].get("/v1/cluster").json()["nodes"].as_array().unwrap().clone();
            nodes.len() == 3
                && nodes.iter().all(|node| node["voter"] == true && node["role"] != "unreachable")
        });
        Self { nodes, _ports: ports, _dir: dir }
    }
}
