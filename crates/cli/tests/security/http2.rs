//! Clients of HTTP/2 that open no window for their answers.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::{PATIENCE, Server, TempDir};
use crate::memory::{MIB, fill, resident};

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM_AND_HEADERS: u8 = 5;

/// A connection over TLS that `openssl` keeps up, and a client that writes its frames by hand.
struct Http2 {
    child: Child,
    frames: ChildStdout,
    /// Kinds and streams of all frames that have come.
    seen: BTreeSet<(u8, u32)>,
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
        let mut client = Self { child, frames, seen: BTreeSet::new() };
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
        let mut block = Vec::new();
        for (name, value) in
            [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
        {
            // A literal that is not indexed, with a new name.
            block.push(0);
            for text in [name, value] {
                block.push(text.len() as u8);
                block.extend_from_slice(text.as_bytes());
            }
        }
        self.frame(HEADERS, END_STREAM_AND_HEADERS, stream, &block);
    }

    /// Reads a frame; `None` once the service has ended the connection.
    fn next(&mut self) -> Option<()> {
        let mut head = [0; 9];
        self.frames.read_exact(&mut head).ok()?;
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        self.frames.read_exact(&mut vec![0; len as usize]).ok()?;
        self.seen.insert((head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]])));
        Some(())
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

fn start(args: &[&str]) -> (Server, TempDir) {
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
    fill(&plain, 200);
    assert!(plain.terminate().success());
    let args = [&["--tls-certificate", &certificate, "--tls-key", &key], args].concat();
    (Server::start_in(&data, &args), dir)
}

#[test]
fn answers_without_a_window_cost_little_and_are_given_up() {
    let (server, _dir) = start(&["--write-timeout", "3", "--header-timeout", "2"]);
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
