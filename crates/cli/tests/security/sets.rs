//! Rights on claims with several resources: the right on every item, to make one, to see one and to change one.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::common::PATIENCE;
use crate::support::{Guarded, refused};

/// `anna` works everywhere; `reader` may read and claim in `open` alone, and `rival` may claim there and read elsewhere.
const RULES: &str = r#"
[[access.rule]]
users = ["anna"]
resources = ["open", "secret"]
verbs = ["read", "claim"]

[[access.rule]]
users = ["reader"]
resources = ["open"]
verbs = ["read", "claim", "revoke"]

[[access.rule]]
users = ["rival"]
resources = ["open"]
verbs = ["claim"]

[[access.rule]]
users = ["rival"]
resources = ["lobby"]
verbs = ["read"]
"#;

const SET: &str = r#"{"resources": ["open/a", {"resource": "secret/b", "mode": "shared"}], "ttl": 600, "session": "anna-1", "user_data": "plans"}"#;

fn guarded() -> Guarded {
    Guarded::start(&["anna", "reader", "rival"], RULES)
}

/// What a user hears of events, from the newest thousand on, until one about `until`.
fn events(guarded: &Guarded, user: &str, until: &str) -> Vec<Value> {
    events_of(guarded, user, "last=1000", until)
}

/// The same with another query.
fn events_of(guarded: &Guarded, user: &str, query: &str, until: &str) -> Vec<Value> {
    let mut socket = TcpStream::connect(guarded.server.addr).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let key = guarded.key(user);
    write!(socket, "GET /v1/events?{query} HTTP/1.1\r\nHost: test\r\nAuthorization: {key}\r\n\r\n").unwrap();
    let lines = BufReader::new(socket).lines().map(Result::unwrap);
    let data = lines.filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let mut heard = Vec::new();
    for event in data {
        heard.push(event);
        if heard.last().unwrap()["resource"] == until {
            return heard;
        }
    }
    panic!("the stream ended: {heard:?}");
}

#[test]
fn a_set_with_one_forbidden_item_is_refused_and_changes_nothing() {
    let guarded = guarded();
    let reply = guarded.ask("reader", "POST", "/v1/claims/", SET);
    refused(&reply, 403, "claim", "secret/b");
    let all = guarded.ask("anna", "GET", "/v1/claims/", "").json();
    assert_eq!(all, json!([]), "nothing was claimed, queued or reserved");
    assert_eq!(guarded.ask("anna", "POST", "/v1/claims/", SET).status, 201);
}

#[test]
fn who_may_not_read_one_item_sees_nothing_of_a_set() {
    let guarded = guarded();
    let made = guarded.ask("anna", "POST", "/v1/claims/", SET);
    assert_eq!(made.status, 201, "{made:?}");
    let path = made.location_path();
    assert_eq!(guarded.ask("reader", "GET", &path, "").status, 404);
    for query in ["", "?resource=open/a", "?status=active"] {
        let list = guarded.ask("reader", "GET", &format!("/v1/claims/{query}"), "").json();
        assert_eq!(list, json!([]), "{query}");
    }
    // It may revoke on open, which is not enough for a set that is also on secret.
    for body in [r#"{"status": "revoked"}"#, r#"{"ttl": 1}"#] {
        assert_eq!(guarded.ask("reader", "PATCH", &path, body).status, 404, "{body}");
    }
    let id = path.trim_end_matches('/').rsplit('/').next().unwrap();
    let renewed = guarded.ask("reader", "POST", "/v1/renewals", &json!({"ids": [id]}).to_string()).json();
    assert_eq!(
        (&renewed["claims"][0]["renewed"], &renewed["claims"][0]["status"]),
        (&false.into(), &Value::Null)
    );
    // Whoever waits behind it is told that it waits, and not for whom.
    let waiting = guarded.ask(
        "reader",
        "POST",
        "/v1/claims/",
        r#"{"resource": "open/a", "ttl": 60, "mode": "shared"}"#,
    );
    assert_eq!(waiting.status, 202);
    let told = guarded.ask("reader", "PATCH", &waiting.location_path(), r#"{"status": "active"}"#);
    assert_eq!(told.status, 409);
    assert_eq!(told.json()["blocked"], json!([{"resource": "open/a", "by": null}]));
    assert!(told.json()["holder"].is_null());
    guarded.claim("reader", "open/last");
    let heard = events(&guarded, "reader", "open/last");
    for event in &heard {
        assert_ne!(event["claim"], id, "{heard:?}");
    }
    let heard = events(&guarded, "anna", "open/last");
    assert_eq!(heard.iter().filter(|event| event["claim"] == id).count(), 2, "{heard:?}");
}

#[test]
fn refusals_tell_only_the_kind_to_callers_who_may_not_read() {
    let guarded = guarded();
    let boards = |of: u32| json!({"resource": "open/boards", "ttl": 600, "take": 1, "of": of}).to_string();
    assert_eq!(guarded.ask("anna", "POST", "/v1/claims/", &boards(5)).status, 201);
    let reply = guarded.ask("rival", "POST", "/v1/claims/", &boards(6));
    assert_eq!((reply.status, reply.problem().as_str()), (409, "capacity"));
    assert!(!reply.text().contains('5') && reply.json().get("of").is_none(), "{reply:?}");
    let reply = guarded.ask("reader", "POST", "/v1/claims/", &boards(6));
    assert_eq!((reply.problem().as_str(), &reply.json()["of"]), ("capacity", &5.into()));
    // A cycle through what a caller may not read: rival holds a, and waits for what anna holds.
    let ask = |user: &str, resource: &str, session: &str| {
        let body = json!({"resource": resource, "ttl": 60, "session": session}).to_string();
        guarded.ask(user, "POST", "/v1/claims/", &body)
    };
    assert_eq!(ask("rival", "open/a", "r").status, 201);
    assert_eq!(ask("anna", "open/b", "a").status, 201);
    assert_eq!(ask("anna", "open/a", "a").status, 202);
    let reply = ask("rival", "open/b", "r");
    assert_eq!((reply.status, reply.problem().as_str()), (409, "deadlock"), "{reply:?}");
    assert!(reply.json().get("cycle").is_none() && !reply.text().contains("anna"), "{reply:?}");
    let reply = ask("anna", "open/b", "a/nested");
    assert_eq!((reply.status, reply.problem().as_str()), (409, "deadlock"), "{reply:?}");
    assert_eq!(reply.json()["cycle"][0]["session"], "a/nested");
}

#[test]
fn a_session_belongs_to_its_user() {
    let guarded = guarded();
    let ask = |user: &str, resource: &str| {
        let body = json!({"resource": resource, "ttl": 60, "session": "worker"}).to_string();
        guarded.ask(user, "POST", "/v1/claims/", &body)
    };
    let held = ask("anna", "open/a");
    assert_eq!((held.status, &held.json()["session"]), (201, &"worker".into()));
    // To another user, the same name is another session: the claim waits, and makes nobody's wait look like a deadlock.
    assert_eq!(ask("reader", "open/a").status, 202);
    assert_eq!(ask("anna", "open/a").status, 409);
    let forged = json!({"resource": "open/a", "ttl": 60, "session": "=anna/worker"}).to_string();
    assert_eq!(guarded.ask("reader", "POST", "/v1/claims/", &forged).named(), ["session"]);
}

#[test]
fn other_dialects_hide_the_holder_of_a_set_from_readers_of_one_resource() {
    let guarded = guarded();
    let set = r#"{"resources": ["secret/b", {"resource": "open/leases/x", "mode": "shared"}], "ttl": 600, "user_data": "plans"}"#;
    let made = guarded.ask("anna", "POST", "/v1/claims/", set);
    assert_eq!(made.status, 201, "{made:?}");
    for (method, path) in
        [("GET", "/v1/open/leases/x"), ("GET", "/v1/open/leases/list"), ("POST", "/v1/open/leases/x")]
    {
        for format in ["application/json", "text/plain", "*/*"] {
            let reply = guarded.ask_with("reader", method, path, &[("Accept", format)], "");
            assert!(matches!(reply.status, 200 | 409), "{reply:?}");
            for word in ["anna", "secret", "plans"] {
                let told = reply.text().contains(word)
                    || reply.headers.iter().any(|(_, value)| value.contains(word));
                assert!(!told, "{method} {path} tells {word}: {reply:?}");
            }
        }
    }
    let reason = [("Leasehold-Reason", "mine")];
    let reply = guarded.ask_with("reader", "DELETE", "/v1/open/leases/x", &reason, "");
    assert_eq!(reply.status, 409, "the right to revoke on one resource is not enough: {reply:?}");
    assert_eq!(guarded.ask("anna", "GET", &made.location_path(), "").json()["status"], "active");
}

/// What nobody may learn who may not read all resources of the set: whose it is, what it says of its maker, its session and its
/// other resource.
const TELLING: [&str; 6] = ["anna", "secret", "alpha", "plans", "because", "anna-1"];

/// A set on `open/a` and `secret/b`, held by anna, that says who made it.
fn telling_set(guarded: &Guarded) -> String {
    let set = json!({
        "resources": ["open/a", {"resource": "secret/b", "mode": "shared"}], "ttl": 600, "session": "anna-1",
        "user_data": {"host": "alpha", "user": "anna", "pid": 7, "command": "plans"},
    });
    let made = guarded.ask("anna", "POST", "/v1/claims/", &set.to_string());
    assert_eq!(made.status, 201, "{made:?}");
    made.location_path()
}

/// The name of each resource that `/v1/resources` finds for this user.
fn found(guarded: &Guarded, user: &str, query: &str) -> Vec<String> {
    let page = guarded.ask(user, "GET", &format!("/v1/resources?{query}"), "").json();
    let rows = page["resources"].as_array().unwrap().iter();
    rows.map(|row| row["name"].as_str().unwrap().to_string()).collect()
}

#[test]
fn the_dashboard_hides_the_holder_of_a_set_from_readers_of_one_resource() {
    let guarded = guarded();
    let path = telling_set(&guarded);
    // One that waits behind it, and is itself such a set.
    let set =
        r#"{"resources": ["open/a", "secret/c"], "ttl": 600, "session": "anna-2", "user_data": "plans"}"#;
    let waiting = guarded.ask("anna", "POST", "/v1/claims/", set).location_path();
    let shown = |user: &str| {
        ["/v1/resources", "/v1/resources/open%2Fa", "/v1/contention", "/v1/overview"].map(|page| {
            let reply = guarded.ask(user, "GET", page, "");
            assert_eq!(reply.status, 200, "{page}: {reply:?}");
            (page, reply.text())
        })
    };
    let hidden = || {
        for (page, text) in shown("reader") {
            for word in TELLING {
                assert!(!text.contains(word), "{page} tells {word}: {text}");
            }
        }
    };
    hidden();
    // Nor does a count of names tell that one of them exists.
    let board =
        |prefix: &str| guarded.ask("reader", "GET", &format!("/v1/contention?prefix={prefix}"), "").text();
    assert_eq!(board("secret/c"), board("secret/x"));
    let detail = guarded.ask("reader", "GET", "/v1/resources/open%2Fa", "").json();
    assert_eq!((&detail["holder_count"], &detail["waiting"]), (&1.into(), &1.into()), "{detail}");
    assert!(detail["holder"]["held"].is_number() && detail["holder"]["since"].is_string(), "{detail}");
    assert_eq!(detail["holder"]["may_revoke"], false, "the right to revoke on one resource is not enough");
    // Searches answer no questions about it either.
    for query in
        ["search=anna", "owner=anna", "host=alpha", "user=anna", "pid=7", "search=plans", "search=alpha"]
    {
        assert_eq!(found(&guarded, "reader", query), [""; 0], "{query}");
        assert!(found(&guarded, "anna", query).contains(&"open/a".to_string()), "{query}");
    }
    // Nor does its past.
    for (path, status) in [(&path, "revoked"), (&waiting, "withdrawn")] {
        let body = json!({ "status": status }).to_string();
        let reason = [("Leasehold-Reason", "because")];
        assert_eq!(guarded.ask_with("anna", "PATCH", path, &reason, &body).status, 204);
    }
    hidden();
    let detail = guarded.ask("reader", "GET", "/v1/resources/open%2Fa", "").json();
    assert_eq!(detail["history"].as_array().unwrap().len(), 2, "{detail}");
    // Whoever may read both sees everything.
    let text = shown("anna").map(|(_, text)| text).concat();
    for word in TELLING {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn sharing_a_resource_tells_nothing_of_those_who_share_it() {
    let guarded = guarded();
    let body = |say: &str| {
        json!({"resource": "open/a", "ttl": 600, "mode": "shared", "user_data": {"host": say}}).to_string()
    };
    assert_eq!(guarded.ask("anna", "POST", "/v1/claims/", &body("alpha")).status, 201);
    assert_eq!(guarded.ask("rival", "POST", "/v1/claims/", &body("beta")).status, 201);
    // It may claim there and not read: it sees its own claim.
    let page = guarded.ask("rival", "GET", "/v1/resources", "").text();
    assert!(page.contains("rival") && page.contains("beta"), "{page}");
    assert!(!page.contains("anna") && !page.contains("alpha"), "{page}");
    assert_eq!(found(&guarded, "rival", "search=alpha"), [""; 0]);
}

#[test]
fn events_of_a_set_tell_readers_of_one_resource_nothing_also_when_it_was_forgotten() {
    // No claim is remembered once it is over: only the events themselves say what belongs together.
    let guarded = Guarded::start_with(&["anna", "reader", "rival"], RULES, &["--finished-max", "0"]);
    let first = telling_set(&guarded);
    let body = r#"{"status": "released"}"#;
    assert_eq!(guarded.ask("anna", "PATCH", &first, body).status, 204);
    // The forbidden item may come first, too: a reader who begins behind it sees the other one alone.
    let set = r#"{"resources": ["secret/b", "open/a"], "ttl": 600}"#;
    let second = guarded.ask("anna", "POST", "/v1/claims/", set).location_path();
    assert_eq!(guarded.ask("anna", "PATCH", &second, body).status, 204);
    guarded.claim("reader", "open/last");
    let all = events(&guarded, "anna", "open/last");
    let of_sets: Vec<&Value> = all.iter().filter(|event| event["owner"] == "anna").collect();
    assert_eq!(of_sets.len(), 8, "{all:?}");
    let places = of_sets.iter().map(|event| format!("after={}", event["id"].as_str().unwrap()));
    for query in
        places.chain(["last=1000".into(), "after=0.0&who=true".into(), "last=1000&prefix=open".into()])
    {
        let heard = events_of(&guarded, "reader", &query, "open/last");
        assert_eq!(heard.len(), 1, "{query}: {heard:?}");
    }
}
