//! Exit codes and sentences are true: "held" only if a server said so, success only if the claim was held to the end.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use crate::common::{Server, TempDir, eventually};
use crate::proxy::{Fault, Proxy};
use crate::support::{code_of, kill, leasehold, lives, number_in, run, url};
use crate::trio::Trio;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Nobody said that it is held: 125, and a sentence that names what answered and what to do.
fn is_no_conflict(url: &str, flags: &[&str], words: &[&str]) {
    let output = leasehold(url, &[&["run"], flags, &["r", "--", "true"]].concat()).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(125), "{flags:?}: {said}");
    assert!(!said.contains("held by"), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{words:?} in {said}");
}

#[test]
fn what_could_not_be_asked_is_not_held_by_another() {
    let server = Server::start();
    let cases: [(Fault, &str); 9] = [
        (Fault::Answer(500), "500"),
        (Fault::Answer(502), "502"),
        (Fault::Answer(503), "503"),
        (Fault::Answer(404), "404"),
        (Fault::Answer(401), "LEASEHOLD_KEY"),
        (Fault::Answer(403), "administrator"),
        (Fault::Answer(507), "507"),
        (Fault::Cut, "no server answers"),
        (Fault::Hold, "no server answers"),
    ];
    std::thread::scope(|scope| {
        for (fault, word) in cases {
            let proxy = Proxy::before(server.addr);
            proxy.rule(move |_| fault);
            scope.spawn(move || {
                let address = proxy.addr.to_string();
                is_no_conflict(&proxy.url(), &["-n"], &[word, &address]);
                is_no_conflict(&proxy.url(), &["-w", "0.5"], &[word, &address]);
            });
        }
        scope.spawn(|| is_no_conflict("http://127.0.0.1:1", &["-n"], &["127.0.0.1:1", "LEASEHOLD_ADDR"]));
        scope.spawn(|| is_no_conflict("http://no-such-host.invalid", &["-n"], &["no-such-host.invalid"]));
    });
    assert!(server.list("resource=r").iter().all(|claim| claim["status"] != "active"));
}

#[test]
fn garbage_is_not_held_by_another() {
    for garbage in ["SSH-2.0-OpenSSH_9.6\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n<html>hi</html>"]
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let Ok(1..) = stream.read(&mut [0; 4096]) else { continue };
                stream.write_all(garbage.as_bytes()).ok();
            }
        });
        is_no_conflict(&format!("http://{address}"), &["-n"], &[&address]);
    }
}

#[test]
fn a_cluster_without_a_quorum_is_not_held_by_another() {
    let mut trio = Trio::start();
    for node in &mut trio.nodes[1..] {
        node.kill();
    }
    let address = trio.nodes[0].addr.to_string();
    is_no_conflict(&url(&trio.nodes[0]), &["-n"], &[&address]);
    is_no_conflict(&url(&trio.nodes[0]), &["-w", "1"], &[&address]);
}

#[test]
fn a_deadlock_is_a_conflict() {
    let server = Server::start();
    let held = server.post("/v1/claims/", r#"{"resource": "r", "ttl": 500, "session": "outer"}"#);
    assert_eq!(held.status, 201, "{held:?}");
    let mut run = leasehold(&url(&server), &["run", "r", "--", "true"]);
    let output = run.env("LEASEHOLD_SESSION", "outer").output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{}", said(&output));
    assert!(said(&output).contains("r is held by claim"), "the server's words: {}", said(&output));
}

#[test]
fn a_claim_that_was_queued_and_not_granted_in_time_is_a_conflict_whatever_becomes_of_the_server() {
    for fault in [Fault::Hold, Fault::Cut, Fault::Answer(503)] {
        let server = Server::start();
        server.claim("r", 500.0);
        let proxy = Proxy::before(server.addr);
        let mut child = leasehold(&proxy.url(), &["run", "-w", "2", "r", "--", "true"]).spawn().unwrap();
        // Ten seconds after its time is over, 0.1.0 was still saying goodbye.
        let mut goodbye = Command::new("sleep").arg("11").spawn().unwrap();
        server.wait_for_queue("r", 1);
        proxy.rule(move |_| fault);
        assert_eq!(code_of(&mut child), Some(75), "{fault:?}");
        assert!(goodbye.try_wait().unwrap().is_none(), "{fault:?}: it does not end when its time is over");
        goodbye.kill().unwrap();
        goodbye.wait().unwrap();
    }
}

#[test]
fn run_ends_with_its_command_when_the_server_is_gone() {
    for fault in [Fault::Hold, Fault::Cut] {
        let server = Server::start();
        let proxy = Proxy::before(server.addr);
        let dir = TempDir::new();
        let (mut child, go_on) = held(&proxy.url(), &["--ttl", "60"], &dir, "exit 7");
        proxy.rule(move |_| fault);
        let mut goodbye = Command::new("sleep").arg("9").spawn().unwrap();
        go_on();
        assert_eq!(code_of(&mut child), Some(7), "{fault:?}: it was held to the end, by the clock");
        assert!(goodbye.try_wait().unwrap().is_none(), "{fault:?}: it does not end with its command");
        goodbye.kill().unwrap();
        goodbye.wait().unwrap();
    }
}

/// A `run` whose command waits for a file, and then does as the script says; and what makes the file.
fn held<'a>(url: &str, flags: &[&str], dir: &'a TempDir, then: &str) -> (Child, impl Fn() + use<'a>) {
    let script = format!("echo $$ > \"$D/child\"; until [ -e \"$D/go\" ]; do sleep 0.05; done; {then}");
    let args = [&["run"], flags, &["r", "--", "sh", "-c", &script]].concat();
    let child = leasehold(url, &args).env("D", dir.path()).stderr(Stdio::piped()).spawn().unwrap();
    number_in(&dir.path().join("child"));
    (child, || std::fs::write(dir.path().join("go"), "").unwrap())
}

fn rest_of(child: &mut Child) -> String {
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

#[test]
fn a_claim_that_was_revoked_unheard_wins_over_the_exit_code_of_the_command() {
    for code in [0, 3] {
        let server = Server::start();
        let dir = TempDir::new();
        // Its next renewal is far away.
        let (mut child, go_on) = held(&url(&server), &["--ttl", "600"], &dir, &format!("exit {code}"));
        let claim = server.list("resource=r&status=active")[0]["url"].as_str().unwrap().to_string();
        assert!(leasehold(&url(&server), &["revoke", &claim, "--reason", "x"]).status().unwrap().success());
        go_on();
        assert_eq!(code_of(&mut child), Some(76));
        let said = rest_of(&mut child);
        assert!(said.contains("revoked"), "{said}");
    }
}

#[test]
fn a_run_that_was_stopped_past_its_ttl_while_its_command_finished_says_so() {
    let server = Server::start();
    let dir = TempDir::new();
    let (mut child, go_on) = held(&url(&server), &["--ttl", "2"], &dir, "exit 0");
    let command = number_in(&dir.path().join("child"));
    kill("STOP", child.id());
    eventually("the claim expires", || !server.list("resource=r&status=expired").is_empty());
    go_on();
    eventually("the command ends", || !lives(command));
    kill("CONT", child.id());
    assert_eq!(code_of(&mut child), Some(76));
}

#[test]
fn a_run_that_was_stopped_past_its_ttl_stops_its_command_when_it_goes_on() {
    let server = Server::start();
    let dir = TempDir::new();
    let (mut child, _) = held(&url(&server), &["--ttl", "2"], &dir, "exit 0");
    let command = number_in(&dir.path().join("child"));
    kill("STOP", child.id());
    eventually("the claim expires", || !server.list("resource=r&status=expired").is_empty());
    kill("CONT", child.id());
    assert_eq!(code_of(&mut child), Some(76));
    eventually("the command is gone", || !lives(command));
}

#[test]
fn those_who_lose_are_told_who_holds_it() {
    let server = Server::start();
    let data = r#"{"host": "alpha", "user": "ann", "pid": 77, "command": "backup --all"}"#;
    let body = format!(r#"{{"resource": "r", "ttl": 500, "user_data": {data}}}"#);
    let since = server.post("/v1/claims/", &body).json()["created"].as_str().unwrap().to_string();
    for flags in [&["-n"][..], &["-w", "0.5"]] {
        let output = run(&server, &[flags, &["r", "--", "true"]].concat());
        assert_eq!(output.status.code(), Some(75));
        for word in ["ann@alpha", "pid 77", "backup --all", &since] {
            assert!(said(&output).contains(word), "{word} in {}", said(&output));
        }
    }
    let output = leasehold(&url(&server), &["claim", "r", "-n"]).output().unwrap();
    assert!(said(&output).contains("ann@alpha"), "{}", said(&output));
}
