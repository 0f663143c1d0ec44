//! Rights: what a stranger, a user with weak rights and a rival can't do, on the leader and on a follower.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::common::{Reply, TempDir, claim_body, eventually};
use crate::guarded_trio::GuardedTrio;
use crate::support::{Guarded, refused};

/// `victim` works with typed locks and leases; `rival` may claim there and not read; `weak` has rights elsewhere.
const RULES: &str = r#"
[[access.rule]]
users = ["victim"]
resources = ["dss", "ops"]
verbs = ["read", "claim"]

[[access.rule]]
users = ["rival"]
resources = ["dss", "ops"]
verbs = ["claim"]

[[access.rule]]
users = ["weak"]
resources = ["elsewhere"]
verbs = ["*"]

[[access.rule]]
users = ["root"]
resources = ["*"]
verbs = ["*"]
"#;

const BAD_KEY: &str = "Bearer lhk_0_0";

fn typed(ids: &[&str], hostname: &str, force: bool) -> String {
    let mut body = json!({ "ids": ids, "hostname": hostname, "owner": 1 });
    if force {
        body["force"] = json!(true);
    }
    body.to_string()
}

/// Nothing of a holder: neither its host, nor its token, nor its lease's metadata.
fn tells_nothing(reply: &Reply) {
    let text = reply.text();
    for word in ["secret-host", "victim", "secret-client", "secret data"] {
        assert!(!text.contains(word), "{word}: {reply:?}");
    }
    let metadata = |(name, _): &&(String, String)| {
        name.starts_with("x-quorum-lease-") || name == "x-quorum-client-id" || name == "leasehold-token"
    };
    assert!(!reply.headers.iter().any(|header| metadata(&header)), "{reply:?}");
    if let Ok(body) = serde_json::from_slice::<Value>(&reply.body) {
        for lock in body["locks"].as_array().into_iter().flatten() {
            assert!(lock["hostname"].is_null() && lock["token"].is_null(), "{reply:?}");
        }
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_loop_of_forced_unlocks_ends_none_of_a_victims_locks() {
    let trio = GuardedTrio::start(&["victim", "rival", "weak", "root"], RULES);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for (node, user) in [(0, ""), (1, BAD_KEY), (0, "weak"), (1, "rival"), (0, "rival"), (2, "")] {
            let (trio, done) = (&trio, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let path = "/v1/dss/media/unlock";
                    let reply = trio.ask(node, user, "POST", path, &typed(&["t"], "e", true));
                    let expected: &[u16] = match user {
                        "" => &[401],
                        // A thousand guesses, and then it is slowed down.
                        BAD_KEY => &[401, 429],
                        "weak" => &[403],
                        // May claim here, so it may learn that a lock is free; and no more.
                        _ => &[403, 404],
                    };
                    assert!(expected.contains(&reply.status), "{user}: {reply:?}");
                    tells_nothing(&reply);
                }
            });
        }
        // Also when an assertion fails: otherwise the test would wait for its threads for ever.
        let _stop = StopOnDrop(&done);
        for round in 0..60 {
            let node = round % 3;
            let body = typed(&["t"], "secret-host", false);
            let locked = trio.ask(node, "victim", "POST", "/v1/dss/media/lock", &body);
            assert_eq!(locked.status, 200, "{locked:?}");
            let unlocked = trio.ask(node, "victim", "POST", "/v1/dss/media/unlock", &body);
            assert_eq!(unlocked.status, 200, "somebody else ended the lock: {unlocked:?}");
        }
    });
    // Who has the right still can.
    assert_eq!(trio.ask(0, "victim", "POST", "/v1/dss/media/lock", &typed(&["t"], "h", false)).status, 200);
    let forced = trio.ask(1, "root", "POST", "/v1/dss/media/unlock", &typed(&["t"], "e", true));
    assert_eq!(forced.status, 200, "{forced:?}");
    let gone = trio.ask(2, "victim", "POST", "/v1/dss/media/unlock", &typed(&["t"], "h", false));
    assert_eq!(gone.status, 404, "{gone:?}");
}

#[test]
fn without_a_right_nobody_learns_whether_a_lock_is_free() {
    let guarded = Guarded::start(&["victim", "rival", "weak", "root"], RULES);
    let lock = guarded.ask("victim", "POST", "/v1/dss/media/lock", &typed(&["held"], "secret-host", false));
    assert_eq!(lock.status, 200, "{lock:?}");
    for call in ["lock", "refresh", "unlock", "status"] {
        for force in [false, true] {
            let path = format!("/v1/dss/media/{call}");
            let ask =
                |id: &str| guarded.ask("weak", "POST", &path, &typed(&[id], "e", force && call == "unlock"));
            let (held, free) = (ask("held"), ask("free"));
            assert_eq!((held.status, free.status), (403, 403), "{call}");
            assert_eq!(held.text().replace("held", "free"), free.text(), "{call}");
        }
    }
}

#[test]
fn refusals_tell_about_a_holder_only_to_those_who_may_read() {
    let guarded = Guarded::start(&["victim", "rival", "root"], RULES);
    let client = [("X-Quorum-Client-ID", "secret-client")];
    let lease = guarded.ask_with("victim", "POST", "/v1/ops/leases/a", &client, "secret data");
    assert_eq!(lease.status, 201, "{lease:?}");
    for (method, status) in [("POST", 409), ("PUT", 403), ("DELETE", 403), ("GET", 403), ("PATCH", 501)] {
        for accept in ["*/*", "application/json", "text/plain", "text/html"] {
            let reply = guarded.ask_with("rival", method, "/v1/ops/leases/a", &[("Accept", accept)], "");
            assert_eq!(reply.status, status, "{method}: {reply:?}");
            tells_nothing(&reply);
        }
        // A reader sees all of it.
        let reply = guarded.ask("root", method, "/v1/ops/leases/a", "");
        assert!(reply.header("x-quorum-lease-version").is_some(), "{method}: {reply:?}");
    }
    // A former holder is nobody's business either.
    let gone = guarded.ask_with("victim", "DELETE", "/v1/ops/leases/a", &client, "");
    assert_eq!(gone.status, 204, "{gone:?}");
    for (method, status) in [("PUT", 404), ("DELETE", 404), ("GET", 403)] {
        let reply = guarded.ask("rival", method, "/v1/ops/leases/a", "");
        assert_eq!(reply.status, status, "{method}: {reply:?}");
        tells_nothing(&reply);
    }

    let body = typed(&["x"], "secret-host", false);
    assert_eq!(guarded.ask("victim", "POST", "/v1/dss/media/lock", &body).status, 200);
    for (call, status) in [("lock", 409), ("refresh", 403), ("unlock", 403)] {
        let reply =
            guarded.ask("rival", "POST", &format!("/v1/dss/media/{call}"), &typed(&["x"], "e", false));
        assert_eq!(reply.status, status, "{call}: {reply:?}");
        tells_nothing(&reply);
    }
}

#[test]
fn methods_that_a_lease_does_not_know_are_refused_like_all_others() {
    let trio = GuardedTrio::start(&["victim", "rival", "weak", "root"], RULES);
    assert_eq!(trio.ask(0, "victim", "POST", "/v1/ops/leases/a", "secret data").status, 201);
    for node in [0, 1] {
        for method in ["PATCH", "OPTIONS", "TRACE", "PROPFIND"] {
            for (user, status) in [("", 401), (BAD_KEY, 401), ("weak", 403), ("rival", 501)] {
                let reply = trio.ask(node, user, method, "/v1/ops/leases/a", "");
                assert_eq!(reply.status, status, "{user} {method}: {reply:?}");
                tells_nothing(&reply);
            }
            let reply = trio.ask(node, "victim", method, "/v1/ops/leases/a", "");
            assert_eq!(reply.status, 501, "{reply:?}");
            assert!(reply.header("x-quorum-lease-version").is_some(), "{reply:?}");
        }
    }
}

#[test]
fn a_stranger_is_refused_before_its_body_has_come() {
    let guarded = Guarded::start(&["victim", "rival", "weak", "root"], RULES);
    let weak = guarded.key("weak");
    for (path, user, status) in [
        ("/v1/dss/media/lock", "", 401),
        ("/v1/dss/media/unlock", BAD_KEY, 401),
        ("/v1/dss/media/lock", &*weak, 403),
        ("/v1/claims/", "", 401),
        ("/v1/renewals", BAD_KEY, 401),
        ("/v1/ops/leases/a", "", 401),
        ("/locks/a", "", 401),
    ] {
        let mut client = guarded.server.client();
        let credentials = if user.is_empty() { String::new() } else { format!("Authorization: {user}\r\n") };
        // A megabyte of eight, and no more: the answer must not wait for the rest.
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\n{credentials}Content-Length: 8388608\r\n\r\n"
        );
        client.send_raw(head.as_bytes());
        client
            .stream()
            .try_clone()
            .map(|mut stream| std::io::Write::write_all(&mut stream, &[b' '; 70_000]).ok())
            .unwrap();
        let reply = client.read_reply("POST").unwrap();
        assert_eq!(reply.status, status, "{path} {user}: {reply:?}");
    }
}

#[test]
fn bad_credentials_are_never_taken_for_none() {
    let rules = "[[access.rule]]\nusers = [\"anonymous\"]\nresources = [\"open\"]\nverbs = [\"claim\"]\n";
    let guarded = Guarded::start(&["root"], rules);
    let body = r#"{"title": "t", "lifetime": 600, "wait": 0}"#;
    let lock = guarded.ask("", "POST", "/locks/open", body);
    assert_eq!(lock.status, 201, "{lock:?}");
    let url = lock.location_path();
    for method in ["GET", "DELETE"] {
        let bad = guarded.server.client().request(method, &url, &[("Authorization", BAD_KEY)], b"");
        refused(&bad, 401, "read", "open");
    }
    // Without credentials it is the same address, which made the lock.
    assert_eq!(guarded.ask("", "GET", &url, "").status, 200);
    assert_eq!(guarded.ask("", "DELETE", &url, "").status, 204);
}

#[test]
fn users_of_the_administrators_file_look_after_locks_and_nothing_else() {
    let dir = TempDir::new();
    let file = dir.path().join("users");
    std::fs::write(&file, "anna:a good password\n").unwrap();
    let flags = ["--admin-userpass-file", file.to_str().unwrap()];
    let open = crate::common::Server::start_with(&flags);
    let guarded = Guarded::start_with(&["root"], "", &flags);
    let basic = [("Authorization", "Basic YW5uYTphIGdvb2QgcGFzc3dvcmQ=")];
    for server in [&open, &guarded.server] {
        let ask = |method: &str, path: &str, body: &str| {
            server.client().request(method, path, &basic, body.as_bytes())
        };
        assert_eq!(ask("GET", "/resources", "").status, 200);
        for (method, path, body) in [
            ("GET", "/v1/backup", ""),
            ("POST", "/v1/cluster/nodes", r#"{"id": 2, "address": "127.0.0.1:1"}"#),
            ("DELETE", "/v1/cluster/nodes/1", ""),
            ("POST", "/v1/cluster/leader", r#"{"id": 1}"#),
        ] {
            let reply = ask(method, path, body);
            assert!(matches!(reply.status, 401 | 403), "{method} {path}: {reply:?}");
        }
    }
    assert_eq!(guarded.ask("root", "GET", "/v1/backup", "").status, 200);
}

#[test]
fn guessing_passwords_is_slowed_down_and_good_ones_wait_with_the_bad() {
    let dir = TempDir::new();
    let file = dir.path().join("users");
    std::fs::write(&file, "anna:a good password\n").unwrap();
    let server = crate::common::Server::start_with(&["--admin-userpass-file", file.to_str().unwrap()]);
    let ask = |credentials: &str| {
        server.client().request("GET", "/resources", &[("Authorization", credentials)], b"")
    };
    let (good, wrong) = ("Basic YW5uYTphIGdvb2QgcGFzc3dvcmQ=", "Basic YW5uYTp3cm9uZw==");
    let guesses: Vec<u16> = (0..40).map(|_| ask(wrong).status).collect();
    assert!(guesses.starts_with(&[401; 5]), "{guesses:?}");
    let slowed = ask(wrong);
    assert_eq!(slowed.status, 429, "{slowed:?}");
    assert!(slowed.header("retry-after").is_some());
    // Not even the right one is looked at meanwhile; afterwards it is.
    assert_eq!(ask(good).status, 429);
    eventually("the right password is looked at again", || ask(good).status == 200);
}

#[test]
fn a_page_of_resources_names_nothing_that_its_reader_may_not_see() {
    let rules = r#"
[[access.rule]]
users = ["root"]
resources = ["*"]
verbs = ["*"]

[[access.rule]]
users = ["reader"]
resources = ["dss/object"]
verbs = ["read"]
"#;
    let guarded = Guarded::start(&["root", "reader"], rules);
    // More names than one answer looks at, all of them before the one that the reader may see.
    for part in 0..11 {
        let ids: Vec<String> = (0..19_000).map(|id| format!("hidden-{part}-{id}")).collect();
        let body = json!({ "ids": ids, "hostname": "h", "owner": 1 }).to_string();
        assert_eq!(guarded.ask("root", "POST", "/v1/dss/media/lock", &body).status, 200);
    }
    let body = typed(&["seen"], "h", false);
    assert_eq!(guarded.ask("root", "POST", "/v1/dss/object/lock", &body).status, 200);
    let page = guarded.ask("reader", "GET", "/v1/resources", "");
    assert!(!page.text().contains("hidden"), "{}", page.text());
    assert_eq!(page.json()["resources"][0]["name"], "dss/object/seen", "{}", page.text());
    assert_eq!(page.json()["next"], Value::Null);
}

#[test]
fn renewals_of_others_claims_are_renewals_of_unknown_ones() {
    let guarded = Guarded::start(&["victim", "rival", "root"], RULES);
    let claim = guarded.ask("victim", "POST", "/v1/claims/", &claim_body("ops/x", 600.0));
    let id = claim.location_path().trim_end_matches('/').rsplit('/').next().unwrap().to_string();
    let ask = |id: &str| {
        let body = json!({ "claims": [id], "ttl": 1.0 }).to_string();
        guarded.ask("rival", "POST", "/v1/renewals", &body).text()
    };
    let unknown = "0".repeat(32);
    assert_eq!(ask(&id).replace(&id, &unknown), ask(&unknown));
}
