//! Many `run`s on one resource, over networks and servers that fail: commands never overlap.
//!
//! Every guarded command appends its token to one file, again and again. Tokens grow with every grant, so a line with a smaller
//! token than one before it was written by a command that ran beside a later holder.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::{Random, Server, TempDir, eventually, seed};
use crate::proxy::{Fault, Proxy};
use crate::support::{code_of, kill, leasehold, number_in, url};

/// Appends its token ten times.
const GUARDED: &str =
    "for i in 1 2 3 4 5 6 7 8 9 10; do echo $LEASEHOLD_TOKEN >> \"$F\"; [ -z \"$S\" ] || sleep $S; done";

fn guarded(url: &str, flags: &[&str], file: &Path, pause: &str) -> Child {
    let args = [&["run", "--quiet"], flags, &["r", "--", "sh", "-c", GUARDED]].concat();
    let mut command = leasehold(url, &args);
    command.env("F", file).env("S", pause).stderr(Stdio::null()).spawn().unwrap()
}

/// The tokens in the order in which they were written; none is smaller than one before it.
fn never_overlap(file: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let tokens: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
    for pair in tokens.windows(2) {
        assert!(pair[0] <= pair[1], "the command with token {} ran beside that with {}", pair[1], pair[0]);
    }
    tokens
}

#[test]
fn a_crowd_on_one_resource_takes_turns() {
    // As many as two cores start in a few seconds; LEASEHOLD_RUNS=1000 is the whole crowd.
    let runs: usize = std::env::var("LEASEHOLD_RUNS").map_or(150, |runs| runs.parse().unwrap());
    let server = Server::start();
    let file = TempDir::new();
    let log = file.path().join("log");
    let mut children: Vec<Child> = (0..runs).map(|_| guarded(&url(&server), &[], &log, "")).collect();
    for child in &mut children {
        // The last one waits for all the others.
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(0));
    }
    assert_eq!(never_overlap(&log).len(), runs * 10, "everybody had its turn, to the end");
    assert!(server.list("resource=r&status=expired").is_empty());
}

#[test]
fn commands_never_overlap_while_requests_fail_in_every_way() {
    let server = Server::start();
    let dir = TempDir::new();
    let log = dir.path().join("log");
    let proxy = Proxy::before(server.addr);
    let mut random = Random(seed());
    let faults = [
        Fault::Cut,
        Fault::Lose,
        Fault::Mute,
        Fault::Hold,
        Fault::Answer(500),
        Fault::Answer(503),
        Fault::Answer(429),
    ];
    proxy.rule(move |_| match random.below(3) {
        0 => faults[random.below(faults.len())],
        _ => Fault::None,
    });
    let mut children: Vec<Child> =
        (0..10).map(|_| guarded(&proxy.url(), &["--ttl", "4", "--grace", "0.3"], &log, "0.2")).collect();
    eventually("some had their turn", || never_overlap(&log).len() > 30);
    proxy.heal();
    for child in &mut children {
        let code = code_of(child);
        assert!(
            matches!(code, Some(0 | 76)),
            "{code:?}: it waits for ever, and is stopped if its claim is lost"
        );
    }
    never_overlap(&log);
}

#[test]
fn a_killed_run_and_a_stopped_one_cost_their_ttl_and_nothing_else() {
    let server = Server::start();
    let dir = TempDir::new();
    let log = dir.path().join("log");
    let script = "echo $$ > \"$D/child\"; while :; do echo $LEASEHOLD_TOKEN >> \"$F\"; sleep 0.05; done";
    let args = ["run", "--ttl", "2", "r", "--", "sh", "-c", script];
    for signal in ["KILL", "STOP"] {
        std::fs::remove_file(dir.path().join("child")).ok();
        let mut first = leasehold(&url(&server), &args).env("F", &log).env("D", dir.path()).spawn().unwrap();
        let command = number_in(&dir.path().join("child"));
        if signal == "STOP" {
            // A run that is stopped can't stop its command; docs/command-line.md says so. A suspended machine stops both.
            kill("STOP", command);
        }
        kill(signal, first.id());
        assert_eq!(code_of(&mut guarded(&url(&server), &[], &log, "")), Some(0));
        // The kernel may have done it already.
        Command::new("kill").arg("-KILL").arg(command.to_string()).stderr(Stdio::null()).status().unwrap();
        first.kill().ok();
        first.wait().unwrap();
    }
    never_overlap(&log);
}

/// A server that takes connections and never answers.
fn silent() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut taken: Vec<TcpStream> = Vec::new();
        taken.extend(listener.incoming().flatten());
    });
    address
}

/// A server that answers like this, whatever it is asked.
fn answering(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let Ok(1..) = stream.read(&mut [0; 4096]) else { continue };
            stream.write_all(answer.as_bytes()).ok();
        }
    });
    address
}

#[test]
fn one_address_that_can_not_help_does_not_keep_a_run_from_the_others() {
    let server = Server::start();
    let bad = [
        "127.0.0.1:1".parse().unwrap(),
        silent(),
        answering("HTTP/1.1 502 X\r\nContent-Length: 0\r\n\r\n"),
        answering("HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n"),
        answering("HTTP/1.1 401 X\r\nContent-Length: 0\r\n\r\n"),
        answering("HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n<html>hi</html>"),
        answering("220 mail.example ESMTP\r\n"),
    ];
    for address in bad {
        for urls in [format!("{address},{}", server.addr), format!("{},{address}", server.addr)] {
            let output = leasehold(&urls, &["run", "-n", "r", "--", "true"]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(0), "{urls}: {said}");
        }
    }
    assert!(server.list("resource=r&status=active").is_empty());
}

#[test]
fn names_that_are_not_looked_up_in_time_do_not_keep_a_run_from_other_addresses() {
    let dir = TempDir::new();
    // A network of its own, with a service, and a name server that never answers.
    let script = r#"
set -e
ip link set lo up
echo "nameserver 127.0.0.1" > "$D/resolv.conf"
mount --bind "$D/resolv.conf" /etc/resolv.conf
python3 -c 'import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("127.0.0.1", 53)); time.sleep(600)' &
"$LEASEHOLD" serve --listen 127.0.0.1:4080 --data "$D/data" > "$D/url" 2> /dev/null &
until [ -s "$D/url" ]; do sleep 0.05; done
export LEASEHOLD_ADDR=http://slow.example:4080,http://127.0.0.1:4080
"$LEASEHOLD" run -n r -- true
# Longer than the ttl: renewals get through, too.
"$LEASEHOLD" run --ttl 4 r -- sleep 6
LEASEHOLD_ADDR=http://slow.example:4080 "$LEASEHOLD" run -w 1 r -- true || echo "alone: $?"
"#;
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", script])
        .env("D", dir.path())
        .env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert_eq!(out, "alone: 125\n", "{said}");
}
