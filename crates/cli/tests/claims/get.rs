//! `GET` and `HEAD` of one claim, and the pages about the service itself.

use crate::common::{Server, eventually, micros};

#[test]
fn durations_grow_while_they_last_and_are_final_afterwards() {
    let server = Server::start();
    let first = server.claim("r", 60.0);
    let second = server.claim("r", 60.0);
    let third = server.claim("r", 60.0);
    let seconds = |path: &str, field: &str| server.detail(path)[field].as_f64();
    eventually("active_duration grows", || seconds(&first, "active_duration") > Some(0.02));
    eventually("waiting_duration grows", || seconds(&third, "waiting_duration") > Some(0.02));
    assert_eq!(server.patch(&third, r#"{"status": "withdrawn"}"#).status, 204);
    assert_eq!(server.patch(&first, r#"{"status": "released"}"#).status, 204);
    let (held, gave_up) = (server.detail(&first), server.detail(&third));
    assert!(held["active_duration"].as_f64() > Some(0.02), "{held}");
    assert!(gave_up["waiting_duration"].as_f64() > Some(0.02), "{gave_up}");
    assert!(gave_up["active_duration"].is_null(), "it never held anything: {gave_up}");
    let waited = seconds(&second, "waiting_duration");
    assert!(waited > Some(0.02));
    // The second goes on holding; what is over stays as it was.
    eventually("time passes", || seconds(&second, "active_duration") > Some(0.05));
    assert_eq!(seconds(&second, "waiting_duration"), waited);
    assert_eq!((server.detail(&first), server.detail(&third)), (held, gave_up));
}

#[test]
fn the_ttl_is_what_is_left_and_falls_to_nothing() {
    let server = Server::start();
    let path = server.claim("r", 2.0);
    let waiting = server.claim("r", 60.0);
    let mut last = 2.0;
    loop {
        let claim = server.detail(&path);
        assert_eq!(claim["initial_ttl"], 2.0, "the length stays: {claim}");
        if claim["status"] != "active" {
            assert_eq!((&claim["status"], &claim["ttl"]), (&"expired".into(), &serde_json::Value::Null));
            break;
        }
        let (left, held) = (claim["ttl"].as_f64().unwrap(), claim["active_duration"].as_f64().unwrap());
        assert!((0.0..=last).contains(&left), "{claim}");
        assert!(
            (left + held - 2.0).abs() < 1e-5,
            "what is left and what was held make up the length: {claim}"
        );
        last = left;
    }
    assert!(last < 2.0);
    assert_eq!(server.detail(&waiting)["initial_ttl"], 60.0);
}

#[test]
fn a_client_that_accepts_only_json_gets_errors_of_that_type() {
    let server = Server::start();
    let unknown = "/v1/claims/0123456789abcdef0123456789abcdef/";
    let mut client = server.client();
    let mut kind = |accept: &str, method: &str, path: &str| {
        let reply = client.request(method, path, &[("Accept", accept)], b"");
        assert!(reply.status >= 400, "{reply:?}");
        assert!(reply.json()["detail"].as_str().is_some_and(|detail| detail.len() > 5), "{reply:?}");
        reply.header("content-type").unwrap().to_string()
    };
    for accept in ["application/json", "Application/JSON;q=0.9", "text/plain, application/json"] {
        for (method, path) in [("GET", unknown), ("DELETE", unknown), ("GET", "/v1/claims/x/y")] {
            assert_eq!(kind(accept, method, path), "application/json", "{accept} {method} {path}");
        }
    }
    for accept in
        ["*/*", "application/json, */*;q=0.1", "application/*", "application/problem+json", "text/html"]
    {
        assert_eq!(kind(accept, "GET", unknown), "application/problem+json", "{accept}");
    }
    assert_eq!(
        kind("application/json", "DELETE", "/v1/events"),
        "application/problem+json",
        "only of claims"
    );
}

#[test]
fn the_history_agrees_with_the_durations() {
    let server = Server::start();
    let first = server.claim("r", 60.0);
    let second = server.claim("r", 60.0);
    eventually("it waits a while", || server.detail(&second)["waiting_duration"].as_f64() > Some(0.2));
    server.patch(&first, r#"{"status": "released"}"#);
    let claim = server.detail(&second);
    let at = |i: usize| micros(&claim["status_history"][i]["timestamp"]);
    assert_eq!(at(0), micros(&claim["created"]));
    assert!(at(1) - at(0) > 150_000, "{claim}");
}

#[test]
fn timestamps_are_rfc_3339_in_utc_with_microseconds() {
    let server = Server::start();
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64;
    let before = now();
    let claim = server.detail(&server.claim("r", 60.0));
    let created = micros(&claim["created"]);
    assert!(before <= created && created <= now(), "{claim}");
    let expires = micros(&claim["expires"]);
    assert!(before + 60_000_000 <= expires && expires <= now() + 60_000_000, "{claim}");
}

#[test]
fn the_token_is_in_body_and_header_of_a_claim_that_was_granted() {
    let server = Server::start();
    let first = server.claim("r", 60.0);
    let second = server.claim("r", 60.0);
    let granted = server.get(&first);
    let token = granted.json()["token"].as_u64().unwrap();
    assert_eq!(granted.header("leasehold-token"), Some(&*token.to_string()));
    let waiting = server.get(&second);
    assert!(waiting.json()["token"].is_null() && waiting.header("leasehold-token").is_none());
    server.patch(&first, r#"{"status": "released"}"#);
    let promoted = server.patch(&second, r#"{"status": "active"}"#);
    let next = promoted.json()["token"].as_u64().unwrap();
    assert!(next > token);
    assert_eq!(promoted.header("leasehold-token"), Some(&*next.to_string()));
    assert_eq!(server.detail(&first)["token"], token, "it stays readable");
    let elsewhere = server.detail(&server.claim("another", 60.0));
    assert!(elsewhere["token"].as_u64().unwrap() > next, "tokens grow over all resources");
}

#[test]
fn the_owner_is_where_the_request_came_from() {
    let server = Server::start();
    assert_eq!(server.detail(&server.claim("r", 60.0))["owner"], "127.0.0.1");
}

#[test]
fn head_is_get_without_the_body() {
    let server = Server::start();
    let path = server.claim("r", 60.0);
    let mut client = server.client();
    for path in [&*path, "/v1/claims/", "/v1/health", "/version"] {
        let head = client.request("HEAD", path, &[], b"");
        let get = client.request("GET", path, &[], b"");
        assert_eq!((head.status, head.header("content-type")), (200, get.header("content-type")), "{path}");
        assert!(head.header("content-length").unwrap().parse::<usize>().unwrap() > 0);
    }
    assert_eq!(client.request("HEAD", "/v1/claims/0/", &[], b"").status, 404);
}

#[test]
fn a_query_on_one_claim_is_refused() {
    let server = Server::start();
    let path = server.claim("r", 60.0);
    assert_eq!(server.get(&format!("{path}?wait=1&x=2")).named(), ["wait", "x"]);
}

#[test]
fn health_pages_answer_while_the_node_can_write() {
    let server = Server::start();
    for path in ["/livez", "/readyz", "/healthz", "/v1/health"] {
        let reply = server.get(path);
        assert_eq!((reply.status, reply.text().as_str()), (200, "ok\n"), "{path}");
        assert_eq!(server.post(path, "").header("allow"), Some("GET, HEAD"), "{path}");
    }
    assert_eq!(server.get("/version").json()["version"], env!("CARGO_PKG_VERSION"));
}
