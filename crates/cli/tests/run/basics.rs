//! What `run` promises: exit codes, the command's environment, and that nothing of the command is left when the claim is.

use std::process::{Child, Command, Stdio};

use crate::common::eventually;
use crate::common::{Server, TempDir, claim_body};
use crate::proxy::{Fault, Proxy};
use crate::support::{STUBBORN, code_of, kill, leasehold, lives, number_in, run, url};

#[test]
fn the_command_knows_what_it_holds_and_its_exit_code_comes_back() {
    let server = Server::start();
    let script = "echo $LEASEHOLD_RESOURCE $LEASEHOLD_CLAIM $LEASEHOLD_TOKEN; exit 7";
    let output = run(&server, &["db/main", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7));
    let said = String::from_utf8(output.stdout).unwrap();
    let claim = &server.list("")[0];
    let id = claim["url"].as_str().unwrap().trim_end_matches('/').rsplit('/').next().unwrap();
    assert_eq!(said.trim(), format!("db/main {id} {}", claim["token"]));
    assert_eq!(claim["status"], "released");
    assert!(claim["user_data"]["pid"].is_u64() && claim["user_data"]["command"].is_string(), "{claim}");
}

#[test]
fn the_exit_codes_are_those_of_flock_and_timeout() {
    let server = Server::start();
    let code = |args: &[&str]| run(&server, args).status.code();
    server.claim("held", 500.0);
    assert_eq!(code(&["-n", "held", "--", "true"]), Some(75));
    assert_eq!(code(&["-w", "0.2", "held", "--", "true"]), Some(75));
    assert_eq!(code(&["-n", "-E", "9", "held", "--", "true"]), Some(9));
    server.wait_for_queue("held", 0);
    assert_eq!(code(&["free", "--", "true"]), Some(0));
    assert_eq!(code(&["free", "--", "/nonexistent/command"]), Some(127));
    assert_eq!(code(&["free", "--", "no-such-command-anywhere"]), Some(127));
    assert_eq!(code(&["free", "--", "/etc/passwd"]), Some(126));
    assert_eq!(code(&["free", "--", "sh", "-c", "kill -KILL $$"]), Some(137));
    assert_eq!(code(&["free"]), Some(125));
    assert_eq!(code(&["--ttl", "1", "--grace", "2", "free", "--", "true"]), Some(125));
    assert_eq!(code(&["", "--", "true"]), Some(125));
    assert_eq!(
        leasehold("http://127.0.0.1:1", &["run", "-w", "0.3", "r", "--", "true"]).status().unwrap().code(),
        Some(125)
    );
    assert!(server.list("status=active&resource=free").is_empty());
    let help = leasehold("", &["run", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(
        ["75", "76", "125", "126, 127", "128+n", "LEASEHOLD_TOKEN"].iter().all(|word| help.contains(word)),
        "{help}"
    );
}

#[test]
fn commands_take_turns() {
    let server = Server::start();
    let dir = TempDir::new();
    let file = dir.path().join("log");
    let script = "echo in >> \"$F\"; sleep 0.05; echo out >> \"$F\"";
    let mut children: Vec<Child> = (0..5)
        .map(|_| {
            leasehold(&url(&server), &["run", "r", "--", "sh", "-c", script]).env("F", &file).spawn().unwrap()
        })
        .collect();
    for child in &mut children {
        assert_eq!(code_of(child), Some(0));
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "in\nout\n".repeat(5));
}

#[test]
fn a_lost_claim_stops_the_whole_group_before_anyone_else_holds_it() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    let dir = TempDir::new();
    let args = ["run", "--ttl", "6", "--grace", "1.5", "r", "--", "sh", "-c", STUBBORN];
    let mut child = leasehold(&proxy.url(), &args).env("D", dir.path()).spawn().unwrap();
    let pids = ["child", "grand"].map(|name| number_in(&dir.path().join(name)));
    let mut rival = server.ask("POST", "/v1/claims/?wait=60", &[], &claim_body("r", 60.0));
    server.wait_for_queue("r", 1);
    proxy.rule(|_| Fault::Hold);
    assert_eq!(rival.reply().status, 201);
    let left: Vec<u32> = pids.into_iter().filter(|pid| lives(*pid)).collect();
    assert!(left.is_empty(), "{left:?} still run while another holds the resource");
    proxy.rule(|_| Fault::Cut);
    assert_eq!(code_of(&mut child), Some(76));
}

#[test]
fn a_revoked_claim_stops_the_command_by_term_first() {
    let server = Server::start();
    let dir = TempDir::new();
    let script =
        "trap 'echo asked > \"$D/term\"; exit 0' TERM; echo $$ > \"$D/child\"; while :; do sleep 0.05; done";
    let args = ["run", "--ttl", "3", "r", "--", "sh", "-c", script];
    let mut child =
        leasehold(&url(&server), &args).env("D", dir.path()).stderr(Stdio::piped()).spawn().unwrap();
    number_in(&dir.path().join("child"));
    let claim = server.list("resource=r")[0]["url"].as_str().unwrap().to_string();
    let revoked = leasehold(&url(&server), &["revoke", &claim, "--reason", "maintenance"]).status().unwrap();
    assert!(revoked.success());
    assert_eq!(code_of(&mut child), Some(76));
    assert!(dir.path().join("term").exists());
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("revoked"), "{said}");
}

#[test]
fn a_command_that_lives_longer_than_the_ttl_keeps_its_claim() {
    let server = Server::start();
    let output = run(&server, &["--ttl", "2", "r", "--", "sleep", "5"]);
    assert_eq!(output.status.code(), Some(0));
    let claim = &server.list("resource=r")[0];
    assert_eq!(claim["status"], "released");
    assert!(claim["active_duration"].as_f64().unwrap() > 4.0);
}

#[test]
fn signals_are_passed_on_and_end_a_wait() {
    let server = Server::start();
    let dir = TempDir::new();
    let script = "trap 'exit 33' USR1; echo $$ > \"$D/child\"; while :; do sleep 0.05; done";
    let mut child = leasehold(&url(&server), &["run", "r", "--", "sh", "-c", script])
        .env("D", dir.path())
        .spawn()
        .unwrap();
    number_in(&dir.path().join("child"));
    let mut waiting = leasehold(&url(&server), &["run", "r", "--", "true"]).spawn().unwrap();
    server.wait_for_queue("r", 1);
    kill("TERM", waiting.id());
    assert_eq!(code_of(&mut waiting), Some(143));
    server.wait_for_queue("r", 0);
    kill("USR1", child.id());
    assert_eq!(code_of(&mut child), Some(33));
    assert!(server.list("resource=r&status=active").is_empty());
}

#[test]
fn a_run_that_is_killed_takes_its_command_with_it() {
    let server = Server::start();
    let dir = TempDir::new();
    let script = "echo $$ > \"$D/child\"; while :; do sleep 1; done";
    let mut child = leasehold(&url(&server), &["run", "r", "--", "sh", "-c", script])
        .env("D", dir.path())
        .spawn()
        .unwrap();
    let pid = number_in(&dir.path().join("child"));
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the command is gone", || !lives(pid));
}

#[test]
fn on_a_terminal_it_shows_who_holds_and_lends_the_terminal_to_its_command() {
    // A shell without job control, as in a script: after `run` it reads from the terminal itself.
    let shell = "\"$LEASEHOLD\" run r -- sh -c 'read line; echo got $line'; read line; echo then $line";
    let script = r#"
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", sys.argv[1]])
def until(word):
    text = b""
    while word not in text:
        text += os.read(terminal, 4096)
    return text
until(b"held by somewhere pid 7")
sys.stdout.write("shown\n"); sys.stdout.flush()
os.write(terminal, b"one\n")
until(b"got one")
os.write(terminal, b"two\n")
until(b"then two")
os.waitpid(pid, 0)
"#;
    let server = Server::start();
    let body = r#"{"resource": "r", "ttl": 500, "user_data": {"host": "somewhere", "pid": 7}}"#;
    let holder = server.post("/v1/claims/", body).location_path();
    let mut python = Command::new("python3")
        .args(["-c", script, shell])
        .env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"))
        .env("LEASEHOLD_ADDR", url(&server))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(python.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "shown\n");
    server.patch(&holder, r#"{"status": "released"}"#);
    assert_eq!(code_of(&mut python), Some(0));
}
