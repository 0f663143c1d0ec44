//! `leasehold bench`: every scenario runs against a real server, counts what it says it counts, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::{Server, TempDir};
use serde_json::Value;

fn bench(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.arg("bench").args(args).args(["--json", "--warmup", "0", "--dir"]).arg(dir);
    for name in ["ADDR", "KEY", "KEY_FILE", "CACERT"] {
        command.env_remove(format!("LEASEHOLD_{name}"));
    }
    command.output().unwrap()
}

/// The outcomes of a run that has to succeed.
fn outcomes(dir: &Path, args: &[&str]) -> Vec<Value> {
    let output = bench(dir, args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["disk"]["fdatasync_p50_us"].as_f64().unwrap() > 0.0);
    found["outcomes"].as_array().unwrap().clone()
}

/// How many of an operation were counted.
fn count(outcome: &Value, op: &str) -> u64 {
    let rows = outcome["latencies"].as_array().unwrap();
    rows.iter().find(|row| row["op"] == op).map_or(0, |row| row["count"].as_u64().unwrap())
}

fn fact(outcome: &Value, name: &str) -> f64 {
    let facts = outcome["facts"].as_array().unwrap();
    facts.iter().find(|fact| fact["name"] == name).unwrap()["value"].as_f64().unwrap()
}

#[test]
fn every_scenario_measures_a_running_server_and_gives_back_what_it_claimed() {
    let (server, dir) = (Server::start(), TempDir::new());
    let (addr, pid) = (server.addr.to_string(), server.pid().to_string());
    let run = |args: &[&str]| {
        let common = ["--addr", &addr, "--pid", &pid, "--seconds", "0.3", "--connections", "8"];
        outcomes(dir.path(), &[args, &common].concat())
    };
    let cycle = &run(&["cycle"])[0];
    assert!(count(cycle, "claim") > 0 && count(cycle, "release") > 0, "{cycle}");
    assert!(
        cycle["server_cores"].as_f64().unwrap() > 0.0 && cycle["generator_cores"].as_f64().unwrap() > 0.0
    );
    let renew = run(&["renew", "--claims", "50"]);
    assert_eq!((count(&renew[0], "claim"), count(&renew[2], "release")), (50, 50));
    assert!(count(&renew[1], "renew") > 0);
    assert!(count(&run(&["read", "--claims", "20", "--stale"])[0], "get") > 0);
    assert!(count(&run(&["queue", "--waiters", "4"])[0], "hand-over") > 0);
    assert!(count(&run(&["mix", "--closed"])[0], "activate") > 0);
    let hold = run(&["hold", "--claims", "200", "--list"]);
    assert_eq!(fact(&hold[0], "claims held"), 200.0);
    assert!(count(&hold[0], "probe claim") > 0 && count(&hold[2], "list active") > 0);
    assert_eq!(server.list("status=active").len() + server.list("status=waiting").len(), 0);
}

#[test]
fn in_the_open_loop_requests_leave_on_schedule_and_late_ones_are_counted_from_it() {
    let (server, dir) = (Server::start(), TempDir::new());
    let addr = server.addr.to_string();
    let common = ["--addr", &addr, "--connections", "16", "--seconds", "1"];
    let outcome = &outcomes(dir.path(), &[&["cycle", "--rate", "200"], &common[..]].concat())[0];
    let sent = count(outcome, "claim") + count(outcome, "release");
    assert_eq!((sent, outcome["rate"].as_f64()), (200, Some(200.0)), "{outcome}");
    // One connection can't carry a million requests a second: the schedule does not slip, and the rest is told.
    let common = ["--addr", &addr, "--connections", "1", "--seconds", "0.2"];
    let outcome = &outcomes(dir.path(), &[&["cycle", "--rate", "1000000"], &common[..]].concat())[0];
    let unsent = fact(outcome, "scheduled but never sent: the server does not keep up");
    assert!(unsent > 0.0 && unsent < 200_000.0, "{outcome}");
}

#[test]
fn a_server_of_its_own_is_restarted_and_compared_with_itself() {
    let dir = TempDir::new();
    let hold = outcomes(dir.path(), &["hold", "--serve", "--claims", "100", "--expire", "--seconds", "0.2"]);
    let restart = hold.iter().find(|outcome| outcome["name"].as_str().unwrap().contains("restart")).unwrap();
    assert!(fact(restart, "after SIGKILL") > 0.0);
    let last = hold.last().unwrap();
    assert_eq!(fact(last, "claims looked at, expected expired"), 100.0);
    let binary = env!("CARGO_BIN_EXE_leasehold");
    let builds = ["compare", "--old", binary, "--new", binary, "--tolerance", "99"];
    let small = ["--rounds", "1", "--at", "4", "--waiters", "2", "--claims", "100", "--seconds", "0.2"];
    let compared = outcomes(dir.path(), &[&builds[..], &small].concat());
    let table = compared.last().unwrap()["table"].as_str().unwrap();
    for row in ["cycles/s, 4 connections", "renewals/s", "hand-over p50", "hand-over p99", "bytes a claim"] {
        assert!(table.contains(row), "{row} is missing:\n{table}");
    }
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 0, "data directories are removed");
}

#[test]
fn a_server_that_is_not_there_and_one_that_refuses_are_told_apart() {
    let dir = TempDir::new();
    let output = bench(dir.path(), &["cycle", "--addr", "127.0.0.1:1"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("nothing listens on 127.0.0.1:1"), "{text}");
    let output = bench(dir.path(), &["cycle", "--addr", "ftp://127.0.0.1:1"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("must begin with http:// or https://"), "{text}");
    let server = Server::start_with(&["--requests-per-second", "1"]);
    let addr = server.addr.to_string();
    let output = bench(dir.path(), &["cycle", "--addr", &addr, "--seconds", "0.2", "--connections", "2"]);
    assert!(!output.status.success(), "refusals are no result");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let errors = found["outcomes"][0]["errors"].as_object().unwrap();
    assert!(errors.keys().any(|kind| kind == "claim 429 instead of 201"), "{errors:?}");
}
