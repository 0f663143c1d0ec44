//! Refusals that explain themselves: deadlocks within and between sessions, and another number of slots.

use super::{granted, post, queued, release};
use crate::common::Server;
use serde_json::json;

#[test]
fn a_session_never_waits_for_itself_or_for_an_ancestor() {
    let server = Server::start();
    let (_, held) = granted(&server, json!({"resource": "x", "session": "job"}));
    assert_eq!(held["session"], "job");
    for session in ["job", "job/nested", "job/nested/twice"] {
        let reply = post(&server, json!({"resource": "x", "session": session}));
        assert_eq!((reply.status, reply.problem().as_str()), (409, "deadlock"), "{reply:?}");
        let told = reply.json();
        let cycle = told["cycle"].as_array().unwrap();
        assert_eq!(
            (&cycle[0]["link"], &cycle[0]["session"], &cycle[0]["resource"]),
            (&"wants".into(), &session.into(), &"x".into())
        );
        let holder = cycle.iter().find(|step| step["link"] == "holds").unwrap();
        assert_eq!((&holder["session"], &holder["resource"]), (&"job".into(), &"x".into()));
        assert!(held["url"].as_str().unwrap().contains(holder["claim"].as_str().unwrap()), "{told}");
        let sentence = told["detail"].as_str().unwrap();
        assert!(
            sentence.contains("for ever")
                && sentence.contains("session job")
                && sentence.contains("x is held"),
            "{sentence}"
        );
    }
    // A sibling waits, and so does a claim without a session.
    queued(&server, json!({"resource": "x", "session": "other"}));
    queued(&server, json!({"resource": "x", "mode": "exclusive"}));
    assert_eq!(server.list("resource=x").len(), 3, "a refused claim leaves nothing behind");
}

#[test]
fn two_sessions_that_would_wait_for_each_other_are_told() {
    let server = Server::start();
    let (left, _) = granted(&server, json!({"resource": "a", "session": "left"}));
    granted(&server, json!({"resource": "b", "session": "right"}));
    let (waits, _) = queued(&server, json!({"resource": "b", "session": "left"}));
    let reply = post(&server, json!({"resource": "a", "session": "right"}));
    assert_eq!((reply.status, reply.problem().as_str()), (409, "deadlock"), "{reply:?}");
    let told = reply.json();
    let named: Vec<&str> =
        told["cycle"].as_array().unwrap().iter().map(|step| step["resource"].as_str().unwrap()).collect();
    assert!(named.contains(&"a") && named.contains(&"b"), "{told}");
    // Without a session the same claim waits, as it always did.
    queued(&server, json!({"resource": "a", "mode": "exclusive"}));
    assert_eq!(server.patch(&waits, r#"{"status": "withdrawn"}"#).status, 204);
    release(&server, &left);
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains("leasehold_deadlocks_refused_total 1\n"), "{metrics}");
    assert!(metrics.contains("leasehold_deadlock_unchecked_total 0\n"), "{metrics}");
}

#[test]
fn another_number_of_slots_is_refused_with_the_present_one() {
    let server = Server::start();
    let (path, _) = granted(&server, json!({"resource": "boards", "take": 1, "of": 5}));
    let reply = post(&server, json!({"resource": "boards", "take": 1, "of": 6}));
    assert_eq!((reply.status, reply.problem().as_str()), (409, "capacity"), "{reply:?}");
    let told = reply.json();
    assert_eq!((&told["resource"], &told["of"]), (&"boards".into(), &5.into()));
    assert!(told["detail"].as_str().unwrap().contains("5 slots"), "{told}");
    release(&server, &path);
    let (_, claim) = granted(&server, json!({"resource": "boards", "take": 1, "of": 6}));
    assert_eq!(claim["items"][0]["of"], 6, "nobody has slots any more: the next claim sets the number");
}
