//! What `run` shows while it waits, and that it goes on waiting.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::common::{PATIENCE, Server, TempDir, eventually};
use crate::proxy::{Fault, Proxy};
use crate::support::{code_of, leasehold, number_in, url};

/// Its lines, as they come.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (sender, lines) = channel();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
    lines
}

fn line_with(lines: &Receiver<String>, words: &[&str]) -> String {
    loop {
        let line = lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no line with {words:?}"));
        if words.iter().all(|word| line.contains(word)) {
            return line;
        }
    }
}

#[test]
fn off_a_terminal_one_line_says_that_it_waits_and_one_that_it_is_its_turn() {
    let server = Server::start();
    let body = r#"{"resource": "r", "ttl": 500, "user_data": {"host": "somewhere", "pid": 7}}"#;
    let holder = server.post("/v1/claims/", body).location_path();
    let mut child =
        leasehold(&url(&server), &["run", "r", "--", "true"]).stderr(Stdio::piped()).spawn().unwrap();
    let lines = lines_of(&mut child);
    let first = lines.recv_timeout(PATIENCE).unwrap();
    assert!(first.contains("waiting for 'r'") && first.contains("held by somewhere pid 7"), "{first}");
    server.patch(&holder, r#"{"status": "released"}"#);
    let second = lines.recv_timeout(PATIENCE).unwrap();
    assert!(second.contains("'r' was acquired"), "{second}");
    assert_eq!(code_of(&mut child), Some(0));
    assert_eq!(lines.iter().collect::<Vec<_>>(), [""; 0], "and nothing more");
}

#[test]
fn with_the_service_down_it_says_at_once_that_it_retries_and_why() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    for (fault, why) in [(Fault::Cut, "connection"), (Fault::Answer(503), "503"), (Fault::Answer(404), "404")]
    {
        proxy.rule(move |_| fault);
        let mut child =
            leasehold(&proxy.url(), &["run", "r", "--", "true"]).stderr(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(&mut child);
        line_with(&lines, &[why, "retrying"]);
        proxy.heal();
        assert_eq!(code_of(&mut child), Some(0), "{fault:?}: and it goes on when the service is back");
    }
    proxy.rule(|_| Fault::Hold);
    let mut child =
        leasehold(&proxy.url(), &["run", "r", "--", "true"]).stderr(Stdio::piped()).spawn().unwrap();
    line_with(&lines_of(&mut child), &["answer"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn renewals_that_fail_are_reported_from_the_first_one_on_with_the_time_left() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    let dir = TempDir::new();
    let script = "echo $$ > \"$D/child\"; until [ -e \"$D/go\" ]; do sleep 0.05; done";
    let args = ["run", "--ttl", "20", "r", "--", "sh", "-c", script];
    let mut child =
        leasehold(&proxy.url(), &args).env("D", dir.path()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = lines_of(&mut child);
    number_in(&dir.path().join("child"));
    let mut failures = 0;
    proxy.rule(move |kind| {
        failures += usize::from(kind == "renew");
        if kind == "renew" && failures == 1 { Fault::Answer(503) } else { Fault::None }
    });
    line_with(&lines, &["could not be renewed", "503", "stopped in"]);
    line_with(&lines, &["renewed again"]);
    std::fs::write(dir.path().join("go"), "").unwrap();
    assert_eq!(code_of(&mut child), Some(0));
}

#[test]
fn a_claim_that_expired_unseen_is_asked_for_again() {
    let server = Server::start();
    let holder = server.claim("r", 500.0);
    let proxy = Proxy::before(server.addr);
    proxy.rule(|kind| if kind == "activate" { Fault::Hold } else { Fault::None });
    let mut child = leasehold(&proxy.url(), &["run", "--ttl", "2", "r", "--", "true"]).spawn().unwrap();
    server.wait_for_queue("r", 1);
    server.patch(&holder, r#"{"status": "released"}"#);
    eventually("it is granted, and nobody hears of it", || {
        !server.list("resource=r&status=expired").is_empty()
    });
    proxy.heal();
    assert_eq!(code_of(&mut child), Some(0), "it was to wait for ever");
    assert_eq!(server.list("resource=r&status=released").len(), 2);
}

#[test]
fn a_node_that_falls_silent_is_left_before_the_claim_expires() {
    let server = Server::start();
    let holder = server.claim("r", 500.0);
    let silent = Proxy::before(server.addr);
    let urls = format!("{},{}", silent.url(), url(&server));
    let mut child = leasehold(&urls, &["run", "--ttl", "25", "r", "--", "true"]).spawn().unwrap();
    silent.rule(|kind| if kind == "register" { Fault::None } else { Fault::Hold });
    server.wait_for_queue("r", 1);
    server.patch(&holder, r#"{"status": "released"}"#);
    assert_eq!(code_of(&mut child), Some(0));
    assert!(server.list("resource=r&status=expired").is_empty(), "its turn was noticed in time");
}

#[test]
fn on_a_terminal_the_line_fits_the_width() {
    let server = Server::start();
    let name = "a-resource-with-a-name-that-is-longer-than-any-terminal-is-wide-".repeat(3);
    let holder = server.claim(&name, 500.0);
    let script = r#"
import fcntl, os, pty, re, struct, sys, termios
pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    os.execvp(sys.argv[1], [sys.argv[1], "run", sys.argv[2], "--", "true"])
text = b""
while text.count(b"\r\x1b[K") < 2:
    text += os.read(terminal, 4096)
shown = [line for line in re.split(rb"\r\x1b\[K", text)[:-1] if line]
print(max(len(line) for line in shown), len(shown)); sys.stdout.flush()
try:
    while os.read(terminal, 4096): pass
except OSError: pass
os.waitpid(pid, 0)
"#;
    let mut python = Command::new("python3")
        .args(["-c", script, env!("CARGO_BIN_EXE_leasehold"), &name])
        .env("LEASEHOLD_ADDR", url(&server))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(python.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let longest: usize = line.split(' ').next().unwrap().parse().unwrap();
    assert!((20..50).contains(&longest), "{line}");
    server.patch(&holder, r#"{"status": "released"}"#);
    assert_eq!(code_of(&mut python), Some(0));
}
