//! `GET /v1/claims/`: filters, one by one and together, and pages to the end.

use crate::common::{Server, eventually, micros};
use serde_json::{Value, json};

/// The resources that a query finds, in the order of the answer.
fn found(server: &Server, query: &str) -> Vec<String> {
    server.list(query).iter().map(|claim| claim["resource"].as_str().unwrap().to_string()).collect()
}

/// What a value is as text in a query, exactly.
fn exactly(value: &Value) -> String {
    value.to_string()
}

#[test]
fn an_empty_table_is_an_empty_list() {
    let server = Server::start();
    let reply = server.get("/v1/claims/");
    assert_eq!((reply.status, reply.json()), (200, json!([])));
    assert_eq!(server.get("/v1/claims").json(), json!([]), "the same without the slash");
}

#[test]
fn a_list_shows_every_claim_as_its_own_page_does_in_order_of_creation() {
    let server = Server::start();
    let paths: Vec<String> = ["c", "a", "b", "a", "a"].iter().map(|name| server.claim(name, 900.0)).collect();
    server.patch(&paths[1], r#"{"status": "released"}"#);
    let list = server.list("");
    assert_eq!(found(&server, ""), ["c", "a", "b", "a", "a"]);
    for (path, listed) in paths.iter().zip(&list) {
        let own = server.detail(path);
        assert_eq!(listed.as_object().unwrap().len(), own.as_object().unwrap().len());
        for field in [
            "url",
            "resource",
            "status",
            "status_history",
            "created",
            "initial_ttl",
            "token",
            "owner",
            "position",
        ] {
            assert_eq!(listed[field], own[field], "{field}");
        }
    }
}

#[test]
fn resource_and_status_filter_alone_and_together() {
    let server = Server::start();
    let first = server.claim("a/b c&d", 900.0);
    server.claim("a/b c&d", 900.0);
    server.claim("a", 900.0);
    assert_eq!(found(&server, "resource=a%2Fb+c%26d").len(), 2);
    assert_eq!(found(&server, "resource=a"), ["a"], "the whole name, not its beginning");
    assert_eq!(found(&server, "resource=nobody").len(), 0);
    assert_eq!(found(&server, "status=active"), ["a/b c&d", "a"]);
    assert_eq!(found(&server, "status=waiting"), ["a/b c&d"]);
    assert_eq!(found(&server, "status=waiting&resource=a").len(), 0, "filters combine with and");
    server.patch(&first, r#"{"status": "aborted"}"#);
    assert_eq!(server.list("status=aborted")[0]["url"], server.detail(&first)["url"]);
    for status in ["expired", "released", "revoked", "withdrawn"] {
        assert_eq!(found(&server, &format!("status={status}")).len(), 0, "{status}");
        let path = server.claim(status, if status == "expired" { 0.0 } else { 900.0 });
        server.patch(&path, &format!(r#"{{"status": "{status}"}}"#));
        assert_eq!(found(&server, &format!("status={status}")), [status]);
    }
}

#[test]
fn ttl_bounds_compare_what_is_left_and_only_active_claims_have_it() {
    let server = Server::start();
    server.claim("r300", 300.0);
    server.claim("r300", 300.0);
    server.claim("r400", 400.0);
    let gone = server.claim("gone", 350.0);
    server.patch(&gone, r#"{"status": "released"}"#);
    assert_eq!(found(&server, "minimum_ttl=200"), ["r300", "r400"]);
    assert_eq!(found(&server, "minimum_ttl=300.000001"), ["r400"]);
    assert_eq!(found(&server, "maximum_ttl=400"), ["r300", "r400"]);
    assert_eq!(found(&server, "maximum_ttl=300"), ["r300"]);
    assert_eq!(found(&server, "minimum_ttl=200&maximum_ttl=300"), ["r300"]);
    assert_eq!(found(&server, "minimum_ttl=400&maximum_ttl=300").len(), 0);
    assert_eq!(found(&server, "minimum_ttl=0&status=waiting").len(), 0, "a waiting claim has no ttl");
    // The longer one comes to be among those with little left.
    server.patch(&server.claim("brief", 500.0), r#"{"ttl": 90.5}"#);
    eventually("less is left", || found(&server, "maximum_ttl=90") == ["brief"]);
}

#[test]
fn bounds_may_be_negative() {
    let server = Server::start();
    server.claim("r", 300.0);
    server.claim("r", 300.0);
    for value in ["ttl", "active_duration"] {
        assert_eq!(server.list(&format!("minimum_{value}=-1")).len(), 1, "only the active claim has {value}");
        assert_eq!(server.list(&format!("maximum_{value}=-0.5")).len(), 0, "{value}");
    }
    for value in ["waiting_duration", "created"] {
        assert_eq!(server.list(&format!("minimum_{value}=-1e3")).len(), 2, "{value}");
        assert_eq!(server.list(&format!("maximum_{value}=-5")).len(), 0, "{value}");
    }
    assert_eq!(server.list("minimum_created=1969-12-31T23:59:59Z").len(), 2);
    assert_eq!(server.list("maximum_created=1969-12-31T23:59:59Z").len(), 0);
}

#[test]
fn created_bounds_are_inclusive_in_both_notations() {
    let server = Server::start();
    server.claim("early", 900.0);
    let early = server.list("")[0]["created"].clone();
    eventually("the clock moves on", || {
        let path = server.claim("late", 0.0);
        micros(&server.detail(&path)["created"]) > micros(&early) + 1000
    });
    let (text, us) = (early.as_str().unwrap(), micros(&early));
    let unix = |us: i64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    for at in [text.to_string(), unix(us), text.replace('Z', "%2B00:00")] {
        assert_eq!(found(&server, &format!("maximum_created={at}")), ["early"], "{at}");
        assert!(found(&server, &format!("minimum_created={at}")).len() > 1, "{at}");
    }
    assert_eq!(found(&server, &format!("maximum_created={}", unix(us - 1))).len(), 0);
    assert!(!found(&server, &format!("minimum_created={}", unix(us + 1))).contains(&"early".to_string()));
}

#[test]
fn active_duration_bounds_are_inclusive_and_skip_what_never_held() {
    let server = Server::start();
    let done = server.claim("done", 900.0);
    server.claim("done", 900.0);
    let waiting = server.claim("done", 900.0);
    server.patch(&waiting, r#"{"status": "withdrawn"}"#);
    server.patch(&done, r#"{"status": "released"}"#);
    let claim = server.detail(&done);
    let held = exactly(&claim["active_duration"]);
    let url = |claims: Vec<Value>| claims.iter().map(|claim| claim["url"].clone()).collect::<Vec<_>>();
    let both = format!("minimum_active_duration={held}&maximum_active_duration={held}");
    assert_eq!(url(server.list(&both)), [claim["url"].clone()]);
    assert_eq!(url(server.list("minimum_active_duration=0")).len(), 2, "the withdrawn one never held");
    let more = claim["active_duration"].as_f64().unwrap() + 0.000_001;
    let with_more = url(server.list(&format!("minimum_active_duration={more:.6}")));
    assert!(!with_more.contains(&claim["url"]));
}

#[test]
fn waiting_duration_bounds_are_inclusive() {
    let server = Server::start();
    server.claim("r", 900.0);
    let waiting = server.claim("r", 900.0);
    server.patch(&waiting, r#"{"status": "withdrawn"}"#);
    let claim = server.detail(&waiting);
    let waited = exactly(&claim["waiting_duration"]);
    let bounds = format!("minimum_waiting_duration={waited}&maximum_waiting_duration={waited}");
    assert_eq!(server.list(&bounds), std::slice::from_ref(&claim));
    let less = claim["waiting_duration"].as_f64().unwrap() - 0.000_001;
    assert_eq!(server.list(&format!("maximum_waiting_duration={less:.6}")).len(), 1, "the holder waited 0.0");
    assert_eq!(server.list("maximum_waiting_duration=0").len(), 1);
}

#[test]
fn bad_values_and_unknown_filters_are_named_all_at_once() {
    let server = Server::start();
    server.claim("r", 900.0);
    let cases: &[(&str, &[&str])] = &[
        ("colour=red", &["colour"]),
        ("Resource=r", &["Resource"]),
        ("status=done", &["status"]),
        ("status=", &["status"]),
        ("resource=", &["resource"]),
        ("minimum_ttl=x", &["minimum_ttl"]),
        ("minimum_ttl=-inf&maximum_ttl=nan", &["maximum_ttl", "minimum_ttl"]),
        ("minimum_created=yesterday&maximum_created=-1e13", &["maximum_created", "minimum_created"]),
        (
            "minimum_active_duration=&maximum_active_duration=1s",
            &["maximum_active_duration", "minimum_active_duration"],
        ),
        (
            "minimum_waiting_duration=inf&maximum_waiting_duration=%20",
            &["maximum_waiting_duration", "minimum_waiting_duration"],
        ),
        ("limit=0", &["limit"]),
        ("limit=1001", &["limit"]),
        ("limit=1.5&offset=-1", &["limit", "offset"]),
        ("limit=99999999999999999999999&offset=99999999999999999999999", &["limit", "offset"]),
        ("limit=1&limit=2", &["limit"]),
        ("status=active&status=waiting", &["status"]),
        ("status=nope&colour=red&limit=-1", &["colour", "limit", "status"]),
        ("wait=1", &["wait"]),
    ];
    for (query, named) in cases {
        assert_eq!(server.get(&format!("/v1/claims/?{query}")).named(), *named, "{query}");
    }
}

#[test]
fn links_lead_through_every_page_once_and_keep_the_filter() {
    let server = Server::start();
    let mut made = Vec::new();
    for i in 0..25 {
        made.push(server.claim("the one", 900.0));
        if i % 5 == 0 {
            server.claim("other", 900.0);
        }
    }
    let mut next = Some("/v1/claims/?resource=the+one&limit=7".to_string());
    let (mut seen, mut pages) = (Vec::new(), Vec::new());
    while let Some(path) = next {
        let reply = server.get(&path);
        assert_eq!(reply.status, 200, "{path}");
        let claims = reply.json().as_array().unwrap().clone();
        pages.push(claims.len());
        seen.extend(claims.iter().map(|claim| claim["url"].as_str().unwrap().to_string()));
        next = reply.header("link").map(|link| {
            let url = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\"")).unwrap();
            url.strip_prefix("http://leasehold.localhost").unwrap().to_string()
        });
    }
    assert_eq!(pages, [7, 7, 7, 4]);
    let made: Vec<String> = made.iter().map(|path| format!("http://leasehold.localhost{path}")).collect();
    assert_eq!(seen, made);
}

#[test]
fn a_page_has_a_hundred_claims_unless_asked_otherwise() {
    let server = Server::start();
    for i in 0..101 {
        server.claim(&format!("r{i}"), 900.0);
    }
    let first = server.get("/v1/claims/");
    assert_eq!(first.json().as_array().unwrap().len(), 100);
    assert!(first.header("link").is_some());
    let rest = server.get("/v1/claims/?offset=100");
    assert_eq!((rest.json()[0]["resource"].clone(), rest.header("link")), ("r100".into(), None));
    assert_eq!(server.get("/v1/claims/?offset=101").json(), json!([]));
    assert_eq!(server.get("/v1/claims/?offset=18446744073709551615").json(), json!([]));
    assert_eq!(server.list("limit=101").len(), 101);
    assert!(server.get("/v1/claims/?limit=101").header("link").is_none(), "there is no next page");
    assert_eq!(found(&server, "limit=2&offset=50"), ["r50", "r51"]);
}

#[test]
fn a_list_never_shows_a_claim_that_has_outlived_its_ttl() {
    let server = Server::start();
    for _ in 0..30 {
        server.claim("r", 0.002);
        server.claim("r", 0.002);
    }
    std::thread::sleep(std::time::Duration::from_millis(2));
    for claim in server.list("") {
        let (status, held) = (claim["status"].as_str().unwrap(), claim["active_duration"].as_f64());
        assert!(status != "active" || held < Some(0.002), "{claim}");
    }
}
