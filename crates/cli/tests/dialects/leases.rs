//! Leases over a real socket: every method, header, status and format of the protocol.

use std::sync::Barrier;

use crate::common::{Client, Reply, Server, eventually};
use serde_json::Value;

const LEASE: &str = "/v1/ops/db/leases/master";

/// The headers that come with everything that is known about a lease; `expires-seconds` only while it is held.
const METADATA: [&str; 9] = [
    "x-quorum-client-id",
    "x-quorum-client-is-you",
    "x-quorum-lease-length",
    "x-quorum-lease-acquired",
    "x-quorum-lease-expires",
    "x-quorum-lease-renewed",
    "x-quorum-lease-renewals",
    "x-quorum-lease-version",
    "leasehold-token",
];

/// A request as `client`.
fn ask(server: &Server, method: &str, path: &str, client: &str, more: &[(&str, &str)], body: &[u8]) -> Reply {
    let headers = [&[("X-Quorum-Client-ID", client)], more].concat();
    server.client().request(method, path, &headers, body)
}

fn number(reply: &Reply, name: &str) -> u64 {
    let value = reply.header(name).unwrap_or_else(|| panic!("no {name}: {reply:?}"));
    value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value}"))
}

fn version(reply: &Reply) -> String {
    reply.header("x-quorum-lease-version").unwrap_or_else(|| panic!("no version: {reply:?}")).to_string()
}

#[track_caller]
fn has_metadata(reply: &Reply, owner: &str, is_you: &str, held: bool) {
    for name in METADATA {
        assert!(reply.header(name).is_some(), "{name} is missing: {reply:?}");
    }
    assert_eq!(reply.header("x-quorum-client-id"), Some(owner), "{reply:?}");
    assert_eq!(reply.header("x-quorum-client-is-you"), Some(is_you), "{reply:?}");
    assert_eq!(reply.header("x-quorum-lease-expires-seconds").is_some(), held, "{reply:?}");
}

#[track_caller]
fn has_no_metadata(reply: &Reply) {
    assert_eq!(reply.header("x-quorum-client-is-you"), Some("No"), "{reply:?}");
    for name in METADATA.iter().filter(|name| **name != "x-quorum-client-is-you") {
        assert_eq!(reply.header(name), None, "{name}: {reply:?}");
    }
}

fn acquire(server: &Server, path: &str, client: &str) -> Reply {
    let reply = ask(server, "POST", path, client, &[], b"");
    assert_eq!(reply.status, 201, "{reply:?}");
    reply
}

/// Waits until nobody holds the lease: its time is up, and no request has to end it.
fn wait_for_expiry(server: &Server, path: &str) {
    eventually("the lease expires", || server.get(path).status == 404);
}

// ---- the way of a lease

#[test]
fn a_lease_is_acquired_renewed_read_and_deleted() {
    let server = Server::start();
    let acquired = ask(&server, "POST", LEASE, "db1", &[("X-Quorum-Lease-Length", "600")], b"at db1");
    assert_eq!((acquired.status, acquired.text().as_str()), (201, "acquired\n"));
    has_metadata(&acquired, "db1", "Yes", true);
    assert_eq!(number(&acquired, "x-quorum-lease-length"), 600);
    assert_eq!(number(&acquired, "x-quorum-lease-renewals"), 0);
    let acquired_at = number(&acquired, "x-quorum-lease-acquired");
    assert_eq!(number(&acquired, "x-quorum-lease-renewed"), acquired_at);
    assert!((acquired_at + 600..=acquired_at + 601).contains(&number(&acquired, "x-quorum-lease-expires")));

    let renewed = ask(&server, "PUT", LEASE, "db1", &[], b"");
    assert_eq!((renewed.status, renewed.text().as_str()), (202, "renewed\n"));
    has_metadata(&renewed, "db1", "Yes", true);
    assert_eq!(number(&renewed, "x-quorum-lease-renewals"), 1);
    assert_eq!(number(&renewed, "x-quorum-lease-acquired"), acquired_at);
    assert_eq!(number(&renewed, "x-quorum-lease-length"), 600, "a renewal keeps the length");
    assert!(number(&renewed, "x-quorum-lease-version") > number(&acquired, "x-quorum-lease-version"));
    assert_eq!(renewed.header("leasehold-token"), acquired.header("leasehold-token"));

    let read = ask(&server, "GET", LEASE, "db1", &[], b"");
    assert_eq!((read.status, read.body.as_slice()), (200, &b"at db1"[..]));
    assert_eq!(read.header("content-type"), Some("application/octet-stream"));
    has_metadata(&read, "db1", "Yes", true);
    assert_eq!(version(&read), version(&renewed));

    let head = ask(&server, "HEAD", LEASE, "db2", &[], b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), Some("6"));
    has_metadata(&head, "db1", "No", true);

    let deleted = ask(&server, "DELETE", LEASE, "db1", &[], b"");
    assert_eq!((deleted.status, deleted.body.len()), (204, 0));
    has_metadata(&deleted, "db1", "Yes", false);
    assert!(number(&deleted, "x-quorum-lease-version") > number(&read, "x-quorum-lease-version"));
    let next = acquire(&server, LEASE, "db2");
    assert!(number(&next, "leasehold-token") > number(&acquired, "leasehold-token"));
}

#[test]
fn the_default_length_is_300_seconds_and_a_renewal_can_change_it() {
    let server = Server::start();
    assert_eq!(number(&acquire(&server, LEASE, "db1"), "x-quorum-lease-length"), 300);
    let renewed = ask(&server, "PUT", LEASE, "db1", &[("X-Quorum-Lease-Length", "7200")], b"");
    assert_eq!((renewed.status, number(&renewed, "x-quorum-lease-length")), (202, 7200));
    assert!(number(&renewed, "x-quorum-lease-expires") > number(&renewed, "x-quorum-lease-renewed") + 7000);
}

#[test]
fn a_lease_that_never_was_has_no_metadata() {
    let server = Server::start();
    for method in ["GET", "HEAD", "PUT", "DELETE"] {
        let reply = ask(&server, method, LEASE, "db1", &[], b"");
        assert_eq!(reply.status, 404, "{method}");
        has_no_metadata(&reply);
    }
}

#[test]
fn a_lease_that_is_over_keeps_its_metadata_also_through_a_restart() {
    let mut server = Server::start();
    acquire(&server, LEASE, "db1");
    let released = ask(&server, "DELETE", LEASE, "db1", &[], b"");
    let brief = "/v1/ops/leases/brief";
    assert_eq!(ask(&server, "POST", brief, "db2", &[("X-Quorum-Lease-Length", "1")], b"x").status, 201);
    wait_for_expiry(&server, brief);
    for round in 0..2 {
        for method in ["GET", "HEAD", "PUT", "DELETE"] {
            let reply = ask(&server, method, LEASE, "db1", &[], b"");
            assert_eq!(reply.status, 404, "{method} in round {round}");
            has_metadata(&reply, "db1", "Yes", false);
            assert_eq!(version(&reply), version(&released));
            let reply = ask(&server, method, brief, "db1", &[], b"");
            assert_eq!(reply.status, 404, "{method} in round {round}");
            has_metadata(&reply, "db2", "No", false);
            let renewed = number(&reply, "x-quorum-lease-renewed");
            assert!((renewed + 1..=renewed + 2).contains(&number(&reply, "x-quorum-lease-expires")));
        }
        server.restart();
    }
    assert_eq!(
        ask(&server, "GET", LEASE, "x", &[], b"").text(),
        "nobody holds this lease; the last holder was db1\n"
    );
}

#[test]
fn a_held_lease_survives_a_restart() {
    let mut server = Server::start();
    let acquired = ask(&server, "POST", LEASE, "db1", &[], b"data");
    server.restart();
    let read = ask(&server, "GET", LEASE, "db1", &[], b"");
    assert_eq!((read.status, read.text().as_str()), (200, "data"));
    assert_eq!(version(&read), version(&acquired));
    assert_eq!(read.header("leasehold-token"), acquired.header("leasehold-token"));
}

#[test]
fn expiry_needs_no_request() {
    let server = Server::start();
    assert_eq!(ask(&server, "POST", LEASE, "db1", &[("X-Quorum-Lease-Length", "1")], b"").status, 201);
    // A claim of the native API waits for the same name; nobody touches the lease itself again.
    let body = serde_json::json!({ "resource": "ops/db/leases/master", "ttl": 60.0 }).to_string();
    let claim = server.post("/v1/claims/?wait=50", &body);
    assert_eq!((claim.status, claim.json()["status"].as_str()), (201, Some("active")));
}

// ---- who may what

#[test]
fn the_owner_acquires_once_and_strangers_not_at_all() {
    let server = Server::start();
    acquire(&server, LEASE, "db1");
    let again = ask(&server, "POST", LEASE, "db1", &[], b"");
    assert_eq!(again.status, 405);
    assert_eq!(again.header("allow"), Some("GET, HEAD, PUT, DELETE"));
    has_metadata(&again, "db1", "Yes", true);
    let stranger = ask(&server, "POST", LEASE, "db2", &[], b"");
    assert_eq!((stranger.status, stranger.text().as_str()), (409, "not acquired: db1 holds this lease\n"));
    has_metadata(&stranger, "db1", "No", true);
}

#[test]
fn strangers_neither_renew_nor_delete() {
    let server = Server::start();
    let stale = version(&acquire(&server, LEASE, "db1"));
    ask(&server, "PUT", LEASE, "db1", &[], b"");
    for method in ["PUT", "DELETE"] {
        for headers in [&[][..], &[("X-Quorum-Lease-Version", stale.as_str())]] {
            let reply = ask(&server, method, LEASE, "db2", headers, b"");
            assert_eq!(reply.status, 403, "the owner is checked before the version");
            has_metadata(&reply, "db1", "No", true);
        }
    }
    assert_eq!(ask(&server, "GET", LEASE, "db1", &[], b"").status, 200);
}

#[test]
fn a_stale_version_is_refused_and_the_current_one_works() {
    let server = Server::start();
    let first = version(&acquire(&server, LEASE, "db1"));
    let renewed = ask(&server, "PUT", LEASE, "db1", &[("X-Quorum-Lease-Version", &first)], b"");
    assert_eq!(renewed.status, 202);
    for method in ["PUT", "DELETE"] {
        let stale = ask(&server, method, LEASE, "db1", &[("X-Quorum-Lease-Version", &first)], b"new");
        assert_eq!(stale.status, 409, "{method}");
        has_metadata(&stale, "db1", "Yes", true);
        assert_eq!(version(&stale), version(&renewed));
    }
    let current = version(&ask(&server, "GET", LEASE, "db1", &[], b""));
    let deleted = ask(&server, "DELETE", LEASE, "db1", &[("X-Quorum-Lease-Version", &current)], b"");
    assert_eq!(deleted.status, 204);
}

#[test]
fn of_two_renewals_with_the_same_version_one_wins() {
    let server = Server::start();
    let first = version(&acquire(&server, LEASE, "db1"));
    let (start, headers) = (Barrier::new(2), [("X-Quorum-Lease-Version", first.as_str())]);
    let mut statuses: Vec<u16> = std::thread::scope(|scope| {
        let renew = || {
            start.wait();
            ask(&server, "PUT", LEASE, "db1", &headers, b"").status
        };
        let places = [scope.spawn(renew), scope.spawn(renew)];
        places.map(|place| place.join().unwrap()).into()
    });
    statuses.sort_unstable();
    assert_eq!(statuses, [202, 409]);
    let current = version(&ask(&server, "HEAD", LEASE, "db1", &[], b""));
    assert_eq!(ask(&server, "PUT", LEASE, "db1", &[("X-Quorum-Lease-Version", &current)], b"").status, 202);
}

#[test]
fn of_a_hundred_clients_exactly_one_acquires() {
    let server = Server::start();
    let start = Barrier::new(100);
    let replies: Vec<Reply> = std::thread::scope(|scope| {
        let ask_as = |number: usize| {
            let (server, start) = (&server, &start);
            scope.spawn(move || {
                let mut client = server.client();
                start.wait();
                client.request("POST", LEASE, &[("X-Quorum-Client-ID", &format!("client-{number}"))], b"")
            })
        };
        let clients: Vec<_> = (0..100).map(ask_as).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let winners: Vec<&Reply> = replies.iter().filter(|reply| reply.status == 201).collect();
    assert_eq!(winners.len(), 1);
    let owner = winners[0].header("x-quorum-client-id").unwrap();
    for loser in replies.iter().filter(|reply| reply.status != 201) {
        assert_eq!(loser.status, 409);
        has_metadata(loser, owner, "No", true);
    }
}

// ---- the client's id

#[test]
fn without_an_id_the_client_is_its_address() {
    let server = Server::start();
    let acquired = server.post(LEASE, "");
    assert_eq!(acquired.status, 201);
    has_metadata(&acquired, "127.0.0.1", "Yes", true);
    assert_eq!(server.get(LEASE).header("x-quorum-client-is-you"), Some("Yes"));
    assert_eq!(
        ask(&server, "GET", LEASE, "127.0.0.1", &[], b"").header("x-quorum-client-is-you"),
        Some("Yes")
    );
    assert_eq!(ask(&server, "GET", LEASE, "db1", &[], b"").header("x-quorum-client-is-you"), Some("No"));
    assert_eq!(ask(&server, "PUT", LEASE, "db1", &[], b"").status, 403);
    assert_eq!(server.client().request("DELETE", LEASE, &[], b"").status, 204);
}

#[test]
fn a_forwarded_address_counts_only_behind_a_trusted_proxy() {
    let forwarded = [("X-Forwarded-For", "198.51.100.7, 203.0.113.9")];
    let server = Server::start();
    let reply = server.client().request("POST", LEASE, &forwarded, b"");
    has_metadata(&reply, "127.0.0.1", "Yes", true);

    let server = Server::start_with(&["--trusted-proxies", "127.0.0.1"]);
    let reply = server.client().request("POST", LEASE, &forwarded, b"");
    has_metadata(&reply, "203.0.113.9", "Yes", true);
    assert_eq!(server.client().request("PUT", LEASE, &forwarded, b"").status, 202);
    assert_eq!(server.client().request("PUT", LEASE, &[], b"").status, 403);
    let both = [forwarded[0], ("X-Quorum-Client-ID", "db1")];
    let reply = server.client().request("GET", LEASE, &both, b"");
    has_metadata(&reply, "203.0.113.9", "No", true);
}

#[test]
fn an_id_may_be_any_text_that_a_header_can_carry() {
    let server = Server::start();
    for (number, id) in ["Zoë @ büro", "a\tb", "\"><script>", &"x".repeat(1024)].iter().enumerate() {
        let path = format!("/v1/ids/leases/{number}");
        let mut client = server.client();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nX-Quorum-Client-ID: {id}\r\nContent-Length: 0\r\n\r\n"
        );
        client.send_raw(head.as_bytes());
        has_metadata(&client.read_reply("POST").unwrap(), id, "Yes", true);
    }
}

// ---- client data

#[test]
fn client_data_comes_back_byte_for_byte() {
    let server = Server::start();
    let every_byte: Vec<u8> = (0..=255).collect();
    assert_eq!(ask(&server, "POST", LEASE, "db1", &[], &every_byte).status, 201);
    assert_eq!(server.get(LEASE).body, every_byte);
    let largest = vec![0xfe; 4096];
    assert_eq!(ask(&server, "PUT", LEASE, "db1", &[], &largest).status, 202);
    assert_eq!(server.get(LEASE).body, largest);
    assert_eq!(ask(&server, "PUT", LEASE, "db1", &[], b"").status, 202);
    assert_eq!(server.get(LEASE).body, largest, "a renewal without a body keeps the data");
}

#[test]
fn a_delete_purges_the_data_but_not_the_history() {
    let server = Server::start();
    ask(&server, "POST", LEASE, "db1", &[], b"secret");
    ask(&server, "DELETE", LEASE, "db1", &[], b"");
    let read = server.get(LEASE);
    assert_eq!((read.status, read.text().contains("secret")), (404, false));
    let json = ask(&server, "GET", LEASE, "db1", &[("Accept", "application/json")], b"").json();
    assert_eq!((&json["client_object"], &json["history"][0]["owner"]), (&Value::Null, &Value::from("db1")));
    acquire(&server, LEASE, "db2");
    assert_eq!(server.get(LEASE).body, b"", "a new holder starts without data");
}

#[test]
fn data_beyond_4096_bytes_is_refused() {
    let server = Server::start();
    for body in [&vec![b'x'; 4097], &vec![b'x'; 1 << 20]] {
        for method in ["POST", "PUT"] {
            let mut client = server.client();
            let head =
                format!("{method} {LEASE} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
            client.send_raw(&[head.as_bytes(), &body[..4097]].concat());
            let reply = client.read_reply(method).unwrap();
            assert_eq!(reply.status, 413, "{reply:?}");
            has_no_metadata(&reply);
        }
    }
    // In pieces, without a length up front.
    let mut client = server.client();
    client.send_raw(
        format!("POST {LEASE} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").as_bytes(),
    );
    client.send_raw(&[b"1001\r\n", &[b'x'; 4097][..], b"\r\n0\r\n\r\n"].concat());
    assert_eq!(client.read_reply("POST").unwrap().status, 413);
    assert_eq!(server.get(LEASE).status, 404);
}

// ---- requests that are wrong

#[test]
fn bad_headers_are_400_and_named() {
    let server = Server::start();
    acquire(&server, LEASE, "db1");
    let cases = [
        ("POST", "X-Quorum-Lease-Length", "0"),
        ("POST", "X-Quorum-Lease-Length", "-5"),
        ("POST", "X-Quorum-Lease-Length", "1.5"),
        ("PUT", "X-Quorum-Lease-Length", "ten"),
        ("PUT", "X-Quorum-Lease-Version", "latest"),
        ("DELETE", "X-Quorum-Lease-Version", "-1"),
    ];
    for (method, name, value) in cases {
        let reply = ask(&server, method, LEASE, "db1", &[(name, value)], b"");
        assert_eq!(reply.status, 400, "{method} {name}: {value}");
        assert!(reply.json()["detail"].as_str().unwrap().contains(name), "{reply:?}");
        has_metadata(&reply, "db1", "Yes", true);
    }
    for id in ["", &"x".repeat(1025)] {
        let reply = ask(&server, "GET", LEASE, id, &[], b"");
        assert_eq!(reply.status, 400);
        assert!(reply.text().contains("X-Quorum-Client-ID"), "{reply:?}");
    }
    let twice = ask(&server, "PUT", LEASE, "db1", &[("X-Quorum-Client-ID", "db2")], b"");
    assert_eq!(twice.status, 400);
}

#[test]
fn a_query_string_is_400_on_every_method_but_stale_reads() {
    let server = Server::start();
    let list = "/v1/ops/leases/list";
    for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "X-MADE-UP"] {
        for query in ["?", "?x=1", "?stale=maybe", "?stale=true&x=1", "?stale=true"] {
            if query == "?stale=true" && ["GET", "HEAD"].contains(&method) {
                continue;
            }
            for path in [LEASE, list] {
                let reply = ask(&server, method, &format!("{path}{query}"), "db1", &[], b"");
                assert_eq!(reply.status, 400, "{method} {path}{query}");
                has_no_metadata(&reply);
            }
        }
    }
    acquire(&server, LEASE, "db1");
    for method in ["GET", "HEAD"] {
        assert_eq!(
            ask(&server, method, &format!("{LEASE}?stale=true"), "db1", &[], b"").status,
            200,
            "{method}"
        );
        assert_eq!(
            ask(&server, method, &format!("{list}?stale=true"), "db1", &[], b"").status,
            200,
            "{method}"
        );
    }
}

#[test]
fn a_uri_beyond_2048_bytes_is_414() {
    let server = Server::start();
    let prefix = "/v1/ops/leases/";
    let longest = format!("{prefix}{}", "n".repeat(2048 - prefix.len()));
    acquire(&server, &longest, "db1");
    assert_eq!(server.get(&longest).status, 200);
    for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"] {
        let reply = ask(&server, method, &format!("{longest}n"), "db1", &[], b"");
        assert_eq!(reply.status, 414, "{method}");
        has_no_metadata(&reply);
    }
    assert_eq!(server.get(&format!("{}?{}", LEASE, "q".repeat(2048))).status, 414);
    assert_eq!(server.get(&format!("{}?stale=true", &longest[..2040])).status, 414);
}

#[test]
fn a_uri_is_414_however_long_it_is() {
    let server = Server::start();
    for len in [2049, 8_001, 40_000, 65_400, 65_536, 70_000, 200_000, 2_000_000] {
        let path = format!("/v1/ops/leases/{}", "n".repeat(len));
        for method in ["GET", "POST"] {
            let reply = ask(&server, method, &path, "db1", &[], b"");
            assert_eq!((reply.status, reply.problem().as_str()), (414, "uri-too-long"), "{method} {len}");
        }
    }
}

#[test]
fn other_methods_are_501() {
    let server = Server::start();
    acquire(&server, LEASE, "db1");
    for method in ["PATCH", "OPTIONS", "TRACE", "PROPFIND", "LOCK", "X-MADE-UP"] {
        let reply = ask(&server, method, LEASE, "db1", &[], b"");
        assert_eq!(reply.status, 501, "{method}");
        has_metadata(&reply, "db1", "Yes", true);
        assert_eq!(ask(&server, method, "/v1/ops/leases/list", "db1", &[], b"").status, 501, "{method}");
    }
}

#[test]
fn credentials_are_not_looked_at() {
    let server = Server::start();
    for (number, secret) in ["user:password", "", "\u{fe}\u{ff}", "'; DROP TABLE"].iter().enumerate() {
        let mut client = server.client();
        let head = format!(
            "POST /v1/auth/leases/{number} HTTP/1.1\r\nHost: x\r\nX-Quorum-Your-Auth-Credentials: {secret}\r\n\
             Content-Length: 0\r\n\r\n"
        );
        client.send_raw(head.as_bytes());
        assert_eq!(client.read_reply("POST").unwrap().status, 201);
    }
    assert!(!server.logged().contains("password"));
}

// ---- limits

#[test]
fn too_many_leases_in_all_are_507() {
    let server = Server::start_with(&["--claims-max", "2"]);
    acquire(&server, "/v1/a/leases/1", "db1");
    acquire(&server, "/v1/b/leases/1", "db1");
    let full = ask(&server, "POST", "/v1/c/leases/1", "db1", &[], b"");
    assert_eq!(full.status, 507);
    assert!(full.header("retry-after").is_some());
    has_no_metadata(&full);
    assert_eq!(ask(&server, "DELETE", "/v1/a/leases/1", "db1", &[], b"").status, 204);
    acquire(&server, "/v1/c/leases/1", "db1");
    let full = ask(&server, "POST", "/v1/a/leases/1", "db2", &[], b"");
    assert_eq!(full.status, 507);
    has_metadata(&full, "db1", "No", false);
}

#[test]
fn too_many_leases_of_a_namespace_are_509() {
    let server = Server::start_with(&["--claims-per-namespace-max", "1"]);
    acquire(&server, "/v1/a/leases/1", "db1");
    let mut client = server.client();
    client.send("POST", "/v1/a/lease/2", &[("X-Quorum-Client-ID", "db1")], b"");
    let full = client.read_reply("POST").unwrap();
    assert_eq!((full.status, full.json()["status"].as_u64()), (509, Some(509)));
    has_no_metadata(&full);
    // A slash in a name does not make another namespace.
    assert_eq!(ask(&server, "POST", "/v1/a/leases/b%2F2", "db1", &[], b"").status, 509);
    assert_eq!(ask(&server, "POST", "/v1/a/leases/b/2", "db1", &[], b"").status, 509);
    assert_eq!(ask(&server, "POST", "/v1/a/leases/b/leases/2", "db1", &[], b"").status, 509);
    acquire(&server, "/v1/a/b/leases/2", "db1");
    assert_eq!(ask(&server, "PUT", "/v1/a/leases/1", "db1", &[], b"").status, 202);
}

// ---- names

#[test]
fn namespaces_have_any_depth_and_characters() {
    let server = Server::start();
    let deep = format!("/v1/{}leases/x", "d/".repeat(200));
    let paths = [
        deep.as_str(),
        "/v1/-._~!$&'()*+,;=:@/leases/-._~!$&'()*+,;=:@",
        "/v1/claims-team/leases/x",
        "/v1/caf%C3%A9/leases/na%C3%AFve%20name",
        "/v1/bytes/leases/%FF%00",
        "/v1/leases/leases/leases",
    ];
    for path in paths {
        acquire(&server, path, "db1");
        assert_eq!(server.get(path).status, 200, "{path}");
        assert_eq!(ask(&server, "POST", path, "db2", &[], b"").status, 409, "{path}");
    }
}

#[test]
fn names_are_decoded_exactly_once() {
    let server = Server::start();
    let different = ["a%2Fb", "a%252Fb", "a%25252Fb", "a%20b", "a+b", "A", "a"];
    for name in different {
        acquire(&server, &format!("/v1/enc/leases/{name}"), name);
    }
    let same = [("a%2fb", "a%2Fb"), ("%61", "a"), ("a%2Bb", "a+b"), ("%41", "A")];
    for (name, owner) in same {
        for word in ["lease", "leases", "%6Cease"] {
            let reply = server.get(&format!("/v1/enc/{word}/{name}"));
            assert_eq!(reply.header("x-quorum-client-id"), Some(owner), "{name}");
        }
    }
    // A slash that is encoded is part of its segment.
    assert_eq!(server.get("/v1/enc/leases/a/b").status, 404);
}

#[test]
fn a_name_may_contain_slashes() {
    let server = Server::start();
    acquire(&server, "/v1/my/namespace/leases/db/master", "db1");
    let same = ask(
        &server,
        "GET",
        "/v1/my/namespace/lease/db/master",
        "db1",
        &[("Accept", "application/json")],
        b"",
    );
    assert_eq!((same.status, &same.json()["key"]), (200, &Value::from("my/namespace/leases/db/master")));
    for other in [
        "/v1/my/namespace/db/leases/master",
        "/v1/my/namespace/leases/db%2Fmaster",
        "/v1/my/namespace/leases/db",
    ] {
        assert_eq!(server.get(other).status, 404, "{other}");
    }
    acquire(&server, "/v1/my/namespace/leases/db/leases/a", "db2");
    acquire(&server, "/v1/my/namespace/leases/db/lease/a", "db3");
    acquire(&server, "/v1/my/namespace/leases/list/x", "db4");
    acquire(&server, "/v1/my/namespace/leases/x/list", "db5");
    acquire(&server, "/v1/my/namespace/below/leases/z", "db6");
    let list = server.get("/v1/my/namespace/leases/list").json();
    let names: Vec<&str> =
        list["leases"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["db/lease/a", "db/leases/a", "db/master", "list/x", "x/list"]);
    assert_eq!(list["namespaces"], serde_json::json!(["my/namespace/below"]));
    let page =
        ask(&server, "GET", "/v1/my/namespace/leases/list", "x", &[("Accept", "text/html")], b"").text();
    assert!(page.contains("<a href=\"/v1/my/namespace/leases/db/leases/a\">db/leases/a</a>"), "{page}");
    let page =
        ask(&server, "GET", "/v1/my/namespace/leases/db/master", "x", &[("Accept", "text/html")], b"").text();
    assert!(
        page.contains("<a href=\"/v1/my/namespace/leases/list\">&larr; all leases of my/namespace</a>"),
        "{page}"
    );
    // One table: the other API sees the same resource.
    assert_eq!(server.list("resource=my/namespace/leases/db/master&status=active").len(), 1);
    assert_eq!(ask(&server, "DELETE", "/v1/my/namespace/leases/db/master", "db1", &[], b"").status, 204);
}

#[test]
fn every_namespace_can_be_used() {
    let server = Server::start();
    let others = [
        "claims",
        "dss",
        "dss/media",
        "events",
        "cluster",
        "cluster/nodes/1",
        "health",
        "renewals",
        "limits",
    ];
    for namespace in
        others.iter().copied().chain(["overview", "backup", "resources", "locks", "leases", "%63laims"])
    {
        let path = format!("/v1/{namespace}/leases/lock");
        let path = path.replace("%63laims/leases/lock", "%63laims/leases/encoded");
        acquire(&server, &path, "db1");
        assert_eq!(ask(&server, "PUT", &path, "db1", &[], b"").status, 202, "{path}");
        assert_eq!(ask(&server, "POST", &path, "db2", &[], b"").status, 409, "{path}");
        assert_eq!(server.get(&format!("/v1/{namespace}/lease/list")).status, 200, "{namespace}");
        assert_eq!(ask(&server, "DELETE", &path, "db1", &[], b"").status, 204, "{path}");
    }
    // The services of these names are where they were.
    assert_eq!(server.get("/v1/health").status, 200);
    assert_eq!(server.get("/v1/cluster").status, 200);
    assert_eq!(server.get("/v1/claims/").status, 200);
}

#[test]
fn path_tricks_are_explained() {
    let server = Server::start();
    let cases = [
        ("/v1/leases/a", "namespace"),
        ("/v1//leases/a", "empty segment"),
        ("/v1/ops//leases/a", "empty segment"),
        ("/v1/ops/leases/", "needs a name"),
        ("/v1/ops/leases/a/", "empty segment"),
        ("/v1/ops/leases/a//b", "empty segment"),
        ("/v1/ops/../leases/a", "'..'"),
        ("/v1/ops/%2e%2e/leases/a", "'..'"),
        ("/v1/ops/leases/%2e", "'.'"),
        ("/v1/ops/leases/%zz", "hex"),
    ];
    for (path, word) in cases {
        let reply = ask(&server, "POST", path, "db1", &[], b"");
        assert_eq!(reply.status, 400, "{path}");
        assert!(reply.text().contains(word), "{path}: {}", reply.text());
        has_no_metadata(&reply);
    }
    for path in ["/v1/ops", "/v1/", "/v2/ops/leases/a"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    assert_eq!(server.get("/v1/health").status, 200);
}

#[test]
fn no_lease_can_be_called_list() {
    let server = Server::start();
    for path in ["/v1/ops/leases/list", "/v1/ops/lease/list", "/v1/ops/leases/l%69st"] {
        for method in ["POST", "PUT", "DELETE"] {
            let reply = ask(&server, method, path, "db1", &[], b"");
            assert_eq!(reply.status, 400, "{method} {path}");
            assert!(reply.text().contains("no lease can be called 'list'"), "{reply:?}");
        }
        assert_eq!(server.get(path).status, 200, "{path}");
    }
}

// ---- one table

#[test]
fn leases_and_claims_are_one_table() {
    let server = Server::start();
    let claim = server.claim("ops/db/leases/master", 300.0);
    let refused = ask(&server, "POST", LEASE, "db1", &[], b"");
    assert_eq!(refused.status, 409);
    has_metadata(&refused, "127.0.0.1", "No", true);
    let token = server.get(&claim).json()["token"].as_u64().unwrap();
    assert_eq!(number(&refused, "leasehold-token"), token);
    assert_eq!(server.post(LEASE, "").status, 405, "the claim's owner holds the lease");
    assert_eq!(server.patch(&claim, r#"{"status": "released"}"#).status, 204);

    acquire(&server, LEASE, "db1");
    let waiting = server.claim("ops/db/leases/master", 300.0);
    assert_eq!(server.status(&waiting), "waiting");
    let listed = server.get("/v1/claims/?resource=ops/db/leases/master&status=active").json();
    assert_eq!(listed[0]["owner"], "db1");
    assert_eq!(ask(&server, "DELETE", LEASE, "db1", &[], b"").status, 204);
    assert_eq!(server.status(&waiting), "active");
    assert_eq!(ask(&server, "GET", LEASE, "x", &[], b"").header("x-quorum-client-id"), Some("127.0.0.1"));
}

#[test]
fn a_claim_that_only_waited_never_held_the_lease() {
    let server = Server::start();
    acquire(&server, LEASE, "db1");
    let waiting = server.claim("ops/db/leases/master", 300.0);
    assert_eq!(server.patch(&waiting, r#"{"status": "withdrawn"}"#).status, 204);
    ask(&server, "DELETE", LEASE, "db1", &[], b"");
    for method in ["GET", "PUT", "DELETE"] {
        let reply = ask(&server, method, LEASE, "db1", &[], b"");
        assert_eq!(reply.status, 404);
        has_metadata(&reply, "db1", "Yes", false);
    }
    let json = ask(&server, "GET", LEASE, "db1", &[("Accept", "application/json")], b"").json();
    assert_eq!(json["history"].as_array().unwrap().len(), 1);
}

#[test]
fn requests_on_one_connection_are_answered_in_turn() {
    let server = Server::start();
    let mut client = Client::connect(server.addr);
    for round in 0..3 {
        assert_eq!(client.request("POST", LEASE, &[], b"x").status, 201, "round {round}");
        assert_eq!(client.request("HEAD", LEASE, &[], b"").status, 200);
        assert_eq!(client.request("PUT", LEASE, &[], b"y").status, 202);
        assert_eq!(client.request("GET", LEASE, &[], b"").body, b"y");
        assert_eq!(client.request("DELETE", LEASE, &[], b"").status, 204);
    }
}
