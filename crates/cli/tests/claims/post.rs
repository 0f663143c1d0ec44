//! `POST /v1/claims/`: what a new claim is told, and what is refused, parameter by parameter.

use crate::common::{Server, claim_body, micros};
use serde_json::{Value, json};

#[test]
fn a_claim_on_a_free_resource_is_created_active() {
    let server = Server::start();
    let reply =
        server.post("/v1/claims/", r#"{"resource": "db/main", "ttl": 20, "user_data": {"b": [1, 2.50]}}"#);
    assert_eq!(reply.status, 201);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let claim = reply.json();
    assert_eq!(claim["status"], "active");
    assert_eq!(claim["resource"], "db/main");
    assert_eq!((&claim["ttl"], &claim["initial_ttl"]), (&20.0.into(), &20.0.into()));
    assert_eq!(claim["user_data"], json!({"b": [1, 2.5]}));
    assert_eq!(claim["waiting_duration"], 0.0);
    assert!(claim["active_duration"].is_f64());
    assert_eq!(micros(&claim["created"]), micros(&claim["status_history"][0]["timestamp"]));
    let stored = server.detail(&reply.location_path());
    let kept =
        ["resource", "status", "status_history", "created", "initial_ttl", "user_data", "token", "owner"];
    for field in kept {
        assert_eq!(stored[field], claim[field], "{field}");
    }
}

#[test]
fn a_claim_on_a_held_resource_is_accepted_waiting() {
    let server = Server::start();
    server.claim("r", 20.0);
    let reply = server.post("/v1/claims/", &claim_body("r", 30.0));
    assert_eq!(reply.status, 202);
    let claim = reply.json();
    assert_eq!(claim["status"], "waiting");
    assert_eq!((&claim["ttl"], &claim["active_duration"]), (&Value::Null, &Value::Null));
    assert!(claim["waiting_duration"].is_f64());
    assert_eq!(server.status(&reply.location_path()), "waiting");
}

#[test]
fn every_field_is_always_there_and_null_where_it_does_not_apply() {
    let server = Server::start();
    let fields = [
        "url",
        "resource",
        "status",
        "status_history",
        "created",
        "ttl",
        "initial_ttl",
        "active_duration",
        "waiting_duration",
        "user_data",
        "token",
        "owner",
        "position",
        "expires",
        "waiters",
        "revoking",
        "reason",
    ];
    let holder = server.claim("r", 20.0);
    let waiting = server.claim("r", 20.0);
    let withdrawn = server.claim("r", 20.0);
    assert_eq!(server.patch(&withdrawn, r#"{"status": "withdrawn"}"#).status, 204);
    let released = server.claim("other", 20.0);
    assert_eq!(server.patch(&released, r#"{"status": "released"}"#).status, 204);
    let null_in = |path: &str| {
        let claim = server.detail(path);
        let object = claim.as_object().unwrap();
        assert_eq!(object.len(), fields.len(), "{claim}");
        fields.into_iter().filter(|field| object[*field].is_null()).collect::<Vec<_>>()
    };
    assert_eq!(null_in(&holder), ["user_data", "position", "reason"]);
    let waits = ["ttl", "active_duration", "user_data", "token", "expires", "waiters", "reason"];
    assert_eq!(null_in(&waiting), waits);
    let gave_up =
        ["ttl", "active_duration", "user_data", "token", "position", "expires", "waiters", "reason"];
    assert_eq!(null_in(&withdrawn), gave_up);
    assert_eq!(null_in(&released), ["ttl", "user_data", "position", "expires", "waiters", "reason"]);
}

#[test]
fn seconds_are_floats_in_the_text_itself() {
    let server = Server::start();
    let text = server.post("/v1/claims/", r#"{"resource": "r", "ttl": 20}"#).text();
    assert!(text.contains(r#""ttl": 20.0,"#), "{text}");
    assert!(text.contains(r#""waiting_duration": 0.0,"#), "{text}");
    let text = server.post("/v1/claims/", r#"{"resource": "s", "ttl": 0.25}"#).text();
    assert!(text.contains(r#""ttl": 0.25,"#), "{text}");
    let text = server.post("/v1/claims/", r#"{"resource": "t", "ttl": 3000000000}"#).text();
    assert!(text.contains(r#""ttl": 3000000000.0,"#), "{text}");
}

#[test]
fn the_history_starts_with_waiting_also_when_the_claim_was_active_at_once() {
    let server = Server::start();
    let path = server.claim("r", 20.0);
    let words = |claim: &Value| -> Vec<String> {
        let history = claim["status_history"].as_array().unwrap();
        for step in history {
            assert_eq!(step.as_object().unwrap().len(), 2, "{step}");
        }
        assert!(history.iter().map(|step| micros(&step["timestamp"])).is_sorted(), "{history:?}");
        history.iter().map(|step| step["status"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(words(&server.detail(&path)), ["waiting", "active"]);
    let second = server.claim("r", 20.0);
    assert_eq!(words(&server.detail(&second)), ["waiting"]);
    server.patch(&path, r#"{"status": "released"}"#);
    assert_eq!(words(&server.detail(&path)), ["waiting", "active", "released"]);
    assert_eq!(words(&server.detail(&second)), ["waiting", "active"]);
    let third = server.claim("r", 20.0);
    server.patch(&third, r#"{"status": "aborted"}"#);
    assert_eq!(words(&server.detail(&third)), ["waiting", "aborted"]);
}

#[test]
fn location_and_url_are_absolute_from_the_host_header() {
    let server = Server::start();
    let mut client = server.client();
    let mut urls = |headers: &[(&str, &str)], resource: &str| {
        let reply = client.request("POST", "/v1/claims/", headers, claim_body(resource, 9.0).as_bytes());
        let url = reply.json()["url"].as_str().unwrap().to_string();
        assert_eq!(reply.header("location"), Some(&*url));
        let (base, id) = url.split_once("/v1/claims/").unwrap();
        assert_eq!(id.len(), 33, "{id}");
        assert!(id.ends_with('/') && id[..32].bytes().all(|digit| digit.is_ascii_hexdigit()));
        base.to_string()
    };
    assert_eq!(urls(&[("Host", "locks.example.com:8080")], "a"), "http://locks.example.com:8080");
    assert_eq!(urls(&[("Host", "[::1]:4080")], "b"), "http://[::1]:4080");
    let forwarded = [("Host", "inner"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "evil.example")];
    assert_eq!(urls(&forwarded, "c"), "http://inner", "a stranger's forwarding headers are not believed");
    let local = format!("http://{}", server.addr);
    assert_eq!(urls(&[("Host", "a\"b")], "d"), local, "what is no host name stays out of URLs");
}

#[test]
fn a_trusted_proxy_says_under_which_name_the_service_is_known_and_who_asks() {
    let server = Server::start_with(&["--trusted-proxies", "127.0.0.1"]);
    let mut client = server.client();
    let forwarded = [
        ("Host", "inner"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "locks.example.com"),
        ("X-Forwarded-For", "10.1.2.3, 10.9.8.7"),
    ];
    let reply = client.request("POST", "/v1/claims/", &forwarded, claim_body("r", 9.0).as_bytes());
    assert!(reply.header("location").unwrap().starts_with("https://locks.example.com/v1/claims/"));
    assert_eq!(reply.json()["owner"], "10.9.8.7");
    let listed = client.request("GET", "/v1/claims/", &forwarded, b"").json();
    assert_eq!(listed[0]["url"], reply.json()["url"]);
    let plain = client.request("GET", &reply.location_path(), &[("Host", "inner")], b"");
    assert!(plain.json()["url"].as_str().unwrap().starts_with("http://inner/v1/claims/"));
    let odd = [("Host", "inner"), ("X-Forwarded-Host", "not a host"), ("X-Forwarded-Proto", "gopher")];
    let odd = client.request("GET", &reply.location_path(), &odd, b"");
    assert!(odd.json()["url"].as_str().unwrap().starts_with("http://inner/v1/claims/"), "{odd:?}");
}

#[test]
fn ids_are_never_alike() {
    let server = Server::start();
    let mut paths: Vec<String> = (0..50).map(|_| server.claim("r", 9.0)).collect();
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), 50);
    // No two share a long beginning: they don't count up from anywhere.
    assert!(paths.windows(2).all(|pair| pair[0][..28] != pair[1][..28]), "{paths:?}");
}

#[test]
fn user_data_comes_back_as_it_was_sent_whatever_json_it_is() {
    let server = Server::start();
    for data in [
        "0",
        "\"text \\u00e9 \\n\"",
        "[]",
        "{\"a\":  {\"a\": null}}",
        "false",
        "1.0",
        "12345678901234567890123",
    ] {
        let reply =
            server.post("/v1/claims/", &format!(r#"{{"resource": "r", "ttl": 1, "user_data": {data}}}"#));
        assert!(reply.text().contains(&format!("\"user_data\": {data},")), "{data}: {}", reply.text());
    }
    for absent in [r#"{"resource": "n", "ttl": 1, "user_data": null}"#, r#"{"resource": "n", "ttl": 1}"#] {
        assert_eq!(server.post("/v1/claims/", absent).json()["user_data"], Value::Null);
    }
}

#[test]
fn any_text_is_a_resource_name() {
    let server = Server::start();
    for name in ["a", " ", "büro/1", "日本", "a\"b\\c", "tab\t", "\u{0}", "😀", &"x".repeat(2048)] {
        let reply = server.post("/v1/claims/", &claim_body(name, 9.0));
        assert_eq!(reply.status, 201, "{name:?}: {reply:?}");
        assert_eq!(reply.json()["resource"], name);
    }
}

#[test]
fn every_bad_parameter_is_named_at_once() {
    let server = Server::start();
    let cases: &[(&str, &[&str])] = &[
        ("{}", &["resource", "ttl"]),
        (r#"{"ttl": 1}"#, &["resource"]),
        (r#"{"resource": "r"}"#, &["ttl"]),
        (r#"{"resource": "", "ttl": 1}"#, &["resource"]),
        (r#"{"resource": "", "ttl": -1}"#, &["resource", "ttl"]),
        (r#"{"resource": 5, "ttl": "1"}"#, &["resource", "ttl"]),
        (r#"{"resource": null, "ttl": null}"#, &["resource", "ttl"]),
        (r#"{"resource": ["r"], "ttl": true}"#, &["resource", "ttl"]),
        (r#"{"resource": "r", "ttl": 1, "priority": 3}"#, &["priority"]),
        (r#"{"resource": "r", "ttl": 1, "status": "active"}"#, &["status"]),
        (r#"{"ttl": [], "x": 1, "y": 2}"#, &["resource", "ttl", "x", "y"]),
        (r#"{"resource": "r", "ttl": 1, "TTL": 2}"#, &["TTL"]),
    ];
    for (body, named) in cases {
        assert_eq!(server.post("/v1/claims/", body).named(), *named, "{body}");
    }
    assert_eq!(server.list(""), Vec::<Value>::new(), "nothing was made");
}

#[test]
fn a_ttl_of_zero_is_valid_and_over_at_once() {
    let server = Server::start();
    let reply = server.post("/v1/claims/", r#"{"resource": "r", "ttl": 0}"#);
    assert_eq!(reply.status, 201);
    assert!(reply.text().contains(r#""ttl": 0.0,"#), "{}", reply.text());
    assert_eq!(server.status(&reply.location_path()), "expired");
    assert_eq!(server.post("/v1/claims/", &claim_body("r", 9.0)).status, 201, "the resource is free again");
}

#[test]
fn the_path_works_with_and_without_its_slash_and_never_redirects() {
    let server = Server::start();
    assert_eq!(server.post("/v1/claims", &claim_body("a", 9.0)).status, 201);
    assert_eq!(server.post("/v1/claims/", &claim_body("b", 9.0)).status, 201);
    assert_eq!(server.list("").len(), 2);
    for path in [
        "/v1/claims//",
        "/v1/claim",
        "/v1/claimsx",
        "/v1/claimsx/",
        "/v1",
        "/claims/",
        "/v1/claims/a/b",
        "/x",
    ] {
        let reply = server.post(path, &claim_body("c", 9.0));
        assert_eq!((reply.status, reply.problem().as_str()), (404, "not-found"), "{path}");
    }
}

#[test]
fn other_methods_on_the_collection_are_refused_with_what_is_allowed() {
    let server = Server::start();
    for method in ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"] {
        let reply = server.client().request(method, "/v1/claims/", &[], b"");
        assert_eq!(reply.status, 405, "{method}");
        assert_eq!(reply.header("allow"), Some("GET, HEAD, POST"), "{method}");
        assert_eq!(reply.problem(), "method-not-allowed");
    }
}

#[test]
fn queue_and_owner_limits_are_told_and_leave_nothing_behind() {
    let server = Server::start_with(&["--queue-len-max", "1", "--claims-per-owner-max", "3"]);
    server.claim("r", 9.0);
    server.claim("r", 9.0);
    let full = server.post("/v1/claims/", &claim_body("r", 9.0));
    assert_eq!((full.status, full.problem().as_str()), (429, "queue-full"));
    assert!(full.header("retry-after").is_some());
    server.claim("s", 9.0);
    let full = server.post("/v1/claims/", &claim_body("t", 9.0));
    assert_eq!((full.status, full.problem().as_str()), (429, "owner-full"));
    assert_eq!(server.list("").len(), 3);
}
