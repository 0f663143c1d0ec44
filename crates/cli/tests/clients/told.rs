//! Told at once: a holder learns of the end of its claim when it happens, not at its next renewal.
//!
//! In:    a real service, and claims whose next renewal is minutes away. Out: losses, as their holders hear of them.

#![allow(clippy::print_stdout, reason = "how long it took is for a reader, and not asserted")]

use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Server, eventually};
use leasehold_client::blocking::{Claim, LockManager};
use leasehold_client::{Error, Lost, Options};

const WHEN_GONE: &str = r#"{"status": "revoked", "when": "gone"}"#;
const NOW: &str = r#"{"status": "revoked"}"#;

/// Renewals every five minutes: none falls into a test.
fn manager(server: &Server) -> LockManager {
    LockManager::new(Options::url(&format!("http://{}", server.addr)).ttl(Duration::from_secs(900))).unwrap()
}

fn end(server: &Server, claim: &Claim, body: &str) {
    let path = format!("/v1/claims/{}/", claim.id());
    let why = [("Leasehold-Reason", "the disk is full")];
    let reply = server.client().request("PATCH", &path, &why, body.as_bytes());
    assert!(matches!(reply.status, 202 | 204), "{reply:?}");
}

fn revoked() -> Lost {
    Lost::Ended("revoked (the disk is full)".into())
}

#[test]
fn a_holder_hears_of_its_revocation_and_why_long_before_its_next_renewal() {
    let server = Server::start();
    let manager = manager(&server);
    for round in 0..5 {
        let claim = manager.claim("r").unwrap();
        // Lets the request stand open, as it mostly does. Nothing depends on it.
        std::thread::sleep(Duration::from_millis(100));
        let started = Instant::now();
        end(&server, &claim, NOW);
        assert_eq!(claim.wait_lost(PATIENCE), Some(revoked()), "round {round}");
        println!("told after {:?}", started.elapsed());
        assert!(claim.validate().is_err());
        claim.release().unwrap_err();
    }
}

#[test]
fn a_holder_that_is_to_let_go_hears_of_it_and_the_next_one_waits_until_it_has() {
    let server = Server::start();
    let manager = manager(&server);
    let claim = manager.claim("r").unwrap();
    let path = format!("/v1/claims/{}/", claim.id());
    let next = server.claim("r", 900.0);
    end(&server, &claim, WHEN_GONE);
    assert_eq!(claim.wait_lost(PATIENCE), Some(revoked()));
    assert_eq!((server.status(&path), server.status(&next)), ("active".into(), "waiting".into()));
    claim.release().unwrap();
    eventually("the next one holds", || server.status(&next) == "active");
    assert_eq!(server.status(&path), "released");
}

#[test]
fn a_claim_that_somebody_else_released_was_lost_and_not_released_by_its_holder() {
    let server = Server::start();
    // Nobody tells, and no renewal falls into the test: the release itself has to find out.
    let options = Options::url(&format!("http://{}", server.addr)).ttl(Duration::from_secs(900));
    let manager = LockManager::new(options.long_poll(Duration::ZERO)).unwrap();
    let claim = manager.claim("r").unwrap();
    end(&server, &claim, r#"{"status": "released"}"#);
    assert_eq!(claim.release(), Err(Error::Ended("released".into())));
    manager.claim("r").unwrap().release().unwrap();
}

#[test]
fn one_of_many_is_told_and_the_others_are_not() {
    let server = Server::start();
    let manager = manager(&server);
    let claims: Vec<Claim> = (0..600).map(|i| manager.claim(&format!("r{i}")).unwrap()).collect();
    for i in [0, 299, 599] {
        end(&server, &claims[i], if i == 299 { WHEN_GONE } else { NOW });
        assert_eq!(claims[i].wait_lost(PATIENCE), Some(revoked()), "{i}");
    }
    let held = claims.iter().filter(|claim| claim.validate().is_ok()).count();
    assert_eq!(held, 597);
    // Those that come and go meanwhile are covered, too.
    drop(claims.into_iter().take(400).collect::<Vec<_>>());
    let late = manager.claim("late").unwrap();
    end(&server, &late, NOW);
    assert_eq!(late.wait_lost(PATIENCE), Some(revoked()));
}

#[test]
fn a_holder_is_told_again_after_the_service_was_away() {
    let mut server = Server::start_with(&[]);
    let data = server.data.clone();
    let manager = manager(&server);
    let claim = manager.claim("r").unwrap();
    let addr = server.addr.to_string();
    server.kill();
    let server = Server::start_in(&data, &["--listen", &addr]);
    end(&server, &claim, NOW);
    assert_eq!(claim.wait_lost(PATIENCE), Some(revoked()));
}
