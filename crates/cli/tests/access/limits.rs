//! Limits against strangers: each of them reached, and the service unmoved.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::common::{Client, Server, claim_body, eventually};
use crate::support::Guarded;

#[test]
fn one_identity_too_fast_waits_and_others_do_not() {
    let guarded = Guarded::start_with(&["ci", "anna"], "", &["--requests-per-second", "0.01"]);
    let list = |user| guarded.ask(user, "GET", "/v1/claims/?limit=1", "");
    // A burst of one, and then one every hundred seconds.
    assert_eq!(list("ci").status, 200);
    let refused = list("ci");
    assert_eq!((refused.status, refused.problem().as_str()), (429, "too-many-requests"));
    let after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=100).contains(&after), "{after}");
    assert_eq!(list("anna").status, 200);
    // Who gives no good credentials is counted by address, guesses included.
    assert_eq!(guarded.ask("", "GET", "/v1/claims/", "").status, 401);
    for guess in ["Bearer lhk_a_b", "Bearer lhk_c_d", "Basic eDp5"] {
        let reply = guarded.server.client().request("GET", "/v1/claims/", &[("Authorization", guess)], b"");
        assert_eq!(reply.status, 429);
    }
    // Probes are not counted.
    assert_eq!(guarded.server.get("/readyz").status, 200);
}

#[test]
fn without_access_control_addresses_are_counted_if_asked_for() {
    let server = Server::start_with(&["--requests-per-second", "0.01"]);
    assert_eq!(server.get("/v1/claims/").status, 200);
    assert_eq!(server.get("/v1/claims/").status, 429);
}

#[test]
fn one_long_poll_too_many_is_told_to_come_back() {
    let server = Server::start_with(&["--long-polls-max", "2"]);
    server.claim("x", 600.0);
    let mut waiting: Vec<Client> =
        (0..2).map(|_| server.ask("POST", "/v1/claims/?wait=300", &[], &claim_body("x", 60.0))).collect();
    server.wait_for_queue("x", 2);
    let refused = server.post("/v1/claims/?wait=300", &claim_body("x", 60.0));
    assert_eq!((refused.status, refused.problem().as_str()), (503, "too-many-long-polls"));
    assert!(refused.header("retry-after").is_some());
    let lock = r#"{"title": "t", "lifetime": 60, "wait": 60}"#;
    assert_eq!(server.post("/locks/x", lock).status, 503);
    // Who does not wait is served, and a place that is free again is used again.
    assert_eq!(server.post("/v1/claims/", &claim_body("x", 60.0)).status, 202);
    waiting.pop();
    server.wait_for_queue("x", 2);
    drop(server.ask("POST", "/v1/claims/?wait=300", &[], &claim_body("x", 60.0)));
    drop(waiting);
}

#[test]
fn too_many_headers_and_too_large_ones_are_refused() {
    let server = Server::start();
    let names: Vec<String> = (0..200).map(|i| format!("X-Bomb-{i}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
    assert_eq!(server.client().request("GET", "/v1/claims/", &many, b"").status, 431);
    let large = "x".repeat(300_000);
    assert_eq!(server.client().request("GET", "/v1/claims/", &[("X-Bomb", &large)], b"").status, 431);
    assert_eq!(server.get("/v1/claims/").status, 200);
}

#[test]
fn json_that_is_deep_or_compressed_is_refused() {
    let server = Server::start();
    let deep = |len: usize| format!("{}{}", "[".repeat(len), "]".repeat(len));
    for body in [deep(30_000), format!(r#"{{"resource": "x", "ttl": 1, "user_data": {}}}"#, deep(20_000))] {
        for path in ["/v1/claims/", "/v1/renewals", "/v1/dss/media/lock"] {
            assert_eq!(server.post(path, &body).status, 400, "{path}");
        }
    }
    assert_eq!(server.post("/locks/x", &deep(8_000)).status, 400);
    for coding in ["gzip", "deflate", "br", "zstd", "x-anything"] {
        let headers = [("Content-Encoding", coding)];
        for path in ["/v1/claims/", "/locks/x", "/v1/ns/leases/x", "/v1/dss/media/lock"] {
            let reply = server.client().request("POST", path, &headers, b"\x1f\x8b\x08");
            assert_eq!(reply.status, 415, "{path}: {reply:?}");
        }
    }
    assert!(server.list("").is_empty());
}

#[test]
fn ten_thousand_connections_are_attempted_and_the_service_goes_on() {
    a_flood_is_survived(10_000);
}

#[test]
#[ignore = "takes minutes, since the kernel makes many of them wait for a second: make test-long"]
fn a_hundred_thousand_connections_are_attempted_and_the_service_goes_on() {
    a_flood_is_survived(100_000);
}

fn a_flood_is_survived(attempts: usize) {
    let server = Server::start_with(&["--connections-max", "50"]);
    let mut first = server.client();
    assert_eq!(first.request("GET", "/livez", &[], b"").status, 200);
    let idle: Vec<TcpStream> = (0..49).map(|_| TcpStream::connect(server.addr).unwrap()).collect();
    let flood = |half: u8| {
        let addr = server.addr;
        move || (0..attempts / 2).filter(|i| attempt(addr, 2 + half * 8 + (i % 8) as u8)).count()
    };
    let floods = [std::thread::spawn(flood(0)), std::thread::spawn(flood(1))];
    // Who is in is served all the while.
    while floods.iter().any(|flood| !flood.is_finished()) {
        assert_eq!(first.request("GET", "/v1/claims/", &[], b"").status, 200);
        std::thread::sleep(Duration::from_millis(20));
    }
    let connected: usize = floods.into_iter().map(|flood| flood.join().unwrap()).sum();
    assert!(connected > attempts / 10 * 9, "only {connected} could even be attempted");
    drop(idle);
    eventually("there is room again", || {
        Client::try_connect(server.addr)
            .and_then(|mut client| client.try_request("GET", "/livez", &[], b""))
            .is_ok_and(|reply| reply.status == 200)
    });
}

/// One connection, reset at once so that its port is free again.
fn attempt(addr: SocketAddr, from: u8) -> bool {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    let from = SocketAddr::from(([127, 0, 0, from], 0));
    socket.bind(&from.into()).is_ok() && socket.connect_timeout(&addr.into(), Duration::from_secs(10)).is_ok()
}

#[test]
fn claims_are_counted_by_user_wherever_they_come_from() {
    let guarded = Guarded::start_with(&["ci", "anna"], "", &["--claims-per-owner-max", "2"]);
    for i in 0..2 {
        guarded.claim("ci", &format!("r{i}"));
    }
    let post = |user| guarded.ask(user, "POST", "/v1/claims/", &claim_body("r9", 60.0)).status;
    assert_eq!((post("ci"), post("anna")), (429, 201));
}

#[test]
fn guesses_are_few_whatever_the_rate() {
    let guarded = Guarded::start_with(&["ci"], "", &["--requests-per-second", "0"]);
    let mut client = guarded.server.client();
    let mut guess =
        || client.request("GET", "/v1/claims/", &[("Authorization", "Basic YW5uYTpndWVzcw==")], b"").status;
    // The burst, and whatever the rate allows while it is used up.
    assert!((0..100_000).any(|_| guess() == 429), "guessing is never stopped");
    assert_eq!(guarded.ask("ci", "GET", "/v1/claims/", "").status, 200);
}
