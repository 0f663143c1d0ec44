//! Three real nodes that are one cluster.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]

use crate::common::{Server, TempDir, eventually};

/// A cluster of three.
pub struct Trio {
    pub nodes: [Server; 3],
    _dir: TempDir,
}

/// Ports that nobody uses at the moment.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

impl Trio {
    /// Starts them; returns when all three vote.
    pub fn start() -> Self {
        let dir = TempDir::new();
        let ports = free_ports::<3>();
        let peers: Vec<String> =
            (1..).zip(ports).map(|(id, port)| format!("{id}=127.0.0.1:{port}")).collect();
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
        Self { nodes, _dir: dir }
    }
}
