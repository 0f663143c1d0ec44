//! What Leasehold adds to the claims protocol: long-polls, idempotency keys, renewals of many, an orderly stop.

use crate::common::{Client, Server, claim_body, eventually};
use serde_json::{Value, json};

fn keyed(server: &Server, key: &str, body: &str) -> crate::common::Reply {
    server.client().request("POST", "/v1/claims/", &[("Idempotency-Key", key)], body.as_bytes())
}

#[test]
fn a_long_poll_is_answered_when_its_claim_is_active() {
    let server = Server::start();
    let first = server.claim("r", 900.0);
    let mut second = server.ask("POST", "/v1/claims/?wait=300", &[], &claim_body("r", 900.0));
    server.wait_for_queue("r", 1);
    server.patch(&first, r#"{"status": "released"}"#);
    let reply = second.reply();
    assert_eq!((reply.status, &reply.json()["status"]), (201, &"active".into()));
    assert!(reply.header("leasehold-token").is_some() && reply.header("location").is_some());
    assert!(reply.json()["waiting_duration"].as_f64() > Some(0.0));
}

#[test]
fn a_long_poll_on_a_free_resource_does_not_wait() {
    let server = Server::start();
    assert_eq!(server.post("/v1/claims/?wait=300", &claim_body("r", 900.0)).status, 201);
}

#[test]
fn a_long_poll_whose_time_is_up_goes_on_waiting_in_the_queue() {
    let server = Server::start();
    server.claim("r", 900.0);
    for wait in ["0.05", "0"] {
        let reply = server.post(&format!("/v1/claims/?wait={wait}"), &claim_body("r", 900.0));
        assert_eq!((reply.status, &reply.json()["status"]), (202, &"waiting".into()));
        let again =
            server.patch(&format!("{}?wait={wait}", reply.location_path()), r#"{"status": "active"}"#);
        assert_eq!((again.status, &again.json()["status"]), (409, &"waiting".into()));
    }
    assert_eq!(server.list("status=waiting").len(), 2);
}

#[test]
fn a_patch_waits_for_the_turn_of_its_claim() {
    let server = Server::start();
    let first = server.claim("r", 900.0);
    let (second, third) = (server.claim("r", 900.0), server.claim("r", 900.0));
    let mut waits = server.ask("PATCH", &format!("{second}?wait=300"), &[], r#"{"status": "active"}"#);
    let mut puts = server.ask("PUT", &format!("{third}?wait=300"), &[], r#"{"ttl": 77, "status": "active"}"#);
    server.patch(&first, r#"{"status": "released"}"#);
    let reply = waits.reply();
    assert_eq!((reply.status, &reply.json()["status"]), (200, &"active".into()));
    server.patch(&second, r#"{"status": "released"}"#);
    let reply = puts.reply();
    assert_eq!((reply.status, &reply.json()["ttl"]), (200, &77.0.into()));
    let active = server.patch(&format!("{third}?wait=300"), r#"{"status": "active"}"#);
    assert_eq!(active.status, 200, "an active claim has nothing to wait for");
}

#[test]
fn a_long_poll_hears_at_once_that_its_claim_was_revoked() {
    let server = Server::start();
    server.claim("r", 900.0);
    let second = server.claim("r", 900.0);
    let mut patch = server.ask("PATCH", &format!("{second}?wait=300"), &[], r#"{"status": "active"}"#);
    let mut post = server.ask("POST", "/v1/claims/?wait=300", &[], &claim_body("r", 900.0));
    server.wait_for_queue("r", 2);
    let third =
        server.list("status=waiting")[1]["url"].as_str().unwrap().replace("http://leasehold.localhost", "");
    for path in [&second, &third] {
        assert_eq!(server.patch(path, r#"{"status": "revoked"}"#).status, 204);
    }
    let reply = patch.reply();
    assert_eq!((reply.status, &reply.json()["status"]), (400, &"revoked".into()));
    let reply = post.reply();
    assert_eq!((reply.status, &reply.json()["status"]), (200, &"revoked".into()));
}

#[test]
fn a_bad_wait_is_named_and_makes_nothing() {
    let server = Server::start();
    for (query, named) in [
        ("wait=", "wait"),
        ("wait=soon", "wait"),
        ("wait=-1", "wait"),
        ("wait=nan", "wait"),
        ("wait=1&wait=2", "wait"),
        ("wait=%zz", "wait"),
        ("Wait=1", "Wait"),
        ("timeout=1", "timeout"),
    ] {
        let reply = server.post(&format!("/v1/claims/?{query}"), &claim_body("r", 900.0));
        assert_eq!(reply.named(), [named], "{query}");
    }
    assert_eq!(server.list("").len(), 0);
    let path = server.claim("r", 900.0);
    assert_eq!(server.patch(&format!("{path}?wait=x"), r#"{"status": "released"}"#).named(), ["wait"]);
    assert_eq!(server.status(&path), "active");
}

#[test]
fn a_thousand_long_polls_are_answered_first_come_first_served_with_growing_tokens() {
    const WAITERS: usize = 1000;
    let server = Server::start();
    let holder = server.claim("r", 900.0);
    let mut clients: Vec<Client> = (0..WAITERS)
        .map(|i| {
            let body = json!({ "resource": "r", "ttl": 900, "user_data": i }).to_string();
            server.ask("POST", "/v1/claims/?wait=300", &[], &body)
        })
        .collect();
    server.wait_for_queue("r", WAITERS);
    // They came over a thousand connections at once; the list knows in which order.
    let order: Vec<usize> = server
        .list("status=waiting&limit=1000")
        .iter()
        .map(|claim| claim["user_data"].as_u64().unwrap() as usize)
        .collect();
    let mut admin = server.client();
    let (mut held, mut last_token) = (holder, 0);
    for who in order {
        assert_eq!(admin.request("PATCH", &held, &[], br#"{"status": "released"}"#).status, 204);
        let reply = clients[who].reply();
        assert_eq!(reply.status, 201);
        let claim = reply.json();
        assert_eq!((&claim["status"], &claim["user_data"]), (&"active".into(), &json!(who)));
        let token = claim["token"].as_u64().unwrap();
        assert!(token > last_token, "{token} after {last_token}");
        (held, last_token) = (reply.location_path(), token);
    }
}

#[test]
fn a_long_poll_whose_client_goes_away_leaves_the_queue_unless_it_has_a_key() {
    let server = Server::start();
    let first = server.claim("r", 900.0);
    let goes = server.ask("POST", "/v1/claims/?wait=300", &[], &claim_body("r", 900.0));
    server.wait_for_queue("r", 1);
    let key = [("Idempotency-Key", "mine")];
    let stays = server.ask("POST", "/v1/claims/?wait=300", &key, &claim_body("r", 900.0));
    server.wait_for_queue("r", 2);
    drop((goes, stays));
    server.wait_for_queue("r", 1);
    assert_eq!(server.list("status=withdrawn").len(), 1);
    server.patch(&first, r#"{"status": "released"}"#);
    let found = keyed(&server, "mine", &claim_body("r", 900.0));
    assert_eq!((found.status, &found.json()["status"]), (201, &"active".into()));
}

#[test]
fn a_patch_that_waits_and_goes_away_leaves_its_claim_alone() {
    let server = Server::start();
    server.claim("r", 900.0);
    let second = server.claim("r", 900.0);
    drop(server.ask("PATCH", &format!("{second}?wait=300"), &[], r#"{"status": "active"}"#));
    let sentinel = server.ask("POST", "/v1/claims/?wait=300", &[], &claim_body("r", 900.0));
    server.wait_for_queue("r", 2);
    drop(sentinel);
    server.wait_for_queue("r", 1);
    assert_eq!(server.status(&second), "waiting");
}

#[test]
fn the_same_request_under_the_same_key_is_one_claim() {
    let server = Server::start();
    let body = r#"{"resource": "r", "ttl": 900, "user_data": {"a": 1}}"#;
    let first = keyed(&server, "k1", body);
    assert_eq!(first.status, 201);
    let again = keyed(&server, "k1", body);
    assert_eq!((again.status, again.header("location")), (201, first.header("location")));
    assert_eq!(again.json()["token"], first.json()["token"]);
    let waiting = keyed(&server, "k2", body);
    assert_eq!(waiting.status, 202);
    assert_eq!(keyed(&server, "k2", body).header("location"), waiting.header("location"));
    assert_eq!(server.list("").len(), 2);
    // Waiting again for it joins the first claim, it does not queue a second time.
    let retry = [("Idempotency-Key", "k2")];
    let mut waits = server.ask("POST", "/v1/claims/?wait=300", &retry, body);
    server.patch(&first.location_path(), r#"{"status": "released"}"#);
    let reply = waits.reply();
    assert_eq!((reply.status, reply.header("location")), (201, waiting.header("location")));
    let over = keyed(&server, "k1", body);
    assert_eq!((over.status, &over.json()["status"]), (200, &"released".into()));
    assert_eq!(server.list("").len(), 2);
}

#[test]
fn a_retried_long_poll_never_misses_its_turn() {
    let server = Server::start();
    let mut admin = server.client();
    for round in 0..150 {
        let first = server.claim("r", 900.0);
        let key = round.to_string();
        assert_eq!(keyed(&server, &key, &claim_body("r", 900.0)).status, 202);
        // The retry and the release meet somewhere inside the server.
        let headers = [("Idempotency-Key", &*key)];
        let mut retry = server.ask("POST", "/v1/claims/?wait=300", &headers, &claim_body("r", 900.0));
        assert_eq!(admin.request("PATCH", &first, &[], br#"{"status": "released"}"#).status, 204);
        let reply = retry.reply();
        assert_eq!(reply.status, 201, "round {round}: {reply:?}");
        let second = reply.location_path();
        assert_eq!(admin.request("PATCH", &second, &[], br#"{"status": "released"}"#).status, 204);
    }
}

#[test]
fn another_request_under_a_used_key_is_refused() {
    let server = Server::start();
    let first = keyed(&server, "k", &claim_body("r", 900.0));
    for body in [
        claim_body("s", 900.0),
        claim_body("r", 901.0),
        r#"{"resource": "r", "ttl": 900.0, "user_data": 1}"#.into(),
    ] {
        let reply = keyed(&server, "k", &body);
        assert_eq!((reply.status, reply.problem().as_str()), (422, "idempotency-key-reused"), "{body}");
        let detail = reply.json()["detail"].as_str().unwrap().to_string();
        assert!(detail.contains(first.header("location").unwrap()), "{detail}");
    }
    assert_eq!(server.list("").len(), 1);
}

#[test]
fn keys_of_different_owners_are_independent() {
    let server = Server::start_with(&["--trusted-proxies", "127.0.0.1"]);
    let post = |owner: &str| {
        let headers = [("Idempotency-Key", "k"), ("X-Forwarded-For", owner)];
        server.client().request("POST", "/v1/claims/", &headers, claim_body("r", 900.0).as_bytes())
    };
    let (alice, bob) = (post("10.0.0.1"), post("10.0.0.2"));
    assert_eq!((alice.status, bob.status), (201, 202));
    assert_ne!(alice.header("location"), bob.header("location"));
    assert_eq!(post("10.0.0.2").header("location"), bob.header("location"));
}

#[test]
fn a_key_that_can_not_be_is_named() {
    let server = Server::start();
    for key in ["", &"k".repeat(256)] {
        assert_eq!(
            keyed(&server, key, &claim_body("r", 900.0)).named(),
            ["Idempotency-Key"],
            "{}",
            key.len()
        );
    }
    assert_eq!(keyed(&server, &"k".repeat(255), &claim_body("r", 900.0)).status, 201);
}

#[test]
fn keys_survive_a_restart() {
    let mut server = Server::start();
    let first = keyed(&server, "k", &claim_body("r", 900.0));
    server.restart();
    let again = keyed(&server, "k", &claim_body("r", 900.0));
    assert_eq!((again.status, again.location_path()), (201, first.location_path()));
    assert_eq!(keyed(&server, "k", &claim_body("s", 900.0)).status, 422);
}

#[test]
fn many_claims_are_renewed_in_one_request_and_answered_one_by_one() {
    let server = Server::start();
    let id = |path: &str| path.trim_matches('/').rsplit('/').next().unwrap().to_string();
    let (a, b) = (server.claim("a", 50.0), server.claim("b", 50.0));
    let waiting = server.claim("a", 50.0);
    let over = server.claim("c", 50.0);
    server.patch(&over, r#"{"status": "aborted"}"#);
    let unknown = "0123456789abcdef0123456789abcdef";
    let ids = [&id(&a), &id(&waiting), "no id", &id(&over), unknown, &id(&b)];
    let reply = server.post("/v1/renewals", &json!({ "ids": ids, "ttl": 500 }).to_string());
    assert_eq!(reply.status, 200, "{reply:?}");
    let answers = reply.json()["claims"].as_array().unwrap().clone();
    let of = |field: &str| answers.iter().map(|answer| answer[field].clone()).collect::<Vec<Value>>();
    assert_eq!(of("id"), ids.map(Value::from));
    assert_eq!(of("renewed"), [true, false, false, false, false, true].map(Value::from));
    let statuses =
        [json!("active"), json!("waiting"), Value::Null, json!("aborted"), Value::Null, json!("active")];
    assert_eq!(of("status"), statuses);
    let token = |path: &str| server.detail(path)["token"].clone();
    assert_eq!(of("token"), [token(&a), Value::Null, Value::Null, token(&over), Value::Null, token(&b)]);
    let length = |path: &str| server.detail(path)["initial_ttl"].clone();
    assert_eq!((length(&a), length(&b)), (500.0.into(), 500.0.into()));
    let kept = server.post("/v1/renewals/", &json!({ "ids": [id(&a)] }).to_string());
    assert_eq!((kept.status, length(&a)), (200, 500.0.into()), "without a ttl it keeps its own");
}

#[test]
fn renewals_start_the_ttl_anew() {
    let server = Server::start();
    let path = server.claim("r", 100.0);
    let id = path.trim_matches('/').rsplit('/').next().unwrap().to_string();
    let before = crate::common::micros(&server.detail(&path)["expires"]);
    eventually("some of the ttl has run", || server.detail(&path)["active_duration"].as_f64() > Some(0.5));
    server.post("/v1/renewals", &json!({ "ids": [id] }).to_string());
    assert!(crate::common::micros(&server.detail(&path)["expires"]) > before + 400_000);
}

#[test]
fn bad_renewals_are_named_and_renew_nothing() {
    let server = Server::start();
    let path = server.claim("r", 50.0);
    let id = path.trim_matches('/').rsplit('/').next().unwrap().to_string();
    let cases: &[(&str, &[&str])] = &[
        ("{}", &["ids"]),
        (r#"{"ids": []}"#, &["ids"]),
        (r#"{"ids": "ID"}"#, &["ids"]),
        (r#"{"ids": [1, 2]}"#, &["ids"]),
        (r#"{"ids": ["ID"], "ttl": -1}"#, &["ttl"]),
        (r#"{"ids": ["ID"], "ttl": null}"#, &["ttl"]),
        (r#"{"ids": ["ID"], "ttl": "5", "why": 1}"#, &["ttl", "why"]),
        (r#"{"ids": ["ID"], "ids": ["ID"]}"#, &["ids"]),
        ("[]", &["body"]),
        ("", &["body"]),
    ];
    for (body, named) in cases {
        assert_eq!(server.post("/v1/renewals", &body.replace("ID", &id)).named(), *named, "{body}");
    }
    let many: Vec<&str> = vec!["x"; 20_001];
    assert_eq!(server.post("/v1/renewals", &json!({ "ids": many }).to_string()).named(), ["ids"]);
    assert_eq!(server.detail(&path)["initial_ttl"], 50.0);
    let reply = server.get("/v1/renewals");
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    assert_eq!(server.post("/v1/renewals?x=1", "{}").named(), ["x"]);
}

#[test]
fn a_stop_answers_long_polls_and_exits_in_order() {
    let mut server = Server::start();
    let holder = server.claim("r", 900.0);
    let second = server.claim("r", 900.0);
    let mut posts: Vec<Client> =
        (0..5).map(|_| server.ask("POST", "/v1/claims/?wait=300", &[], &claim_body("r", 900.0))).collect();
    let mut patch = server.ask("PATCH", &format!("{second}?wait=300"), &[], r#"{"status": "active"}"#);
    let idle = server.client();
    server.wait_for_queue("r", 6);
    assert_eq!(server.terminate().code(), Some(0));
    assert!(server.logged().contains("SIGTERM"), "{}", server.logged());
    assert!(!server.logged().contains("did not end in time"), "nobody was cut: {}", server.logged());
    for post in &mut posts {
        let reply = post.reply();
        assert_eq!((reply.status, &reply.json()["status"]), (202, &"waiting".into()));
    }
    assert_eq!(patch.reply().status, 409);
    drop(idle);
    // All of it was durable: the answers said so.
    server.restart();
    assert_eq!(server.status(&holder), "active");
    assert_eq!(server.list("status=waiting").len(), 6);
}

/// A connection counts when it is first read. The one that asks for the metrics is another.
fn has_read_headers(server: &Server) {
    eventually("the connection is read", || {
        server.get("/metrics").text().contains("\nleasehold_connections 2\n")
    });
}

#[test]
fn a_stop_answers_the_requests_that_are_under_way() {
    let mut server = Server::start();
    let body = claim_body("r", 900.0);
    let mut late = server.client();
    let head = format!("POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    late.send_raw(head.as_bytes());
    late.send_raw(&body.as_bytes()[..5]);
    has_read_headers(&server);
    server.signal("TERM");
    eventually("it accepts nobody any more", || std::net::TcpStream::connect(server.addr).is_err());
    late.send_raw(&body.as_bytes()[5..]);
    let reply = late.reply();
    assert_eq!(reply.status, 201, "{reply:?}");
    assert_eq!(server.terminated().code(), Some(0));
    server.restart();
    assert_eq!(server.status(&reply.location_path()), "active");
}

#[test]
fn a_stop_does_not_wait_for_those_who_never_finish_their_request() {
    let mut server = Server::start();
    let mut never = server.client();
    never.send_raw(b"POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
    has_read_headers(&server);
    assert_eq!(server.terminate().code(), Some(0));
    assert!(server.logged().contains("did not end in time"), "{}", server.logged());
}

#[test]
fn a_stop_by_interrupt_is_as_orderly() {
    let mut server = Server::start();
    let path = server.claim("r", 900.0);
    server.signal("INT");
    assert_eq!(server.terminated().code(), Some(0));
    server.restart();
    assert_eq!(server.status(&path), "active");
}
