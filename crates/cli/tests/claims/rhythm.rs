//! Clients that look only now and then: a promoted claim waits for its client, by that client's own rhythm.
//!
//! In:    a real service with default settings, and clients that poll as the original Perl client does: a ttl of one unit, a
//!        look after each unit. Out: whether each gets its claim, however unluckily the promotion falls.
//! Never: calls a claim lost whose client did not keep its own rhythm, on a machine that is too busy.
//!
//! A unit is a second here, and a minute in the original. `LEASEHOLD_RHYTHM_UNIT=60 LEASEHOLD_RHYTHM_SECONDS=600` runs the last
//! test in the original's rhythm for ten minutes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Reply, Server, claim_body, eventually};
use serde_json::Value;

const ACTIVE: &str = r#"{"status": "active"}"#;
const RELEASED: &str = r#"{"status": "released"}"#;

fn sleep(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}

fn path_of(claim: &Value) -> String {
    let url = claim["url"].as_str().unwrap();
    url[url.find("/v1/").unwrap()..].into()
}

fn left(claim: &Value) -> f64 {
    claim["ttl"].as_f64().unwrap_or_else(|| panic!("nothing is left: {claim}"))
}

#[test]
fn a_client_that_looks_after_one_two_and_three_units_gets_its_claim() {
    let server = Server::start();
    let holder = server.claim("r", 900.0);
    let path = server.claim("r", 1.0);
    sleep(1.0);
    assert_eq!(server.patch(&path, ACTIVE).status, 409);
    // Its turn comes soon after its client has looked; the client's next look is further away than the ttl is long.
    sleep(1.0);
    assert_eq!(server.patch(&holder, RELEASED).status, 204);
    let promoted = server.detail(&path);
    assert!(left(&promoted) > 1.9, "twice the pause: {promoted}");
    sleep(1.0);
    let waiting = server.detail(&path);
    assert!(left(&waiting) < left(&promoted), "it falls, and looking at it starts nothing: {waiting}");
    let reply = server.patch(&path, ACTIVE);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!((&reply.json()["ttl"], &reply.json()["initial_ttl"]), (&1.0.into(), &1.0.into()));
    // Once: the next request does not start it anew.
    let again = server.patch(&path, ACTIVE);
    assert!(left(&again.json()) < 1.0, "{again:?}");
    eventually("its ttl runs out", || server.status(&path) == "expired");
}

#[test]
fn a_waiter_that_never_asked_gets_its_ttl_and_no_more() {
    let server = Server::start();
    let holder = server.claim("r", 900.0);
    let silent = server.claim("r", 0.3);
    eventually("it waits for a while", || server.detail(&silent)["waiting_duration"].as_f64() > Some(1.0));
    server.patch(&holder, RELEASED);
    eventually("its ttl runs out", || server.status(&silent) == "expired");
    assert_eq!(server.detail(&silent)["active_duration"], 0.3);
}

#[test]
fn an_open_request_is_told_of_the_promotion_and_its_ttl_runs_from_then() {
    let server = Server::start();
    let holder = server.claim("r", 900.0);
    let path = server.claim("r", 100.0);
    eventually("it waits for a while", || server.detail(&path)["waiting_duration"].as_f64() > Some(1.0));
    let mut open = server.ask("PATCH", &format!("{path}?wait=300"), &[], ACTIVE);
    // Lets it stand open before the promotion. Nothing depends on it: if it does not, the check is weaker in this run.
    sleep(0.1);
    server.patch(&holder, RELEASED);
    let reply = open.reply();
    assert_eq!((reply.status, &reply.json()["status"]), (200, &"active".into()));
    assert_eq!(reply.json()["ttl"], 100.0, "{reply:?}");
}

#[test]
fn time_for_which_a_post_or_a_put_stood_open_is_no_pause() {
    let server = Server::start();
    let by_post = |body: &str| server.post("/v1/claims/?wait=2", body);
    let by_put = |body: &str| {
        let made = server.post("/v1/claims/", body);
        let path = format!("{}?wait=2", path_of(&made.json()));
        assert_eq!(server.put(&path, r#"{"ttl": 1, "status": "active"}"#).status, 409);
        made
    };
    for (resource, open) in [("post", &by_post as &dyn Fn(&str) -> Reply), ("put", &by_put)] {
        let holder = server.claim(resource, 900.0);
        let made = open(&claim_body(resource, 1.0));
        assert_eq!(made.status, 202, "{made:?}");
        let path = path_of(&made.json());
        assert_eq!(server.patch(&path, ACTIVE).status, 409);
        assert_eq!(server.patch(&holder, RELEASED).status, 204);
        let promoted = server.detail(&path);
        assert!(left(&promoted) < 3.0, "{resource}: twice the two seconds would be four: {promoted}");
    }
}

#[test]
fn the_rhythm_of_a_client_survives_the_kill_of_the_service() {
    let mut server = Server::start();
    let holder = server.claim("r", 900.0);
    let path = server.claim("r", 0.2);
    sleep(2.0);
    assert_eq!(server.patch(&path, ACTIVE).status, 409);
    server.restart();
    server.patch(&holder, RELEASED);
    let claim = server.detail(&path);
    assert!(left(&claim) > 2.0, "{claim}");
    assert_eq!(server.patch(&path, ACTIVE).json()["ttl"], 0.2);
}

/// What one worker saw.
#[derive(Default)]
struct Seen {
    held: u32,
    /// Claims that were over when their client came for them, on its own time.
    lost: Vec<Value>,
}

/// A unit of the clients' time, and for how long they contend.
fn scale() -> (f64, Duration) {
    let number = |name: &str, default: f64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
    };
    let unit = number("LEASEHOLD_RHYTHM_UNIT", 1.0);
    (unit, Duration::from_secs_f64(number("LEASEHOLD_RHYTHM_SECONDS", 12.0)))
}

/// One client: claims, looks once a unit until it is its turn, works for a part of a unit, releases, and again.
fn work(server: &Server, working: &AtomicU32, worker: u32, until: Instant, unit: f64) -> Seen {
    let mut seen = Seen::default();
    while Instant::now() < until {
        let path = server.claim("contended", unit);
        let (mut last, mut looks) = (Instant::now(), 0);
        let mut status = if server.status(&path) == "active" { 200 } else { 409 };
        while status == 409 {
            sleep(unit);
            // A claim that was promoted before its first look has its ttl from then: its client may come too late for it. And
            // a client that this machine woke up too late has not kept its rhythm.
            let in_time = looks > 0 && last.elapsed().as_secs_f64() < 1.5 * unit;
            let reply = server.patch(&path, ACTIVE);
            status = reply.status;
            if status == 400 && in_time {
                seen.lost.push(server.detail(&path));
            }
            (last, looks) = (Instant::now(), looks + 1);
        }
        if status == 200 {
            assert_eq!(working.swap(worker, Ordering::SeqCst), 0, "two work at a time");
            sleep(unit * 0.2 * f64::from(worker));
            working.store(0, Ordering::SeqCst);
            server.patch(&path, RELEASED);
            seen.held += 1;
        }
    }
    seen
}

#[test]
fn clients_that_poll_like_the_original_all_get_their_turns_under_contention() {
    let server = Server::start();
    let (unit, length) = scale();
    let until = Instant::now() + length;
    let working = AtomicU32::new(0);
    let seen: Vec<Seen> = std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=3)
            .map(|worker| {
                scope.spawn({
                    let (server, working) = (&server, &working);
                    move || work(server, working, worker, until, unit)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    for (worker, seen) in seen.iter().enumerate() {
        assert!(
            seen.lost.is_empty(),
            "worker {worker} came in time and found its claim over: {:?}",
            seen.lost
        );
        assert!(seen.held > 0, "worker {worker} never had its turn");
    }
}
