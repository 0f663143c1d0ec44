//! Clients of HTTP/2: those that open no window for their answers, and those that send many bodies at once.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::{PATIENCE, Server, TempDir};
use crate::memory::{MIB, fill, resident};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_HEADERS: u8 = 4;
const END_STREAM_AND_HEADERS: u8 = 5;
/// What may be sent of one request's body, and of all, before the service asks for more.
const FIRST_WINDOW: i64 = 65_535;

/// A connection over TLS that `openssl` keeps up, and a client that writes its frames by hand.
struct Http2 {
    child: Child,
    frames: ChildStdout,
    /// Kinds and streams of all frames that have come.
    seen: BTreeSet<(u8, u32)>,
    /// What may still be sent; of all requests together: 0.
    windows: BTreeMap<u32, i64>,
}

impl Http2 {
    /// Connects, and leaves no room for any answer.
    fn with_closed_window(server: &Server) -> Self {
        // A service that never gives up does not keep this test waiting for ever.
        let mut child = Command::new("timeout")
            .arg(PATIENCE.as_secs().to_string())
            .args(["openssl", "s_client", "-quiet", "-alpn", "h2", "-connect", &server.addr.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("openssl: {error}: run scripts/install-test-tools"));
        let frames = child.stdout.take().unwrap();
        let mut client = Self { child, frames, seen: BTreeSet::new(), windows: BTreeMap::new() };
        client.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        // SETTINGS_INITIAL_WINDOW_SIZE: 0.
        client.frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
        client
    }

    fn write(&mut self, bytes: &[u8]) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(bytes).unwrap();
        input.flush().unwrap();
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let len = (payload.len() as u32).to_be_bytes();
        let head = [&len[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.write(&[&head, payload].concat());
    }

    fn get(&mut self, stream: u32, path: &str) {
        self.ask(stream, "GET", path, END_STREAM_AND_HEADERS);
    }

    fn ask(&mut self, stream: u32, method: &str, path: &str, flags: u8) {
        let mut block = Vec::new();
        for (name, value) in
            [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
        {
            // A literal that is not indexed, with a new name.
            block.push(0);
            for text in [name, value] {
                block.push(text.len() as u8);
                block.extend_from_slice(text.as_bytes());
            }
        }
        self.frame(HEADERS, flags, stream, &block);
    }

    /// Reads a frame; `None` once the service has ended the connection.
    fn next(&mut self) -> Option<()> {
        let mut head = [0; 9];
        self.frames.read_exact(&mut head).ok()?;
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; len as usize];
        self.frames.read_exact(&mut payload).ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        self.seen.insert((head[3], stream));
        if head[3] == WINDOW_UPDATE {
            let more = u32::from_be_bytes(payload.try_into().unwrap());
            *self.windows.entry(stream).or_insert(FIRST_WINDOW) += i64::from(more);
        }
        Some(())
    }

    fn is_answered(&self, stream: u32) -> bool {
        self.seen.contains(&(HEADERS, stream))
    }

    /// Sends some of a body, as soon as there is room for it; nothing once its request is answered.
    fn send_some(&mut self, stream: u32, bytes: &[u8]) {
        let len = bytes.len() as i64;
        while !self.is_answered(stream) {
            let room = |window| self.windows.get(window).copied().unwrap_or(FIRST_WINDOW) >= len;
            if room(&0) && room(&stream) {
                for window in [0, stream] {
                    *self.windows.entry(window).or_insert(FIRST_WINDOW) -= len;
                }
                return self.frame(DATA, 0, stream, bytes);
            }
            self.next().expect("the service ended the connection");
        }
    }

    /// Reads until every one of these streams has had such a frame.
    fn all(&mut self, kind: u8, streams: &BTreeSet<u32>) {
        while !streams.iter().all(|stream| self.seen.contains(&(kind, *stream))) {
            self.next().unwrap_or_else(|| panic!("ended without some frame of kind {kind}"));
        }
    }
}

impl Drop for Http2 {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn start(args: &[&str], claims: usize) -> (Server, TempDir) {
    let dir = TempDir::new();
    let [key, certificate] = ["node.key", "node.pem"].map(|name| dir.path().join(name).display().to_string());
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=localhost", "-keyout", &key, "-out", &certificate])
        .output();
    assert!(made.unwrap().status.success());
    // Claims are made over plain HTTP first.
    let data = dir.path().join("data");
    let mut plain = Server::start_in(&data, &[]);
    fill(&plain, claims);
    assert!(plain.terminate().success());
    let args = [&["--tls-certificate", &certificate, "--tls-key", &key], args].concat();
    (Server::start_in(&data, &args), dir)
}

#[test]
fn answers_without_a_window_cost_little_and_are_given_up() {
    let (server, _dir) = start(&["--write-timeout", "3", "--header-timeout", "2"], 200);
    let before = resident(&server);
    let mut client = Http2::with_closed_window(&server);
    let streams: BTreeSet<u32> = (0..100).map(|i| 2 * i + 1).collect();
    for stream in &streams {
        client.get(*stream, "/v1/claims/?limit=1000");
    }
    client.all(HEADERS, &streams);
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 150 * MIB, "{} MiB for answers that nobody takes", grown / MIB);
    let start = std::time::Instant::now();
    client.all(RST_STREAM, &streams);
    // Nothing is asked any more: the connection ends, too.
    while client.next().is_some() {
        assert!(start.elapsed() < PATIENCE, "the connection stays");
    }
}

#[test]
fn one_connection_can_not_take_the_room_for_all_bodies() {
    const STREAMS: u32 = 24;
    let (server, _dir) = start(&["--body-timeout", "600"], 0);
    let before = resident(&server);
    let mut client = Http2::with_closed_window(&server);
    let streams: Vec<u32> = (0..STREAMS).map(|i| 2 * i + 1).collect();
    for stream in &streams {
        client.ask(*stream, "POST", "/v1/dss/media/lock", END_HEADERS);
    }
    // Each sends a MiB of a body that never ends, all at the same pace. Eight of them have room.
    for _ in 0..64 {
        for stream in &streams {
            client.send_some(*stream, &[b' '; 16 << 10]);
        }
    }
    while streams.iter().filter(|stream| client.is_answered(**stream)).count() < STREAMS as usize - 8 {
        client.next().expect("the service ended the connection");
    }
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 100 * MIB, "{} MiB", grown / MIB);
}
