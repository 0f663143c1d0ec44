//! Three nodes with TLS at both doors, keys and rules: whoever asks is who it is, through whichever node.

use std::path::{Path, PathBuf};

use leasehold_lab::port::Port;
use serde_json::{Value, json};

use crate::authority::Authority;
use crate::common::{Server, eventually};
use crate::support::make_key;

const RULES: &str = r#"
[[access.rule]]
users = ["ci", "bob"]
resources = ["ci"]
verbs = ["read", "claim"]

[[access.rule]]
users = ["root"]
resources = ["*"]
verbs = ["*"]
"#;

/// The same, and nobody claims `ci/frozen` any more.
const FROZEN: &str = r#"
[[access.rule]]
users = ["ci", "bob"]
resources = ["ci/frozen"]
verbs = ["claim"]
effect = "deny"
"#;

/// A cluster whose nodes have certificates, for clients and for each other.
struct Guarded {
    authority: Authority,
    nodes: Vec<Server>,
    /// Where they listen for each other.
    _ports: [Port; 3],
    keys: Vec<(&'static str, String)>,
}

impl Guarded {
    fn start() -> Self {
        let authority = Authority::new();
        let keys = ["ci", "bob", "root"];
        let keys = keys.map(|user| (user, make_key(authority.dir.path(), user, ""))).to_vec();
        let ports = [(); 3].map(|()| Port::reserve().unwrap());
        let peers: Vec<String> = (1..).zip(&ports).map(|(id, port)| format!("{id}={}", port.addr)).collect();
        let nodes = (1..=3).map(|id| start_node(&authority, id, &peers.join(","))).collect();
        let guarded = Self { authority, nodes, _ports: ports, keys };
        eventually("three nodes that vote, and a leader", || {
            let (status, cluster) = guarded.ask(0, "root", "GET", "/v1/cluster", "");
            let nodes = cluster["nodes"].as_array().cloned().unwrap_or_default();
            let voter = |node: &Value| node["voter"] == true && node["role"] != "unreachable";
            let led = cluster["leader"].is_u64();
            status == 200 && led && nodes.len() == 3 && nodes.iter().all(voter)
        });
        guarded
    }

    /// A request to a node over HTTPS by this user; `""` has no credentials.
    fn ask(&self, node: usize, user: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
        let key = self.keys.iter().find(|(name, _)| *name == user);
        let key = key.map(|(_, key)| format!("Authorization: Bearer {key}")).unwrap_or_default();
        let mut args = vec!["-X", method, "--max-time", "50"];
        if !key.is_empty() {
            args.extend(["-H", &key]);
        }
        if !body.is_empty() {
            args.extend(["-d", body]);
        }
        let (text, last) = self.authority.curl(&self.nodes[node], path, &args);
        let status = last.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    fn claim(&self, node: usize, user: &str, resource: &str, wait: u32) -> (u16, Value) {
        let body = json!({ "resource": resource, "ttl": 600 }).to_string();
        self.ask(node, user, "POST", &format!("/v1/claims/?wait={wait}"), &body)
    }

    fn leader(&self, asked: usize) -> Option<usize> {
        let (_, cluster) = self.ask(asked, "root", "GET", "/v1/cluster", "");
        Some(cluster["leader"].as_u64()? as usize - 1)
    }
}

fn config_of(authority: &Authority, id: u64) -> PathBuf {
    authority.dir.path().join(format!("node-{id}.toml"))
}

fn configure(authority: &Authority, id: u64, rules: &str) {
    let path = |name: &str| authority.path(name);
    let text = format!(
        "[tls]\ncertificate = {:?}\nkey = {:?}\n[access]\nkeys = {:?}\n{rules}",
        path(&format!("node-{id}.pem")),
        path(&format!("node-{id}.key")),
        path("keys.toml"),
    );
    std::fs::write(config_of(authority, id), text).unwrap();
}

fn start_node(authority: &Authority, id: u64, peers: &str) -> Server {
    let name = format!("node-{id}");
    authority.issue(&name, &format!("/CN={name}"), "DNS:localhost,IP:127.0.0.1");
    configure(authority, id, RULES);
    let (config, number) = (config_of(authority, id).display().to_string(), id.to_string());
    let (certificate, key) = (authority.path(&format!("{name}.pem")), authority.path(&format!("{name}.key")));
    let secret = "a secret of this test, as long as it takes";
    let args = [
        ["--config", &config, "--node-id", &number, "--peers", peers],
        ["--peer-tls-cert", &certificate, "--peer-tls-key", &key, "--peer-tls-ca", &authority.path("ca.pem")],
    ];
    let args = [args.concat().as_slice(), &["--cluster-secret", secret]].concat();
    Server::start_in(Path::new(&authority.path(&format!("data-{id}"))), &args)
}

fn path_of(claim: &Value) -> String {
    let url = claim["url"].as_str().unwrap_or_else(|| panic!("no url: {claim}"));
    format!("/{}", url.splitn(4, '/').nth(3).unwrap())
}

#[test]
fn whoever_asks_is_who_it_is_through_every_node_and_after_the_leader_is_gone() {
    let mut guarded = Guarded::start();
    let leader = guarded.leader(0).unwrap();
    for node in 0..3 {
        let resource = format!("ci/{node}");
        assert_eq!(guarded.claim(node, "", &resource, 0).0, 401, "without a key, through node {node}");
        assert_eq!(guarded.claim(node, "ci", "prod/x", 0).0, 403, "what no rule allows, through node {node}");
        let (status, claim) = guarded.claim(node, "ci", &resource, 0);
        assert_eq!((status, &claim["owner"]), (201, &json!("ci")), "{claim}");
        // Whoever made it is known everywhere, and nobody else is taken for it.
        let path = path_of(&claim);
        for other in 0..3 {
            assert_eq!(guarded.ask(other, "bob", "GET", &path, "").1["owner"], "ci");
            assert_eq!(guarded.ask(other, "bob", "PATCH", &path, r#"{"status": "released"}"#).0, 403);
            assert_eq!(guarded.ask(other, "", "GET", &path, "").0, 401);
        }
        assert_eq!(guarded.ask((node + 1) % 3, "ci", "PATCH", &path, r#"{"ttl": 700}"#).0, 200);
    }
    // One queues through a follower for what another holds through the next.
    let held = path_of(&guarded.claim(leader, "ci", "ci/queue", 0).1);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| guarded.claim((leader + 1) % 3, "bob", "ci/queue", 40));
        eventually("it waits", || {
            let (_, waiting) =
                guarded.ask(leader, "bob", "GET", "/v1/claims/?resource=ci/queue&status=waiting", "");
            waiting.as_array().is_some_and(|claims| claims.len() == 1)
        });
        let through = (leader + 2) % 3;
        assert_eq!(guarded.ask(through, "ci", "PATCH", &held, r#"{"status": "released"}"#).0, 204);
        let (_, claim) = waiter.join().unwrap();
        assert_eq!((&claim["status"], &claim["owner"]), (&json!("active"), &json!("bob")), "{claim}");
    });
    let kept = path_of(&guarded.claim(leader, "ci", "ci/kept", 0).1);
    guarded.nodes[leader].kill();
    let rest: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    eventually("another one leads", || guarded.leader(rest[0]).is_some_and(|next| next != leader));
    for node in &rest {
        eventually("it grants", || guarded.claim(*node, "ci", &format!("ci/after-{node}"), 0).0 != 503);
        assert_eq!(guarded.claim(*node, "", "ci/after", 0).0, 401);
        assert_eq!(guarded.ask(*node, "bob", "PATCH", &kept, r#"{"status": "released"}"#).0, 403);
        assert_eq!(guarded.ask(*node, "ci", "PATCH", &kept, r#"{"ttl": 650}"#).0, 200);
    }
    // Rules are each node's own: the one that has read them anew refuses, the other not yet.
    let frozen = format!("{FROZEN}{RULES}");
    let deny = |node: usize| {
        configure(&guarded.authority, node as u64 + 1, &frozen);
        guarded.nodes[node].signal("HUP");
        eventually("the new rules hold", || guarded.claim(node, "ci", "ci/frozen", 0).0 == 403);
    };
    deny(rest[0]);
    assert!(matches!(guarded.claim(rest[1], "ci", "ci/frozen", 0).0, 201 | 202));
    deny(rest[1]);
    for node in &rest {
        assert_eq!(
            guarded.ask(*node, "ci", "PATCH", &kept, r#"{"ttl": 660}"#).0,
            200,
            "what it has stays its"
        );
        assert_eq!(guarded.ask(*node, "ci", "GET", "/v1/cluster", "").0, 403);
    }
}
