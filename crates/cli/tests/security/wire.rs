//! Bytes that two readers of one request could read differently, and addresses that a stranger writes.

use crate::common::{Client, Server};

#[test]
fn chunk_sizes_with_bare_carriage_returns_or_form_feeds_are_refused() {
    let server = Server::start();
    let body = r#"{"resource": "smuggled", "ttl": 60}"#;
    for size in ["23\r", "23\x0c", "23;x\ry", "23\x0b"] {
        let mut client = server.client();
        let head = "POST /v1/claims/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send_raw(format!("{head}{size}\r\n{body}\r\n0\r\n\r\n").as_bytes());
        let reply = client.reply();
        assert_eq!((reply.status, reply.problem().as_str()), (400, "body-unreadable"), "{size:?}");
        assert!(is_closed(&mut client), "{size:?}");
    }
    assert!(server.list("").is_empty());
}

#[test]
fn an_old_client_that_says_close_is_believed_whatever_else_it_says() {
    let server = Server::start();
    for connection in ["keep-alive, close", "close, keep-alive"] {
        let mut client = server.client();
        client.send_raw(format!("GET /livez HTTP/1.0\r\nConnection: {connection}\r\n\r\n").as_bytes());
        assert_eq!(client.reply().status, 200);
        assert!(is_closed(&mut client), "{connection}");
    }
}

#[test]
fn the_client_of_a_proxy_can_not_choose_its_address() {
    let server = Server::start_with(&["--trusted-proxies", "127.0.0.1,10.9.9.9"]);
    let owner = |headers: &[(&str, &str)], resource: &str| {
        let body = format!(r#"{{"resource": "{resource}", "ttl": 60}}"#);
        let reply = server.client().request("POST", "/v1/claims/", headers, body.as_bytes());
        assert_eq!(reply.status, 201, "{reply:?}");
        reply.json()["owner"].as_str().unwrap().to_string()
    };
    let for_ = |value| ("X-Forwarded-For", value);
    // The first line is the client's own; the proxy added the second one.
    assert_eq!(owner(&[for_("6.6.6.6"), for_("203.0.113.9")], "a"), "203.0.113.9");
    assert_eq!(owner(&[for_("6.6.6.6, 203.0.113.9")], "b"), "203.0.113.9");
    assert_eq!(owner(&[for_("6.6.6.6"), for_("203.0.113.9, 10.9.9.9")], "c"), "203.0.113.9");
    assert_eq!(owner(&[], "d"), "127.0.0.1");
}

/// Whether the service answers nothing more on this connection.
fn is_closed(client: &mut Client) -> bool {
    client.try_request("GET", "/livez", &[], b"").is_err()
}
