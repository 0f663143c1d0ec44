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
    /// Starts them. Returns when all three vote, agree on a leader and serve.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same, each with these flags.
    pub fn start_with(flags: &[&str]) -> Self {
        let dir = TempDir::new();
        let ports = [(); 3].map(|()| Port::reserve().unwrap());
        let peers: Vec<String> = (1..).zip(&ports).map(|(id, port)| format!("{id}={}", port.addr)).collect();
        let nodes = ["1", "2", "3"].map(|id| {
            let secret = "a secret of this test, as long as it takes";
            let args = ["--node-id", id, "--peers", &peers.join(","), "--cluster-secret", secret];
            Server::start_in(&dir.path().join(id), &[&args, flags].concat())
        });
        eventually("three nodes that vote", || {
            let nodes = nodes[0].get("/v1/cluster").json()["nodes"].as_array().unwrap().clone();
            nodes.len() == 3
                && nodes.iter().all(|node| node["voter"] == true && node["role"] != "unreachable")
        });
        eventually("a leader on which all nodes agree", || {
            let leaders = nodes.each_ref().map(|node| node.get("/v1/cluster").json()["leader"].as_u64());
            let serve = nodes.iter().all(|node| node.get("/readyz").status == 200);
            serve && leaders[0].is_some() && leaders.iter().all(|leader| *leader == leaders[0])
        });
        Self { nodes, _ports: ports, _dir: dir }
    }
}
