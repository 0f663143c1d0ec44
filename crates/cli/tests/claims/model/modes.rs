//! Who fits together, who is next, and with which token.

use super::{granted, post, queued, release};
use crate::common::{Server, eventually};
use serde_json::{Value, json};

#[test]
fn readers_share_and_a_writer_waits_for_all_of_them() {
    let server = Server::start();
    let (first, one) = granted(&server, json!({"resource": "db", "mode": "shared"}));
    let (second, two) = granted(&server, json!({"resource": "db", "mode": "shared"}));
    assert_eq!(one["token"], two["token"], "one shared phase has one token");
    let (writer, waiting) = queued(&server, json!({"resource": "db", "mode": "exclusive"}));
    assert_eq!(waiting["position"], 1);
    let (late, _) = queued(&server, json!({"resource": "db", "mode": "shared"}));
    release(&server, &first);
    assert_eq!(server.status(&writer), "waiting", "one reader is left");
    release(&server, &second);
    let held = server.detail(&writer);
    assert_eq!(held["status"], "active");
    assert!(held["token"].as_u64() > one["token"].as_u64(), "{held}");
    assert_eq!(server.status(&late), "waiting", "nobody overtakes the writer");
    release(&server, &writer);
    let last = server.detail(&late);
    assert!(last["token"].as_u64() > held["token"].as_u64(), "a new phase: {last}");
}

#[test]
fn an_answer_names_each_item_and_what_does_not_apply_is_null() {
    let server = Server::start();
    let (path, claim) = granted(&server, json!({"resource": "db", "mode": "shared"}));
    let token = &claim["token"];
    let item = json!({"resource": "db", "mode": "shared", "take": null, "of": null, "slots": null, "token": token, "position": null});
    assert_eq!(claim["items"], json!([item]));
    assert_eq!((&claim["session"], &claim["resource"]), (&Value::Null, &"db".into()));
    assert_eq!(server.detail(&path)["items"], claim["items"]);
    let reply = server.get(&path);
    assert_eq!(reply.header("leasehold-token"), Some(token.to_string().as_str()));
    let plain = server.post("/v1/claims/", r#"{"resource": "plain", "ttl": 9}"#).json();
    assert!(plain.get("items").is_none() && plain.get("session").is_none(), "{plain}");
}

#[test]
fn slots_are_the_lowest_free_ones_and_small_takes_wait_behind_a_large_one() {
    let server = Server::start();
    let boards = |take: u16| json!({"resource": "boards", "take": take, "of": 5});
    let (first, one) = granted(&server, boards(2));
    let (second, two) = granted(&server, boards(1));
    assert_eq!((&one["items"][0]["slots"], &two["items"][0]["slots"]), (&json!([1, 2]), &json!([3])));
    assert_eq!(
        (&one["items"][0]["mode"], &one["items"][0]["take"], &one["items"][0]["of"]),
        (&"slots".into(), &2.into(), &5.into())
    );
    let (large, _) = queued(&server, boards(3));
    let (small, waiting) = queued(&server, boards(1));
    assert_eq!(waiting["position"], 2, "two slots are free, and it does not overtake");
    release(&server, &first);
    assert_eq!(server.detail(&large)["items"][0]["slots"], json!([1, 2, 4]));
    assert_eq!(server.detail(&small)["items"][0]["slots"], json!([5]));
    release(&server, &second);
    // Shared and slots don't fit together.
    queued(&server, json!({"resource": "boards", "mode": "shared"}));
}

#[test]
fn a_set_is_granted_and_ends_as_one_and_reserves_what_is_free_meanwhile() {
    let server = Server::start();
    let holder = server.claim("b", 600.0);
    let (set, waiting) =
        queued(&server, json!({"resources": ["a", "b", {"resource": "c", "mode": "shared"}]}));
    let positions: Vec<&Value> =
        waiting["items"].as_array().unwrap().iter().map(|item| &item["position"]).collect();
    assert_eq!(positions, [1, 1, 1]);
    assert!(waiting["token"].is_null() && waiting["items"][0]["token"].is_null());
    // The price: a is free, and reserved.
    let behind = server.claim("a", 600.0);
    assert_eq!(server.status(&behind), "waiting");
    // The explanation: who asks again is told what is in the way, item by item.
    let told = server.patch(&set, r#"{"status": "active"}"#);
    assert_eq!(told.status, 409);
    let told = told.json();
    assert_eq!(told["blocked"].as_array().unwrap().len(), 1, "{told}");
    assert_eq!(
        (&told["blocked"][0]["resource"], &told["blocked"][0]["by"]["status"]),
        (&"b".into(), &"active".into())
    );
    assert!(told["blocked"][0]["by"]["ttl"].as_f64().unwrap() > 0.0);
    let told = server.patch(&behind, r#"{"status": "active"}"#).json();
    assert_eq!(told["blocked"][0]["by"]["status"], "waiting", "a is reserved by the set: {told}");
    release(&server, &holder);
    let held = server.detail(&set);
    assert_eq!(held["status"], "active");
    let tokens: Vec<u64> =
        held["items"].as_array().unwrap().iter().map(|item| item["token"].as_u64().unwrap()).collect();
    assert_eq!(tokens.len(), 3, "{held}");
    let alike = tokens.iter().all(|token| *token == tokens[0]);
    assert_eq!(held["token"].is_null(), !alike, "{held}");
    assert_eq!(server.get(&set).header("leasehold-token").is_some(), alike);
    assert_eq!(held["resource"], "a");
    release(&server, &set);
    assert_eq!(server.status(&behind), "active");
}

#[test]
fn a_set_whose_tokens_differ_has_no_token_of_its_own() {
    let server = Server::start();
    // A shared phase is under way on b: the set joins it and has its token there.
    let (_, reader) = granted(&server, json!({"resource": "b", "mode": "shared"}));
    let (path, set) = granted(&server, json!({"resources": ["a", {"resource": "b", "mode": "shared"}]}));
    assert_eq!(set["items"][1]["token"], reader["token"]);
    assert_ne!(set["items"][0]["token"], reader["token"]);
    assert!(set["token"].is_null());
    assert_eq!(server.get(&path).header("leasehold-token"), None);
    let id = path.trim_end_matches('/').rsplit('/').next().unwrap();
    let renewed = server.post("/v1/renewals", &json!({"ids": [id], "ttl": 60}).to_string()).json();
    assert_eq!(
        (&renewed["claims"][0]["renewed"], &renewed["claims"][0]["token"]),
        (&true.into(), &Value::Null)
    );
}

#[test]
fn a_request_that_waits_is_told_when_the_last_item_is_free() {
    let server = Server::start();
    let (first, second) = (server.claim("a", 600.0), server.claim("b", 600.0));
    let mut waiting =
        server.ask("POST", "/v1/claims/?wait=60", &[], r#"{"resources": ["a", "b"], "ttl": 30}"#);
    server.wait_for_queue("b", 1);
    release(&server, &first);
    release(&server, &second);
    let reply = waiting.reply();
    assert_eq!(reply.status, 201, "{reply:?}");
    assert_eq!(reply.json()["status"], "active");
}

#[test]
fn a_set_whose_client_hangs_up_is_taken_back_and_one_that_nobody_asks_for_lapses() {
    let server = Server::start();
    let holder = server.claim("b", 600.0);
    let waiting = server.ask("POST", "/v1/claims/?wait=60", &[], r#"{"resources": ["a", "b"], "ttl": 600}"#);
    server.wait_for_queue("b", 1);
    drop(waiting);
    eventually("the set of a client that hung up", || server.list("resource=a&status=withdrawn").len() == 1);
    // Its ttl is how long a waiting set may be forgotten.
    let reply = server.post("/v1/claims/", r#"{"resources": ["a", "b"], "ttl": 0.2}"#);
    assert_eq!(reply.status, 202);
    let behind = server.claim("a", 600.0);
    eventually("a lapsed set", || server.status(&reply.location_path()) == "withdrawn");
    assert_eq!(server.status(&behind), "active", "what it reserved is free");
    // A plain waiter, and one with nothing but a session, wait on.
    let plain = server.post("/v1/claims/", r#"{"resource": "b", "ttl": 0.2}"#).location_path();
    let session =
        server.post("/v1/claims/", r#"{"resource": "b", "ttl": 0.2, "session": "s"}"#).location_path();
    let shared = post(&server, json!({"resource": "b", "mode": "shared", "ttl": 0.2})).location_path();
    eventually("a lapsed reader", || server.status(&shared) == "withdrawn");
    assert_eq!((server.status(&plain), server.status(&session)), ("waiting".into(), "waiting".into()));
    release(&server, &holder);
}

#[test]
fn ends_are_told_and_a_set_can_be_revoked_when_its_holder_is_gone() {
    let server = Server::start();
    let (path, _) = granted(&server, json!({"resources": ["a", "b"], "session": "w"}));
    let id = path.trim_end_matches('/').rsplit('/').next().unwrap().to_string();
    let reply = server.patch(&path, r#"{"status": "revoked", "when": "gone"}"#);
    assert_eq!((reply.status, &reply.json()["revoking"]), (202, &true.into()));
    assert_eq!(reply.json()["items"].as_array().unwrap().len(), 2);
    let told = server.post("/v1/endings?wait=30", &json!({"ids": [id]}).to_string()).json();
    assert_eq!(told["claims"][0]["revoking"], true);
    release(&server, &path);
    granted(&server, json!({"resources": ["b", "a"]}));
}
