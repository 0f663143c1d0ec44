//! `leasehold run`: its exit codes, its child's environment, and above all that nothing of the child is left when the
//! claim is.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

mod common;
#[path = "common/proxy.rs"]
mod proxy;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use common::{PATIENCE, Server, TempDir, claim_body, eventually};
use proxy::{Fault, Proxy};

fn leasehold(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(args).env("LEASEHOLD_ADDR", url).env_remove("LEASEHOLD_KEY").stdin(Stdio::null());
    command
}

fn url(server: &Server) -> String {
    format!("http://{}", server.addr)
}

fn run(server: &Server, args: &[&str]) -> Output {
    leasehold(&url(server), &[&["run"], args].concat()).output().unwrap()
}

fn code_of(child: &mut Child) -> Option<i32> {
    let mut status = None;
    eventually("it ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code()
}

fn kill(signal: &str, pid: u32) {
    assert!(Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status().unwrap().success());
}

/// The number that a file holds, once it does.
fn number_in(path: &Path) -> u32 {
    let read = || std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))?.trim().parse().ok();
    eventually("the command writes its pid", || read().is_some());
    read().unwrap()
}

/// A process that is dead and not yet reaped does nothing any more.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

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

/// A command whose child and grandchild ignore SIGTERM, in the background and all.
const STUBBORN: &str = "trap '' TERM; (trap '' TERM; echo $$ > \"$D/sub\"; sh -c 'echo $$ > \"$D/grand\"; while :; do sleep 1; done') & echo $$ > \"$D/child\"; while :; do sleep 1; done";

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
fn people_and_programs_can_look() {
    let server = Server::start();
    let say = |args: &[&str]| {
        let output = leasehold(&url(&server), args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, id) = say(&["claim", "r", "--ttl", "500", "--quiet", "--data", "{\"host\": \"a\\u001b[2J\"}"]);
    assert_eq!((code, id.trim().len()), (Some(0), 32));
    server.claim("r", 5.0);
    let (_, table) = say(&["show", "r"]);
    assert!(table.starts_with("CLAIM") && table.lines().count() == 3 && table.contains("waiting"), "{table}");
    assert!(!table.contains('\u{1b}'), "neither colours in a pipe nor somebody else's control characters");
    let (_, shown) = say(&["show", id.trim(), "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap()["status"], "active");
    let (_, queue) = say(&["show", "r", "--json"]);
    let queue: serde_json::Value = serde_json::from_str(&queue).unwrap();
    assert_eq!(
        (queue["holder"]["token"].as_u64(), queue["queue"][0]["position"].as_u64()),
        (Some(1), Some(1))
    );
    assert_eq!(say(&["claim", "r", "-n"]).0, Some(75));
    assert_eq!(say(&["claim", "r", "-w", "0.1", "-E", "3"]).0, Some(3));
    let (_, renewed) = say(&["renew", id.trim(), "--ttl", "77", "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&renewed).unwrap()["ttl"], 77.0);
    let (_, listed) = say(&["list", "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&listed).unwrap().as_array().unwrap().len(), 2);
    assert_eq!(say(&["release", id.trim()]).0, Some(0));
    assert_eq!(say(&["release", id.trim()]).0, Some(1));
    assert_eq!(say(&["show", "nobody-has-it"]).1, "nobody-has-it is free\n");
    assert_eq!(say(&["show", &"0".repeat(32)]).0, Some(1));
    for shell in ["bash", "zsh", "fish"] {
        assert!(say(&["completions", shell]).1.contains("keychain"), "{shell}");
    }
    let dir = TempDir::new();
    assert_eq!(say(&["man", "--dir", dir.path().to_str().unwrap()]).0, Some(0));
    let page = std::fs::read_to_string(dir.path().join("leasehold-run.1")).unwrap();
    assert!(page.contains("128+n") && page.contains("LEASEHOLD_TOKEN"));
    assert!(!dir.path().join("leasehold-exec-for.1").exists());
}

#[test]
fn watching_tells_of_every_change_and_survives_a_restart() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    let args = ["watch", "r", "--json", "--interval", "0.05"];
    let mut child =
        leasehold(&proxy.url(), &args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (sender, lines) = std::sync::mpsc::channel();
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || {
        for line in std::io::BufRead::lines(out).map_while(Result::ok) {
            sender.send(serde_json::from_str::<serde_json::Value>(&line).unwrap()).ok();
        }
    });
    let claim = server.claim("r", 500.0);
    assert_eq!(lines.recv_timeout(PATIENCE).unwrap()["status"], "active");
    proxy.rule(|_| Fault::Cut);
    server.patch(&claim, r#"{"status": "released"}"#);
    proxy.heal();
    assert_eq!(lines.recv_timeout(PATIENCE).unwrap()["status"], "released");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn keys_travel_as_bearer_tokens() {
    let dir = TempDir::new();
    let file = dir.path().join("key");
    std::fs::write(&file, "from-a-file\nand more\n").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let show = || leasehold(&url, &["show", "r"]);
    let asked = |command: &mut Command| {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        let lines = std::io::BufRead::lines(std::io::BufReader::new(stream));
        let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        head.into_iter().find(|line| line.to_ascii_lowercase().starts_with("authorization:"))
    };
    let header = |key: &str| Some(format!("authorization: Bearer {key}"));
    assert_eq!(asked(show().env("LEASEHOLD_KEY", "from-the-variable")), header("from-the-variable"));
    assert_eq!(asked(show().env("LEASEHOLD_KEY_FILE", &file)), header("from-a-file"));
    assert_eq!(asked(show().args(["--key", "from-a-flag"])), header("from-a-flag"));
    assert_eq!(asked(&mut show()), None);
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
