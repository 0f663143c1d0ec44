//! The audit under attack: floods of refusals, rivals who want to be named or not to be, more claims than it remembered.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::common::{TempDir, claim_body, eventually};
use crate::peer_port::SetOnDrop;
use crate::support::Guarded;

const RULES: &str = "[[access.rule]]\nusers = [\"ci\", \"rival\"]\nresources = [\"ci\", \"dss\"]\nverbs = [\"read\", \"claim\"]\n";

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn a_flood_of_refusals_is_summed_up_and_pushes_no_grant_out() {
    const REFUSALS: u64 = 4000;
    let dir = TempDir::new();
    let file = dir.path().join("audit.jsonl");
    // The smallest file that there can be: a few hundred lines of refusals would rotate every grant out of it.
    let rules = format!("{RULES}[audit]\nto = {file:?}\nmax-mib = 0\nkeep = 2\n");
    let mut guarded = Guarded::start(&["ci"], &rules);
    guarded.claim("ci", "ci/held");
    let long = "x".repeat(1500);
    for (user, status) in [("", 401), ("ci", 403)] {
        let key = if user.is_empty() { String::new() } else { guarded.key(user) };
        let headers: &[(&str, &str)] = if user.is_empty() { &[] } else { &[("Authorization", &key)] };
        let mut client = guarded.server.client();
        for number in 0..REFUSALS / 2 {
            let body = claim_body(&format!("prod/{number}/{long}"), 60.0);
            let reply = client.request("POST", "/v1/claims/", headers, body.as_bytes());
            assert_eq!(reply.status, status, "{reply:?}");
        }
    }
    guarded.server.terminate();
    let granted = lines(&file);
    assert!(
        granted.iter().any(|line| line["what"] == "granted" && line["resource"] == "ci/held"),
        "{granted:?}"
    );
    assert!(granted.iter().all(|line| line["what"] != "refused"), "{granted:?}");
    let aside = |number: u32| dir.path().join(format!("audit.refused.jsonl.{number}"));
    let refused =
        [dir.path().join("audit.refused.jsonl"), aside(1), aside(2)].map(|path| lines(&path)).concat();
    let count: u64 = refused.iter().map(|line| line["count"].as_u64().unwrap()).sum();
    assert_eq!(count, REFUSALS, "every refusal is counted: {refused:?}");
    assert!(refused.len() < 20, "{} lines", refused.len());
    assert!(refused.iter().all(|line| line["resource"].as_str().unwrap().len() < 200), "{refused:?}");
}

#[test]
fn a_rival_whose_unlock_or_delete_is_refused_is_never_named_as_the_one_who_did_it() {
    const ROUNDS: usize = 150;
    let dir = TempDir::new();
    let file = dir.path().join("audit.jsonl");
    let guarded = Guarded::start_with(&["ci", "rival"], RULES, &["--audit", file.to_str().unwrap()]);
    let done = AtomicBool::new(false);
    let unlock = json!({"ids": ["d"], "hostname": "h", "owner": 1}).to_string();
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&done);
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    guarded.ask("rival", "POST", "/v1/dss/media/unlock", &unlock);
                    guarded.ask("rival", "DELETE", "/v1/ci/leases/x", "");
                }
            });
        }
        for _ in 0..ROUNDS {
            assert_eq!(guarded.ask("ci", "POST", "/v1/dss/media/lock", &unlock).status, 200);
            assert_eq!(guarded.ask("ci", "POST", "/v1/ci/leases/x", "").status, 201);
            assert_eq!(guarded.ask("ci", "POST", "/v1/dss/media/unlock", &unlock).status, 200);
            assert_eq!(guarded.ask("ci", "DELETE", "/v1/ci/leases/x", "").status, 204);
        }
    });
    let ended = || lines(&file).into_iter().filter(|line| line["what"] == "released").collect::<Vec<_>>();
    eventually("every release is a line", || ended().len() == 2 * ROUNDS);
    for line in ended() {
        assert_eq!((&line["by"], &line["from"]), (&"ci".into(), &"127.0.0.1".into()), "{line}");
    }
}

#[test]
fn who_asked_for_a_claim_is_known_however_many_claims_there_are() {
    let dir = TempDir::new();
    let file = dir.path().join("audit.jsonl");
    let guarded = Guarded::start_with(&["ci"], RULES, &["--audit", file.to_str().unwrap()]);
    let holder = guarded.claim("ci", "ci/wanted");
    let next = guarded.claim("ci", "ci/wanted");
    // Retries of one request leave nothing behind either.
    for _ in 0..100 {
        let headers = [("Idempotency-Key", "the-same")];
        guarded.ask_with("ci", "POST", "/v1/claims/", &headers, &claim_body("ci/retried", 600.0));
    }
    for call in 0..6 {
        let ids: Vec<String> = (0..20_000).map(|id| format!("{call}-{id}")).collect();
        let body = json!({"ids": ids, "hostname": "h", "owner": 1}).to_string();
        assert_eq!(guarded.ask("ci", "POST", "/v1/dss/object/lock", &body).status, 200);
    }
    assert_eq!(guarded.ask("ci", "PATCH", &holder, r#"{"status": "released"}"#).status, 204);
    let id = next.trim_end_matches('/').rsplit('/').next().unwrap().to_string();
    let granted = || lines(&file).into_iter().find(|line| line["what"] == "granted" && line["claim"] == *id);
    eventually("the next one is granted", || granted().is_some());
    let granted = granted().unwrap();
    assert_eq!((&granted["by"], &granted["from"]), (&"ci".into(), &"127.0.0.1".into()), "{granted}");
    let granted = lines(&file).into_iter().filter(|line| line["what"] == "granted").collect::<Vec<_>>();
    assert_eq!(granted.len(), 120_003);
    assert!(granted.iter().all(|line| line["by"] == "ci" && line["from"] == "127.0.0.1"));
}
