//! A stranger's bytes at a real server's doors: it goes on answering, says nothing of a panic, and stays small.
//!
//! `FUZZ_ROUNDS` and `FUZZ_SEED` run more of them, or others.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use leasehold_lab::cluster::{Cluster, PATIENCE};
use leasehold_lab::http::request;
use leasehold_lab::mutate::{corpus, mutated};
use leasehold_lab::port::Port;
use leasehold_lab::random::Random;

/// More than a server that has kept everything it was sent could hide.
const RSS_MAX_KIB: u64 = 400 << 10;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Sends bytes and takes whatever comes back, a little of it.
fn throw(addr: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect_timeout(&addr, PATIENCE).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    // The server may hang up in the middle: that is an answer.
    stream.write_all(bytes).ok();
    stream.shutdown(Shutdown::Write).ok();
    let mut answer = [0; 4096];
    let _ = stream.read(&mut answer);
}

fn rss_kib(pid: u32) -> u64 {
    memory_kib(pid, "VmRSS:")
}

fn memory_kib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[track_caller]
fn is_well(cluster: &Cluster, round: u64) {
    let reply = request(cluster.addr(1), "GET", "/readyz", "", PATIENCE);
    assert!(reply.as_ref().is_ok_and(|reply| reply.status == 200), "after {round} inputs: {reply:?}");
    let log = cluster.log(1);
    assert!(!log.contains("panicked"), "{log}");
    let rss = rss_kib(cluster.pid(1).unwrap());
    assert!(rss < RSS_MAX_KIB, "after {round} inputs the server takes {rss} KiB");
}

#[test]
fn no_bytes_at_any_door_stop_the_server() {
    let http = corpus(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/corpus/http"))).unwrap();
    assert!(http.len() > 20, "the corpus is missing");
    let peer = vec![b"\x35\0\0\0LHPEER\r\n\x01\x01\x02\x02\x02".iter().copied().chain([7; 32]).collect()];
    let resp = corpus(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/corpus/resp"))).unwrap();
    assert!(resp.len() > 15, "the corpus is missing");
    let redis = Port::reserve().unwrap();
    let args = ["--redis-listen", &redis.addr.to_string()];
    let cluster = Cluster::start_encrypted(Path::new(env!("CARGO_BIN_EXE_leasehold")), 1, &args).unwrap();
    let (rounds, mut random) = (setting("FUZZ_ROUNDS", 10_000), Random::new(setting("FUZZ_SEED", 1)));
    for round in 0..rounds {
        match round % 10 {
            9 => throw(cluster.peer_address(1), &mutated(&peer, &mut random)),
            7 | 8 => throw(redis.addr, &mutated(&resp, &mut random)),
            _ => throw(cluster.addr(1), &mutated(&http, &mut random)),
        }
        if round % 250 == 0 {
            is_well(&cluster, round);
        }
    }
    is_well(&cluster, rounds);
    let body = "{\"resource\": \"after-the-storm\", \"ttl\": 5}";
    assert_eq!(cluster.ask(1, "POST", "/v1/claims/", body).unwrap().status, 201);
    let mut client = TcpStream::connect_timeout(&redis.addr, PATIENCE).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"SET after-the-storm-too v NX PX 5000\r\n").unwrap();
    let mut reply = [0; 5];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+OK\r\n");
}

/// More than a keychain that has kept everything it was sent could hide.
const KEYCHAIN_PEAK_MAX_KIB: u64 = 100 << 10;

/// A keychain, whose answers must be JSON.
struct Keychain {
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<serde_json::Value>,
    errors: PathBuf,
}

impl Keychain {
    fn start(server: SocketAddr) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("leasehold-fuzz-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let errors = std::env::temp_dir().join(name);
        let mut child = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .arg("keychain")
            .env("LEASEHOLD_ADDR", format!("http://{server}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        let (sender, answers) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                sender.send(serde_json::from_str(&line).unwrap()).ok();
            }
        });
        Self { stdin: child.stdin.take(), child, answers, errors }
    }

    /// Whether it took the bytes: one that was told to shut down does not.
    fn take(&mut self, bytes: &[u8]) -> bool {
        self.stdin.as_mut().unwrap().write_all(bytes).is_ok()
    }

    /// Whether it still answers. One that was told to shut down has ended well, which is an answer, too.
    fn is_well(&mut self, round: u64) -> bool {
        let id = format!("well-{round}");
        self.take(format!("\n{{\"id\": \"{id}\", \"op\": \"ping\"}}\n").as_bytes());
        loop {
            match self.answers.recv_timeout(PATIENCE) {
                Ok(answer) if answer["id"] == id => break,
                Ok(_) => {}
                Err(_) => {
                    let status = self.child.wait().unwrap();
                    assert!(status.success(), "after {round} inputs: {status:?} {}", self.said());
                    return false;
                }
            }
        }
        let said = self.said();
        assert!(!said.contains("panicked"), "after {round} inputs: {said}");
        let peak = memory_kib(self.child.id(), "VmHWM:");
        assert!(peak < KEYCHAIN_PEAK_MAX_KIB, "after {round} inputs the keychain took {peak} KiB");
        true
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }
}

impl Drop for Keychain {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        fs::remove_file(&self.errors).ok();
    }
}

#[test]
fn no_line_stops_the_keychain() {
    let lines = corpus(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/corpus/keychain"))).unwrap();
    assert!(lines.len() > 10, "the corpus is missing");
    let cluster = Cluster::start_encrypted(Path::new(env!("CARGO_BIN_EXE_leasehold")), 1, &[]).unwrap();
    let (rounds, mut random) = (setting("FUZZ_ROUNDS", 8_000), Random::new(setting("FUZZ_SEED", 1)));
    let mut keychain = Keychain::start(cluster.addr(1));
    for round in 0..rounds {
        let mut bytes = mutated(&lines, &mut random);
        bytes.push(b'\n');
        let taken = keychain.take(&bytes);
        if (!taken || round % 250 == 0) && !keychain.is_well(round) {
            keychain = Keychain::start(cluster.addr(1));
        }
    }
    keychain.is_well(rounds);
    is_well(&cluster, rounds);
}

#[test]
fn neither_an_endless_line_nor_a_parent_that_does_not_read_takes_all_memory() {
    let cluster = Cluster::start_encrypted(Path::new(env!("CARGO_BIN_EXE_leasehold")), 1, &[]).unwrap();
    let mut keychain = Keychain::start(cluster.addr(1));
    let megabyte = vec![b'a'; 1 << 20];
    for _ in 0..200 {
        assert!(keychain.take(&megabyte));
    }
    assert!(keychain.is_well(0), "it ended");
    // Before the ping was answered, the line was.
    let mut keychain = Keychain::start(cluster.addr(1));
    assert!(keychain.take(&vec![b'a'; 2 << 20]) && keychain.take(b"\n"));
    let answer = keychain.answers.recv_timeout(PATIENCE).unwrap();
    let detail = answer["detail"].as_str().unwrap_or_default();
    assert!(answer["error"] == "invalid" && detail.contains("may have at most"), "{answer}");

    let mut child = Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .arg("keychain")
        .env("LEASEHOLD_ADDR", format!("http://{}", cluster.addr(1)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let written = Arc::new(AtomicU64::new(0));
    let counted = written.clone();
    let writer = std::thread::spawn(move || {
        let line = format!("{{\"op\": \"ping\", \"id\": \"{}\"}}\n", "x".repeat(500_000));
        for _ in 0..1000 {
            if stdin.write_all(line.as_bytes()).is_err() {
                return;
            }
            counted.fetch_add(1, Ordering::AcqRel);
        }
    });
    // It stops reading, too, before it has taken much.
    let mut before = u64::MAX;
    while before != written.load(Ordering::Acquire) {
        before = written.load(Ordering::Acquire);
        assert!(before < 1000, "it took everything");
        std::thread::sleep(Duration::from_secs(1));
    }
    let peak = memory_kib(child.id(), "VmHWM:");
    child.kill().unwrap();
    child.wait().unwrap();
    writer.join().unwrap();
    assert!(before > 0 && peak < KEYCHAIN_PEAK_MAX_KIB, "{peak} KiB after {before} lines");
}
