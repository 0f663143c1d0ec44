//! Time: ttls run out by themselves, exactly, from the right instant, and the next in the queue holds at once.

use std::time::{Duration, Instant};

use crate::common::{Server, claim_body, eventually, micros};

/// Waits for a resource and gives the answer back once it is there.
fn wait_for(server: &Server, resource: &str) -> crate::common::Client {
    server.ask("POST", "/v1/claims/?wait=300", &[], &claim_body(resource, 900.0))
}

#[test]
fn a_claim_expires_and_hands_over_without_any_request() {
    let server = Server::start();
    let first = server.claim("r", 0.3);
    // The last request that arrives; its answer comes by itself.
    let reply = wait_for(&server, "r").reply();
    assert_eq!((reply.status, &reply.json()["status"]), (201, &"active".into()));
    let expired = server.detail(&first);
    assert_eq!(expired["status"], "expired");
    assert_eq!(expired["active_duration"], 0.3, "to the microsecond");
    let ended = micros(&expired["status_history"][2]["timestamp"]);
    let promoted = micros(&reply.json()["status_history"][1]["timestamp"]);
    assert!(promoted >= ended, "{reply:?}");
}

#[test]
fn a_chain_of_claims_expires_one_after_the_other_in_the_order_they_came() {
    let server = Server::start();
    let paths: Vec<String> = (0..8).map(|_| server.claim("r", 0.05)).collect();
    assert_eq!(wait_for(&server, "r").reply().status, 201);
    let claims: Vec<_> = paths.iter().map(|path| server.detail(path)).collect();
    assert!(claims.iter().all(|claim| claim["status"] == "expired"), "{claims:?}");
    let tokens: Vec<u64> = claims.iter().map(|claim| claim["token"].as_u64().unwrap()).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert!(
        claims.iter().all(|claim| claim["active_duration"] == 0.05),
        "each had its whole ttl: {claims:?}"
    );
}

#[test]
fn a_ttl_of_five_milliseconds_is_over_when_it_is_over() {
    let server = Server::start();
    let mut client = server.client();
    for round in 0..50 {
        let reply = client.request("POST", "/v1/claims/", &[], claim_body("r", 0.005).as_bytes());
        let since = Instant::now();
        assert_eq!(reply.status, 201, "round {round}: the one before is over by now");
        std::thread::sleep(Duration::from_millis(5).saturating_sub(since.elapsed()));
        let claim = client.request("GET", &reply.location_path(), &[], b"").json();
        assert_eq!((&claim["status"], &claim["active_duration"]), (&"expired".into(), &0.005.into()));
    }
}

#[test]
fn an_expired_claim_can_not_be_revived() {
    let server = Server::start();
    let path = server.claim("r", 0.005);
    std::thread::sleep(Duration::from_millis(5));
    for body in [r#"{"ttl": 60}"#, r#"{"status": "active"}"#, r#"{"status": "released"}"#] {
        let reply = server.patch(&path, body);
        assert_eq!((reply.status, &reply.json()["status"]), (400, &"expired".into()), "{body}");
    }
    assert_eq!(server.status(&path), "expired");
}

#[test]
fn renewals_keep_a_claim_alive_beyond_its_first_ttl() {
    let server = Server::start();
    let path = server.claim("r", 2.0);
    let mut client = server.client();
    loop {
        let reply = client.request("PATCH", &path, &[], br#"{"ttl": 2}"#);
        assert_eq!(reply.status, 200, "{reply:?}");
        if reply.json()["active_duration"].as_f64() > Some(2.2) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_promoted_claim_has_its_whole_ttl_from_its_promotion() {
    let server = Server::start();
    let first = server.claim("r", 900.0);
    let second = server.claim("r", 100.0);
    eventually("it waits for a while", || server.detail(&second)["waiting_duration"].as_f64() > Some(1.0));
    server.patch(&first, r#"{"status": "released"}"#);
    let claim = server.detail(&second);
    let promoted = micros(&claim["status_history"][1]["timestamp"]);
    assert!(micros(&claim["expires"]) > promoted + 99_500_000, "{claim}");
}

/// A claim with a ttl of 100 s that was promoted and not looked at since; and the instant of its promotion.
fn unpicked(server: &Server) -> (String, i64) {
    let first = server.claim("r", 900.0);
    let second = server.claim("r", 100.0);
    server.patch(&first, r#"{"status": "released"}"#);
    // A list is no sign of life of the claim's own client.
    let listed = &server.list("status=active")[0];
    let promoted = micros(&listed["status_history"][1]["timestamp"]);
    assert!(micros(&listed["expires"]) > promoted + 1_050_000_000, "grace and ttl are before it: {listed}");
    (second, promoted)
}

#[test]
fn a_reader_does_not_start_the_ttl_of_a_claim_that_waits_to_be_picked_up() {
    let server = Server::start_with(&["--pickup-grace", "1000"]);
    let (path, promoted) = unpicked(&server);
    let claim = server.detail(&path);
    assert!(micros(&claim["expires"]) > promoted + 1_050_000_000, "{claim}");
    assert!(claim["ttl"].as_f64() > Some(1050.0), "it shows the time until then: {claim}");
    assert_eq!(claim["initial_ttl"], 100.0);
    // Its own client does; and it does not start anew with every request.
    let expires = micros(&server.patch(&path, r#"{"status": "active"}"#).json()["expires"]);
    assert!(expires > promoted + 99_500_000 && expires < promoted + 1_000_000_000);
    eventually("some of the ttl has run", || server.detail(&path)["ttl"].as_f64() < Some(99.4));
    server.patch(&path, r#"{"status": "active"}"#);
    assert!(micros(&server.detail(&path)["expires"]) < expires + 500_000);
}

#[test]
fn the_pickup_grace_ends_with_the_clients_first_patch() {
    let server = Server::start_with(&["--pickup-grace", "1000"]);
    let (path, promoted) = unpicked(&server);
    let reply = server.patch(&path, r#"{"status": "active"}"#);
    assert_eq!(reply.status, 200);
    assert!(micros(&reply.json()["expires"]) < promoted + 1_000_000_000, "{reply:?}");
    assert!(micros(&server.list("status=active")[0]["expires"]) < promoted + 1_000_000_000);
}

#[test]
fn the_pickup_grace_ends_with_a_renewal_too() {
    let server = Server::start_with(&["--pickup-grace", "1000"]);
    let (path, promoted) = unpicked(&server);
    let expires = micros(&server.patch(&path, r#"{"ttl": 50}"#).json()["expires"]);
    assert!(expires > promoted + 49_500_000 && expires < promoted + 1_000_000_000);
}

#[test]
fn the_pickup_grace_ends_with_a_retried_post() {
    let server = Server::start_with(&["--pickup-grace", "1000"]);
    let first = server.claim("r", 900.0);
    let retry = || {
        let mut client = server.client();
        client.request("POST", "/v1/claims/", &[("Idempotency-Key", "k")], claim_body("r", 100.0).as_bytes())
    };
    assert_eq!(retry().status, 202);
    server.patch(&first, r#"{"status": "released"}"#);
    let reply = retry();
    assert_eq!(reply.status, 201);
    let promoted = micros(&reply.json()["status_history"][1]["timestamp"]);
    assert!(micros(&reply.json()["expires"]) < promoted + 1_000_000_000, "{reply:?}");
}

#[test]
fn a_claim_that_nobody_picks_up_starts_its_ttl_after_the_grace() {
    let server = Server::start_with(&["--pickup-grace", "0.4"]);
    let first = server.claim("r", 900.0);
    let second = server.claim("r", 0.3);
    let mut third = wait_for(&server, "r");
    server.wait_for_queue("r", 2);
    server.patch(&first, r#"{"status": "released"}"#);
    assert_eq!(third.reply().json()["status"], "active");
    let unseen = server.detail(&second);
    assert_eq!((&unseen["status"], &unseen["active_duration"]), (&"expired".into(), &0.7.into()));
}

#[test]
fn a_long_poll_needs_no_pickup_grace() {
    let server = Server::start_with(&["--pickup-grace", "1000"]);
    let first = server.claim("r", 900.0);
    let mut second = server.ask("POST", "/v1/claims/?wait=300", &[], &claim_body("r", 100.0));
    server.wait_for_queue("r", 1);
    server.patch(&first, r#"{"status": "released"}"#);
    let claim = second.reply().json();
    let promoted = micros(&claim["status_history"][1]["timestamp"]);
    assert!(micros(&claim["expires"]) < promoted + 1_000_000_000, "{claim}");
}

#[test]
fn a_claim_granted_at_once_has_no_pickup_grace() {
    let server = Server::start_with(&["--pickup-grace", "1000"]);
    let path = server.claim("r", 100.0);
    let claim = &server.list("")[0];
    assert!(micros(&claim["expires"]) < micros(&claim["created"]) + 1_000_000_000, "{path}: {claim}");
}

#[test]
fn a_grace_that_can_not_be_is_refused_at_the_start() {
    let dir = crate::common::TempDir::new();
    for bad in ["-1", "nan", "1e9"] {
        let flag = format!("--pickup-grace={bad}");
        let error = Server::try_start_in(&dir.path().join("data"), &[&flag]).err().unwrap();
        assert!(error.contains("pickup-grace"), "{bad}: {error}");
    }
}
