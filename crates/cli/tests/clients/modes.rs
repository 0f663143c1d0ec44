//! Shared claims, slots, sets and sessions through the Rust library; and servers that don't know them.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use leasehold_client::blocking::LockManager;
use leasehold_client::{ClaimRequest, Error, Item, Options, Wait};

use crate::common::{PATIENCE, Server};
use crate::proxy::{Fault, Proxy};

fn options(server: &Server) -> Options {
    Options::url(&format!("http://{}", server.addr))
}

fn manager(server: &Server) -> LockManager {
    LockManager::new(options(server)).unwrap()
}

fn patient(resource: &str) -> ClaimRequest {
    ClaimRequest::new(resource).wait(Wait::For(PATIENCE))
}

#[test]
fn readers_share_slots_are_numbered_and_sets_have_a_token_for_each() {
    let server = Server::start();
    let (one, two) = (manager(&server), manager(&server));
    let reader = one.request(ClaimRequest::new("r").shared()).unwrap();
    let other = two.request(ClaimRequest::new("r").shared().wait(Wait::No)).unwrap();
    assert_eq!(reader.token(), other.token());
    assert!(reader.token().is_some());
    let board = one.request(ClaimRequest::new("boards").slots(2, 3)).unwrap();
    assert_eq!(board.slots(), [1, 2]);
    let refused = two.request(ClaimRequest::new("boards").slots(1, 4)).err().unwrap();
    assert!(
        matches!(&refused, Error::Refused { status: 409, detail } if detail.contains("3 slots")),
        "{refused}"
    );
    let set = ClaimRequest::new("a").also(Item::shared("s")).also(Item::slots("boards", 1, 3));
    let reader = two.request(ClaimRequest::new("s").shared()).unwrap();
    one.claim("a").unwrap().release().unwrap();
    let set = one.request(set.wait(Wait::For(PATIENCE))).err().unwrap();
    // Its own thread holds slots of `boards`.
    assert!(matches!(&set, Error::AlreadyClaimed(what) if what == "boards"), "{set}");
    let set = one.request(patient("a").also(Item::shared("s"))).unwrap();
    let items = set.items();
    assert_eq!((set.token(), items.len()), (None, 2));
    assert!(items[0].token > items[1].token && items[1].token == reader.token());
    assert_eq!(set.validate(), Ok(None));
    set.release().unwrap();
}

#[test]
fn a_set_is_lost_as_a_whole() {
    let server = Server::start();
    let manager = manager(&server);
    let set = manager.request(ClaimRequest::new("a").also("b")).unwrap();
    let path = format!("/v1/claims/{}/", set.id());
    assert_eq!(server.list("resource=b").len(), 1);
    assert_eq!(server.patch(&path, r#"{"status": "revoked"}"#).status, 204);
    assert!(set.wait_lost(PATIENCE).is_some() && set.validate().is_err());
    drop(set);
    manager.request(patient("b").also("a")).unwrap().release().unwrap();
}

#[test]
fn of_two_threads_that_would_wait_for_each_other_one_is_told() {
    let server = Server::start();
    let manager = manager(&server);
    let both_hold = Arc::new(Barrier::new(2));
    let worker = |first: &'static str, second: &'static str| {
        let (manager, both_hold) = (manager.clone(), both_hold.clone());
        std::thread::spawn(move || {
            let held = manager.claim(first).unwrap();
            both_hold.wait();
            let next = manager.request(patient(second)).map(drop);
            drop(held);
            next
        })
    };
    let outcomes = [worker("a", "b"), worker("b", "a")].map(|thread| thread.join().unwrap());
    let refused: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    let [Error::Deadlock { detail, cycle }] = refused[..] else { panic!("{outcomes:?}") };
    assert!(detail.contains("is held by claim"), "{detail}");
    let links: Vec<_> = cycle.iter().map(|step| step.link.as_deref().unwrap()).collect();
    assert!(links.contains(&"wants") && links.contains(&"holds"), "{cycle:?}");
    assert!(server.list("status=waiting").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_tasks_that_would_wait_for_each_other_one_is_told() {
    let server = Server::start();
    let manager = leasehold_client::LockManager::new(options(&server)).unwrap();
    let both_hold = Arc::new(tokio::sync::Barrier::new(2));
    let worker = |first: &'static str, second: &'static str| {
        let (manager, both_hold) = (manager.clone(), both_hold.clone());
        tokio::spawn(async move {
            let held = manager.claim(first).await.unwrap();
            both_hold.wait().await;
            let next = manager.request(patient(second)).unwrap().acquired().await.map(drop);
            held.release().await.unwrap();
            next
        })
    };
    let (one, two) = (worker("a", "b"), worker("b", "a"));
    let outcomes = [one.await.unwrap(), two.await.unwrap()];
    let is_told = |outcome: &&Result<(), Error>| matches!(outcome, Err(Error::Deadlock { .. }));
    assert_eq!(outcomes.iter().filter(is_told).count(), 1, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
}

#[test]
fn a_claim_that_does_not_wait_is_not_free_and_sessions_can_be_turned_off() {
    let server = Server::start();
    let (one, two) = (manager(&server), manager(&server));
    let held = one.claim("r").unwrap();
    assert!(held.session().is_some());
    assert!(matches!(two.claim("r").err(), Some(Error::Deadlock { .. })), "this thread holds it");
    let refused = two.request(ClaimRequest::new("r").wait(Wait::No)).err();
    assert!(matches!(refused, Some(Error::Timeout { .. })), "{refused:?}");
    let off = LockManager::new(options(&server).no_sessions()).unwrap();
    let waited = off.request(ClaimRequest::new("r").wait(Wait::For(Duration::from_millis(50)))).err();
    assert!(matches!(waited, Some(Error::Timeout { .. })), "{waited:?}");
    assert_eq!(off.claim("other").unwrap().session(), None);
    // A session of the program's own.
    let outer = off.request(ClaimRequest::new("named").session("job-7")).unwrap();
    let inner = off.request(
        ClaimRequest::new("named").session("job-7/part").worker(leasehold_client::Worker::named("2")),
    );
    assert!(matches!(inner.err(), Some(Error::Deadlock { .. })));
    drop(outer);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_dropped_a_moment_ago_is_no_deadlock() {
    let server = Server::start();
    let manager = leasehold_client::LockManager::new(options(&server)).unwrap();
    for round in 0..100 {
        // Released in the background: the next claim may overtake that.
        drop(manager.claim("r").await.unwrap_or_else(|error| panic!("round {round}: {error}")));
        let pending = manager.request(patient("r")).unwrap();
        // One that waits, or is on its way, leaves the queue in the background.
        drop(pending);
    }
    assert!(manager.claim("r").await.is_ok());
}

#[test]
fn a_server_without_sessions_is_served_without_them_and_never_without_a_mode() {
    let server = Server::start();
    for fault in [Fault::Old, Fault::OldMember] {
        let proxy = Proxy::before(server.addr);
        proxy.rule(move |_| fault);
        let manager = LockManager::new(Options::url(&proxy.url())).unwrap();
        let claim = manager.claim("r").unwrap();
        assert_eq!(claim.session(), None);
        assert_eq!(proxy.count("register"), 2);
        claim.release().unwrap();
        // It is remembered.
        manager.claim("r").unwrap().release().unwrap();
        assert_eq!(proxy.count("register"), 3);
        let quick = |request: ClaimRequest| {
            manager.request(request.wait(Wait::For(Duration::from_millis(300)))).err()
        };
        let status = if fault == Fault::Old { 400 } else { 503 };
        for request in [
            ClaimRequest::new("r").shared(),
            ClaimRequest::new("r").slots(1, 2),
            ClaimRequest::new("r").also("s"),
        ] {
            let refused = quick(request);
            assert!(
                matches!(&refused, Some(Error::Refused { status: found, .. }) if *found == status),
                "{refused:?}"
            );
        }
        assert!(server.list("resource=r&status=active").is_empty());
    }
}
