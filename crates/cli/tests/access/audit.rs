//! The audit: every grant, end, refusal and change of access as one line.

use std::path::Path;

use serde_json::Value;

use crate::common::{Server, TempDir, claim_body, eventually};
use crate::support::{Guarded, leasehold, make_key};

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// The lines about a resource, once the last of them says this.
fn about(path: &Path, resource: &str, last: &str) -> Vec<Value> {
    let mut found = Vec::new();
    eventually(&format!("{resource} is {last}"), || {
        found = lines(path);
        found.retain(|line| line["resource"] == resource);
        found.last().is_some_and(|line| line["what"] == last)
    });
    found
}

#[test]
fn every_change_of_hands_is_a_line_that_says_who_from_where_what_and_why() {
    let dir = TempDir::new();
    let file = dir.path().join("audit.jsonl");
    let guarded = Guarded::start_with(&["ci", "root"], "", &["--audit", file.to_str().unwrap()]);
    let claim = guarded.claim("ci", "a");
    let token = guarded.ask("ci", "GET", &claim, "").json()["token"].clone();
    let headers = [("Leasehold-Reason", "host is gone")];
    assert_eq!(guarded.ask_with("root", "PATCH", &claim, &headers, r#"{"status": "revoked"}"#).status, 204);
    let found = about(&file, "a", "revoked");
    let [granted, revoked] = &found[..] else { panic!("{found:?}") };
    assert_eq!(
        (&granted["what"], &granted["who"], &granted["token"]),
        (&"granted".into(), &"ci".into(), &token)
    );
    assert_eq!((&granted["by"], &granted["from"]), (&"ci".into(), &"127.0.0.1".into()));
    assert_eq!(
        (&revoked["who"], &revoked["by"], &revoked["why"]),
        (&"ci".into(), &"root".into(), &"host is gone".into())
    );
    assert!(
        revoked["time"].as_str().unwrap().ends_with('Z')
            && revoked["index"].as_u64() > granted["index"].as_u64()
    );

    let lock = r#"{"title": "t", "lifetime": 0.01, "wait": 0}"#;
    guarded.ask("ci", "POST", "/locks/b", lock);
    assert_eq!(about(&file, "b", "expired").len(), 2);
    guarded.ask("ci", "POST", "/v1/ns/leases/c", "");
    guarded.ask("ci", "DELETE", "/v1/ns/leases/c", "");
    let found = about(&file, "ns/leases/c", "released");
    assert_eq!((&found[1]["by"], &found[1]["from"]), (&"ci".into(), &"127.0.0.1".into()));
    guarded.ask("ci", "POST", "/v1/dss/media/lock", r#"{"ids": ["d"], "hostname": "h", "owner": 1}"#);
    guarded.ask(
        "root",
        "POST",
        "/v1/dss/media/unlock",
        r#"{"ids": ["d"], "hostname": "h", "owner": 1, "force": true}"#,
    );
    let found = about(&file, "dss/media/d", "revoked");
    assert_eq!((&found[0]["by"], &found[0]["from"]), (&"ci".into(), &"127.0.0.1".into()));
    assert_eq!((&found[0]["who"], &found[1]["by"]), (&"ci for h:1".into(), &"root".into()));
}

#[test]
fn a_claim_with_several_items_has_a_line_for_each_that_names_its_mode() {
    let dir = TempDir::new();
    let file = dir.path().join("audit.jsonl");
    let guarded = Guarded::start_with(&["ci", "root"], "", &["--audit", file.to_str().unwrap()]);
    let set = r#"{"resources": ["tape", {"resource": "index", "mode": "shared"}, {"resource": "drives", "take": 2, "of": 3}], "ttl": 600}"#;
    let claim = guarded.ask("ci", "POST", "/v1/claims/", set).location_path();
    let headers = [("Leasehold-Reason", "host is gone")];
    assert_eq!(guarded.ask_with("root", "PATCH", &claim, &headers, r#"{"status": "revoked"}"#).status, 204);
    let items = guarded.ask("ci", "GET", &claim, "").json()["items"].clone();
    about(&file, "drives", "revoked");
    let lines = lines(&file);
    let told =
        |line: &Value| format!("{} {} {}", line["what"], line["resource"], line["mode"]).replace('"', "");
    assert_eq!(
        lines.iter().map(told).collect::<Vec<_>>(),
        [
            "granted tape exclusive",
            "granted index shared",
            "granted drives slots",
            "revoked tape exclusive",
            "revoked index shared",
            "revoked drives slots",
        ]
    );
    for (line, item) in lines.iter().zip(items.as_array().unwrap().iter().cycle()) {
        assert!(claim.contains(line["claim"].as_str().unwrap()), "all of them are about one claim: {line}");
        assert_eq!((&line["token"], &line["who"]), (&item["token"], &"ci".into()), "{line}");
        for word in ["take", "of", "slots"] {
            assert_eq!(line.get(word).unwrap_or(&Value::Null), &item[word], "{word}: {line}");
        }
    }
    // Who asked, and why, stands in each line.
    assert!(lines[..3].iter().all(|line| line["by"] == "ci" && line["why"].is_null()), "{lines:?}");
    assert!(lines[3..].iter().all(|line| line["by"] == "root" && line["why"] == "host is gone"), "{lines:?}");
}

#[test]
fn refusals_and_changes_of_access_are_lines_too() {
    let dir = TempDir::new();
    let file = dir.path().join("audit.jsonl");
    let rules = "[[access.rule]]\nusers = [\"ci\"]\nresources = [\"ci\"]\nverbs = [\"*\"]\n";
    let guarded = Guarded::start_with(&["ci"], rules, &["--audit", file.to_str().unwrap()]);
    guarded.ask("ci", "POST", "/v1/claims/", &claim_body("prod", 60.0));
    guarded.ask("", "POST", "/v1/claims/", &claim_body("other", 60.0));
    // Refusals have a file of their own, so that they push no grant out.
    let refusals = dir.path().join("audit.refused.jsonl");
    let refused = &about(&refusals, "prod", "refused")[0];
    assert_eq!(
        (&refused["who"], &refused["how"], &refused["verb"]),
        (&"ci".into(), &"key".into(), &"claim".into())
    );
    assert_eq!((&refused["status"], &refused["from"]), (&403.into(), &"127.0.0.1".into()));
    assert_eq!((&about(&refusals, "*", "refused")[0]["status"], &refused["count"]), (&401.into(), &1.into()));
    // What the table itself refuses, since it is another's, is a refusal too.
    let lease = |id| {
        guarded
            .ask_with(
                "ci",
                if id == "a" { "POST" } else { "PUT" },
                "/v1/ci/leases/x",
                &[("X-Quorum-Client-ID", id)],
                "",
            )
            .status
    };
    assert_eq!((lease("a"), lease("b")), (201, 403));
    assert_eq!(about(&refusals, "ci/leases/x", "refused").len(), 1);
    assert_eq!(about(&file, "ci/leases/x", "granted").len(), 1);

    let key = make_key(guarded.dir.path(), "anna", "");
    let id = key.split('_').nth(1).unwrap().to_string();
    let changed = |name: &str, id: &str| {
        eventually(&format!("{name} is a line"), || {
            lines(&file).iter().any(|line| line["what"] == "access-changed" && line[name][0] == *id)
        });
    };
    changed("keys_made", &id);
    let keys = guarded.dir.path().join("keys.toml");
    assert!(
        leasehold(&["access", "key", "withdraw", &id, "--keys", keys.to_str().unwrap()]).status.success()
    );
    changed("keys_withdrawn", &id);
    guarded.configure("");
    guarded.server.signal("HUP");
    eventually("the rules' change is a line", || {
        lines(&file).iter().any(|line| line["what"] == "access-changed" && line["settings_changed"] == true)
    });
    let text = [&file, &refusals].map(|file| std::fs::read_to_string(file).unwrap()).concat();
    assert!(!text.contains(&key) && !text.contains(guarded.bare_key("ci")), "a key is in the audit");
}

#[test]
fn a_restart_repeats_no_line_and_misses_none() {
    let dir = TempDir::new();
    let file = dir.path().join("audit.jsonl");
    let mut server = Server::start_with(&["--audit", file.to_str().unwrap()]);
    for i in 0..20 {
        server.claim(&format!("r{i}"), 600.0);
    }
    about(&file, "r19", "granted");
    for _ in 0..2 {
        server.restart();
    }
    server.claim("last", 600.0);
    about(&file, "last", "granted");
    let mut granted: Vec<String> = lines(&file).iter().map(|line| line["resource"].to_string()).collect();
    let all = granted.len();
    granted.sort();
    granted.dedup();
    assert_eq!((all, granted.len()), (21, 21));
}

#[test]
fn a_log_that_begins_anew_goes_on_in_the_same_file() {
    let dir = TempDir::new();
    let file = dir.path().join("audit.jsonl");
    let flags = ["--audit", file.to_str().unwrap()];
    let old = Server::start_with(&flags);
    for i in 0..20 {
        old.claim(&format!("r{i}"), 600.0);
    }
    about(&file, "r19", "granted");
    drop(old);
    // Its first entries have numbers that are in the file already.
    let server = Server::start_with(&flags);
    server.claim("anew", 600.0);
    about(&file, "anew", "granted");
    assert!(server.logged().contains("indexes in the audit repeat"), "{}", server.logged());
}

#[test]
fn files_are_put_aside_when_they_are_full_and_stderr_is_a_place_too() {
    let dir = TempDir::new();
    let file = dir.path().join("audit.jsonl");
    let config = dir.path().join("leasehold.toml");
    std::fs::write(&config, format!("[audit]\nto = {file:?}\nmax-mib = 0\nkeep = 3\n")).unwrap();
    let server = Server::start_with(&["--config", config.to_str().unwrap()]);
    for i in 0..40 {
        server.claim(&format!("r{i}"), 600.0);
    }
    about(&file, "r39", "granted");
    let aside = |number: u32| dir.path().join(format!("audit.jsonl.{number}"));
    assert!(aside(1).exists() && aside(3).exists() && !aside(4).exists());
    assert!(!lines(&aside(1)).is_empty());

    let mut server = Server::start_with(&["--audit", "stderr"]);
    server.claim("seen", 600.0);
    let seen = |server: &Server| {
        server.logged().lines().filter(|line| line.contains(r#""resource":"seen""#)).count()
    };
    eventually("it is on stderr", || seen(&server) == 1);
    server.restart();
    server.claim("next", 600.0);
    eventually("the next is", || server.logged().contains(r#""resource":"next""#));
    assert_eq!(seen(&server), 0);
}
