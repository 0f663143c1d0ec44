//! Real clients, unchanged: redis-py, valkey-py, redlock 4 and 5, @sesamecare-oss/redlock, rslock.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::Duration;

use rslock::LockManager;

use crate::common::{PATIENCE, Server, TempDir, eventually, run};
use crate::support::{REDIS, port_of};
use crate::trio::Trio;

const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/redis/clients");
const PYTHON: [&str; 4] = ["redis2", "redis3", "valkey", "asyncio"];
const NODE: [&str; 3] = ["redlock4", "redlock5", "sesamecare"];
/// How often each client enters in a crowd.
const ROUNDS: usize = 15;

/// The folder in which the pinned clients are installed.
fn installed() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        run(root.join("scripts/install-test-tools").to_str().unwrap(), &["redis-clients"]);
        root.join("target/redis-clients")
    })
}

pub fn python() -> PathBuf {
    installed().join("bin/python")
}

/// One of the programs in `clients/`.
fn client(kind: &str, args: &[&str]) -> Command {
    let mut command = match PYTHON.contains(&kind) || kind == "python" {
        true => {
            let mut command = Command::new(python());
            command.arg(format!("{HERE}/locks.py"));
            command
        }
        false => {
            let mut command = Command::new("node");
            command.arg(format!("{HERE}/locks.js")).env("NODE_PATH", installed().join("node_modules"));
            command
        }
    };
    command.args(args).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

#[test]
fn the_scripts_of_the_installed_clients_are_those_that_are_known() {
    let known = include_str!("../../../server/src/api/redis/scripts.rs");
    let mut hashes = BTreeSet::new();
    for kind in ["python", "node"] {
        let output = client(kind, &["hashes"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        hashes.extend(String::from_utf8(output.stdout).unwrap().lines().map(str::to_string));
    }
    assert_eq!(hashes.len(), 3 + 9, "{hashes:?}");
    for hash in hashes {
        assert!(known.contains(&hash), "the script {hash} of an installed client is not known");
    }
}

#[test]
fn every_client_gets_what_its_documentation_promises() {
    let server = Server::start_with(&REDIS);
    promises_at(&server);
}

#[test]
fn every_client_gets_the_same_on_every_node_of_a_cluster() {
    let trio = Trio::start_with(&REDIS);
    trio.nodes.iter().for_each(promises_at);
}

fn promises_at(server: &Server) {
    let port = port_of(server).port().to_string();
    let started: Vec<(&str, Child)> = PYTHON
        .into_iter()
        .chain(NODE)
        .map(|kind| (kind, client(kind, &[kind, &port, "promises"]).spawn().unwrap()))
        .collect();
    rslock_promises(&port);
    for (kind, mut child) in started {
        assert!(child.wait().unwrap().success(), "{kind}: see above");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The manager of rslock for one address: it wants three masters, and one of them is enough for it.
fn rslock(port: &str) -> LockManager {
    let mut manager = LockManager::new(vec![format!("redis://127.0.0.1:{port}/")]);
    manager.set_retry(1, Duration::from_millis(5));
    manager
}

fn rslock_promises(port: &str) {
    let promises = async {
        let manager = rslock(port);
        let minute = Duration::from_secs(60);
        // This client gives up after half a second, which a busy machine may take: then it tries again.
        let soon = Duration::from_millis(20);
        let taken = async |ttl: Duration| loop {
            match manager.lock("rs/job", ttl).await {
                Ok(lock) => break lock,
                Err(_) => tokio::time::sleep(soon).await,
            }
        };
        let mut lock = taken(minute).await;
        assert!(manager.lock("rs/job", minute).await.is_err(), "it is held");
        lock = loop {
            match manager.extend(&lock, 2 * minute).await {
                Ok(lock) => break lock,
                Err(_) => tokio::time::sleep(soon).await,
            }
        };
        manager.unlock(&lock).await;
        let short = taken(Duration::from_millis(300)).await;
        let next = taken(minute).await;
        manager.unlock(&short).await;
        assert!(manager.lock("rs/job", minute).await.is_err(), "a late release ended another's lock");
        manager.unlock(&next).await;
    };
    runtime().block_on(async { tokio::time::timeout(PATIENCE, promises).await }).expect("rslock gets on");
}

/// Writes one line, as a whole.
fn write(path: &Path, line: &str) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(line.as_bytes()).unwrap();
}

/// Turns of rslock, among the others.
fn rslock_crowd(port: &str, path: &Path) {
    runtime().block_on(async {
        let manager = rslock(port);
        let mut done = 0;
        while done < ROUNDS {
            let Ok(lock) = manager.lock("crowd", Duration::from_secs(5)).await else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            write(path, &format!("enter rslock {done}\n"));
            write(path, &format!("leave rslock {done}\n"));
            manager.unlock(&lock).await;
            done += 1;
        }
    });
}

/// Turns of a client of the claims API, which queues. `server`: some node of the cluster that lives.
fn claims_crowd(server: &Server, path: &Path) {
    for done in 0..ROUNDS {
        let reply = server.post("/v1/claims/?wait=60", r#"{"resource": "crowd", "ttl": 5}"#);
        if reply.status != 201 {
            continue;
        }
        write(path, &format!("enter claims {done}\n"));
        write(path, &format!("leave claims {done}\n"));
        server.patch(&reply.location_path(), r#"{"status": "released"}"#);
    }
}

/// Nobody entered before the last one left.
fn check_turns(path: &Path) -> usize {
    let text = std::fs::read_to_string(path).unwrap();
    let mut inside: Option<&str> = None;
    for line in text.lines() {
        match line.split_once(' ').unwrap() {
            ("enter", who) => assert_eq!(inside.replace(who), None, "{who} entered, and another was inside"),
            (_, who) => assert_eq!(inside.take(), Some(who)),
        }
    }
    text.lines().count() / 2
}

fn crowd(ports: [&str; 2], claims: &Server, meanwhile: impl FnOnce(&Path)) {
    let dir = TempDir::new();
    let path = dir.path().join("turns");
    std::fs::write(&path, "").unwrap();
    let file = path.to_str().unwrap();
    let start = |(number, kind): (usize, &'static str)| {
        let args = [kind, ports[number % 2], "crowd", file, &ROUNDS.to_string()];
        (kind, client(kind, &args).spawn().unwrap())
    };
    let started: Vec<(&str, Child)> = PYTHON.into_iter().chain(NODE).enumerate().map(start).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| rslock_crowd(ports[0], &path));
        scope.spawn(|| claims_crowd(claims, &path));
        meanwhile(&path);
    });
    for (kind, mut child) in started {
        assert!(child.wait().unwrap().success(), "{kind}: see above");
    }
    assert!(check_turns(&path) >= 8 * ROUNDS, "somebody did not get on");
}

#[test]
fn a_mixed_crowd_takes_turns_on_one_node() {
    let server = Server::start_with(&REDIS);
    let port = port_of(&server).port().to_string();
    crowd([&port, &port], &server, |_| {});
}

#[test]
fn a_mixed_crowd_takes_turns_on_a_cluster_whose_leader_is_killed() {
    let mut trio = Trio::start_with(&REDIS);
    let leader = trio.nodes[0].get("/v1/cluster").json()["leader"].as_u64().unwrap() as usize - 1;
    trio.nodes.swap(0, leader);
    let [doomed, second, third] = &mut trio.nodes;
    let ports = [&*second, &*third].map(|node| port_of(node).port().to_string());
    crowd([&ports[0], &ports[1]], second, |path| {
        // In the middle: everybody has started to take turns.
        eventually("they take turns", || check_turns_so_far(path) > 20);
        doomed.kill();
    });
}

fn check_turns_so_far(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap().lines().count() / 2
}
