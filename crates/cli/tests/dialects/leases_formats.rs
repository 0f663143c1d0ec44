//! What a lease and a list look like: client data, JSON, reports for people.

use crate::common::{Reply, Server, eventually};
use serde_json::{Value, json};

const LEASE: &str = "/v1/ops/leases/backup";

fn ask(server: &Server, method: &str, path: &str, client: &str, accept: &str, body: &[u8]) -> Reply {
    let headers = [("X-Quorum-Client-ID", client), ("Accept", accept)];
    server.client().request(method, path, &headers, body)
}

fn get(server: &Server, path: &str, accept: &str) -> Reply {
    ask(server, "GET", path, "viewer", accept, b"")
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn json_has_exactly_the_named_fields() {
    let server = Server::start();
    let mut named = vec![
        "key",
        "is_valid",
        "owner",
        "owner_name",
        "ttl",
        "acquired",
        "renewed",
        "expires",
        "renewals",
        "released",
        "version",
        "client_object",
        "history",
    ];
    named.sort_unstable();
    let never = get(&server, LEASE, "application/json");
    assert_eq!((never.status, never.header("content-type")), (404, Some("application/json")));
    assert_eq!(keys(&never.json()), named);
    assert_eq!((&never.json()["is_valid"], &never.json()["owner"]), (&json!(false), &Value::Null));

    let acquired = ask(&server, "POST", LEASE, "host1", "application/json", b"text");
    let (json, header) =
        (acquired.json(), |name: &str| json!(acquired.header(name).unwrap().parse::<u64>().unwrap()));
    assert_eq!((acquired.status, keys(&json)), (201, named.clone()));
    assert_eq!((&json["key"], &json["is_valid"]), (&json!("ops/leases/backup"), &json!(true)));
    assert_eq!((&json["owner"], &json["owner_name"]), (&json!("host1"), &json!("host1")));
    assert_eq!((&json["ttl"], &json["renewals"], &json["released"]), (&json!(300), &json!(0), &Value::Null));
    for (field, name) in [
        ("acquired", "x-quorum-lease-acquired"),
        ("renewed", "x-quorum-lease-renewed"),
        ("expires", "x-quorum-lease-expires"),
        ("version", "x-quorum-lease-version"),
    ] {
        assert_eq!(json[field], header(name), "{field}");
    }
    assert_eq!((&json["client_object"], &json["history"]), (&json!("text"), &json!([])));

    for (method, client, status) in [
        ("POST", "host1", 405),
        ("POST", "host2", 409),
        ("PUT", "host2", 403),
        ("PUT", "host1", 202),
        ("GET", "x", 200),
    ] {
        let reply = ask(&server, method, LEASE, client, "application/json", b"");
        assert_eq!((reply.status, keys(&reply.json())), (status, named.clone()), "{method} {client}");
        assert_eq!(reply.json()["owner"], "host1");
    }
    assert_eq!(ask(&server, "DELETE", LEASE, "host1", "application/json", b"").status, 204);
    let over = get(&server, LEASE, "application/json");
    assert_eq!(
        (over.status, &over.json()["is_valid"], &over.json()["owner"]),
        (404, &json!(false), &json!("host1"))
    );
    assert!(over.json()["released"].is_u64());
}

#[test]
fn binary_data_is_base64_in_json() {
    let server = Server::start();
    ask(&server, "POST", LEASE, "host1", "*/*", &[0xff, 0xfe, 0x00]);
    assert_eq!(get(&server, LEASE, "application/json").json()["client_object"], json!({ "base64": "//4A" }));
}

#[test]
fn history_is_the_last_ten_newest_first() {
    let server = Server::start();
    for number in 0..12 {
        let owner = format!("host{number}");
        assert_eq!(ask(&server, "POST", LEASE, &owner, "*/*", b"").status, 201);
        assert_eq!(ask(&server, "PUT", LEASE, &owner, "*/*", b"").status, 202);
        assert_eq!(ask(&server, "DELETE", LEASE, &owner, "*/*", b"").status, 204);
    }
    let json = get(&server, LEASE, "application/json").json();
    let history = json["history"].as_array().unwrap();
    let owners: Vec<&str> = history.iter().map(|past| past["owner"].as_str().unwrap()).collect();
    let expected: Vec<String> = (2..12).rev().map(|number| format!("host{number}")).collect();
    assert_eq!(owners, expected);
    for past in history {
        assert_eq!((&past["ended"], &past["renewals"]), (&json!("released"), &json!(1)));
        assert!(past["acquired"].is_u64() && past["renewed"].is_u64());
        assert!(past["released"].is_u64() && past["expires"].is_u64());
    }
}

#[test]
fn history_tells_how_it_ended() {
    let server = Server::start();
    let brief = [("X-Quorum-Client-ID", "slow"), ("X-Quorum-Lease-Length", "1")];
    assert_eq!(server.client().request("POST", LEASE, &brief, b"kept").status, 201);
    eventually("the lease expires", || server.get(LEASE).status == 404);
    let json = get(&server, LEASE, "application/json").json();
    assert_eq!(json["client_object"], "kept", "an expired lease keeps its data for who looks into it");
    assert_eq!(
        (&json["history"][0]["ended"], &json["history"][0]["released"]),
        (&json!("expired"), &Value::Null)
    );
    assert_eq!(json["expires"], json["history"][0]["expires"]);
    let claim = server.claim("ops/leases/backup", 300.0);
    assert_eq!(server.patch(&claim, r#"{"status": "revoked"}"#).status, 204);
    assert_eq!(get(&server, LEASE, "application/json").json()["history"][0]["ended"], "revoked");
}

#[test]
fn formats_follow_the_accept_header() {
    let server = Server::start();
    ask(&server, "POST", LEASE, "host1", "*/*", b"data");
    let cases = [
        ("*/*", "application/octet-stream"),
        ("image/png", "application/octet-stream"),
        ("application/json", "application/json"),
        ("text/plain", "text/plain; charset=utf-8"),
        ("text/html", "text/html; charset=utf-8"),
        ("text/plain, application/json", "application/json"),
        ("application/json, text/html", "text/html; charset=utf-8"),
        ("text/html;q=0, application/json;q=0.1, */*", "application/json"),
        ("application/json;q=0", "application/octet-stream"),
    ];
    for (accept, content_type) in cases {
        let reply = get(&server, LEASE, accept);
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(content_type)), "{accept}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        let head = ask(&server, "HEAD", LEASE, "viewer", accept, b"");
        assert_eq!(head.header("content-type"), Some(content_type), "HEAD {accept}");
        assert_eq!(head.header("x-quorum-client-id"), Some("host1"));
    }
}

#[test]
fn the_text_report_says_who_since_when_how_long_and_what_came_before() {
    let server = Server::start();
    assert!(get(&server, LEASE, "text/plain").text().contains("nobody is known to have held it"));
    ask(&server, "POST", LEASE, "host1", "*/*", b"");
    ask(&server, "DELETE", LEASE, "host1", "*/*", b"");
    ask(&server, "POST", LEASE, "host2", "*/*", b"why: nightly");
    ask(&server, "PUT", LEASE, "host2", "*/*", b"");
    let report = ask(&server, "GET", LEASE, "host2", "text/plain", b"").text();
    let held =
        ["ops/leases/backup is held by host2", "(that is you)", "UTC (", "renewed     once", "5 minutes"];
    for part in held.iter().chain(&[
        "expires",
        " UTC (in ",
        "why: nightly",
        "Who held it before",
        "host1",
        "released",
    ]) {
        assert!(report.contains(part), "{part}: {report}");
    }
    ask(&server, "DELETE", LEASE, "host2", "*/*", b"");
    let report = get(&server, LEASE, "text/plain").text();
    assert!(report.contains("is free; host2 held it last"), "{report}");
}

#[test]
fn the_page_refreshes_itself_runs_no_script_and_escapes_everything() {
    let server = Server::start();
    let evil = "<script>alert('x')</script>\"&";
    let path = "/v1/%3Cb%3E%22/leases/%3Ci%3E'%26";
    assert_eq!(ask(&server, "POST", path, evil, "*/*", b"").status, 201);
    ask(&server, "DELETE", path, evil, "*/*", b"");
    ask(&server, "POST", path, evil, "*/*", evil.as_bytes());
    for path in [path, "/v1/%3Cb%3E%22/leases/list"] {
        let reply = get(&server, path, "text/html,application/xhtml+xml,*/*;q=0.8");
        let page = reply.text();
        assert_eq!(reply.status, 200);
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
        assert!(page.contains("<meta http-equiv=\"refresh\" content=\"5\">"));
        assert!(reply.header("content-security-policy").unwrap().contains("default-src 'none'"));
        for raw in ["<script", "<b>", "<i>", "alert('x')"] {
            assert!(!page.contains(raw), "{raw} in {page}");
        }
        assert!(page.contains("&lt;script&gt;"), "{page}");
        assert!(page.contains("href=\"/v1/%3Cb%3E%22/leases/"), "{page}");
    }
}

#[test]
fn refusals_are_reports_too() {
    let server = Server::start();
    ask(&server, "POST", LEASE, "host1", "*/*", b"");
    let page = ask(&server, "POST", LEASE, "host2", "text/html", b"");
    assert_eq!(page.status, 409);
    assert!(page.text().contains("not acquired: host1 holds this lease"));
    let text = ask(&server, "PUT", LEASE, "host2", "text/plain", b"");
    assert_eq!(text.status, 403);
    assert!(text.text().contains("host1 holds this lease, you are host2"), "{}", text.text());
}

// ---- lists

#[test]
fn a_list_has_the_namespaces_leases_in_order_and_names_those_below() {
    let server = Server::start();
    let empty = get(&server, "/v1/ops/leases/list", "application/json");
    let nothing = json!({ "namespace": "ops", "leases": [], "namespaces": [], "complete": true });
    assert_eq!((empty.status, empty.json()), (200, nothing));
    let paths = [
        "/v1/ops/leases/c",
        "/v1/ops/lease/a",
        "/v1/ops/leases/b%2Fb",
        "/v1/ops/db/leases/x",
        "/v1/ops/db/eu/leases/x",
        "/v1/ops/web/eu/leases/x",
        "/v1/ops/leases/a/leases/x",
        "/v1/ops2/leases/x",
        "/v1/op/leases/x",
    ];
    for path in paths {
        assert_eq!(ask(&server, "POST", path, "host1", "*/*", b"").status, 201, "{path}");
    }
    ask(&server, "DELETE", "/v1/ops/leases/c", "host1", "*/*", b"");
    // Claims whose names look alike but are no leases.
    for resource in
        ["ops/leases", "ops/db", "ops/leases/list", "ops/leases/100%", "ops/plain/x", "ops/leases/"]
    {
        server.claim(resource, 300.0);
    }
    for word in ["lease", "leases"] {
        let json = get(&server, &format!("/v1/ops/{word}/list"), "*/*").json();
        let names: Vec<&str> =
            json["leases"].as_array().unwrap().iter().map(|l| l["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "a/leases/x", "b%2Fb", "c"]);
        assert_eq!(json["namespaces"], json!(["ops/db", "ops/web"]));
        assert_eq!(json["leases"][0]["key"], "ops/leases/a");
        assert_eq!(
            (&json["leases"][0]["is_valid"], &json["leases"][3]["is_valid"]),
            (&json!(true), &json!(false))
        );
    }
    let below = get(&server, "/v1/ops/db/leases/list", "*/*").json();
    assert_eq!((&below["leases"][0]["name"], &below["namespaces"]), (&json!("x"), &json!(["ops/db/eu"])));
    // `list` behind anything but the word is a name like any other.
    assert_eq!(get(&server, "/v1/ops/leases/leases/list", "*/*").status, 404);
}

#[test]
fn a_long_list_is_whole() {
    let server = Server::start();
    let mut client = server.client();
    for number in 0..1500 {
        let (own, below) =
            (format!("/v1/many/leases/{number:04}"), format!("/v1/many/ns{}/leases/{number}", number % 7));
        assert_eq!(client.request("POST", &own, &[], b"").status, 201);
        assert_eq!(client.request("POST", &below, &[], b"").status, 201);
    }
    let json = get(&server, "/v1/many/leases/list", "application/json").json();
    let names: Vec<String> = (0..1500).map(|number| format!("{number:04}")).collect();
    let listed: Vec<&str> =
        json["leases"].as_array().unwrap().iter().map(|l| l["name"].as_str().unwrap()).collect();
    assert_eq!(listed, names);
    assert_eq!(json["namespaces"].as_array().unwrap().len(), 7);
    assert_eq!(json["complete"], true);
}

#[test]
fn lists_show_no_lease_whose_time_is_up() {
    let server = Server::start();
    let brief = [("X-Quorum-Lease-Length", "1")];
    assert_eq!(server.client().request("POST", LEASE, &brief, b"").status, 201);
    eventually("the list shows the lease as free", || {
        let json = get(&server, "/v1/ops/leases/list", "application/json").json();
        json["leases"][0]["is_valid"] == false
    });
    assert_eq!(server.get(LEASE).status, 404);
}

#[test]
fn lists_come_as_text_and_page_and_without_a_body() {
    let server = Server::start();
    for (path, owner) in
        [("/v1/ops/leases/a", "host1"), ("/v1/ops/leases/b", "host2"), ("/v1/ops/db/leases/c", "x")]
    {
        ask(&server, "POST", path, owner, "*/*", b"");
    }
    ask(&server, "DELETE", "/v1/ops/leases/b", "host2", "*/*", b"");
    let text = get(&server, "/v1/ops/leases/list", "text/plain");
    assert_eq!(text.header("content-type"), Some("text/plain; charset=utf-8"));
    for part in ["ops: 2 leases, 1 of them held", "host1", "last host2", "released", "ops/db"] {
        assert!(text.text().contains(part), "{part}: {}", text.text());
    }
    let page = get(&server, "/v1/ops/leases/list", "text/html").text();
    assert!(page.contains("<a href=\"/v1/ops/leases/a\">a</a>"), "{page}");
    assert!(page.contains("<a href=\"/v1/ops/db/leases/list\">ops/db</a>"), "{page}");
    let head = ask(&server, "HEAD", "/v1/ops/leases/list", "viewer", "text/html", b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
}
