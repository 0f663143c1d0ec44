//! Three nodes with access control: attacks are played on the leader and on a follower.

use std::collections::BTreeMap;

use leasehold_lab::port::Port;

use crate::common::{Reply, Server, TempDir, eventually};
use crate::support::make_key;

/// A cluster of three that knows users.
pub(crate) struct GuardedTrio {
    /// The leader first.
    pub(crate) nodes: Vec<Server>,
    keys: BTreeMap<String, String>,
    _ports: [Port; 3],
    _dir: TempDir,
}

impl GuardedTrio {
    /// With keys for these users, one of them `root`, and these rules.
    pub(crate) fn start(users: &[&str], rules: &str) -> Self {
        let dir = TempDir::new();
        let keys: BTreeMap<String, String> =
            users.iter().map(|user| (user.to_string(), make_key(dir.path(), user, ""))).collect();
        let config = dir.path().join("leasehold.toml");
        let file = dir.path().join("keys.toml");
        std::fs::write(&config, format!("[access]\nkeys = {file:?}\n{rules}\n")).unwrap();
        let ports = [(); 3].map(|()| Port::reserve().unwrap());
        let peers: Vec<String> = (1..).zip(&ports).map(|(id, port)| format!("{id}={}", port.addr)).collect();
        let secret = "a secret of this test, as long as it takes";
        let start = |id: &str| {
            let args = ["--config", config.to_str().unwrap(), "--node-id", id, "--peers", &peers.join(",")];
            let args = [&args[..], &["--cluster-secret", secret]].concat();
            Server::start_in(&dir.path().join(id), &args)
        };
        let mut nodes: Vec<Server> = ["1", "2", "3"].map(start).into();
        let key = format!("Bearer {}", keys["root"]);
        let mut leader = None;
        eventually("three nodes that vote, serve and agree on a leader", || {
            let headers = [("Authorization", key.as_str())];
            let seen = |node: &Server| {
                let cluster = node.client().request("GET", "/v1/cluster", &headers, b"").json();
                let all = cluster["nodes"].as_array().cloned().unwrap_or_default();
                let votes = all.len() == 3 && all.iter().all(|node| node["voter"] == true);
                let serves = node.client().request("GET", "/readyz", &[], b"").status == 200;
                cluster["leader"].as_u64().filter(|_| votes && serves)
            };
            let leaders: Vec<Option<u64>> = nodes.iter().map(seen).collect();
            leader = leaders[0].filter(|_| leaders.iter().all(|leader| *leader == leaders[0]));
            leader.is_some()
        });
        nodes.swap(0, leader.unwrap() as usize - 1);
        Self { nodes, keys, _ports: ports, _dir: dir }
    }

    /// A request of this user to this node; `""` has no credentials.
    pub(crate) fn ask(&self, node: usize, user: &str, method: &str, path: &str, body: &str) -> Reply {
        let key = self.keys.get(user).map_or_else(|| user.to_string(), |key| format!("Bearer {key}"));
        let headers: &[(&str, &str)] = if user.is_empty() { &[] } else { &[("Authorization", &key)] };
        self.nodes[node].client().request(method, path, headers, body.as_bytes())
    }
}
