//! `leasehold doctor`: what it finds on healthy and on sick machines, what it advises, and its exit code.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use leasehold_lab::cluster::Cluster;
use serde_json::Value;

use crate::authority::Authority;
use crate::common::{Server, TempDir};
use crate::support::{Guarded, leasehold, make_key};

/// The findings and the exit code.
struct Seen {
    findings: Vec<Value>,
    code: i32,
}

impl Seen {
    fn of(output: &Output) -> Self {
        let text = String::from_utf8_lossy(&output.stdout);
        let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let seen = Self {
            findings: json["findings"].as_array().unwrap().clone(),
            code: output.status.code().unwrap(),
        };
        // What is not well comes with advice, and the exit code says the worst of it.
        let any = |level: &str| seen.findings.iter().any(|finding| finding["level"] == level);
        let worst = match (any("error"), any("warning") || any("unknown")) {
            (true, _) => 1,
            (false, true) => 3,
            (false, false) => 0,
        };
        assert_eq!(seen.code, worst, "{:#?}", seen.findings);
        for finding in &seen.findings {
            let advice = finding["advice"].as_str().is_some_and(|advice| advice.len() > 5);
            assert_eq!(advice, finding["level"] != "ok", "{finding}");
        }
        seen
    }

    /// The levels of a check.
    fn levels(&self, check: &str) -> Vec<&str> {
        let found = self.findings.iter().filter(|finding| finding["check"] == check);
        found.map(|finding| finding["level"].as_str().unwrap()).collect()
    }

    /// There is a finding of this level that says this.
    #[track_caller]
    fn says(&self, level: &str, check: &str, words: &str) {
        let found = |finding: &&Value| {
            finding["level"] == level
                && finding["check"] == check
                && (finding["found"].as_str().unwrap().contains(words)
                    || finding["advice"].as_str().is_some_and(|advice| advice.contains(words)))
        };
        assert!(
            self.findings.iter().any(|finding| found(&finding)),
            "no {level} {check} '{words}' in {:#?}",
            self.findings
        );
    }
}

fn server(args: &[&str]) -> Seen {
    Seen::of(&leasehold(&[&["doctor", "server", "--json"], args].concat()))
}

fn client(args: &[&str]) -> Seen {
    Seen::of(&leasehold(&[&["doctor", "client", "--json"], args].concat()))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_healthy_node_is_looked_at_from_all_sides_also_while_it_runs() {
    let running = Server::start();
    let flags = ["--listen", "127.0.0.1:0", "--data", text(&running.data)];
    let seen = server(&flags);
    for check in ["configuration", "permissions", "disk-space", "disk-speed", "descriptors", "clock", "peers"]
    {
        assert!(!seen.levels(check).is_empty(), "{check} is missing in {:#?}", seen.findings);
    }
    for check in ["configuration", "permissions", "peers"] {
        assert_eq!(seen.levels(check), ["ok"], "{:#?}", seen.findings);
    }
    assert_ne!(seen.code, 1, "{:#?}", seen.findings);
    assert_eq!(running.get("/readyz").status, 200, "it was only looked at");
    assert!(
        fs::read_dir(&running.data).unwrap().all(|file| !file
            .unwrap()
            .path()
            .display()
            .to_string()
            .contains("bench"))
    );
    // For people.
    let output = leasehold(&[&["doctor", "server"], &flags[..]].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.lines().any(|line| line.starts_with("ok       permissions: only its owner can read")),
        "{said}"
    );
}

/// The mistake was one line full of `\\n`, and a warning about a key came without a key.
#[test]
fn people_can_read_what_was_found_and_are_not_warned_of_a_key_that_they_do_not_have() {
    let dir = TempDir::new();
    let file = dir.path().join("node.toml");
    fs::write(&file, "queue-length = 7\n").unwrap();
    let said = leasehold(&["doctor", "server", "--config", text(&file)]).stdout;
    let said = String::from_utf8_lossy(&said);
    assert!(said.starts_with("ERROR    configuration: ") && !said.contains("\\n"), "{said}");
    assert!(said.lines().any(|line| line.starts_with("         unknown field `queue-length`")), "{said}");

    let away = ["doctor", "client", "--addr", "http://leasehold.invalid:4080"];
    let warned = |output: std::process::Output| {
        String::from_utf8_lossy(&output.stdout)
            .contains("the access key goes to http://leasehold.invalid:4080")
    };
    let key = make_key(dir.path(), "ci", "");
    fs::write(dir.path().join("key"), key).unwrap();
    assert!(!warned(leasehold(&away)));
    assert!(warned(leasehold(&[&away[..], &["--key-file", text(&dir.path().join("key"))]].concat())));
}

#[test]
fn a_sick_node_is_told_what_to_do() {
    let (dir, authority) = (TempDir::new(), Authority::new());
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    let secret = dir.path().join("secret");
    fs::write(&secret, "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    // Of an authority's two days; and of one that is over.
    authority.issue("node", "/CN=node", "DNS:localhost");
    authority.issue_at("old", "/CN=old", "DNS:localhost", "-30d");
    make_key(dir.path(), "ci", "");
    let keys = dir.path().join("keys.toml");
    let closed = leasehold_lab::port::Port::reserve().unwrap();
    let own = leasehold_lab::port::Port::reserve().unwrap();
    let peers = format!("1={},2={}", own.addr, closed.addr);
    let flags =
        ["--data", text(&data), "--node-id", "1", "--peers", &peers, "--cluster-secret-file", text(&secret)];
    let flags = [
        &flags[..],
        &["--access-keys", text(&keys), "--backup-every", "1h", "--backup-dir", text(dir.path())],
    ]
    .concat();
    let node = (authority.path("node.pem"), authority.path("node.key"));
    let with_tls = [&flags[..], &["--tls-certificate", &node.0, "--tls-key", &node.1]].concat();
    let seen = server(&with_tls);
    seen.says("warning", "permissions", &format!("chmod 700 {}", data.display()));
    seen.says("warning", "permissions", &format!("chmod 600 {}", secret.display()));
    seen.says("warning", "certificate", "node.pem expires on");
    seen.says("warning", "backups", "there is none in");
    seen.says("error", "peers", &format!("node 2 at {}", closed.addr));
    seen.says("unknown", "clock", "no leader was found");
    let old = (authority.path("old.pem"), authority.path("old.key"));
    let seen = server(&[&flags[..], &["--tls-certificate", &old.0, "--tls-key", &old.1]].concat());
    seen.says("error", "certificate", "old.pem expired on");
    let seen = server(&["--data", text(&data), "--access-keys", "no-such-file"]);
    seen.says("error", "configuration", "no-such-file: there is no such file");
    let seen = server(&["--listen", "0.0.0.0:4080"]);
    seen.says("error", "configuration", "can be reached from other machines");
    let file = ["--data", text(&data), "--backup-every", "1h", "--backup-dir", text(&keys)];
    server(&file).says("error", "backups", "keys.toml is no directory");
    let few = Command::new("prlimit")
        .args([
            "--nofile=300:300",
            env!("CARGO_BIN_EXE_leasehold"),
            "doctor",
            "server",
            "--json",
            "--data",
            text(&data),
        ])
        .output()
        .unwrap();
    Seen::of(&few).says("warning", "descriptors", "300 open files are allowed");
}

/// `openssl req -x509` makes a certificate for an authority unless it is told otherwise. curl takes it, and no client of ours does.
#[test]
fn a_certificate_for_an_authority_is_found_before_clients_refuse_it() {
    let authority = Authority::new();
    let (ca, ca_key) = (authority.path("ca.pem"), authority.path("ca.key"));
    let flags = ["--data", &authority.path("data"), "--tls-certificate", &ca, "--tls-key", &ca_key];
    let seen = server(&flags);
    seen.says("error", "certificate", "ca.pem is a certificate for an authority (CA:TRUE)");
    seen.says("error", "certificate", "CA:FALSE");
    // It is right: this is what a client says about such a node.
    let running = Server::start_with(&flags[2..]);
    let refused = client(&["--addr", &format!("https://{}", running.addr), "--cacert", &ca]);
    refused.says("error", "tls", "CA:TRUE");
    // Between nodes, and for a client's own certificate, it is the same.
    let secret = authority.path("secret");
    fs::write(&secret, "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08").unwrap();
    let own = leasehold_lab::port::Port::reserve().unwrap();
    let peers = format!("1={}", own.addr);
    let cluster = ["--node-id", "1", "--peers", &peers, "--cluster-secret-file", &secret];
    let peer_tls = ["--peer-tls-cert", &ca, "--peer-tls-key", &ca_key, "--peer-tls-ca", &ca];
    let seen = server(&[&flags[..2], &cluster, &peer_tls].concat());
    seen.says("error", "certificate", "(CA:TRUE)");
    // It said that the node would read a new one by itself.
    seen.says("warning", "certificate", "restart the node");
    let with_own = ["--addr", "http://leasehold.invalid:4080", "--client-cert", &ca, "--client-key", &ca_key];
    client(&with_own).says("error", "certificate", "(CA:TRUE)");
    // An authority's own file is one for an authority, and a node's is not.
    authority.issue("node", "/CN=node", "DNS:localhost");
    let node = (authority.path("node.pem"), authority.path("node.key"));
    let config = authority.dir.path().join("leasehold.toml");
    fs::write(
        &config,
        format!("[tls]\ncertificate = {:?}\nkey = {:?}\nclient-ca = {ca:?}\n", node.0, node.1),
    )
    .unwrap();
    let seen = server(&[&flags[..2], &["--config", text(&config)]].concat());
    assert_eq!(seen.levels("certificate"), ["warning", "warning"], "they end soon: {:#?}", seen.findings);
}

#[test]
fn peers_are_called_by_the_cluster_secret_and_clocks_compared() {
    let mut cluster = Cluster::start(Path::new(env!("CARGO_BIN_EXE_leasehold")), 3, &[]).unwrap();
    cluster.converge().unwrap();
    let leader = cluster.leader().unwrap();
    let others: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != leader).collect();
    let peers: Vec<String> =
        cluster.ids().iter().map(|id| format!("{id}={}", cluster.peer_address(*id))).collect();
    let peers = peers.join(",");
    let own = others[0].to_string();
    let look = |secret: &str| {
        let data = cluster.data_dir(others[0]);
        let flags = ["--node-id", &own, "--peers", &peers, "--cluster-secret", secret, "--data", text(&data)];
        server(&flags)
    };
    let secret = "the secret of a cluster in the laboratory";
    let seen = look(secret);
    assert_eq!(seen.levels("peers"), ["ok", "ok"], "{:#?}", seen.findings);
    seen.says(
        "ok",
        "peers",
        &format!(
            "node {leader} at {}: leader, version {}",
            cluster.peer_address(leader),
            env!("CARGO_PKG_VERSION")
        ),
    );
    seen.says("ok", "clock", &format!("the clock of the leader, node {leader}"));
    seen.says("warning", "configuration", "--cluster-secret-file");
    let seen = look("a secret of quite another cluster");
    assert_eq!(seen.levels("peers"), ["error", "error"], "{:#?}", seen.findings);
    // The doctor's visit changed nothing.
    let reads = |status: Value| {
        status["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| node["reads_table_version"].clone())
            .collect::<Vec<_>>()
    };
    assert!(reads(cluster.status(leader).unwrap()).iter().all(|version| *version == 3));
    cluster.kill(others[1]).unwrap();
    let flags = ["--node-id", &own, "--peers", &peers, "--cluster-secret", secret];
    let seen = server(&flags);
    seen.says("error", "peers", &format!("node {} at", others[1]));
    seen.says("ok", "peers", &format!("node {leader} at"));
}

#[test]
fn a_client_learns_whether_it_reaches_the_service_and_what_its_key_may_do() {
    let rules = "[[access.rule]]\nusers = [\"ci\"]\nresources = [\"ci\"]\nverbs = [\"read\", \"claim\"]\n";
    let guarded = Guarded::start(&["ci", "idle"], rules);
    let url = format!("http://{}", guarded.server.addr);
    let file = |user: &str| {
        let path = guarded.dir.path().join(format!("{user}.key"));
        fs::write(&path, guarded.bare_key(user)).unwrap();
        path.display().to_string()
    };
    let seen = client(&["--addr", &url, "--key-file", &file("ci"), "--resource", "ci/job"]);
    assert_eq!(seen.code, 0, "{:#?}", seen.findings);
    seen.says("ok", "key", "this is user 'ci', who may read, claim on 'ci/job'");
    seen.says("ok", "dns", "127.0.0.1");
    seen.says("ok", "service", "is ready");
    let seen = client(&["--addr", &url, "--key-file", &file("ci"), "--resource", "prod"]);
    seen.says("error", "key", "who may do nothing on 'prod'");
    client(&["--addr", &url, "--key-file", &file("idle")]).says("error", "key", "who may do nothing");
    client(&["--addr", &url]).says("error", "key", "asks for credentials");
    client(&["--addr", &url, "--key", "lhk_0_0"]).says("error", "key", "does not know this key");
    client(&["--addr", &url, "--key-file", "no-such-key"]).says("error", "configuration", "no-such-key");
    let closed = leasehold_lab::port::Port::reserve().unwrap();
    let peers = format!("1={},2={}", leasehold_lab::port::Port::reserve().unwrap().addr, closed.addr);
    let secret = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let waiting = Server::start_with(&["--node-id", "1", "--peers", &peers, "--cluster-secret", secret]);
    client(&["--addr", &format!("http://{}", waiting.addr)]).says("error", "service", "is not ready");
    client(&["--addr", &format!("http://{}", closed.addr)]).says("error", "address", "is the service up");
    client(&["--addr", "http://no-such-host.invalid:4080"]).says("error", "dns", "no-such-host.invalid");
    client(&["--addr", "ftp://x"]).says("error", "address", "http://");
    client(&["--addr", &format!("https://{}", guarded.server.addr)]).says("error", "tls", "docs/security.md");
}

#[test]
fn a_client_is_told_about_certificates() {
    let authority = Authority::new();
    authority.issue("node", "/CN=node", "DNS:localhost,IP:127.0.0.1");
    let flags = ["--tls-certificate", &authority.path("node.pem"), "--tls-key", &authority.path("node.key")];
    let server = Server::start_with(&flags);
    let url = format!("https://{}", server.addr);
    let seen = client(&["--addr", &url, "--cacert", &authority.path("ca.pem")]);
    seen.says("ok", "tls", "a certificate that this client trusts");
    seen.says("ok", "key", "no access control");
    assert_eq!(seen.code, 0, "{:#?}", seen.findings);
    let other = Authority::new();
    let seen = client(&["--addr", &url, "--cacert", &other.path("ca.pem")]);
    assert_eq!(seen.levels("tls"), ["error"], "{:#?}", seen.findings);
}
