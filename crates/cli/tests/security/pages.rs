//! What web pages of others can do with a service on this machine: nothing.

use crate::common::{Reply, Server};

const CLAIM: &str = r#"{"resource": "r", "ttl": 60}"#;
const UNLOCK: &str = r#"{"ids": ["t"], "hostname": "e", "owner": 1, "force": true}"#;

/// The usual service: the flag takes back what tests allow otherwise.
fn usual() -> Server {
    Server::start_with(&["--allowed-hosts", "locks.example"])
}

fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    server.client().request(method, path, headers, body.as_bytes())
}

#[test]
fn a_page_that_calls_itself_by_our_address_is_told_nothing() {
    let server = usual();
    let port = server.addr.port();
    for host in
        [format!("evil.example:{port}"), "evil.example".into(), format!("127.0.0.1.evil.example:{port}")]
    {
        let headers = [("Host", host.as_str())];
        for path in ["/v1/claims/", "/", "/v1/events", "/resources"] {
            let reply = ask(&server, "GET", path, &headers, "");
            assert_eq!((reply.status, reply.problem().as_str()), (421, "unknown-host"), "{host} {path}");
            assert!(reply.text().contains("--allowed-hosts"), "{}", reply.text());
        }
        let same_origin = format!("http://{host}");
        let headers = [("Host", host.as_str()), ("Origin", &same_origin), ("Sec-Fetch-Site", "same-origin")];
        assert_eq!(ask(&server, "POST", "/v1/claims/", &headers, CLAIM).status, 421);
        assert_eq!(ask(&server, "POST", "/v1/dss/media/unlock", &headers, UNLOCK).status, 421);
    }
    let local = [format!("localhost:{port}"), format!("127.0.0.1:{port}"), "locks.example".into()];
    for (i, host) in local.iter().enumerate() {
        let body = format!(r#"{{"resource": "r{i}", "ttl": 60}}"#);
        assert_eq!(ask(&server, "POST", "/v1/claims/", &[("Host", host)], &body).status, 201, "{host}");
    }
    // A client as old as that names no host.
    let mut old = server.client();
    old.send_raw(b"GET /v1/claims/ HTTP/1.0\r\n\r\n");
    let listed = old.reply();
    assert_eq!((listed.status, listed.json().as_array().map(Vec::len)), (200, Some(local.len())));
}

#[test]
fn a_form_or_script_of_another_page_changes_nothing() {
    let server = usual();
    let host = server.addr.to_string();
    let own = format!("http://{host}");
    let foreign: [&[(&str, &str)]; 6] = [
        &[
            ("Origin", "http://evil.example"),
            ("Sec-Fetch-Site", "cross-site"),
            ("Content-Type", "text/plain"),
        ],
        &[("Origin", "http://evil.example"), ("Content-Type", "application/x-www-form-urlencoded")],
        &[("Origin", "null")],
        &[("Sec-Fetch-Site", "cross-site")],
        &[("Origin", "http://127.0.0.1:1"), ("Sec-Fetch-Site", "same-site")],
        &[("Origin", &own), ("Origin", "http://evil.example")],
    ];
    for headers in foreign {
        let headers = [&[("Host", host.as_str())], headers].concat();
        for (method, path, body) in [
            ("POST", "/v1/claims/", CLAIM),
            ("POST", "/v1/dss/media/unlock", UNLOCK),
            ("POST", "/locks/r", r#"{"title": "t", "lifetime": 60}"#),
            ("DELETE", "/resources", ""),
            ("PUT", "/v1/ns/leases/r", ""),
        ] {
            let reply = ask(&server, method, path, &headers, body);
            assert_eq!(
                (reply.status, reply.problem().as_str()),
                (403, "foreign-origin"),
                "{headers:?} {path}"
            );
        }
        // To look is no change: a browser shows the page nothing of it.
        assert_eq!(ask(&server, "GET", "/v1/claims/", &headers, "").text(), "[]\n");
    }
    let dashboard = [("Host", host.as_str()), ("Origin", &own), ("Sec-Fetch-Site", "same-origin")];
    assert_eq!(ask(&server, "POST", "/v1/claims/", &dashboard, CLAIM).status, 201);
}

#[test]
fn the_operator_can_let_another_page_in() {
    let server = Server::start_with(&["--allowed-origins", "https://tools.example"]);
    let from = |origin| ask(&server, "POST", "/v1/claims/", &[("Origin", origin)], CLAIM).status;
    assert_eq!((from("https://tools.example"), from("https://evil.example")), (201, 403));
    let dir = crate::common::TempDir::new();
    let refused = Server::try_start_in(dir.path(), &["--allowed-origins", "tools.example"]).err().unwrap();
    assert!(refused.contains("allowed-origins"), "{refused}");
}
