//! Credentials that end: what their owner has open ends with them, what it holds stays until its ttl.

use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::common::{Client, Reply, claim_body, eventually};
use crate::provider::{Key, Provider};
use crate::support::{Guarded, leasehold, make_key};

const RULES: &str = r#"
[[access.rule]]
users = ["ci", "anna", "holder"]
resources = ["*"]
verbs = ["read", "claim"]

[[access.rule]]
users = ["root"]
resources = ["*"]
verbs = ["*"]
"#;

/// Everything that one user can have open at once.
struct Open {
    stream: Client,
    post: Client,
    patch: Client,
    lock: Client,
    idle: Client,
    /// Waits without a request.
    waiting: String,
    held: String,
}

/// Sends a request and leaves it open.
fn send(guarded: &Guarded, credentials: &str, method: &str, path: &str, body: &str) -> Client {
    let mut client = guarded.server.client();
    client.send(method, path, &[("Authorization", credentials)], body.as_bytes());
    client
}

fn ask(guarded: &Guarded, credentials: &str, method: &str, path: &str, body: &str) -> Reply {
    send(guarded, credentials, method, path, body).read_reply(method).unwrap()
}

fn open(guarded: &Guarded, credentials: &str) -> Open {
    guarded.claim("holder", "busy");
    let blocker = r#"{"title": "t", "lifetime": 600, "wait": 0}"#;
    assert_eq!(guarded.ask("holder", "POST", "/locks/busyLock", blocker).status, 201);
    let claim =
        |resource: &str| ask(guarded, credentials, "POST", "/v1/claims/", &claim_body(resource, 600.0));
    let held = claim("mine");
    assert_eq!(held.status, 201, "{held:?}");
    let waiting = claim("busy");
    assert_eq!(waiting.status, 202, "{waiting:?}");
    let patched = claim("busy").location_path();
    let mut idle = guarded.server.client();
    let reply = idle.request("GET", "/v1/claims/", &[("Authorization", credentials)], b"");
    assert_eq!(reply.status, 200, "{reply:?}");
    let open = Open {
        stream: send(guarded, credentials, "GET", "/v1/events?heartbeat=1", ""),
        post: send(guarded, credentials, "POST", "/v1/claims/?wait=600", &claim_body("busy", 600.0)),
        patch: send(guarded, credentials, "PATCH", &format!("{patched}?wait=600"), r#"{"status": "active"}"#),
        lock: send(
            guarded,
            credentials,
            "POST",
            "/locks/busyLock",
            r#"{"title": "t", "lifetime": 600, "wait": 600}"#,
        ),
        idle,
        waiting: waiting.location_path(),
        held: held.location_path(),
    };
    eventually("three claims and a lock wait", || {
        waiting_on(guarded, "busy") == 3 && waiting_on(guarded, "busyLock") == 1
    });
    open
}

fn waiting_on(guarded: &Guarded, resource: &str) -> usize {
    let path = format!("/v1/claims/?resource={resource}&status=waiting");
    guarded.ask("root", "GET", &path, "").json().as_array().unwrap().len()
}

fn status_of(guarded: &Guarded, path: &str) -> String {
    guarded.ask("root", "GET", path, "").json()["status"].as_str().unwrap().to_string()
}

fn all_ended(guarded: &Guarded, mut open: Open) {
    assert_eq!(open.post.read_reply("POST").unwrap().status, 401);
    assert_eq!(open.patch.read_reply("PATCH").unwrap().status, 401);
    assert_eq!(open.lock.read_reply("POST").unwrap().status, 401);
    assert_eq!(open.stream.read_reply("GET").unwrap().status, 200, "the stream has an end");
    let mut rest = Vec::new();
    open.idle.stream().read_to_end(&mut rest).expect("the idle connection is closed");
    eventually("nothing of it waits", || waiting_on(guarded, "busy") + waiting_on(guarded, "busyLock") == 0);
    assert_eq!(status_of(guarded, &open.waiting), "withdrawn");
    assert_eq!(status_of(guarded, &open.held), "active", "what is held stays until its ttl");
}

#[test]
fn a_withdrawn_key_ends_what_is_open_and_what_waits() {
    let guarded = Guarded::start(&["ci", "holder", "root"], RULES);
    let open = open(&guarded, &guarded.key("ci"));
    let keys = guarded.dir.path().join("keys.toml");
    let keys = keys.to_str().unwrap();
    let listed = String::from_utf8(leasehold(&["access", "key", "list", "--keys", keys]).stdout).unwrap();
    let line = listed.lines().find(|line| line.split_whitespace().any(|word| word == "ci")).unwrap();
    let id = line.split_whitespace().next().unwrap();
    assert!(leasehold(&["access", "key", "withdraw", id, "--keys", keys]).status.success());
    all_ended(&guarded, open);
}

fn oidc(provider: &Provider) -> String {
    format!(
        "[[access.oidc]]\nissuer = \"{}\"\naudiences = [\"locks\"]\nuser-claim = \"preferred_username\"\nleeway = 0\n{RULES}",
        provider.issuer()
    )
}

#[test]
fn an_authority_that_is_removed_ends_what_is_open_and_what_waits() {
    let key = Key::ed25519("d");
    let provider = Provider::start(&[&key]);
    let guarded = Guarded::start(&["holder", "root"], &oidc(&provider));
    let open = open(&guarded, &format!("Bearer {}", key.token(&provider.claims("anna"))));
    guarded.configure(RULES);
    guarded.server.signal("HUP");
    all_ended(&guarded, open);
}

#[test]
fn an_expired_token_ends_what_is_open_and_leaves_what_waits() {
    let key = Key::ed25519("d");
    let provider = Provider::start(&[&key]);
    let guarded = Guarded::start(&["holder", "root"], &oidc(&provider));
    let mut claims = provider.claims("anna");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    claims["exp"] = json!(now + 20);
    let mut open = open(&guarded, &format!("Bearer {}", key.token(&claims)));
    // The claim has its place in the queue, and its client may come back for it with a fresh token.
    let made = open.post.read_reply("POST").unwrap();
    assert_eq!(made.status, 202, "{made:?}");
    assert_eq!(open.patch.read_reply("PATCH").unwrap().status, 409);
    assert_eq!(open.stream.read_reply("GET").unwrap().status, 200, "the stream has an end");
    assert_eq!(open.lock.read_reply("POST").unwrap().status, 401, "a lock waits only as long as its request");
    assert_eq!(waiting_on(&guarded, "busy"), 3);
    let fresh = format!("Bearer {}", key.token(&provider.claims("anna")));
    let seen = ask(&guarded, &fresh, "GET", &made.location_path(), "");
    assert_eq!(seen.json()["status"], "waiting", "{seen:?}");
}

#[test]
fn one_of_two_keys_takes_only_what_came_with_it() {
    let guarded = Guarded::start(&["ci", "holder", "root"], RULES);
    let (first, second) = (guarded.key("ci"), make_key(guarded.dir.path(), "ci", ""));
    let second = format!("Bearer {second}");
    eventually("the second key is known", || ask(&guarded, &second, "GET", "/v1/claims/", "").status == 200);
    guarded.claim("holder", "busy");
    let waiting = ask(&guarded, &first, "POST", "/v1/claims/", &claim_body("busy", 600.0)).location_path();
    let mut post = send(&guarded, &first, "POST", "/v1/claims/?wait=600", &claim_body("busy", 600.0));
    eventually("two claims wait", || waiting_on(&guarded, "busy") == 2);
    let keys = guarded.dir.path().join("keys.toml");
    let text = std::fs::read_to_string(&keys).unwrap();
    let id = first.trim_start_matches("Bearer lhk_").split('_').next().unwrap().to_string();
    let kept: Vec<&str> = text.split("\n[[key]]").filter(|key| !key.contains(&id)).collect();
    std::fs::write(&keys, kept.join("\n[[key]]")).unwrap();
    // Its client never learned which claim it made: nobody would ever release it.
    assert_eq!(post.read_reply("POST").unwrap().status, 401);
    eventually("that claim is withdrawn", || waiting_on(&guarded, "busy") == 1);
    // The other one is the user's, who still has a key.
    assert_eq!(status_of(&guarded, &waiting), "waiting");
    assert_eq!(ask(&guarded, &second, "GET", &waiting, "").status, 200);
}

#[test]
fn a_slow_body_does_not_outlive_the_key_that_it_came_with() {
    let guarded = Guarded::start(&["ci", "holder", "root"], RULES);
    let mut client = guarded.server.client();
    let body = claim_body("late", 600.0);
    let head = format!(
        "POST /v1/claims/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\nContent-Length: {}\r\n\r\n",
        guarded.key("ci"),
        body.len()
    );
    client.send_raw(head.as_bytes());
    client.send_raw(&body.as_bytes()[..10]);
    let keys = guarded.dir.path().join("keys.toml");
    let text = std::fs::read_to_string(&keys).unwrap();
    let kept: Vec<&str> = text.split("\n[[key]]").filter(|key| !key.contains("user = \"ci\"")).collect();
    std::fs::write(&keys, kept.join("\n[[key]]")).unwrap();
    assert_eq!(client.read_reply("POST").unwrap().status, 401);
    assert_eq!(guarded.ask("root", "GET", "/v1/claims/?resource=late", "").json(), json!([]));
}

#[test]
fn a_key_file_that_is_gone_for_a_moment_ends_nothing() {
    let guarded = Guarded::start(&["ci", "holder", "root"], RULES);
    let mut stream = send(&guarded, &guarded.key("ci"), "GET", "/v1/events?heartbeat=0.2", "");
    assert_eq!(stream.read_status().unwrap(), 200);
    let keys = guarded.dir.path().join("keys.toml");
    let aside = guarded.dir.path().join("aside");
    std::fs::rename(&keys, &aside).unwrap();
    eventually("the log says so", || guarded.server.logged().contains("the old ones stay in force"));
    assert_eq!(guarded.ask("ci", "GET", "/v1/claims/", "").status, 200);
    std::fs::rename(&aside, &keys).unwrap();
    assert_eq!(guarded.ask("ci", "GET", "/v1/claims/", "").status, 200);
}
