//! `run` and its kin with shared claims, slots, sets, and inside of each other.

use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::common::{Server, TempDir, eventually};
use crate::support::{STUBBORN, code_of, kill, leasehold, lives, number_in, run, url};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().into()
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into()
}

fn id_of(claim: &Value) -> String {
    claim["url"].as_str().unwrap().trim_end_matches('/').rsplit('/').next().unwrap().into()
}

#[test]
fn a_run_inside_of_a_run_on_the_same_resource_is_told_at_once() {
    let server = Server::start();
    let me = env!("CARGO_BIN_EXE_leasehold");
    let output = run(&server, &["x", "--", me, "run", "x", "--", "echo", "never"]);
    assert_eq!(output.status.code(), Some(75), "{}", complaint(&output));
    let complaint = complaint(&output);
    assert!(said(&output).is_empty() && complaint.contains("not acquired: 'x'"), "{complaint}");
    assert!(complaint.contains("wants x") && complaint.contains("x is held by claim"), "{complaint}");
    // Two levels below, too; and one that does not wait is told who holds it.
    let deep = run(&server, &["x", "--", me, "run", "y", "--", me, "run", "x", "--", "true"]);
    assert_eq!(deep.status.code(), Some(75), "{complaint}");
    let impatient = run(&server, &["x", "--", me, "run", "-n", "x", "--", "true"]);
    assert_eq!(impatient.status.code(), Some(75));
    // `claim` inside of `run` belongs to the script.
    let claim = run(&server, &["x", "--", me, "claim", "x"]);
    assert_eq!(claim.status.code(), Some(75));
    // Other resources are no deadlock.
    let nested = run(&server, &["x", "--", me, "run", "y", "--", "sh", "-c", "echo $LEASEHOLD_RESOURCE"]);
    assert_eq!((nested.status.code(), said(&nested)), (Some(0), "y".into()));
}

#[test]
fn runs_beside_each_other_in_one_script_wait_for_each_other() {
    let server = Server::start();
    let script = "leasehold run x -- sh -c 'echo in; sleep 0.1; echo out' & leasehold run x -- sh -c 'echo in; echo out'; wait";
    let script = script.replace("leasehold", env!("CARGO_BIN_EXE_leasehold"));
    let output = run(&server, &["outer", "--", "sh", "-c", &script]);
    assert_eq!(said(&output).split_whitespace().collect::<Vec<_>>(), ["in", "out", "in", "out"]);
}

#[test]
fn readers_run_beside_readers() {
    let server = Server::start();
    let me = env!("CARGO_BIN_EXE_leasehold");
    let both = run(&server, &["--shared", "r", "--", me, "run", "--shared", "r", "--", "echo", "both"]);
    assert_eq!((both.status.code(), said(&both)), (Some(0), "both".into()), "{}", complaint(&both));
    let writer = run(&server, &["--shared", "r", "--", me, "run", "-n", "r", "--", "true"]);
    assert_eq!(writer.status.code(), Some(75), "{}", complaint(&writer));
}

#[test]
fn the_command_knows_its_slots() {
    let server = Server::start();
    let slots = |args: &[&str]| {
        let output = run(&server, &[args, &["boards", "--", "sh", "-c", "echo $LEASEHOLD_SLOTS"]].concat());
        (output.status.code(), said(&output))
    };
    assert_eq!(slots(&["--slots", "2/5"]), (Some(0), "1,2".into()));
    let held = server.post("/v1/claims/", r#"{"resource": "boards", "ttl": 500, "take": 1, "of": 5}"#);
    assert_eq!(held.status, 201);
    assert_eq!(slots(&["--slots", "1/5"]), (Some(0), "2".into()));
    assert_eq!(slots(&["-n", "--slots", "5/5"]).0, Some(75));
    // Another number of slots, and numbers that make no sense.
    assert_eq!(slots(&["--slots", "1/6"]).0, Some(125));
    for bad in ["0/5", "6/5", "5", "a/b"] {
        assert_eq!(slots(&["--slots", bad]).0, Some(125), "{bad}");
    }
    assert_eq!(slots(&["--shared", "--slots", "1/5"]).0, Some(125));
}

#[test]
fn the_command_knows_the_tokens_of_a_set() {
    let server = Server::start();
    // Makes the tokens of a and b differ.
    let reader = server.post("/v1/claims/", r#"{"resource": "b", "ttl": 500, "mode": "shared"}"#);
    assert_eq!(reader.status, 201);
    let script = "echo \"${LEASEHOLD_TOKEN-none}\"; echo \"$LEASEHOLD_TOKENS\"; echo \"$LEASEHOLD_ITEMS\"";
    let me = env!("CARGO_BIN_EXE_leasehold");
    let inner = [me, "run", "a", "--also-shared", "b", "--also-slots", "2/8", "c", "--also", "d", "--"];
    // Inside of another one, whose variables it must not find.
    let output = run(&server, &[&["outer", "--"], &inner[..], &["sh", "-c", script]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
    let text = said(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "none");
    let tokens: Value = serde_json::from_str(lines[1]).unwrap();
    assert!(tokens["a"].as_u64() > tokens["b"].as_u64() && tokens["d"].is_u64(), "{tokens}");
    let items: Value = serde_json::from_str(lines[2]).unwrap();
    let item =
        |name: &str| items.as_array().unwrap().iter().find(|item| item["resource"] == name).unwrap().clone();
    assert_eq!(item("c")["slots"], json!([1, 2]));
    assert_eq!(item("b")["mode"], "shared");
    // All of it in one claim, and all of it free again.
    let claim = server.list("resource=c");
    assert_eq!((claim[0]["status"].as_str(), claim[0]["resource"].as_str()), (Some("released"), Some("a")));
}

#[test]
fn a_set_is_lost_as_a_whole_and_its_command_is_gone() {
    let server = Server::start();
    let dir = TempDir::new();
    let mut child =
        leasehold(&url(&server), &["run", "--grace", "0.2", "a", "--also", "b", "--", "sh", "-c", STUBBORN])
            .env("D", dir.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let pids = ["child", "sub", "grand"].map(|name| number_in(&dir.path().join(name)));
    let held = &server.list("resource=b&status=active")[0];
    let path = format!("/v1/claims/{}/", id_of(held));
    assert_eq!(server.patch(&path, r#"{"status": "revoked"}"#).status, 204);
    assert_eq!(code_of(&mut child), Some(76));
    assert!(pids.into_iter().all(|pid| !lives(pid)));
    assert_eq!(run(&server, &["-n", "b", "--also", "a", "--", "true"]).status.code(), Some(0));
}

#[test]
fn who_does_not_wait_is_told_of_a_holder_or_of_who_came_first() {
    let server = Server::start();
    server.claim("a", 500.0);
    let waiting = r#"{"resources": ["a", "b"], "ttl": 500, "user_data": {"host": "patient"}}"#;
    assert_eq!(server.post("/v1/claims/", waiting).status, 202);
    let refused = run(&server, &["-n", "b", "--", "true"]);
    assert_eq!(refused.status.code(), Some(75));
    let why = complaint(&refused);
    assert!(why.contains("'b' is reserved by patient, who waits for a + b"), "{why}");
    let refused = run(&server, &["-n", "c", "--also", "a", "--", "true"]);
    let why = complaint(&refused);
    assert!(refused.status.code() == Some(75) && why.contains("'c + a' is held by"), "{why}");
}

#[test]
fn who_is_beside_others_is_told_of_the_claim_that_is_in_the_way() {
    let server = Server::start();
    let claim = |words: &str, host: &str| {
        let body = format!(r#"{{{words}, "ttl": 500, "user_data": {{"host": "{host}"}}}}"#);
        server.post("/v1/claims/", &body).status
    };
    assert_eq!(claim(r#""resource": "r", "mode": "shared""#, "reader"), 201);
    assert_eq!(claim(r#""resource": "r""#, "writer"), 202);
    assert_eq!(claim(r#""resource": "boards", "take": 1, "of": 3"#, "one"), 201);
    assert_eq!(claim(r#""resource": "boards", "take": 3, "of": 3"#, "greedy"), 202);
    assert_eq!(claim(r#""resource": "w""#, "writer"), 201);
    for (args, words) in [
        (["--shared", "r"].as_slice(), "'r' is reserved by writer, who waits for r"),
        (&["--slots", "2/3", "boards"], "'boards' is reserved by greedy, who waits for boards"),
        (&["--slots", "3/3", "boards"], "'boards' is held by one"),
        (&["--shared", "w"], "'w' is held by writer"),
        (&["r"], "'r' is held by reader"),
    ] {
        let refused = run(&server, &[&["-n"], args, &["--", "true"]].concat());
        let why = complaint(&refused);
        assert!(refused.status.code() == Some(75) && why.contains(words), "{args:?}: {why}");
    }
    let claim = leasehold(&url(&server), &["claim", "-n", "--shared", "r"]).output().unwrap();
    assert!(complaint(&claim).contains("reserved by writer"), "{}", complaint(&claim));
}

#[test]
fn show_has_all_holders_slots_and_who_waits_behind_whom() {
    let server = Server::start();
    let claim = |body: &str| id_of(&server.post("/v1/claims/", body).json());
    let first = claim(r#"{"resource": "r", "ttl": 500, "mode": "shared"}"#);
    let second = claim(r#"{"resource": "r", "ttl": 500, "mode": "shared"}"#);
    let set = claim(r#"{"resources": ["r", {"resource": "boards", "take": 2, "of": 5}], "ttl": 500}"#);
    let late = claim(r#"{"resource": "r", "ttl": 500, "mode": "shared"}"#);
    let show = |args: &[&str]| said(&leasehold(&url(&server), &[&["show"], args].concat()).output().unwrap());
    let text = show(&["r"]);
    let row = |id: &str| {
        let line = text.lines().find(|line| line.starts_with(id)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(row(&first).contains("r (shared) active") && row(&second).contains("active"), "{text}");
    assert!(
        row(&set).contains("r + boards (2 of 5 slots) waiting") && row(&set).contains(&second[..8]),
        "{text}"
    );
    assert!(row(&late).contains(&set[..8]), "{text}");
    let json: Value = serde_json::from_str(&show(&["r", "--json"])).unwrap();
    assert_eq!((json["holders"].as_array().unwrap().len(), json["queue"].as_array().unwrap().len()), (2, 2));
    assert_eq!(id_of(&json["holder"]), first);
    // Which of them is meant has to be said.
    let release = leasehold(&url(&server), &["release", "r"]).output().unwrap();
    assert!(!release.status.success() && complaint(&release).contains("several claims hold 'r'"));
    for id in [&first, &second] {
        assert!(leasehold(&url(&server), &["release", id]).status().unwrap().success());
    }
    let text = show(&[&set]);
    assert!(text.contains("r + boards (slots 1,2 of 5)") && text.contains("item"), "{text}");
    assert!(show(&["boards"]).contains("slots 1,2 of 5"));
}

#[test]
fn claim_takes_the_same_words() {
    let server = Server::start();
    let claim =
        |args: &[&str]| leasehold(&url(&server), &[&["claim", "--json"], args].concat()).output().unwrap();
    let made: Value =
        serde_json::from_str(&said(&claim(&["--slots", "1/3", "boards", "--also", "b"]))).unwrap();
    assert_eq!(made["items"][0]["slots"], json!([1]));
    assert_eq!(made["items"][1]["resource"], "b");
    assert_eq!(claim(&["-n", "b"]).status.code(), Some(75));
    assert_eq!(claim(&["-n", "--shared", "r"]).status.code(), Some(0));
    assert_eq!(claim(&["-n", "--shared", "r"]).status.code(), Some(0));
}

#[test]
fn a_reader_that_was_silent_for_longer_than_its_ttl_asks_again() {
    let server = Server::start();
    let writer = server.claim("r", 500.0);
    let mut child =
        leasehold(&url(&server), &["run", "--ttl", "2", "--shared", "r", "--", "true"]).spawn().unwrap();
    server.wait_for_queue("r", 1);
    kill("STOP", child.id());
    eventually("the server withdraws it", || !server.list("resource=r&status=withdrawn").is_empty());
    kill("CONT", child.id());
    server.wait_for_queue("r", 1);
    server.patch(&writer, r#"{"status": "released"}"#);
    assert_eq!(code_of(&mut child), Some(0));
}

#[test]
fn a_reader_that_is_taken_out_of_the_queue_does_not_ask_again() {
    let server = Server::start();
    server.claim("r", 500.0);
    let mut child = leasehold(&url(&server), &["run", "--ttl", "2", "--shared", "r", "--", "true"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    server.wait_for_queue("r", 1);
    // It has asked again and again for longer than its ttl.
    std::thread::sleep(std::time::Duration::from_secs(5));
    let waiting = id_of(&server.list("resource=r&status=waiting")[0]);
    assert!(leasehold(&url(&server), &["release", &waiting]).status().unwrap().success());
    assert_eq!(code_of(&mut child), Some(125));
    let why = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert!(why.contains("somebody ended the claim while it waited (withdrawn)"), "{why}");
    assert!(server.list("resource=r&status=waiting").is_empty());
}
