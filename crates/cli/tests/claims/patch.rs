//! `PATCH` and `PUT` of a claim: every step from one status to another, and every step that is refused.

use crate::common::{Server, micros};
use serde_json::Value;

const FINALS: [&str; 4] = ["aborted", "released", "revoked", "withdrawn"];

fn update(status: &str) -> String {
    format!(r#"{{"status": "{status}"}}"#)
}

#[test]
fn an_active_claim_ends_as_asked_and_the_next_one_is_active() {
    let server = Server::start();
    for status in FINALS {
        let (first, second) = (server.claim(status, 60.0), server.claim(status, 60.0));
        let reply = server.patch(&first, &update(status));
        assert_eq!((reply.status, reply.body.len()), (204, 0), "{status}");
        assert_eq!(server.status(&first), status);
        assert_eq!(server.status(&second), "active", "after {status}");
    }
}

#[test]
fn a_waiting_claim_is_cancelled_as_asked_and_its_place_closes() {
    let server = Server::start();
    let holder = server.claim("r", 60.0);
    for status in ["aborted", "revoked", "withdrawn"] {
        let (first, second) = (server.claim("r", 60.0), server.claim("r", 60.0));
        assert_eq!(server.detail(&second)["position"], 2);
        assert_eq!(server.patch(&first, &update(status)).status, 204);
        assert_eq!(server.status(&first), status);
        assert_eq!(server.detail(&second)["position"], 1);
        assert_eq!(server.patch(&second, &update("withdrawn")).status, 204);
    }
    assert_eq!(server.status(&holder), "active");
}

#[test]
fn a_waiting_claim_has_nothing_to_release() {
    let server = Server::start();
    server.claim("r", 60.0);
    let waiting = server.claim("r", 60.0);
    assert_eq!(server.patch(&waiting, &update("released")).named(), ["status"]);
    assert_eq!(server.status(&waiting), "waiting");
}

#[test]
fn a_waiting_claim_can_not_be_active_while_another_holds() {
    let server = Server::start();
    let holder = server.claim("r", 60.0);
    let waiting = server.claim("r", 60.0);
    let reply = server.patch(&waiting, &update("active"));
    assert_eq!(reply.status, 409);
    let body = reply.json();
    assert_eq!((&body["status"], &body["position"]), (&"waiting".into(), &1.into()));
    assert_eq!(body["holder"]["url"], server.detail(&holder)["url"]);
    assert_eq!(server.status(&waiting), "waiting");
    server.patch(&holder, &update("released"));
    let reply = server.patch(&waiting, &update("active"));
    assert_eq!(reply.status, 200);
    let claim = reply.json();
    assert_eq!((&claim["status"], &claim["ttl"]), (&"active".into(), &60.0.into()));
    assert!(micros(&claim["expires"]) > micros(&claim["created"]), "its ttl runs");
}

#[test]
fn active_to_active_is_fine_and_does_not_restart_the_ttl() {
    let server = Server::start();
    let path = server.claim("r", 60.0);
    let created = micros(&server.detail(&path)["created"]);
    crate::common::eventually("some of the ttl has run", || {
        server.detail(&path)["active_duration"].as_f64() > Some(0.5)
    });
    let reply = server.patch(&path, &update("active"));
    assert_eq!((reply.status, &reply.json()["status"]), (200, &"active".into()));
    // Had the ttl started anew, this would be half a second later at the least.
    assert!(micros(&server.detail(&path)["expires"]) < created + 60_400_000);
}

#[test]
fn a_new_ttl_starts_at_once_with_the_length_asked_for() {
    let server = Server::start();
    let path = server.claim("r", 60.0);
    let reply = server.patch(&path, r#"{"ttl": 1000}"#);
    assert_eq!(reply.status, 200);
    assert!(reply.text().contains(r#""ttl": 1000.0,"#), "{}", reply.text());
    let claim = server.detail(&path);
    assert_eq!(claim["initial_ttl"], 1000.0);
    assert!(micros(&claim["expires"]) > micros(&claim["created"]) + 900_000_000);
    // A shorter one counts too, down to none at all.
    assert_eq!(server.patch(&path, r#"{"ttl": 0}"#).status, 200);
    assert_eq!(server.status(&path), "expired");
}

#[test]
fn the_ttl_of_a_waiting_claim_can_not_be_changed() {
    let server = Server::start();
    let holder = server.claim("r", 60.0);
    let waiting = server.claim("r", 50.0);
    assert_eq!(server.patch(&waiting, r#"{"ttl": 5}"#).named(), ["ttl"]);
    assert_eq!(server.put(&waiting, r#"{"ttl": 5}"#).named(), ["ttl"]);
    server.patch(&holder, &update("released"));
    assert_eq!(server.detail(&waiting)["initial_ttl"], 50.0);
}

#[test]
fn nothing_changes_a_claim_that_is_over_and_the_answer_says_how_it_ended() {
    let server = Server::start();
    let mut over: Vec<(String, &str)> = FINALS
        .iter()
        .map(|status| {
            let path = server.claim("r", 60.0);
            assert_eq!(server.patch(&path, &update(status)).status, 204);
            (path, *status)
        })
        .collect();
    over.push((server.claim("r", 0.0), "expired"));
    for (path, status) in &over {
        let before = server.detail(path);
        assert_eq!(before["status"], *status);
        let mut updates: Vec<String> = FINALS.iter().map(|status| update(status)).collect();
        updates.extend([update("active"), r#"{"ttl": 5}"#.into()]);
        for body in updates {
            let reply = server.patch(path, &body);
            assert_eq!(
                (reply.status, &reply.json()["status"]),
                (400, &Value::from(*status)),
                "{status} {body}"
            );
        }
        let reply = server.put(path, r#"{"ttl": 5, "status": "active"}"#);
        assert_eq!((reply.status, &reply.json()["status"]), (400, &Value::from(*status)));
        assert_eq!(server.detail(path), before, "{status} is final");
    }
}

#[test]
fn an_update_names_everything_that_is_wrong_with_it() {
    let server = Server::start();
    let path = server.claim("r", 60.0);
    let before = server.detail(&path)["status_history"].clone();
    let cases: &[(&str, &[&str])] = &[
        ("{}", &["status", "ttl"]),
        (r#"{"ttl": 5, "status": "active"}"#, &["status", "ttl"]),
        (r#"{"ttl": 5, "status": "released"}"#, &["status", "ttl"]),
        (r#"{"ttl": null, "status": "released"}"#, &["ttl"]),
        (r#"{"ttl": 5, "status": null}"#, &["status"]),
        (r#"{"ttl": -1}"#, &["ttl"]),
        (r#"{"ttl": "5"}"#, &["ttl"]),
        (r#"{"status": "waiting"}"#, &["status"]),
        (r#"{"status": "expired"}"#, &["status"]),
        (r#"{"status": "Released"}"#, &["status"]),
        (r#"{"status": 1}"#, &["status"]),
        (r#"{"resource": "s"}"#, &["resource"]),
        (r#"{"user_data": 1, "owner": "me", "ttl": {}}"#, &["owner", "ttl", "user_data"]),
        (r#"{"status": "released", "reason": "x"}"#, &["reason"]),
    ];
    for (body, named) in cases {
        assert_eq!(server.patch(&path, body).named(), *named, "{body}");
    }
    let claim = server.detail(&path);
    assert_eq!((&claim["status_history"], &claim["initial_ttl"]), (&before, &60.0.into()));
}

#[test]
fn put_takes_ttl_and_active_together_and_each_alone() {
    let server = Server::start();
    let path = server.claim("r", 60.0);
    let reply = server.put(&path, r#"{"ttl": 500, "status": "active"}"#);
    assert_eq!((reply.status, &reply.json()["ttl"]), (200, &500.0.into()));
    assert!(micros(&reply.json()["expires"]) > micros(&reply.json()["created"]) + 400_000_000);
    assert_eq!(server.put(&path, r#"{"ttl": 70}"#).json()["ttl"], 70.0);
    assert_eq!(server.put(&path, &update("active")).status, 200);
    assert_eq!(server.put(&path, r#"{"ttl": 5, "status": "released"}"#).named(), ["status", "ttl"]);
    assert_eq!(server.put(&path, "{}").named(), ["status", "ttl"]);
    assert_eq!(server.put(&path, r#"{"resource": "x"}"#).named(), ["resource"]);
    let waiting = server.claim("r", 60.0);
    assert_eq!(server.put(&waiting, r#"{"ttl": 5, "status": "active"}"#).status, 409);
    assert_eq!(server.put(&waiting, &update("active")).status, 409);
    assert_eq!(server.put(&path, &update("released")).status, 204);
    assert_eq!(server.put(&waiting, r#"{"ttl": 5, "status": "active"}"#).json()["ttl"], 5.0);
}

#[test]
fn a_claim_that_does_not_exist_is_not_found() {
    let server = Server::start();
    server.claim("r", 60.0);
    for id in [
        "0123456789abcdef0123456789abcdef",
        "0",
        "x",
        "%20",
        "0123456789ABCDEF0123456789ABCDEF",
        &"f".repeat(4000),
    ] {
        for method in ["PATCH", "PUT", "GET"] {
            let path = format!("/v1/claims/{id}/");
            let reply = server.client().request(method, &path, &[], update("released").as_bytes());
            assert_eq!((reply.status, reply.problem().as_str()), (404, "not-found"), "{method} {id}");
        }
    }
}

#[test]
fn the_path_works_without_its_slash_too() {
    let server = Server::start();
    let path = server.claim("r", 60.0);
    let bare = path.trim_end_matches('/');
    assert_eq!(server.patch(bare, r#"{"ttl": 5}"#).status, 200);
    assert_eq!(server.put(bare, r#"{"ttl": 5}"#).status, 200);
    assert_eq!(server.get(bare).status, 200);
    assert_eq!(server.patch(bare, &update("released")).status, 204);
    assert_eq!(server.get(&format!("{path}/")).status, 404);
}

#[test]
fn other_methods_on_a_claim_are_refused_with_what_is_allowed() {
    let server = Server::start();
    let path = server.claim("r", 60.0);
    for method in ["POST", "DELETE", "OPTIONS"] {
        let reply = server.client().request(method, &path, &[], b"{}");
        assert_eq!((reply.status, reply.header("allow")), (405, Some("GET, HEAD, PATCH, PUT")), "{method}");
    }
    assert_eq!(server.status(&path), "active");
}

#[test]
fn queues_are_served_first_come_first_served() {
    let server = Server::start();
    let paths: Vec<String> = (0..6).map(|_| server.claim("r", 60.0)).collect();
    let positions: Vec<Value> = paths.iter().map(|path| server.detail(path)["position"].clone()).collect();
    assert_eq!(positions, [Value::Null, 1.into(), 2.into(), 3.into(), 4.into(), 5.into()]);
    let mut last_token = 0;
    for (i, path) in paths.iter().enumerate() {
        let statuses: Vec<String> = paths.iter().map(|path| server.status(path)).collect();
        assert!(statuses[..i].iter().all(|status| status == "released"), "{statuses:?}");
        assert_eq!(statuses[i], "active");
        assert!(statuses[i + 1..].iter().all(|status| status == "waiting"), "{statuses:?}");
        let token = server.detail(path)["token"].as_u64().unwrap();
        assert!(token > last_token);
        last_token = token;
        assert_eq!(server.patch(path, &update("released")).status, 204);
    }
}
