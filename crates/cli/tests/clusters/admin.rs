//! What operators do with a cluster: look at it, back it up, lose it, and keep strangers out.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use leasehold_lab::cluster::{Cluster, PATIENCE};
use leasehold_lab::port::Port;
use leasehold_lab::turns;
use serde_json::Value;

use crate::common::Server;

const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");

fn cluster(nodes: u64, args: &[&str]) -> Cluster {
    Cluster::start(Path::new(BINARY), nodes, args).unwrap()
}

fn leasehold(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).env_remove("LEASEHOLD_ADDR").output().unwrap()
}

fn succeeds(args: &[&str]) -> String {
    let output = leasehold(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn fails(args: &[&str]) -> String {
    let output = leasehold(args);
    assert!(!output.status.success(), "{args:?} should have failed");
    String::from_utf8(output.stderr).unwrap()
}

fn claim(cluster: &Cluster, node: u64, resource: &str) -> Value {
    let body = format!("{{\"resource\": \"{resource}\", \"ttl\": 600}}");
    let reply = cluster.ask(node, "POST", "/v1/claims/", &body).unwrap();
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.json()
}

/// Where a claim is, on any node.
fn path_of(claim: &Value) -> String {
    format!("/{}", claim["url"].as_str().unwrap().splitn(4, '/').nth(3).unwrap())
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let waited = Instant::now();
    while !is_so() {
        assert!(waited.elapsed() < PATIENCE, "this did not come: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn each_node_tells_the_others_the_url_that_it_was_given() {
    let _turn = turns::take();
    let cluster = cluster(3, &["--advertise-url", "https://node-{id}.example.org/"]);
    let url = format!("http://{}", cluster.addr(1));
    let table = succeeds(&["cluster", "--addr", &url, "status"]);
    for node in 1..=3 {
        let told = format!("  https://node-{node}.example.org  ");
        assert!(
            table.lines().any(|line| line.starts_with(&node.to_string()) && line.contains(&told)),
            "{table}"
        );
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("leasehold-admin-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn join(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().into()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn the_command_line_shows_and_changes_the_members() {
    let _turn = turns::take();
    let mut cluster = cluster(3, &[]);
    claim(&cluster, 2, "r");
    let url = format!("http://{}", cluster.addr(2));
    let table = succeeds(&["cluster", "--addr", &url, "status"]);
    for word in ["NODE", "ROLE", "LOG", "LAG", "LAST CONTACT", "leader", "follower", "term"] {
        assert!(table.contains(word), "{word} is missing in:\n{table}");
    }
    assert!(table.lines().any(|line| line.starts_with('2') && line.contains(&url)), "{table}");
    let status: Value =
        serde_json::from_str(&succeeds(&["cluster", "--addr", &url, "status", "--json"])).unwrap();
    assert_eq!(status["nodes"].as_array().unwrap().len(), 3);
    let leader = cluster.leader().unwrap();
    let next = leader % 3 + 1;
    assert!(succeeds(&["cluster", "--addr", &url, "transfer", &next.to_string()]).contains("leads"));
    assert_eq!(cluster.leader().unwrap(), next);
    assert!(fails(&["cluster", "--addr", &url, "transfer", "9"]).contains("not a member"));
    assert!(fails(&["cluster", "--addr", &url, "remove", "9"]).contains("not a member"));
    assert!(fails(&["cluster", "--addr", &url, "add", "7", "127.0.0.1:1"]).contains("start it first"));
    cluster.join(4).unwrap();
    // Operators wait for this before they remove the node again. It was shown before the node itself knew that it votes, and then
    // it came back after its removal.
    until("node 4 is shown as a follower", || {
        let status = cluster.status(2).unwrap();
        let nodes = status["nodes"].as_array().unwrap();
        nodes.iter().any(|node| node["id"] == 4 && node["role"] == "follower")
    });
    assert!(!cluster.data_dir(4).join("JOINING").exists(), "a removed node would ask to be let in again");
    cluster.converge().unwrap();
    let address = cluster.peer_address(4).to_string();
    succeeds(&["cluster", "--addr", &url, "add", "4", &address]);
    succeeds(&["cluster", "--addr", &url, "remove", "4"]);
    let status: Value =
        serde_json::from_str(&succeeds(&["cluster", "--addr", &url, "status", "--json"])).unwrap();
    assert_eq!(status["nodes"].as_array().unwrap().len(), 3, "{status:#}");
    // What was taken out stays out, also when it is started again with all its data.
    cluster.kill(4).unwrap();
    cluster.spawn(4).unwrap();
    until("node 4 knows that it was removed", || {
        cluster.log(4).contains("was removed from its cluster before it started")
    });
    // From the first answer on: it never says that it serves, although its log names a leader.
    let ready = cluster.ask(4, "GET", "/readyz", "").unwrap();
    assert_eq!(ready.status, 503, "{ready:?}");
    assert!(ready.body.contains("this node was removed from its cluster: stop it"), "{ready:?}");
    let status: Value =
        serde_json::from_str(&succeeds(&["cluster", "--addr", &url, "status", "--json"])).unwrap();
    assert_eq!(status["nodes"].as_array().unwrap().len(), 3, "{status:#}");
    // A node that is down is shown as such.
    let follower = cluster.ids().into_iter().find(|id| *id != next && *id != 2 && *id != 4).unwrap();
    cluster.kill(follower).unwrap();
    let table = succeeds(&["cluster", "--addr", &url, "status"]);
    assert!(table.contains("unreachable"), "{table}");
}

#[test]
fn a_change_that_would_cost_the_majority_or_the_leader_is_refused() {
    let _turn = turns::take();
    let mut cluster = cluster(3, &[]);
    let leader = cluster.leader().unwrap();
    let url = format!("http://{}", cluster.addr(leader));
    let (dead, alive) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    let elsewhere = ["cluster", "--addr", &url, "add", &alive.to_string(), "127.0.0.1:1"].map(String::from);
    let elsewhere = fails(&elsewhere.each_ref().map(String::as_str));
    assert!(elsewhere.contains("is a member already, at 127.0.0.1:"), "{elsewhere}");
    cluster.kill(dead).unwrap();
    until("the dead node is missed", || {
        let status = cluster.status(leader).unwrap();
        let nodes = status["nodes"].as_array().unwrap().clone();
        nodes.iter().any(|node| node["id"] == dead && node["role"] == "unreachable")
    });
    let refused = fails(&["cluster", "--addr", &url, "transfer", &dead.to_string()]);
    assert!(refused.contains("does not answer: leadership stays here"), "{refused}");
    let refused = fails(&["cluster", "--addr", &url, "remove", &alive.to_string()]);
    let why = format!(
        "node {dead} does not answer: without node {alive}, only 1 of 2 voters would be left, and 2 are needed"
    );
    assert!(refused.contains(&why), "{refused}");
    assert_eq!(cluster.leader_among(&[leader, alive]).unwrap(), leader, "nothing was disturbed");
    claim(&cluster, alive, "still serves");
    // The dead one may go, and then the other one too.
    succeeds(&["cluster", "--addr", &url, "remove", &dead.to_string()]);
    succeeds(&["cluster", "--addr", &url, "remove", &alive.to_string()]);
    claim(&cluster, leader, "alone");
}

#[test]
fn a_node_that_has_moved_tells_the_others_where_it_is() {
    let _turn = turns::take();
    let dir = Folder::new("moved");
    let ports = [(); 4].map(|()| Port::reserve().unwrap());
    let peers: Vec<String> = (1..).zip(&ports[..3]).map(|(id, port)| format!("{id}={}", port.addr)).collect();
    let start = |id: &str, peers: &str, flags: &[&str]| {
        let secret = "a secret of this test, as long as it takes";
        let args = ["--node-id", id, "--peers", peers, "--cluster-secret", secret];
        Server::start_in(Path::new(&dir.join(id)), &[&args, flags].concat())
    };
    let mut nodes = ["1", "2", "3"].map(|id| start(id, &peers.join(","), &[]));
    let serves = |node: &Server| node.get("/readyz").status == 200;
    until("all vote", || {
        let status = nodes[0].get("/v1/cluster").json();
        let roles = status["nodes"].as_array().unwrap().iter().filter(|node| node["role"] == "follower");
        nodes.iter().all(serves) && roles.count() == 2
    });
    nodes[2].kill();
    // The leader looks for it at its old address, so that it hears of nobody.
    let moved = ports[3].addr.to_string();
    nodes[2] = start("3", &format!("{},{},3={moved}", peers[0], peers[1]), &[]);
    until("the node that moved serves", || serves(&nodes[2]));
    let status = nodes[0].get("/v1/cluster").json();
    assert!(status.to_string().contains(&moved), "{status}");
}

#[test]
fn a_backup_restores_into_an_empty_directory_and_nowhere_else() {
    let _turn = turns::take();
    let folder = Folder::new("backup");
    let (file, data) = (folder.join("backup.snapshot"), folder.join("data"));
    let held = {
        let cluster = cluster(3, &[]);
        let held = claim(&cluster, 1, "kept");
        // Any node will do, also one that follows.
        let follower = cluster.ids().into_iter().find(|id| *id != cluster.leader().unwrap()).unwrap();
        let url = format!("http://{}", cluster.addr(follower));
        cluster.converge().unwrap();
        assert!(succeeds(&["backup", "--addr", &url, &file]).contains("1 claims held"));
        held
    };
    let said = succeeds(&["restore", &file, "--data", &data, "--keep-claims"]);
    assert!(said.contains("1 claims are held") && said.contains("MAY HOLD THE SAME"), "{said}");
    assert!(fails(&["restore", &file, "--data", &data]).contains("empty directory"));
    let mut server = crate::common::Server::start_in(Path::new(&data), &[]);
    let restored = server.get(&path_of(&held));
    assert_eq!((restored.status, &restored.json()["token"]), (200, &held["token"]));
    assert_eq!(restored.json()["status"], "active");
    let next = server.post("/v1/claims/", "{\"resource\": \"new\", \"ttl\": 5}").json();
    assert!(next["token"].as_u64() > held["token"].as_u64(), "tokens go on: {next}");
    server.kill();
    // Half a backup is none.
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    assert!(fails(&["restore", &file, "--data", &folder.join("other")]).contains("damaged"));
}

#[test]
fn one_node_that_is_left_begins_anew_only_when_told_so() {
    let _turn = turns::take();
    let mut cluster = cluster(3, &[]);
    let held = claim(&cluster, 1, "kept");
    cluster.converge().unwrap();
    for id in cluster.ids() {
        cluster.kill(id).unwrap();
    }
    for id in [2, 3] {
        cluster.wipe(id).unwrap();
    }
    let data = cluster.data_dir(1).to_str().unwrap().to_string();
    assert!(fails(&["cluster", "recover", "--data", &data]).contains("--majority-is-lost"));
    assert!(
        succeeds(&["cluster", "recover", "--data", &data, "--majority-is-lost"]).contains("cluster of one")
    );
    cluster.spawn(1).unwrap();
    assert_eq!(cluster.leader().unwrap(), 1);
    let path = path_of(&held);
    assert_eq!(cluster.ask(1, "GET", &path, "").unwrap().json()["status"], "active");
    // The others come back empty, and are let in.
    for id in [2, 3] {
        cluster.spawn(id).unwrap();
    }
    cluster.converge().unwrap();
    assert_eq!(cluster.ask(3, "GET", &path, "").unwrap().json()["status"], "active");
}

#[test]
fn a_wiped_node_is_found_by_its_leader_when_it_knows_nobody_any_more() {
    let _turn = turns::take();
    let mut cluster = cluster(3, &[]);
    for id in [4, 5] {
        cluster.join(id).unwrap();
        cluster.converge().unwrap();
    }
    // All that node 3 was started with, besides itself.
    for id in [1, 2] {
        // While one that led is being replaced, nobody can say what becomes of a change.
        until("the node is out", || {
            let reply = cluster.ask(5, "DELETE", &format!("/v1/cluster/nodes/{id}"), "").unwrap();
            let out = reply.status == 204 || reply.body.contains("is not a member");
            assert!(out || matches!(reply.status, 503 | 504), "{reply:?}");
            out
        });
        cluster.kill(id).unwrap();
    }
    let held = claim(&cluster, 4, "kept");
    cluster.kill(3).unwrap();
    cluster.wipe(3).unwrap();
    cluster.spawn(3).unwrap();
    cluster.converge().unwrap();
    assert_eq!(cluster.ask(3, "GET", &path_of(&held), "").unwrap().json()["status"], "active");
}

#[test]
fn a_stranger_on_the_peer_port_gets_nowhere() {
    let _turn = turns::take();
    let cluster = cluster(3, &[]);
    let leader = cluster.leader().unwrap();
    let before = cluster.status(leader).unwrap();
    let mut greeting = vec![0_u8; 4];
    greeting.extend(*b"LHPEER\r\n");
    greeting.extend([1, 1, 2, 2, 2]);
    greeting.extend([7; 32]);
    let len = (greeting.len() - 4) as u32;
    greeting[..4].copy_from_slice(&len.to_le_bytes());
    let rubbish: [Vec<u8>; 6] = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 70_000],
        vec![0; 64],
        u32::MAX.to_le_bytes().to_vec(),
        greeting[..20].to_vec(),
        // A greeting as it should be, with a proof that is none.
        [greeting.clone(), 33_u32.to_le_bytes().to_vec(), vec![9; 32], vec![0]].concat(),
    ];
    for bytes in &rubbish {
        let mut stream = TcpStream::connect(cluster.peer_address(leader)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(bytes).ok();
        stream.shutdown(std::net::Shutdown::Write).ok();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok();
        // At most a greeting and the verdict: nothing of the table, nothing of the log.
        assert!(answer.len() < 512, "{} bytes for a stranger", answer.len());
    }
    // Two hundred who say nothing at all don't keep the others out for long.
    let silent: Vec<_> =
        (0..200).map(|_| TcpStream::connect(cluster.peer_address(leader)).unwrap()).collect();
    claim(&cluster, leader, "still works");
    drop(silent);
    let after = cluster.status(leader).unwrap();
    assert_eq!(before["term"], after["term"], "nobody was made to vote");
    assert!(cluster.log(leader).contains("turned away"));
}

#[test]
fn a_node_with_another_secret_or_another_number_is_not_let_in() {
    let _turn = turns::take();
    let mut cluster = cluster(3, &[]);
    let folder = Folder::new("secret");
    let seed = cluster.peer_address(1).to_string();
    let start = |id: &str, secret: &str, data: &str| {
        Command::new(BINARY)
            .args(["serve", "--node-id", id, "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"])
            .args(["--peer-advertise", "127.0.0.1:9", "--join", &seed, "--data", data])
            .env("LEASEHOLD_CLUSTER_SECRET", secret)
            .stdout(std::process::Stdio::null())
            .stderr(std::fs::File::create(format!("{data}.log")).unwrap())
            .spawn()
            .unwrap()
    };
    let mut other = start("4", "another secret than theirs", &folder.join("four"));
    let members = |id| cluster.status(id).unwrap()["nodes"].as_array().unwrap().len();
    let told = |data: &str, words: &str| {
        let log = format!("{}.log", folder.join(data));
        let waited = std::time::Instant::now();
        while !std::fs::read_to_string(&log).unwrap().contains(words) {
            assert!(
                waited.elapsed() < leasehold_lab::cluster::PATIENCE,
                "{}",
                std::fs::read_to_string(&log).unwrap()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    told("four", "waiting for the other nodes");
    assert_eq!(members(1), 3);
    other.kill().unwrap();
    other.wait().unwrap();
    let message = String::from_utf8(
        Command::new(BINARY)
            .args(["serve", "--node-id", "5", "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"])
            .args(["--data", &folder.join("five")])
            .env("LEASEHOLD_CLUSTER_SECRET", "short")
            .output()
            .unwrap()
            .stderr,
    )
    .unwrap();
    assert!(message.contains("peer-advertise") || message.contains("16"), "{message}");
    // The data of one node does not start as another.
    let data = cluster.data_dir(1).to_str().unwrap().to_string();
    cluster.kill(1).unwrap();
    let output = Command::new(BINARY)
        .args(["serve", "--node-id", "2", "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"])
        .args(["--peer-advertise", "127.0.0.1:9", "--data", &data])
        .env("LEASEHOLD_CLUSTER_SECRET", "a secret that is long enough")
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.contains("belongs to node 1"), "{message}");
}

#[test]
fn nodes_talk_over_tls_and_turn_a_foreign_certificate_away() {
    let _turn = turns::take();
    let folder = Folder::new("tls");
    let openssl = |args: &[&str]| {
        let output = Command::new("openssl").args(args).current_dir(&folder.0).output();
        let output = output.expect("openssl is there: scripts/install-test-tools installs it");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let make_ca = |name: &str| {
        let (key, cert, subject) = (format!("{name}.key"), format!("{name}.pem"), format!("/CN={name}"));
        openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-keyout",
            &key,
            "-out",
            &cert,
            "-subj",
            &subject,
        ]);
    };
    let make_cert = |name: &str, ca: &str| {
        let (key, csr, cert) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"));
        let (ca_cert, ca_key, subject) = (format!("{ca}.pem"), format!("{ca}.key"), format!("/CN={name}"));
        std::fs::write(folder.0.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
        openssl(&[
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            &key,
            "-out",
            &csr,
            "-subj",
            &subject,
        ]);
        openssl(&[
            "x509",
            "-req",
            "-in",
            &csr,
            "-CA",
            &ca_cert,
            "-CAkey",
            &ca_key,
            "-CAcreateserial",
            "-days",
            "2",
            "-out",
            &cert,
            "-extfile",
            "names",
        ]);
    };
    make_ca("ca");
    for id in 1..=3 {
        make_cert(&format!("node-{id}"), "ca");
    }
    let (cert, key, ca) = (folder.join("node-{id}.pem"), folder.join("node-{id}.key"), folder.join("ca.pem"));
    let binary = Path::new(BINARY);
    let args = ["--peer-tls-cert", &cert, "--peer-tls-key", &key, "--peer-tls-ca", &ca];
    let cluster = Cluster::start_encrypted(binary, 3, &args).unwrap();
    claim(&cluster, 2, "over TLS");
    cluster.converge().unwrap();
    // Without a certificate of the authority nobody gets as far as the greeting.
    let mut stream = TcpStream::connect(cluster.peer_address(1)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(b"LHPEER\r\n, let me in, I am plain text and longer than a record header").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    assert!(!answer.windows(6).any(|window| window == b"LHPEER"));
}
