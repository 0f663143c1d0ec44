//! Bad input of every kind: a 4xx that names what is wrong, nothing changed, never a 500 or a panic.

use std::io::{Read, Write};

use crate::common::{Client, Random, Reply, Server, claim_body, seed};
use serde_json::{Value, json};

/// A server with one claim in each kind of status, and how they look.
struct Guarded {
    server: Server,
    before: Vec<Value>,
}

impl Guarded {
    fn start(args: &[&str]) -> Self {
        let server = Server::start_with(args);
        server.claim("held", 9000.0);
        server.claim("held", 9000.0);
        let over = server.claim("over", 9000.0);
        server.patch(&over, r#"{"status": "released"}"#);
        let before = Self::look(&server);
        Self { server, before }
    }

    /// Everything but what changes with time.
    fn look(server: &Server) -> Vec<Value> {
        let still = |mut claim: Value| {
            for changes in ["active_duration", "waiting_duration", "expires", "ttl"] {
                claim[changes].take();
            }
            claim
        };
        server.list("").into_iter().map(still).collect()
    }

    /// Sends bytes on a connection of their own and reads the answer; they may be cut off while being sent.
    fn raw(&self, bytes: &[u8]) -> (Client, Reply) {
        let mut client = self.server.client();
        let _ = client.stream().write_all(bytes);
        let reply = client
            .read_reply("GET")
            .unwrap_or_else(|error| panic!("no answer to {:?}: {error}", &bytes[..bytes.len().min(99)]));
        (client, reply)
    }

    fn post(&self, headers: &str, body: &[u8]) -> Reply {
        let head = format!(
            "POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        self.raw(&[head.as_bytes(), body].concat()).1
    }

    /// The answer to what is no HTTP: this status, and the connection is over.
    fn refused(&self, status: u16, bytes: &[u8]) {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned();
        let (client, reply) = self.raw(bytes);
        assert_eq!(reply.status, status, "{shown}");
        assert_closed(&client, &shown);
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert_eq!(Self::look(&self.server), self.before, "something changed");
        let log = self.server.logged();
        assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
        assert_eq!(self.server.terminate().code(), Some(0));
    }
}

fn assert_closed(client: &Client, what: &str) {
    let mut rest = Vec::new();
    // A reset is an end too: the other side had bytes that nobody wanted.
    match client.stream().read_to_end(&mut rest) {
        Ok(_) => assert_eq!(rest, b"", "{what}: {}", String::from_utf8_lossy(&rest)),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{what}"),
    }
}

#[test]
fn bodies_that_are_no_json_object_are_refused() {
    let guarded = Guarded::start(&[]);
    let cases: &[&[u8]] = &[
        b"",
        b" ",
        b"{",
        b"}",
        b"nonsense",
        b"{'resource': 'r', 'ttl': 1}",
        b"{\"resource\": \"r\", \"ttl\": 1",
        b"{\"resource\": \"r\", \"ttl\": 1}}",
        b"{\"resource\": \"r\", \"ttl\": 1} {}",
        b"{\"resource\": \"r\", \"ttl\": 1,}",
        b"{\"resource\": \"r\" \"ttl\": 1}",
        b"{\"resource\": \"r\", \"ttl\": NaN}",
        b"{\"resource\": \"r\", \"ttl\": Infinity}",
        b"{\"resource\": \"r\", \"ttl\": -Infinity}",
        b"{\"resource\": \"r\", \"ttl\": 01}",
        b"{\"resource\": \"r\", \"ttl\": 0x10}",
        b"{\"resource\": \"r\", \"ttl\": 1.}",
        b"{\"resource\": \"r\", \"ttl\": +1}",
        b"[]",
        b"[{\"resource\": \"r\", \"ttl\": 1}]",
        b"\"resource\"",
        b"5",
        b"null",
        b"true",
        b"{\"resource\": \"\xff\xfe\", \"ttl\": 1}",
        b"{\"resource\": \"r\", \"ttl\": 1, \"user_data\": \"\xc3\x28\"}",
        b"\xef\xbb\xbf{\"resource\": \"r\", \"ttl\": 1}",
        b"{\"resource\": \"a\0b\", \"ttl\": 1}",
        b"\0\0\0\0",
        b"resource=r&ttl=1",
        b"<claim resource='r'/>",
    ];
    for body in cases {
        let reply = guarded.post("", body);
        assert_eq!(reply.named(), ["body"], "{}", String::from_utf8_lossy(body));
    }
}

#[test]
fn values_of_the_wrong_kind_or_size_are_named() {
    let guarded = Guarded::start(&[]);
    let deep = ["[".repeat(10_000), "]".repeat(10_000)].concat();
    let long_name = format!(r#"{{"resource": "{}", "ttl": 1}}"#, "n".repeat(2049));
    let long_data = format!(r#"{{"resource": "r", "ttl": 1, "user_data": "{}"}}"#, "d".repeat(65_536));
    let deep_data = format!(r#"{{"resource": "r", "ttl": 1, "user_data": {deep}}}"#);
    let deep_name = format!(r#"{{"resource": {deep}, "ttl": 1}}"#);
    let spaces = format!(r#"{{"resource": "r", "ttl": 1, "user_data": [{}]}}"#, " ".repeat(66_000));
    let cases: &[(&str, &[&str])] = &[
        (r#"{"resource": "r", "ttl": 1e400}"#, &["ttl"]),
        (r#"{"resource": "r", "ttl": -1e400}"#, &["ttl"]),
        (r#"{"resource": "r", "ttl": 1e300}"#, &["ttl"]),
        (r#"{"resource": "r", "ttl": 3162240001}"#, &["ttl"]),
        (r#"{"resource": "r", "ttl": 99999999999999999999999999}"#, &["ttl"]),
        (r#"{"resource": "r", "ttl": -0.001}"#, &["ttl"]),
        (r#"{"resource": "r", "ttl": "NaN"}"#, &["ttl"]),
        (r#"{"resource": "r", "ttl": [1]}"#, &["ttl"]),
        (r#"{"resource": "r", "ttl": {"seconds": 1}}"#, &["ttl"]),
        (r#"{"resource": "r", "ttl": false}"#, &["ttl"]),
        (r#"{"resource": {"name": "r"}, "ttl": 1}"#, &["resource"]),
        (r#"{"resource": "\ud800", "ttl": 1}"#, &["resource"]),
        (r#"{"resource": "r", "resource": "s", "ttl": 1}"#, &["resource"]),
        (r#"{"resource": "r", "ttl": 1, "ttl": 1}"#, &["ttl"]),
        (
            r#"{"resource": "r", "ttl": 1, "user_data": 1, "user_data": 2, "x": 3, "x": 4}"#,
            &["user_data", "x"],
        ),
        (r#"{"resource": "r", "ttl": 1, "user_data": 1e400}"#, &["user_data"]),
        (r#"{"resource": "r", "ttl": 1, "user_data": "\ud800"}"#, &["user_data"]),
        (r#"{"resource": "r", "ttl": 1, "": 1}"#, &[""]),
        (r#"{"resource": "r", "ttl": 1, "ünknown\n": 1}"#, &["ünknown\n"]),
        (r#"{"r\u0065source": "r", "\u0074tl": -1}"#, &["ttl"]),
        (&long_name, &["resource"]),
        (&long_data, &["user_data"]),
        (&deep_data, &["user_data"]),
        (&deep_name, &["resource"]),
        (&spaces, &["user_data"]),
    ];
    for (body, named) in cases {
        assert_eq!(guarded.post("", body.as_bytes()).named(), *named, "{}", &body[..body.len().min(99)]);
    }
}

#[test]
fn updates_are_checked_as_strictly() {
    let guarded = Guarded::start(&[]);
    let path = guarded.before[0]["url"].as_str().unwrap().replace("http://leasehold.localhost", "");
    for (body, named) in [
        ("", "body"),
        ("[]", "body"),
        ("{\"ttl\": 1e400}", "ttl"),
        ("{\"ttl\": 1, \"ttl\": 2}", "ttl"),
        ("{\"status\": \"released\", \"status\": \"active\"}", "status"),
        ("{\"status\": [\"released\"]}", "status"),
        ("{\"status\": \"released\\u0000\"}", "status"),
    ] {
        for method in ["PATCH", "PUT"] {
            let reply = guarded.server.client().request(method, &path, &[], body.as_bytes());
            assert_eq!(reply.named(), [named], "{method} {body}");
        }
    }
}

#[test]
fn a_body_is_json_whatever_its_content_type_says() {
    let server = Server::start();
    for (i, kind) in ["text/plain", "application/x-www-form-urlencoded", "nonsense", ""].iter().enumerate() {
        let mut client = server.client();
        let body = claim_body(&i.to_string(), 9.0);
        let reply = client.request("POST", "/v1/claims/", &[("Content-Type", kind)], body.as_bytes());
        assert_eq!(reply.status, 201, "{kind}: {reply:?}");
    }
}

#[test]
fn a_compressed_body_is_refused_as_such() {
    let guarded = Guarded::start(&[]);
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xabV*J-\xce/-JNU\xb2RPJT\xd2QP*)\xc9Q\xb2R0\xac\x05\0";
    for coding in ["gzip", "br", "deflate, gzip"] {
        let reply = guarded.post(&format!("Content-Encoding: {coding}\r\n"), gzip);
        assert_eq!((reply.status, reply.problem().as_str()), (415, "content-encoding"));
        assert!(reply.json()["detail"].as_str().unwrap().contains(coding), "{reply:?}");
    }
    let as_it_is = guarded.post("Content-Encoding: identity\r\n", b"{}");
    assert_eq!(as_it_is.named(), ["resource", "ttl"]);
}

#[test]
fn a_body_of_ten_megabytes_is_too_large_however_it_is_sent() {
    let guarded = Guarded::start(&[]);
    let too_large =
        |reply: &Reply| assert_eq!((reply.status, reply.problem().as_str()), (413, "body-too-large"));
    // Plain clients send all of it before they read: they must be let, or they never see the answer.
    let sent_whole = |request: Vec<u8>| {
        let mut client = guarded.server.client();
        client.send_raw(&request);
        client.reply()
    };
    let name = format!(r#"{{"resource": "{}", "ttl": 1}}"#, "n".repeat(1 << 20));
    let data = format!(r#"{{"resource": "r", "ttl": 1, "user_data": "{}"}}"#, "d".repeat(1 << 20));
    for body in [name, data, " ".repeat(10 << 20)] {
        let head = format!("POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        too_large(&sent_whole([head.as_bytes(), body.as_bytes()].concat()));
        let mut chunked =
            b"POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for chunk in body.as_bytes().chunks(50_000) {
            chunked.extend(format!("{:x}\r\n", chunk.len()).bytes());
            chunked.extend_from_slice(chunk);
            chunked.extend(b"\r\n");
        }
        chunked.extend(b"0\r\n\r\n");
        too_large(&sent_whole(chunked));
    }
    // Who asks first is told before anything is sent.
    let head =
        "POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nContent-Length: 10485760\r\nExpect: 100-continue\r\n\r\n";
    too_large(&guarded.raw(head.as_bytes()).1);
    let head = "POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n";
    let (_, reply) = guarded.raw(head.as_bytes());
    assert!(matches!(reply.status, 400 | 413 | 431), "{reply:?}");
}

#[test]
fn paths_that_are_no_text_are_refused() {
    let guarded = Guarded::start(&[]);
    guarded.refused(400, b"GET /v1/claims/\xff\xfe/ HTTP/1.1\r\nHost: x\r\n\r\n");
    guarded.refused(400, b"GET /v1/claims/\0/ HTTP/1.1\r\nHost: x\r\n\r\n");
    guarded.refused(400, b"GET /v1/cl aims/ HTTP/1.1\r\nHost: x\r\n\r\n");
    guarded.refused(400, b"GET v1/claims HTTP/1.1\r\nHost: x\r\n\r\n");
    for path in [
        "/v1/claims/%ff/",
        "/v1/claims/%00/",
        "/v1/claims/%zz/",
        "/v1/%63laims/",
        "/%",
        "/v1/claims/../claims/",
        "*",
    ] {
        let reply = guarded.server.get(path);
        assert!(matches!(reply.status, 400 | 404), "{path}: {reply:?}");
    }
}

#[test]
fn queries_that_are_no_text_are_named() {
    let guarded = Guarded::start(&[]);
    for (query, named) in [
        ("resource=%ff", "resource"),
        ("resource=%C3%28", "resource"),
        ("resource=%", "resource"),
        ("resource=%4", "resource"),
        ("resource=%zz", "resource"),
        ("status=active%00", "status"),
        ("limit=%31%30%30%31", "limit"),
        ("=", ""),
        ("=1", ""),
        ("?", "?"),
    ] {
        assert_eq!(guarded.server.get(&format!("/v1/claims/?{query}")).named(), [named], "{query}");
    }
    guarded.refused(400, b"GET /v1/claims/?resource=\xff HTTP/1.1\r\nHost: x\r\n\r\n");
}

#[test]
fn slow_senders_are_told_and_let_go() {
    let guarded = Guarded::start(&["--header-timeout", "0.2", "--body-timeout", "0.2"]);
    let (client, reply) = guarded.raw(b"POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nX-Slow");
    assert_eq!((reply.status, reply.problem().as_str()), (408, "headers-too-slow"));
    assert_closed(&client, "headers");
    let (client, reply) = guarded.raw(
        b"POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n{\"resource\": \"r\", \"ttl\"",
    );
    assert_eq!((reply.status, reply.problem().as_str()), (408, "body-too-slow"));
    assert_closed(&client, "body");
    let (client, reply) =
        guarded.raw(b"POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"re");
    assert_eq!((reply.status, reply.problem().as_str()), (408, "body-too-slow"));
    assert_closed(&client, "chunks");
    // A drop now and then does not keep a request alive: all of its headers must be there in time.
    let mut drip = guarded.server.client();
    drip.send_raw(b"GET /livez HTTP/1.1\r\nHost: x\r\n");
    let mut lines = 0;
    while drip.stream().write_all(b"X-Drip: drip\r\n").is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(20));
        lines += 1;
        assert!(lines < 3000, "the connection is kept for ever");
    }
    // Who says nothing at all hears nothing either.
    assert_closed(&guarded.server.client(), "idle");
}

#[test]
fn timeouts_that_can_not_be_are_refused_at_the_start() {
    let dir = crate::common::TempDir::new();
    for flag in ["--header-timeout=0", "--body-timeout=-1", "--header-timeout=nan", "--body-timeout=1e9"] {
        let error = Server::try_start_in(&dir.path().join("data"), &[flag]).err().unwrap();
        assert!(error.contains("must be a number of seconds"), "{flag}: {error}");
    }
}

#[test]
fn a_client_that_goes_away_in_the_middle_leaves_nothing() {
    let guarded = Guarded::start(&[]);
    for eighths in 1..8 {
        let body = claim_body("r", 9.0);
        let request =
            format!("POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let mut client = guarded.server.client();
        client.send_raw(&request.as_bytes()[..request.len() * eighths / 8]);
        drop(client);
    }
}

#[test]
fn requests_that_two_readers_could_read_differently_are_refused() {
    let guarded = Guarded::start(&[]);
    let body = r#"{"resource": "smuggled", "ttl": 9}"#;
    for headers in [
        "Content-Length: 33\r\nContent-Length: 34\r\n",
        "Content-Length: 33, 34\r\n",
        "Content-Length: +34\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x22\r\n",
        "Content-Length: 34a\r\n",
        "Content-Length: \r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Content-Length : 34\r\n",
        " Content-Length: 34\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: chunked, gzip\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "X-Folded: a\r\n b\r\nBad Header: 1\r\n",
        "Bad\0Name: 1\r\n",
        "X-Value: a\0b\r\n",
        ": nameless\r\n",
        "no colon\r\n",
    ] {
        guarded
            .refused(400, format!("POST /v1/claims/ HTTP/1.1\r\nHost: x\r\n{headers}\r\n{body}").as_bytes());
    }
    guarded.refused(
        400,
        b"POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    );
    guarded.refused(
        400,
        b"POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    );
    guarded.refused(
        400,
        b"POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}",
    );
    guarded.refused(400, b"GET /v1/claims/ HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n");
    guarded.refused(400, b"GET /v1/claims/ HTTP/1.1\r\n\r\n");
}

#[test]
fn what_is_chunked_is_read_as_chunks_whatever_length_stands_beside_it() {
    let guarded = Guarded::start(&[]);
    // A reader that went by the length would see a second request here, or wait for more.
    for headers in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    ] {
        let (_, reply) = guarded.raw(
            format!("POST /v1/claims/ HTTP/1.1\r\nHost: x\r\n{headers}\r\n2\r\n{{}}\r\n0\r\n\r\n").as_bytes(),
        );
        assert_eq!(reply.status, 400, "{headers}: {reply:?}");
    }
}

#[test]
fn heads_that_are_too_large_are_refused() {
    let guarded = Guarded::start(&[]);
    let many: String = (0..5000).map(|i| format!("X-{i}: {i}\r\n")).collect();
    guarded.refused(431, format!("GET /livez HTTP/1.1\r\nHost: x\r\n{many}\r\n").as_bytes());
    let long = "v".repeat(1 << 20);
    guarded.refused(431, format!("GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: {long}\r\n\r\n").as_bytes());
    guarded.refused(431, format!("GET /livez HTTP/1.1\r\nHost: x\r\n{long}: 1\r\n\r\n").as_bytes());
    let (_, reply) = guarded.raw(format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    assert!(matches!(reply.status, 414 | 431), "{reply:?}");
    let (_, reply) = guarded.raw(
        format!("GET /v1/claims/?resource={} HTTP/1.1\r\nHost: x\r\n\r\n", "r".repeat(60_000)).as_bytes(),
    );
    assert_eq!((reply.status, reply.json()), (200, json!([])), "long, and harmless");
}

#[test]
fn what_is_no_http_is_refused() {
    let guarded = Guarded::start(&[]);
    guarded.refused(400, b"hello\r\n\r\n");
    guarded.refused(400, b"GET\r\n\r\n");
    guarded.refused(400, b"GET /livez\r\n\r\n");
    guarded.refused(400, b"GET /livez HTTP/9.9\r\nHost: x\r\n\r\n");
    guarded.refused(400, b"GET /livez SMTP/1.1\r\nHost: x\r\n\r\n");
    guarded.refused(400, b"G\xc3\x89T /livez HTTP/1.1\r\nHost: x\r\n\r\n");
    // Who opens in HTTP/2 would not understand an answer in HTTP/1.1.
    let mut http2 = guarded.server.client();
    http2.send_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_closed(&http2, "HTTP/2");
    guarded.refused(400, b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03 a client hello of TLS \r\n\r\n");
    guarded.refused(400, &[0; 64]);
    guarded.refused(400, &[0xff; 64]);
    guarded.refused(400, b"EHLO example.com\r\n");
}

#[test]
fn old_http_is_served() {
    let server = Server::start();
    let body = claim_body("r", 9.0);
    let mut client = server.client();
    client.send_raw(
        format!("POST /v1/claims/ HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes(),
    );
    let reply = client.reply();
    assert_eq!(reply.status, 201, "{reply:?}");
    let local = format!("http://{}/v1/claims/", server.addr);
    assert!(
        reply.header("location").unwrap().starts_with(&local),
        "without a Host the address must do: {reply:?}"
    );
    assert_closed(&client, "it did not ask to be kept");
}

#[test]
fn requests_may_be_piped_one_behind_the_other() {
    let server = Server::start();
    let mut client = server.client();
    let bodies: Vec<String> = (0..20).map(|i| claim_body(&i.to_string(), 9.0)).collect();
    let all: String = bodies
        .iter()
        .map(|body| {
            format!("POST /v1/claims/ HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        })
        .collect();
    client.send_raw(all.as_bytes());
    for i in 0..20 {
        assert_eq!(client.reply().json()["resource"], i.to_string());
    }
}

#[test]
fn one_connection_too_many_is_told_to_come_back() {
    let server = Server::start_with(&["--connections-max", "2"]);
    let mut first = server.client();
    let mut second = server.client();
    for client in [&mut first, &mut second] {
        assert_eq!(client.request("GET", "/livez", &[], b"").status, 200);
    }
    let reply = server.client().reply();
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    drop(first);
    crate::common::eventually("there is room again", || {
        server.client().try_request("GET", "/livez", &[], b"").is_ok_and(|reply| reply.status == 200)
    });
}

// ---- anything else

const METHODS: &[&str] = &[
    "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW", "get", "POST", "PATCH",
    "PUT",
];
const PATHS: &[&str] = &[
    "/v1/claims/",
    "/v1/claims",
    "/v1/claims/ID/",
    "/v1/claims/ID",
    "/v1/claims/x/",
    "/v1/renewals",
    "/livez",
    "/readyz",
    "/version",
    "/",
    "//",
    "/v1/claims//",
    "/v1/claims/ID/x",
    "/v1/claims/%ff",
    "*",
    "/v1/claims/ID/",
];
const QUERIES: &[&str] = &[
    "",
    "",
    "",
    "?",
    "?wait=0.001",
    "?wait=x",
    "?wait=",
    "?limit=3",
    "?limit=0",
    "?offset=5",
    "?status=active",
    "?status=x",
    "?minimum_ttl=1&maximum_ttl=1e3",
    "?minimum_created=2020-01-01T00:00:00Z",
    "?resource=%f0%9f",
    "?a&b&c",
    "?resource=fuzz&status=waiting&limit=2&offset=1",
    "?maximum_created=1e18",
    "?limit=1&limit=1",
];
const BODIES: &[&str] = &[
    "",
    "{}",
    "[]",
    "null",
    "0",
    "{\"resource\": \"fuzz\", \"ttl\": 0.01}",
    "{\"resource\": \"fuzz\", \"ttl\": 5}",
    "{\"resource\": \"fuzz2\", \"ttl\": 0, \"user_data\": [1, {\"a\": \"b\"}]}",
    "{\"ttl\": 3}",
    "{\"ttl\": -3}",
    "{\"status\": \"active\"}",
    "{\"status\": \"released\"}",
    "{\"status\": \"withdrawn\"}",
    "{\"status\": \"waiting\"}",
    "{\"ttl\": 1, \"status\": \"active\"}",
    "{\"ids\": [\"ID\"]}",
    "{\"ids\": [\"ID\", \"x\"], \"ttl\": 2}",
    "{\"resource\": \"fuzz\", \"ttl\": 1e999}",
    "{\"resource\": \"\\ud83d\\ude00\", \"ttl\": 0.5}",
];
const HEADERS: &[(&str, &str)] = &[
    ("Idempotency-Key", "k"),
    ("Idempotency-Key", ""),
    ("Content-Encoding", "gzip"),
    ("Content-Type", "text/html"),
    ("X-Forwarded-Host", "evil"),
    ("Host", "a b"),
    ("Host", ""),
    ("Expect", "100-continue"),
    ("Accept", "*/*"),
    ("Leasehold-Reason", "because"),
    ("Connection", "close"),
    ("Range", "bytes=0-1"),
    ("If-Match", "*"),
    ("Upgrade", "h2c"),
    ("X-Ü", "ü"),
];

/// Sometimes one byte is another, missing, or doubled.
fn spoil(text: &str, random: &mut Random) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    if random.below(4) == 0 && !bytes.is_empty() {
        let at = random.below(bytes.len());
        match random.below(3) {
            0 => bytes[at] = random.below(256) as u8,
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, bytes[at]),
        }
    }
    bytes
}

fn fuzzed(random: &mut Random, id: &str) -> (String, Vec<u8>) {
    // Half of them are at least the right kind of request for their path.
    let (method, path) = match random.below(8) {
        0 | 1 => ("POST", "/v1/claims/"),
        2 => ("PATCH", "/v1/claims/ID/"),
        3 => ("POST", "/v1/renewals"),
        _ => (random.pick(METHODS), random.pick(PATHS)),
    };
    let target = format!("{path}{}", random.pick(QUERIES)).replace("ID", id);
    let body = spoil(&random.pick(BODIES).replace("ID", id), random);
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: x\r\n");
    if random.below(3) == 0 {
        let (name, value) = HEADERS[random.below(HEADERS.len())];
        head = match name {
            "Host" => head.replace("Host: x", &format!("Host: {value}")),
            _ => format!("{head}{name}: {value}\r\n"),
        };
    }
    let mut request = spoil(&head, random);
    request.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes());
    request.extend(body);
    (method.into(), request)
}

#[test]
fn two_thousand_random_requests_never_break_the_server() {
    let server = Server::start_with(&["--header-timeout", "1", "--body-timeout", "1"]);
    let mut random = Random(seed());
    let mut path = String::new();
    let mut client = server.client();
    let mut seen = std::collections::BTreeMap::new();
    for round in 0..2000 {
        // Whatever ended the last claim: there is one again that can be ended.
        if round % 50 == 0 {
            path = server.claim(&format!("fuzz {round}"), 900.0);
        }
        let id = path.trim_matches('/').rsplit('/').next().unwrap();
        let (method, request) = fuzzed(&mut random, id);
        let _ = client.stream().write_all(&request);
        if let Ok(reply) = client.read_reply(&method) {
            assert!(reply.status < 500, "{}: {reply:?}", String::from_utf8_lossy(&request));
            *seen.entry(reply.status).or_insert(0) += 1;
        }
        client = server.client();
    }
    assert!(seen.values().sum::<u32>() > 1500, "{seen:?}");
    assert!([200, 201, 204, 400, 404, 405, 415].iter().all(|status| seen.contains_key(status)), "{seen:?}");
    assert_eq!(server.get("/readyz").status, 200);
    assert_eq!(server.post("/v1/claims/", &claim_body("after", 9.0)).status, 201);
    let log = server.logged();
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
}
