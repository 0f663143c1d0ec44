//! `leasehold dss clean`: what dead processes left is unlocked, what living ones hold is not.

use std::process::{Command, Output};

use crate::common::Server;
use serde_json::json;

fn lock(server: &Server, kind: &str, ids: &[&str], host: &str, pid: u32) {
    let body = json!({ "ids": ids, "hostname": host, "owner": pid }).to_string();
    let reply = server.post(&format!("/v1/dss/{kind}/lock"), &body);
    assert_eq!(reply.status, 200, "{reply:?}");
}

fn is_held(server: &Server, kind: &str, id: &str) -> bool {
    server.post(&format!("/v1/dss/{kind}/status"), &json!({ "ids": [id] }).to_string()).status == 200
}

fn clean(server: &Server, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(["dss", "clean", "--addr", &format!("http://{}", server.addr)])
        .args(args)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The result of each line of the table, by id.
fn results(output: &Output) -> Vec<(String, String)> {
    let text = stdout(output);
    let lines =
        text.lines().skip(1).map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()));
    lines.map(|mut cells| (cells.nth(1).unwrap().into(), cells.last().unwrap().into())).collect()
}

/// A pid that was a process's a moment ago. Not waited for, it would still be there.
fn dead_pid() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

#[test]
fn on_the_host_itself_dead_processes_are_cleaned_and_living_ones_kept_and_named() {
    let server = Server::start();
    let (host, dead, alive) = (leasehold_dss::hostname().unwrap(), dead_pid(), std::process::id());
    lock(&server, "media", &["left", "left/too"], &host, dead);
    lock(&server, "device", &["left"], &host, dead);
    lock(&server, "media", &["in use"], &host, alive);
    lock(&server, "media", &["elsewhere"], "other-host", dead);
    let dry = clean(&server, &["--host", &host, "--dry-run"]);
    assert_eq!(dry.status.code(), Some(1));
    assert_eq!(stdout(&dry).matches("would be unlocked").count(), 3, "{}", stdout(&dry));
    assert!(is_held(&server, "media", "left"));

    let done = clean(&server, &["--host", &host]);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let kept = format!("kept: process {alive} is alive");
    let mut results = results(&done);
    results.sort();
    let expected = [("in use", &*kept), ("left", "unlocked"), ("left", "unlocked"), ("left/too", "unlocked")];
    assert_eq!(results, expected.map(|(id, result)| (id.to_string(), result.to_string())));
    assert!(is_held(&server, "media", "in use") && is_held(&server, "media", "elsewhere"));
    for (kind, id) in [("media", "left"), ("media", "left/too"), ("device", "left")] {
        assert!(!is_held(&server, kind, id));
    }
    // Named alone, a living process is refused just the same.
    let refused = clean(&server, &["--host", &host, "--pid", &alive.to_string()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stdout(&refused).contains(&kept) && is_held(&server, "media", "in use"));
}

#[test]
fn a_dead_process_that_nobody_has_waited_for_is_dead() {
    let server = Server::start();
    let host = leasehold_dss::hostname().unwrap();
    let mut zombie = Command::new("true").spawn().unwrap();
    lock(&server, "object", &["x"], &host, zombie.id());
    crate::common::eventually("the process has ended", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", zombie.id())).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('Z')
    });
    let done = clean(&server, &["--host", &host, "--pid", &zombie.id().to_string()]);
    assert!(done.status.success() && !is_held(&server, "object", "x"), "{done:?}");
    zombie.wait().unwrap();
}

#[test]
fn from_elsewhere_the_hosts_locks_go_without_a_look_at_its_processes() {
    let server = Server::start();
    let alive = std::process::id();
    lock(&server, "layout", &["a", "b\u{1b}[31m"], "node7", alive);
    lock(&server, "layout", &["c"], "node7", alive + 1);
    let one = clean(&server, &["--host", "node7", "--pid", &(alive + 1).to_string()]);
    assert!(one.status.success() && stdout(&one).lines().count() == 2, "{one:?}");
    let rest = clean(&server, &["--host", "node7"]);
    assert!(rest.status.success(), "{rest:?}");
    assert!(String::from_utf8_lossy(&rest.stderr).contains("this machine is not node7"));
    assert!(!stdout(&rest).contains('\u{1b}'), "control characters reach the terminal");
    assert!(["a", "b\u{1b}[31m", "c"].iter().all(|id| !is_held(&server, "layout", id)));
    let none = clean(&server, &["--host", "node7"]);
    assert!(none.status.success() && stdout(&none).is_empty());
    assert!(String::from_utf8_lossy(&none.stderr).contains("holds no such locks"));
}

#[test]
fn more_locks_than_a_page_are_all_cleaned() {
    let server = Server::start();
    let names: Vec<String> = (0..2_500).map(|i| format!("tape{i}")).collect();
    let ids: Vec<&str> = names.iter().map(String::as_str).collect();
    lock(&server, "media", &ids, "node7", 1);
    let done = clean(&server, &["--host", "node7"]);
    assert_eq!(stdout(&done).matches(" unlocked").count(), 2_500);
    assert!(!is_held(&server, "media", "tape2499"));
}

#[test]
fn a_server_that_is_not_there_is_said_so() {
    let mut server = Server::start();
    server.kill();
    let failed = clean(&server, &["--host", "h"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("refused"), "{failed:?}");
}
