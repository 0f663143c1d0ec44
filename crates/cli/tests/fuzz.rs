//! A stranger's bytes at a real server's doors: it goes on answering, says nothing of a panic, and stays small.
//!
//! `FUZZ_ROUNDS` and `FUZZ_SEED` run more of them, or others.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use leasehold_lab::cluster::{Cluster, PATIENCE};
use leasehold_lab::http::request;
use leasehold_lab::mutate::{corpus, mutated};
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
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
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
    let cluster = Cluster::start_encrypted(Path::new(env!("CARGO_BIN_EXE_leasehold")), 1, &[]).unwrap();
    let (rounds, mut random) = (setting("FUZZ_ROUNDS", 8_000), Random::new(setting("FUZZ_SEED", 1)));
    for round in 0..rounds {
        match round % 8 {
            7 => throw(cluster.peer_address(1), &mutated(&peer, &mut random)),
            _ => throw(cluster.addr(1), &mutated(&http, &mut random)),
        }
        if round % 250 == 0 {
            is_well(&cluster, round);
        }
    }
    is_well(&cluster, rounds);
    let body = "{\"resource\": \"after-the-storm\", \"ttl\": 5}";
    assert_eq!(cluster.ask(1, "POST", "/v1/claims/", body).unwrap().status, 201);
}
