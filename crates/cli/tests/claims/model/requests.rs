//! What can be asked for, what is refused as a mistake, and how claims with items are found.

use super::{granted, post, queued};
use crate::common::Server;
use serde_json::json;

#[test]
fn every_mistake_of_a_request_is_named_at_once() {
    let server = Server::start();
    for (words, wrong) in [
        (json!({"resource": "a", "resources": ["b"]}), vec!["resource", "resources"]),
        (json!({"resources": []}), vec!["resources"]),
        (json!({"resources": ["a", "a"]}), vec!["resources[1]"]),
        (json!({"resources": ["a", {"resource": "a", "mode": "shared"}]}), vec!["resources[1]"]),
        (json!({"resource": "a", "take": 6, "of": 5}), vec!["take"]),
        (json!({"resource": "a", "take": 1}), vec!["of"]),
        (json!({"resource": "a", "mode": "shared", "take": 1, "of": 2}), vec!["mode"]),
        (
            json!({"resource": "a", "mode": "read", "session": "", "colour": 1}),
            vec!["colour", "mode", "session"],
        ),
        (
            json!({"resources": ["", {"resource": "b", "take": 9, "of": 2}], "mode": "shared"}),
            vec!["mode", "resources[0]", "resources[1].take"],
        ),
        (json!({"mode": "shared", "ttl": "x"}), vec!["resource", "ttl"]),
    ] {
        let reply = post(&server, words.clone());
        assert_eq!(reply.status, 400, "{words}: {reply:?}");
        assert_eq!(reply.named(), wrong, "{words}: {reply:?}");
    }
    let many: Vec<String> = (0..1001).map(|number| format!("r{number}")).collect();
    let reply = post(&server, json!({"resources": many}));
    assert_eq!((reply.status, reply.named()), (400, vec!["resources".to_string()]));
    assert!(server.list("").is_empty(), "nothing was claimed");
    let (_, claim) = granted(&server, json!({"resources": many[..1000]}));
    assert_eq!(claim["items"].as_array().unwrap().len(), 1000);
}

#[test]
fn a_claim_is_found_by_any_of_its_resources() {
    let server = Server::start();
    let (path, set) = granted(
        &server,
        json!({"resources": ["a", {"resource": "b", "take": 1, "of": 2}], "session": "w/1"}),
    );
    for resource in ["a", "b"] {
        let found = server.list(&format!("resource={resource}"));
        assert_eq!(found.len(), 1);
        assert_eq!(
            (&found[0]["url"], &found[0]["items"], &found[0]["session"]),
            (&set["url"], &set["items"], &"w/1".into())
        );
    }
    queued(&server, json!({"resources": ["x", "a"]}));
    assert_eq!(server.list("status=waiting&resource=x").len(), 1);
    assert_eq!(server.list("").len(), 2, "a set is one claim");
    assert_eq!(server.detail(&path)["waiters"], 1);
}

#[test]
fn a_retry_finds_its_claim_and_the_key_covers_the_new_words() {
    let server = Server::start();
    let ask = |body: &str| {
        let reply = server.ask("POST", "/v1/claims/", &[("Idempotency-Key", "k")], body).reply();
        (reply.status, reply)
    };
    let words = r#"{"resources": ["a", {"resource": "b", "mode": "shared"}], "ttl": 60, "session": "s"}"#;
    let (status, first) = ask(words);
    assert_eq!(status, 201);
    let (status, again) = ask(words);
    assert_eq!((status, &again.json()["url"]), (201, &first.json()["url"]));
    for other in [
        r#"{"resources": ["a", "b"], "ttl": 60, "session": "s"}"#,
        r#"{"resources": ["a", {"resource": "b", "mode": "shared"}], "ttl": 60, "session": "t"}"#,
        r#"{"resources": ["a", {"resource": "b", "mode": "shared"}], "ttl": 60}"#,
        r#"{"resource": "a", "ttl": 60}"#,
    ] {
        let (status, reply) = ask(other);
        assert_eq!((status, reply.problem().as_str()), (422, "idempotency-key-reused"), "{other}");
    }
}

#[test]
fn claims_with_items_survive_a_restart() {
    let mut server = Server::start();
    let (path, set) =
        granted(&server, json!({"resources": [{"resource": "a", "take": 2, "of": 3}, "b"], "session": "w"}));
    let (waiting, _) = queued(&server, json!({"resource": "a", "take": 2, "of": 3}));
    server.restart();
    let after = server.detail(&path);
    assert_eq!((&after["items"], &after["session"]), (&set["items"], &set["session"]));
    super::release(&server, &path);
    assert_eq!(server.detail(&waiting)["items"][0]["slots"], json!([1, 2]));
}

#[test]
fn limits_count_items() {
    let server = Server::start_with(&["--claims-per-owner-max", "3"]);
    let reply = post(&server, json!({"resources": ["a", "b", "c", "d"]}));
    assert_eq!((reply.status, reply.problem().as_str()), (429, "owner-full"));
    granted(&server, json!({"resources": ["a", "b", "c"]}));
    assert_eq!(post(&server, json!({"resource": "d"})).status, 429);
}
