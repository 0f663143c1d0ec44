//! Revocations that wait for the holder, and `POST /v1/endings`: a client is told of the end of any of its claims.
//!
//! In:    a real service. Out: what holders, waiters and bystanders see.

use crate::common::{Client, Reply, Server, eventually};
use serde_json::{Value, json};

const ACTIVE: &str = r#"{"status": "active"}"#;
const RELEASED: &str = r#"{"status": "released"}"#;
const WHEN_GONE: &str = r#"{"status": "revoked", "when": "gone"}"#;
const WHY: &[(&str, &str)] = &[("Leasehold-Reason", "the disk is full")];

fn patch(server: &Server, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    server.client().request("PATCH", path, headers, body.as_bytes())
}

fn id(path: &str) -> String {
    path.trim_matches('/').rsplit('/').next().unwrap().to_string()
}

fn ids(paths: &[&String]) -> String {
    json!({ "ids": paths.iter().map(|path| id(path)).collect::<Vec<_>>() }).to_string()
}

/// An open request for the ends of these claims.
fn watch(server: &Server, paths: &[&String]) -> Client {
    server.ask("POST", "/v1/endings?wait=300", &[], &ids(paths))
}

fn told(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["claims"].as_array().unwrap().clone()
}

#[test]
fn a_holder_that_is_to_let_go_keeps_its_resource_until_it_does() {
    let server = Server::start();
    let holder = server.claim("r", 900.0);
    let next = server.claim("r", 900.0);
    let reply = patch(&server, &holder, WHY, WHEN_GONE);
    assert_eq!((reply.status, &reply.json()["status"]), (202, &"active".into()));
    for shown in [reply.json(), server.detail(&holder), server.list("status=active")[0].clone()] {
        assert_eq!(
            (&shown["revoking"], &shown["reason"]),
            (&true.into(), &"the disk is full".into()),
            "{shown}"
        );
        assert_eq!((&shown["status"], &shown["waiters"]), (&"active".into(), &1.into()));
    }
    let refused = server.patch(&holder, r#"{"ttl": 900}"#);
    assert_eq!(refused.status, 409);
    let body = refused.json();
    assert!(body["detail"].as_str().unwrap().contains("the disk is full"), "{body}");
    let many = server.post("/v1/renewals", &ids(&[&holder])).json()["claims"][0].clone();
    assert_eq!(
        (&many["renewed"], &many["status"], &many["revoking"]),
        (&false.into(), &"active".into(), &true.into())
    );
    assert_eq!(many["reason"], "the disk is full");
    assert_eq!(patch(&server, &holder, &[], WHEN_GONE).status, 202, "again is the same");
    assert_eq!(server.detail(&holder)["reason"], "the disk is full");
    assert_eq!(server.status(&next), "waiting", "two never hold at the same time");
    assert_eq!(server.patch(&holder, RELEASED).status, 204);
    assert_eq!(server.status(&next), "active");
    let over = server.detail(&holder);
    assert_eq!((&over["status"], &over["revoking"]), (&"released".into(), &false.into()));
    assert_eq!(over["reason"], "the disk is full");
}

#[test]
fn a_holder_that_does_not_let_go_is_revoked_when_its_ttl_is_over() {
    let server = Server::start();
    let holder = server.claim("r", 0.5);
    let mut next = server.ask("POST", "/v1/claims/?wait=300", &[], &crate::common::claim_body("r", 900.0));
    server.wait_for_queue("r", 1);
    // On a slow machine it may be over before: then there is nothing to tell.
    if patch(&server, &holder, WHY, WHEN_GONE).status == 202 {
        assert_eq!(next.reply().status, 201);
        let over = server.detail(&holder);
        assert_eq!((&over["status"], &over["active_duration"]), (&"revoked".into(), &0.5.into()));
        let lost = server.patch(&holder, r#"{"ttl": 1}"#);
        assert_eq!((lost.status, &lost.json()["status"]), (400, &"revoked".into()));
        assert_eq!(lost.json()["reason"], "the disk is full", "the loser sees why");
    }
}

#[test]
fn when_belongs_to_a_revocation_and_says_now_or_gone() {
    let server = Server::start();
    let path = server.claim("r", 900.0);
    for (body, named) in [
        (r#"{"status": "revoked", "when": "later"}"#, &["when"][..]),
        (r#"{"status": "revoked", "when": 1}"#, &["when"]),
        (r#"{"status": "released", "when": "gone"}"#, &["when"]),
        (r#"{"ttl": 5, "when": "gone"}"#, &["when"]),
        (r#"{"when": "gone"}"#, &["when"]),
        (r#"{"status": "revoked", "when": "gone", "ttl": 5}"#, &["status", "ttl"]),
        (r#"{"status": "revoked", "when": "gone", "x": 5}"#, &["x"]),
    ] {
        assert_eq!(server.patch(&path, body).named(), named, "{body}");
    }
    assert_eq!(server.detail(&path)["revoking"], false);
    assert_eq!(server.patch(&path, r#"{"status": "revoked", "when": "now"}"#).status, 204);
    assert_eq!(server.patch(&path, WHEN_GONE).status, 400, "it is over");
    // A claim that waits has nothing to let go of.
    server.claim("r", 900.0);
    let waiting = server.claim("r", 900.0);
    assert_eq!(patch(&server, &waiting, WHY, WHEN_GONE).status, 204);
    let over = server.detail(&waiting);
    assert_eq!((&over["status"], &over["reason"]), (&"revoked".into(), &"the disk is full".into()));
}

#[test]
fn renewal_answers_tell_how_many_wait() {
    let server = Server::start();
    let holder = server.claim("r", 900.0);
    assert_eq!(server.patch(&holder, r#"{"ttl": 900}"#).json()["waiters"], 0);
    let waiting = server.claim("r", 900.0);
    server.claim("r", 900.0);
    assert_eq!(server.patch(&holder, r#"{"ttl": 900}"#).json()["waiters"], 2);
    assert_eq!(server.post("/v1/renewals", &ids(&[&holder])).json()["claims"][0]["waiters"], 2);
    assert!(server.detail(&waiting)["waiters"].is_null());
    assert_eq!(server.patch(&waiting, ACTIVE).json()["holder"]["waiters"], 2);
}

#[test]
fn an_open_request_is_told_of_the_first_end_of_any_claim() {
    let server = Server::start();
    let paths: Vec<String> = (0..300).map(|i| server.claim(&format!("r{i}"), 900.0)).collect();
    let all: Vec<&String> = paths.iter().collect();
    let mut open = watch(&server, &all);
    patch(&server, &paths[217], WHY, r#"{"status": "revoked"}"#);
    let told = told(&open.reply());
    assert_eq!(told.len(), 1);
    assert_eq!((&told[0]["id"], &told[0]["status"]), (&id(&paths[217]).into(), &"revoked".into()));
    assert_eq!((&told[0]["reason"], &told[0]["revoking"]), (&"the disk is full".into(), &false.into()));
}

#[test]
fn every_kind_of_end_is_told() {
    let server = Server::start();
    for (ttl, end, status, revoking) in [
        (900.0, Some(WHEN_GONE), "active", true),
        (900.0, Some(RELEASED), "released", false),
        (900.0, Some(r#"{"status": "aborted"}"#), "aborted", false),
        (0.5, None, "expired", false),
    ] {
        let path = server.claim(&format!("r-{status}"), ttl);
        let kept = server.claim("kept", 900.0);
        let mut open = watch(&server, &[&path, &kept]);
        if let Some(end) = end {
            patch(&server, &path, &[], end);
        }
        let told = told(&open.reply());
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!((&told[0]["status"], &told[0]["revoking"]), (&status.into(), &revoking.into()));
    }
}

#[test]
fn what_happened_before_the_question_is_told_at_once_and_a_quiet_time_ends() {
    let server = Server::start();
    let (kept, gone) = (server.claim("kept", 900.0), server.claim("gone", 900.0));
    server.patch(&gone, RELEASED);
    let unknown = "0123456789abcdef0123456789abcdef";
    let body = json!({ "ids": [id(&kept), unknown, "no id", id(&gone), id(&gone)] }).to_string();
    for query in ["", "?wait=300"] {
        let told = told(&server.post(&format!("/v1/endings{query}"), &body));
        let of = |wanted: &str| told.iter().filter(|one| one["id"] == wanted).collect::<Vec<_>>();
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(of(&id(&gone))[0]["status"], "released");
        assert!(of(unknown)[0]["status"].is_null() && of("no id")[0]["status"].is_null());
    }
    assert!(told(&server.post("/v1/endings?wait=0.1", &ids(&[&kept]))).is_empty());
    assert!(told(&server.post("/v1/endings/", &ids(&[&kept]))).is_empty(), "without a wait it is a look");
}

#[test]
fn a_promotion_of_a_watched_claim_is_no_end() {
    let server = Server::start();
    let (holder, next) = (server.claim("r", 900.0), server.claim("r", 900.0));
    let mut open = watch(&server, &[&next]);
    server.patch(&holder, RELEASED);
    eventually("it is promoted", || server.status(&next) == "active");
    patch(&server, &next, &[], WHEN_GONE);
    assert_eq!(told(&open.reply())[0]["revoking"], true);
}

#[test]
fn bad_questions_are_named() {
    let server = Server::start();
    let many: Vec<&str> = vec!["x"; 10_001];
    for (body, named) in [
        ("{}".to_string(), &["ids"][..]),
        (r#"{"ids": []}"#.into(), &["ids"]),
        (r#"{"ids": "x"}"#.into(), &["ids"]),
        (r#"{"ids": [1], "ttl": 5}"#.into(), &["ids", "ttl"]),
        (json!({ "ids": many }).to_string(), &["ids"]),
    ] {
        let reply = server.post("/v1/endings?wait=1", &body);
        assert_eq!(reply.named(), named, "{}", &body[..body.len().min(60)]);
    }
    assert_eq!(server.post("/v1/endings?x=1", r#"{"ids": ["x"]}"#).named(), ["x"]);
    assert_eq!(server.get("/v1/endings").header("allow"), Some("POST"));
}

#[test]
fn an_open_question_does_not_hold_up_the_stop_of_the_service() {
    let mut server = Server::start();
    let path = server.claim("r", 900.0);
    let mut open = watch(&server, &[&path]);
    // Nothing depends on it: if the request is not open yet, the check is weaker in this run.
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(server.terminate().success());
    assert!(open.read_reply("POST").is_ok_and(|reply| told(&reply).is_empty()));
}
