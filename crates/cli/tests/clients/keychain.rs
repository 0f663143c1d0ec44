//! `leasehold keychain` over a real pipe: its lines, stalled and dead parents, signals, many claims.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::common::{PATIENCE, Server, eventually};
use crate::proxy::{Fault, Proxy};
use serde_json::{Value, json};

struct Keychain {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    early: Vec<Value>,
}

impl Keychain {
    fn start(server: &Server, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.arg("keychain").args(args).env("LEASEHOLD_ADDR", format!("http://{}", server.addr));
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                sender.send(serde_json::from_str(&line).unwrap()).ok();
            }
        });
        Self { stdin: child.stdin.take(), child, lines, early: Vec::new() }
    }

    fn send(&mut self, line: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The first line that has all of these members; what comes before it is kept.
    fn heard(&mut self, wanted: &Value) -> Value {
        let fits =
            |line: &Value| wanted.as_object().unwrap().iter().all(|(name, value)| line[name] == *value);
        if let Some(at) = self.early.iter().position(fits) {
            return self.early.remove(at);
        }
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("never heard {wanted}"));
            if fits(&line) {
                return line;
            }
            self.early.push(line);
        }
    }

    fn ask(&mut self, line: &Value) -> Value {
        self.send(line);
        self.heard(&json!({ "id": line["id"] }))
    }

    fn exited(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Keychain {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn only(server: &Server, resource: &str) -> Value {
    let claims = server.list(&format!("resource={resource}"));
    assert_eq!(claims.len(), 1, "{claims:?}");
    claims[0].clone()
}

#[test]
fn its_lines_do_what_they_say() {
    let server = Server::start();
    let mut keychain = Keychain::start(&server, &[]);
    assert_eq!(keychain.ask(&json!({"id": "p", "op": "ping"}))["ok"], true);
    let claim =
        keychain.ask(&json!({"id": 1, "op": "claim", "resource": "r", "ttl": 60, "data": {"a": [1, 2]}}));
    assert_eq!((&claim["ok"], &claim["token"], &claim["resource"]), (&json!(true), &json!(1), &json!("r")));
    assert_eq!(keychain.heard(&json!({"event": "acquired"}))["claim"], claim["claim"]);
    assert_eq!(only(&server, "r")["user_data"], json!({"a": [1, 2]}));
    let valid = keychain.ask(&json!({"id": 2, "op": "validate", "resource": "r"}));
    assert!(valid["remaining"].as_f64().unwrap() > 0.0, "{valid}");
    assert_eq!(keychain.ask(&json!({"id": 3, "op": "refresh", "resource": "r", "ttl": 90}))["ok"], true);
    let endless = json!({"id": 3, "op": "refresh", "resource": "r", "ttl": 1e12});
    assert_eq!(keychain.ask(&endless)["error"], "invalid");
    assert_eq!(only(&server, "r")["initial_ttl"], 90.0);
    let listed = keychain.ask(&json!({"id": 4, "op": "list"}));
    assert_eq!(listed["claims"][0]["held"], true);
    assert_eq!(keychain.ask(&json!({"id": 5, "op": "claim", "resource": "r"}))["error"], "already-claimed");
    let shown = keychain.ask(&json!({"id": "s", "op": "show", "resource": "r"}));
    assert_eq!(shown["holder"]["claim"], claim["claim"], "{shown}");
    assert_eq!(keychain.ask(&json!({"id": "t", "op": "show", "resource": "free"}))["holder"], Value::Null);
    assert_eq!(keychain.ask(&json!({"id": 6, "op": "release", "resource": "r"}))["ok"], true);
    keychain.heard(&json!({"event": "released"}));
    assert_eq!(only(&server, "r")["status"], "released");
    assert_eq!(keychain.ask(&json!({"id": 7, "op": "release", "resource": "r"}))["error"], "ended");
    assert_eq!(keychain.ask(&json!({"id": 8, "op": "claim"}))["error"], "invalid");
    assert_eq!(keychain.ask(&json!({"id": 9, "op": "juggle"}))["error"], "invalid");
    assert_eq!(
        keychain.ask(&json!({"id": 10, "op": "claim", "resource": "r", "tll": 3}))["error"],
        "invalid"
    );
    writeln!(keychain.stdin.as_mut().unwrap(), "nonsense").unwrap();
    assert_eq!(keychain.heard(&json!({"id": null}))["error"], "invalid");
    keychain.ask(&json!({"id": 11, "op": "claim", "resource": "s"}));
    assert_eq!(keychain.ask(&json!({"id": 12, "op": "shutdown"}))["ok"], true);
    assert!(keychain.exited().success());
    assert_eq!(only(&server, "s")["status"], "released");
}

#[test]
fn it_tells_who_is_before_it_and_takes_its_turn() {
    let server = Server::start();
    let holder = server.claim("r", 500.0);
    let mut keychain = Keychain::start(&server, &[]);
    assert_eq!(
        keychain.ask(&json!({"id": 1, "op": "claim", "resource": "r", "timeout": 0}))["error"],
        "timeout"
    );
    keychain.send(&json!({"id": 2, "op": "claim", "resource": "r"}));
    assert_eq!(keychain.heard(&json!({"event": "waiting", "position": 1}))["resource"], "r");
    assert_eq!(keychain.ask(&json!({"id": 3, "op": "release", "resource": "r"}))["ok"], true);
    server.wait_for_queue("r", 0);
    keychain.send(&json!({"id": 4, "op": "claim", "resource": "r"}));
    server.wait_for_queue("r", 1);
    server.patch(&holder, r#"{"status": "released"}"#);
    assert_eq!(keychain.heard(&json!({"id": 4}))["ok"], true);
    let claim = keychain.heard(&json!({"event": "acquired"}));
    server.patch(&format!("/v1/claims/{}/", claim["claim"].as_str().unwrap()), r#"{"status": "revoked"}"#);
    assert_eq!(keychain.ask(&json!({"id": 5, "op": "refresh", "resource": "r"}))["ok"], false);
    assert_eq!(keychain.heard(&json!({"event": "lost"}))["reason"], "ended");
    assert_eq!(
        keychain.ask(&json!({"id": 6, "op": "claim", "resource": "r"}))["ok"],
        true,
        "it can be had anew"
    );
}

#[test]
fn a_closed_pipe_and_a_signal_abort_everything() {
    let server = Server::start();
    let mut closed = Keychain::start(&server, &[]);
    closed.ask(&json!({"id": 1, "op": "claim", "resource": "r", "ttl": 600}));
    closed.stdin = None;
    assert!(closed.exited().success());
    assert_eq!(only(&server, "r")["status"], "aborted");
    for (signal, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let mut keychain = Keychain::start(&server, &[]);
        keychain.ask(&json!({"id": 1, "op": "claim", "resource": signal, "ttl": 600}));
        let killed =
            Command::new("kill").arg(format!("-{signal}")).arg(keychain.child.id().to_string()).status();
        assert!(killed.unwrap().success());
        assert_eq!(keychain.exited().code(), Some(code));
        assert_eq!(only(&server, signal)["status"], "aborted");
    }
}

#[test]
fn a_parent_that_is_killed_holds_nothing_though_its_pipe_lives_on() {
    let server = Server::start();
    let mut command = Command::new("sh");
    // The test itself keeps the pipe open: only the death of the shell can tell.
    command.args(["-c", "exec 3<&0; \"$LEASEHOLD\" keychain <&3 & wait"]);
    command.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"));
    command.env("LEASEHOLD_ADDR", format!("http://{}", server.addr));
    let mut keychain = Keychain::of(command);
    keychain.ask(&json!({"id": 1, "op": "claim", "resource": "r", "ttl": 600}));
    keychain.child.kill().unwrap();
    eventually("the claim is given up", || only(&server, "r")["status"] == "aborted");
}

#[test]
fn a_process_that_was_named_as_the_parent_takes_its_claims_along() {
    let server = Server::start();
    let mut owner = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut keychain = Keychain::start(&server, &["--parent", &owner.id().to_string()]);
    assert_eq!(keychain.ask(&json!({"id": 1, "op": "claim", "resource": "r", "ttl": 600}))["ok"], true);
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(keychain.exited().success());
    assert_eq!(only(&server, "r")["status"], "aborted");
    // It is dead by now; nothing could be held for it.
    for parent in [owner.id().to_string(), "0".into(), "-1".into()] {
        let arg = format!("--parent={parent}");
        assert_eq!(Keychain::start(&server, &[&arg]).exited().code(), Some(1), "{arg}");
    }
}

#[test]
fn a_parent_that_does_not_read_is_not_waited_for() {
    let server = Server::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(["keychain", "--ttl", "3"]).env("LEASEHOLD_ADDR", format!("http://{}", server.addr));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let _never_read = child.stdout.take().unwrap();
    writeln!(stdin, "{}", json!({"op": "claim", "resource": "r"})).unwrap();
    let filler = json!({"op": "ping", "id": "x".repeat(1000)});
    for _ in 0..200 {
        // More answers than the pipe holds.
        writeln!(stdin, "{filler}").unwrap();
    }
    let renewed = || {
        let claims = server.list("resource=r");
        claims.len() == 1
            && claims[0]["status"] == "active"
            && claims[0]["active_duration"].as_f64().unwrap() > 4.0
    };
    eventually("it is renewed all the same", renewed);
    drop(stdin);
    eventually("and given up when the parent goes", || only(&server, "r")["status"] == "aborted");
    child.wait().unwrap();
}

#[test]
fn a_paused_keychain_says_that_it_lost_its_claim_and_max_hold_ends_it() {
    let server = Server::start();
    let mut keychain = Keychain::start(&server, &["--ttl", "2", "--max-hold", "100"]);
    let pid = keychain.child.id().to_string();
    keychain.ask(&json!({"id": 1, "op": "claim", "resource": "r"}));
    // As a suspended machine: nothing of it runs while the server's clock goes on.
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    eventually("the ttl is over", || only(&server, "r")["status"] == "expired");
    assert!(Command::new("kill").args(["-CONT", &pid]).status().unwrap().success());
    keychain.heard(&json!({"event": "lost", "resource": "r"}));
    assert_eq!(keychain.ask(&json!({"id": 2, "op": "validate", "resource": "r"}))["ok"], false);
    keychain.ask(&json!({"id": 3, "op": "claim", "resource": "s", "ttl": 60, "max_hold": 0.5}));
    assert_eq!(keychain.heard(&json!({"event": "lost", "resource": "s"}))["reason"], "max-hold");
}

#[test]
fn two_thousand_claims_in_one_keychain_without_a_thread_each() {
    const COUNT: usize = 2000;
    let server = Server::start();
    let mut keychain = Keychain::start(&server, &["--ttl", "30"]);
    for n in 0..COUNT {
        keychain.send(&json!({"id": n, "op": "claim", "resource": format!("many-{n}")}));
    }
    for _ in 0..COUNT {
        keychain.heard(&json!({"ok": true}));
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", keychain.child.id())).unwrap();
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
    assert!(threads.trim().parse::<usize>().unwrap() < 10, "{threads} threads");
    let sockets = std::fs::read_dir(format!("/proc/{}/fd", keychain.child.id())).unwrap().count();
    assert!(sockets < 100, "{sockets} descriptors");
    assert_eq!(keychain.ask(&json!({"id": "all", "op": "shutdown"}))["ok"], true);
    assert!(server.list("status=active").is_empty());
}

#[test]
fn ten_lines_are_a_client_and_files_can_be_fenced() {
    let docs =
        concat!(include_str!("../../../../docs/keychain.md"), include_str!("../../../../docs/fencing.md"));
    let block = |language: &str, word: &str| {
        let fence = format!("```{language}\n");
        let mut blocks = docs.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap());
        let found = blocks.find(|block| block.contains(word));
        found.unwrap_or_else(|| panic!("no example with {word}")).to_string()
    };
    let server = Server::start();
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let url = format!("http://{}", server.addr);
    let script = block("python", "Popen");
    let output = Command::new("python3")
        .args(["-c", &script])
        .env("PATH", &path)
        .env("LEASEHOLD_ADDR", &url)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "held, token 1\n", "{output:?}");
    assert_eq!(server.list("resource=db/main")[0]["status"], "released");

    let dir = crate::common::TempDir::new();
    let recipe =
        block("sh no-run: the folder is yours", "flock").replace("/data", dir.path().to_str().unwrap());
    let write = |token: &str, text: &str| {
        std::fs::write(dir.path().join(format!("new.{token}")), text).unwrap();
        Command::new("sh").args(["-c", &recipe]).env("LEASEHOLD_TOKEN", token).status().unwrap().success()
    };
    assert!(write("41", "first") && write("42", "second"));
    assert!(!write("41", "late"), "an old holder is refused");
    assert_eq!(std::fs::read_to_string(dir.path().join("current")).unwrap(), "second");
}

#[test]
fn a_claim_may_follow_the_release_of_one_that_waited() {
    let server = Server::start();
    let holder = server.claim("r", 500.0);
    let mut keychain = Keychain::start(&server, &[]);
    keychain.send(&json!({"id": 1, "op": "claim", "resource": "r"}));
    server.wait_for_queue("r", 1);
    // In one write, so that nothing can happen in between.
    let release = json!({"id": 2, "op": "release", "resource": "r"});
    let again = json!({"id": 3, "op": "claim", "resource": "r"});
    write!(keychain.stdin.as_mut().unwrap(), "{release}\n{again}\n").unwrap();
    assert_eq!(keychain.heard(&json!({"id": 1}))["error"], "aborted");
    assert_eq!(keychain.heard(&json!({"id": 2}))["ok"], true);
    eventually("one has left and one waits", || {
        server.list("resource=r&status=withdrawn").len() == 1
            && server.list("resource=r&status=waiting").len() == 1
    });
    server.patch(&holder, r#"{"status": "released"}"#);
    assert_eq!(keychain.heard(&json!({"id": 3}))["ok"], true);
    assert_eq!(keychain.ask(&json!({"id": 4, "op": "list"}))["claims"].as_array().unwrap().len(), 1);
    assert_eq!(keychain.ask(&json!({"id": 5, "op": "release", "resource": "r"}))["ok"], true);
    assert_eq!(keychain.ask(&json!({"id": 6, "op": "list"}))["claims"], json!([]));
}

#[test]
fn the_last_words_are_written_before_a_signal_ends_it() {
    const COUNT: usize = 300;
    let server = Server::start();
    server.claim("held", 500.0);
    let mut keychain = Keychain::start(&server, &["--ttl", "600"]);
    for n in 0..COUNT {
        keychain.send(&json!({"id": n, "op": "claim", "resource": format!("r{n}")}));
    }
    for n in 0..COUNT {
        keychain.heard(&json!({"id": n, "ok": true}));
    }
    keychain.send(&json!({"id": "waits", "op": "claim", "resource": "held"}));
    server.wait_for_queue("held", 1);
    let pid = keychain.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(keychain.heard(&json!({"id": "waits"}))["error"], "aborted");
    for n in 0..COUNT {
        let lost = keychain.heard(&json!({"event": "lost", "resource": format!("r{n}")}));
        assert_eq!(lost["reason"], "aborted");
    }
    assert_eq!(keychain.exited().code(), Some(143));
}

#[test]
fn a_lost_claim_terminates_the_process_that_owns_the_keychain_if_it_wants_that() {
    use std::os::unix::process::ExitStatusExt as _;
    let server = Server::start();
    let revoke = |claim: &Value| {
        let path = format!("/v1/claims/{}/", claim["claim"].as_str().unwrap());
        assert_eq!(server.patch(&path, r#"{"status": "revoked"}"#).status, 204);
    };
    for (flag, word, is_terminated) in [
        ("terminate", None, true),
        ("report", Some("terminate"), true),
        ("report", None, false),
        ("terminate", Some("report"), false),
    ] {
        let mut owner = Command::new("sleep").arg("1000").spawn().unwrap();
        let parent = owner.id().to_string();
        let mut keychain = Keychain::start(&server, &["--parent", &parent, "--on-lost", flag]);
        let resource = format!("{flag}-{}", word.unwrap_or("none"));
        let mut line = json!({"id": 1, "op": "claim", "resource": resource, "ttl": 2});
        if let Some(word) = word {
            line["on_lost"] = json!(word);
        }
        let claim = keychain.ask(&line);
        revoke(&claim);
        keychain.heard(&json!({"event": "lost"}));
        if is_terminated {
            assert_eq!(owner.wait().unwrap().signal(), Some(15), "{resource}");
        } else {
            // What would terminate it has been done by the time of another answer.
            keychain.ask(&json!({"id": 2, "op": "ping"}));
            assert!(owner.try_wait().unwrap().is_none(), "{resource}");
            owner.kill().unwrap();
            owner.wait().unwrap();
        }
    }
}

#[test]
fn nothing_ends_a_hold_but_a_limit_that_was_asked_for() {
    let server = Server::start();
    let mut keychain = Keychain::start(&server, &[]);
    let refused = keychain.ask(&json!({"id": 1, "op": "claim", "resource": "r", "max_hold": 0}));
    assert_eq!(refused["error"], "invalid");
    assert!(refused["detail"].as_str().unwrap().contains("leave it out"), "{refused}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    let output = command.args(["keychain", "--max-hold", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("leave it out"), "{output:?}");
}

#[test]
fn the_version_of_the_api_can_be_chosen() {
    let server = Server::start();
    let mut keychain = Keychain::start(&server, &["--api-version", "v7"]);
    keychain.send(&json!({"id": 1, "op": "claim", "resource": "r"}));
    let waiting = keychain.heard(&json!({"event": "waiting"}));
    assert!(waiting["trouble"].as_str().unwrap().contains("404"), "{waiting}");
    assert_eq!(Keychain::start(&server, &["--api-version", "v1/x"]).exited().code(), Some(1));
    let mut keychain = Keychain::start(&server, &["--api-version", "v1"]);
    assert_eq!(keychain.ask(&json!({"id": 1, "op": "claim", "resource": "r"}))["ok"], true);
}

#[test]
fn each_worker_has_a_claim_of_its_own_on_a_resource() {
    let server = Server::start();
    let mut keychain = Keychain::start(&server, &[]);
    let line =
        |id: u64, op: &str, worker: &str| json!({"id": id, "op": op, "resource": "r", "worker": worker});
    let first = keychain.ask(&line(1, "claim", "a"));
    keychain.send(&line(2, "claim", "b"));
    server.wait_for_queue("r", 1);
    assert_eq!(keychain.ask(&line(3, "claim", "a"))["error"], "already-claimed");
    assert_eq!(keychain.ask(&line(4, "claim", "b"))["error"], "already-claimed");
    assert_eq!(keychain.ask(&line(5, "validate", "a"))["claim"], first["claim"]);
    assert_eq!(keychain.ask(&line(6, "validate", "b"))["error"], "ended");
    assert_eq!(keychain.ask(&line(7, "release", "a"))["ok"], true);
    let second = keychain.heard(&json!({"id": 2}));
    assert!(second["token"].as_u64() > first["token"].as_u64(), "{second}");
}

#[test]
fn a_claim_of_a_keychain_that_was_killed_is_taken_up_by_another() {
    let server = Server::start();
    server.claim("taken", 500.0);
    let mut first = Keychain::start(&server, &["--ttl", "60", "--tell-renewals"]);
    let claim = first.ask(&json!({"id": 1, "op": "claim", "resource": "r"}));
    first.send(&json!({"id": 2, "op": "claim", "resource": "taken", "key": "k-1"}));
    server.wait_for_queue("taken", 1);
    let refreshed = first.ask(&json!({"id": 3, "op": "refresh", "resource": "r"}));
    assert!(refreshed["until"].as_f64() > claim["until"].as_f64(), "{refreshed}");
    assert_eq!(first.heard(&json!({"event": "renewed"}))["until"], refreshed["until"]);
    first.child.kill().unwrap();

    let mut second = Keychain::start(&server, &["--ttl", "60"]);
    let take_up = json!({"id": 1, "op": "take-up", "resource": "r", "claim": claim["claim"], "token": claim["token"], "within": 50});
    let taken = second.ask(&take_up);
    assert_eq!((&taken["ok"], &taken["token"]), (&json!(true), &claim["token"]), "{taken}");
    assert!(
        second.ask(&json!({"id": 2, "op": "validate", "resource": "r"}))["remaining"].as_f64().unwrap() > 0.0
    );
    // One that waited keeps its place: the same key is the same claim.
    second.send(&json!({"id": 3, "op": "claim", "resource": "taken", "key": "k-1"}));
    assert_eq!(second.heard(&json!({"event": "waiting", "resource": "taken"}))["position"], 1);
    assert_eq!(server.list("resource=taken&status=waiting").len(), 1);
    assert_eq!(second.ask(&json!({"id": 4, "op": "release", "resource": "r"}))["ok"], true);
    assert_eq!(only(&server, "r")["status"], "released");
    // What is over can't be taken up.
    assert_eq!(second.ask(&take_up)["error"], "ended");
    for bad in [json!({"claim": "../x", "within": 5}), json!({"within": 5}), json!({"claim": "x"})] {
        let mut line = json!({"id": 9, "op": "take-up", "resource": "r"});
        line.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
        assert_eq!(second.ask(&line)["error"], "invalid", "{line}");
    }
}

#[test]
fn modes_slots_sets_and_sessions_are_words_of_a_claim() {
    let server = Server::start();
    let mut keychain = Keychain::start(&server, &[]);
    let shared = keychain.ask(&json!({ "id": 1, "op": "claim", "resource": "r", "mode": "shared" }));
    assert_eq!(
        shared["items"],
        json!([{ "resource": "r", "mode": "shared", "slots": [], "token": shared["token"] }])
    );
    let slots = keychain.ask(&json!({ "id": 2, "op": "claim", "resource": "boards", "take": 2, "of": 3 }));
    assert_eq!(slots["items"][0]["slots"], json!([1, 2]));
    let resources = json!(["a", { "resource": "r", "mode": "shared" }]);
    let set = keychain.ask(&json!({ "id": 3, "op": "claim", "resources": resources, "session": "job/7" }));
    assert_eq!(
        (&set["resource"], &set["session"], &set["token"]),
        (&json!("a"), &json!("job/7"), &Value::Null)
    );
    assert_eq!(set["items"][1]["token"], shared["token"]);
    let shown = keychain.ask(&json!({ "id": 4, "op": "show", "resource": "r" }));
    assert_eq!(
        (shown["holders"].as_array().map(Vec::len), &shown["holder"]["claim"]),
        (Some(2), &shared["claim"])
    );
    // One that would wait for its own session is told; plain ones have no session, and answers as ever.
    let stuck = keychain
        .ask(&json!({ "id": 5, "op": "claim", "resource": "a", "worker": "2", "session": "job/7/part" }));
    assert_eq!((&stuck["ok"], &stuck["error"]), (&json!(false), &json!("deadlock")));
    assert_eq!(stuck["cycle"][0]["link"], "wants");
    let plain = keychain.ask(&json!({ "id": 6, "op": "claim", "resource": "plain" }));
    assert!(plain.get("items").is_none() && plain.get("session").is_none(), "{plain}");
    assert_eq!(keychain.ask(&json!({ "id": 7, "op": "release", "resource": "a" }))["ok"], true);
    assert!(server.list("resource=a&status=active").is_empty());
    for bad in [
        json!({ "resources": [] }),
        json!({ "resources": ["a", { "name": "b" }] }),
        json!({ "resource": "x", "take": 1 }),
        json!({ "resource": "x", "take": 3, "of": 2 }),
    ] {
        let mut line = json!({ "id": 8, "op": "claim" });
        line.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
        assert_eq!(keychain.ask(&line)["error"], "invalid", "{bad}");
    }
}

#[test]
fn a_line_that_can_not_be_read_is_answered_with_its_id_if_that_comes_first() {
    let server = Server::start();
    let mut keychain = Keychain::start(&server, &[]);
    let long = format!(r#"{{"id":7,"op":"claim","resource":"{}"}}"#, "x".repeat(2 << 20));
    let lines = [
        (long.as_str(), json!(7)),
        (r#"{"id": 8, "op": "claim", "resource": nothing}"#, json!(8)),
        (r#"{"op": "claim", "id": 9, "resource": nothing}"#, Value::Null),
        (r#"{"id": "ten", oops}"#, Value::Null),
        (r#"{"id": 1"#, Value::Null),
    ];
    for (line, id) in lines {
        writeln!(keychain.stdin.as_mut().unwrap(), "{line}").unwrap();
        assert_eq!(keychain.heard(&json!({"error": "invalid"}))["id"], id);
    }
    assert_eq!(keychain.ask(&json!({"id": 11, "op": "ping"}))["ok"], true);
}

#[test]
fn a_claim_that_is_released_while_it_is_taken_up_is_settled_before_the_answer() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    let id = server.claim("r", 500.0);
    proxy.rule(|kind| if matches!(kind, "renew" | "release") { Fault::Cut } else { Fault::None });
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.arg("keychain").env("LEASEHOLD_ADDR", proxy.url());
    let mut keychain = Keychain::of(command);
    let claim = id.trim_end_matches('/').rsplit('/').next().unwrap();
    keychain
        .send(&json!({"id": 1, "op": "take-up", "resource": "r", "claim": claim, "token": 1, "within": 400}));
    eventually("it is renewed", || proxy.count("renew") > 0);
    keychain.send(&json!({"id": 2, "op": "release", "resource": "r"}));
    assert_eq!(keychain.heard(&json!({"id": 1}))["error"], "aborted");
    eventually("it is released", || proxy.count("release") > 1);
    keychain.ask(&json!({"id": 3, "op": "ping"}));
    assert!(!keychain.early.iter().any(|line| line["id"] == 2), "the server does not know yet");
    proxy.heal();
    assert_eq!(keychain.heard(&json!({"id": 2}))["ok"], true);
    assert_eq!(only(&server, "r")["status"], "released");
}

#[test]
fn no_claim_is_lost_and_no_parent_is_ended_by_a_shutdown() {
    let server = Server::start();
    let mut owner = Command::new("sleep").arg("1000").spawn().unwrap();
    let parent = owner.id().to_string();
    let mut keychain = Keychain::start(&server, &["--parent", &parent, "--on-lost", "terminate"]);
    keychain.ask(&json!({"id": 1, "op": "claim", "resource": "r"}));
    assert_eq!(keychain.ask(&json!({"id": 2, "op": "shutdown"}))["ok"], true);
    keychain.heard(&json!({"event": "released", "resource": "r"}));
    keychain.exited();
    assert!(keychain.lines.iter().chain(keychain.early.clone()).all(|line| line["event"] != "lost"));
    assert!(owner.try_wait().unwrap().is_none());
    owner.kill().unwrap();
    owner.wait().unwrap();
}
