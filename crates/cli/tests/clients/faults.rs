//! The client while things fail: cut off, server paused, killed and restarted, answers lost, old servers, many claims.
//!
//! In:    a real server, often behind a proxy that fails. Out: what a holder is told, and when, compared with what the
//!        server does. Orders of events are compared, never durations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{PATIENCE, Server, claim_body, eventually};
use crate::proxy::{Fault, Proxy};
use leasehold_client::internals::machine::State;
use leasehold_client::{ClaimRequest, Error, LockManager, Lost, OnLost, Options, Wait, Worker, blocking};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

fn short(url: &str) -> Options {
    Options::url(url).ttl(Duration::from_secs(4))
}

/// Somebody else, who waits for the resource right at the server. The thread returns whether the holder had been told that
/// its claim is lost before the server handed it over.
fn rival(server: &Server, resource: &str, told: &Arc<AtomicBool>) -> std::thread::JoinHandle<bool> {
    let mut client = server.ask("POST", "/v1/claims/?wait=60", &[], &claim_body(resource, 60.0));
    let told = told.clone();
    std::thread::spawn(move || {
        let reply = client.reply();
        assert_eq!(reply.status, 201, "{reply:?}");
        told.load(Ordering::SeqCst)
    })
}

/// The holder is cut off in one way or another: it hears that its claim is lost before anyone else can hold it.
fn cut_off(fault: Fault) {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    let told = Arc::new(AtomicBool::new(false));
    runtime().block_on(async {
        let manager = LockManager::new(short(&proxy.url())).unwrap();
        // The lead is for the machine that runs this test, which may be slow to let us say that we were told.
        let request = ClaimRequest::new("r").lead(Duration::from_millis(800));
        let claim = within(manager.request(request).unwrap().acquired()).await.unwrap();
        let rival = rival(&server, "r", &told);
        server.wait_for_queue("r", 1);
        proxy.rule(move |_| fault);
        let lost = within(claim.lost()).await;
        told.store(true, Ordering::SeqCst);
        assert!(matches!(lost, Lost::NotRenewed(_)), "{lost}");
        assert!(claim.validate().is_err());
        assert!(rival.join().unwrap(), "the server handed over before the holder knew");
        assert!(matches!(within(claim.release()).await, Err(Error::Lost(_))));
    });
}

#[test]
fn a_cut_network_is_noticed_before_the_hand_over() {
    cut_off(Fault::Cut);
}

#[test]
fn a_silent_network_is_noticed_before_the_hand_over() {
    cut_off(Fault::Hold);
}

#[test]
fn a_server_that_only_fails_is_noticed_before_the_hand_over() {
    cut_off(Fault::Answer(500));
}

#[test]
fn a_paused_server_is_noticed_and_hands_over_when_it_goes_on() {
    let server = Server::start();
    let told = Arc::new(AtomicBool::new(false));
    runtime().block_on(async {
        let manager = LockManager::new(short(&format!("http://{}", server.addr))).unwrap();
        let claim = within(manager.claim("r")).await.unwrap();
        let rival = rival(&server, "r", &told);
        server.wait_for_queue("r", 1);
        server.signal("STOP");
        within(claim.lost()).await;
        told.store(true, Ordering::SeqCst);
        server.signal("CONT");
        assert!(rival.join().unwrap());
    });
}

#[test]
fn a_claim_survives_a_server_that_is_killed_and_restarted() {
    let mut server = Server::start();
    let proxy = Proxy::before(server.addr);
    runtime().block_on(async {
        let manager = LockManager::new(Options::url(&proxy.url()).ttl(Duration::from_secs(20))).unwrap();
        let claim = within(manager.claim("r")).await.unwrap();
        let waiting = manager.api();
        server.restart();
        proxy.move_to(server.addr);
        within(claim.refresh(None)).await.unwrap();
        assert_eq!(claim.validate().unwrap(), Some(1));
        assert_eq!(waiting.get(claim.id()).await.unwrap().status, "active");
        // One that waits keeps its place, too.
        let other = LockManager::new(Options::url(&proxy.url())).unwrap();
        // As another worker: this task would wait for itself.
        let pending = other.request(ClaimRequest::new("r").worker(Worker::named("other"))).unwrap();
        server.wait_for_queue("r", 1);
        server.restart();
        proxy.move_to(server.addr);
        within(claim.release()).await.unwrap();
        let next = within(pending.acquired()).await.unwrap();
        assert_eq!(next.token(), Some(2));
        assert_eq!(server.list("resource=r").len(), 2, "no claim was made twice");
        within(next.release()).await.unwrap();
    });
}

#[test]
fn a_lost_answer_leaves_no_ghost_in_the_queue() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    server.claim("r", 500.0);
    proxy.rule(|kind| if kind == "register" { Fault::Lose } else { Fault::None });
    runtime().block_on(async {
        let manager = LockManager::new(Options::url(&proxy.url())).unwrap();
        let pending = manager.request(ClaimRequest::new("r")).unwrap();
        server.wait_for_queue("r", 1);
        eventually("it is repeated", || proxy.count("register") > 1);
        assert_eq!(server.list("resource=r&status=waiting").len(), 1, "repeated, it is still one claim");
        // Whoever wanted it goes away while the answers are lost.
        drop(pending);
        proxy.heal();
        within(manager.close()).await;
        assert!(server.list("resource=r&status=waiting").is_empty());
    });
}

#[test]
fn a_wait_that_is_given_up_leaves_the_queue() {
    let server = Server::start();
    server.claim("r", 500.0);
    runtime().block_on(async {
        let manager = LockManager::new(Options::url(&format!("http://{}", server.addr))).unwrap();
        let pending = manager.request(ClaimRequest::new("r")).unwrap();
        server.wait_for_queue("r", 1);
        drop(pending);
        server.wait_for_queue("r", 0);
        let no = manager.request(ClaimRequest::new("r").wait(Wait::No)).unwrap();
        assert!(matches!(within(no.acquired()).await, Err(Error::Timeout { .. })));
        server.wait_for_queue("r", 0);
    });
}

#[test]
fn a_server_without_long_polls_and_renewals_is_polled() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    proxy.rule(|kind| match kind {
        "activate" => Fault::NoQuery,
        "renewals" => Fault::Answer(404),
        _ => Fault::None,
    });
    let holder = server.claim("r", 500.0);
    runtime().block_on(async {
        let manager = LockManager::new(short(&proxy.url())).unwrap();
        let pending = manager.request(ClaimRequest::new("r")).unwrap();
        eventually("it asks again and again", || proxy.count("activate") > 2);
        server.patch(&holder, r#"{"status": "released"}"#);
        let claim = within(pending.acquired()).await.unwrap();
        let others = [within(manager.claim("s")).await.unwrap(), within(manager.claim("t")).await.unwrap()];
        eventually("they are renewed one by one", || proxy.count("renew") > 6);
        assert!(claim.validate().is_ok() && others.iter().all(|claim| claim.validate().is_ok()));
    });
}

#[test]
fn a_long_poll_costs_few_questions_and_many_claims_one_renewal() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    let holder = server.claim("r", 500.0);
    runtime().block_on(async {
        let manager = LockManager::new(short(&proxy.url())).unwrap();
        let pending = manager.request(ClaimRequest::new("r")).unwrap();
        eventually("it waits", || proxy.count("activate") == 1);
        let mut held = Vec::new();
        for n in 0..40 {
            held.push(within(manager.claim(&format!("many-{n}"))).await.unwrap());
        }
        let so_far = proxy.count("renewals");
        eventually("they are renewed together", || proxy.count("renewals") > so_far + 4);
        let alone = proxy.count("renew");
        assert!(alone < 40, "{alone} renewals travelled alone");
        assert!(held.iter().all(|claim| claim.validate().is_ok()));
        let (asked, renewed) = (proxy.count("activate"), proxy.count("renewals"));
        assert!(
            asked <= renewed,
            "{asked} questions: waiting costs no more than holding, which took {renewed}"
        );
        // One of them is revoked: only that one is lost.
        server.patch(&format!("/v1/claims/{}/", held[7].id()), r#"{"status": "revoked"}"#);
        assert_eq!(within(held[7].lost()).await, Lost::Ended("revoked".into()));
        assert_eq!(held.iter().filter(|claim| claim.validate().is_ok()).count(), 39);
        server.patch(&holder, r#"{"status": "released"}"#);
        within(within(pending.acquired()).await.unwrap().release()).await.unwrap();
        within(manager.close()).await;
        assert!(server.list("status=active").is_empty());
    });
}

#[test]
fn addresses_are_tried_in_turn() {
    let server = Server::start();
    let (first, second) = (Proxy::before(server.addr), Proxy::before(server.addr));
    runtime().block_on(async {
        let url = format!("http://127.0.0.1:1,{},{}", first.url(), second.url());
        let manager = LockManager::new(short(&url)).unwrap();
        let claim = within(manager.claim("r")).await.unwrap();
        assert_eq!((first.count("register"), second.count("register")), (1, 0));
        first.rule(|_| Fault::Answer(503));
        eventually("the second is asked", || second.count("renew") > 1);
        first.heal();
        second.rule(|_| Fault::Cut);
        eventually("the first is asked again", || first.count("renew") > 1);
        assert!(claim.validate().is_ok());
        within(claim.release()).await.unwrap();
    });
}

#[test]
fn nothing_is_renewed_for_ever_and_one_claim_a_resource_is_enough() {
    let server = Server::start();
    runtime().block_on(async {
        let manager = LockManager::new(short(&format!("http://{}", server.addr))).unwrap();
        let request = ClaimRequest::new("r").max_hold(Duration::from_millis(700));
        let claim = within(manager.request(request).unwrap().acquired()).await.unwrap();
        assert_eq!(within(manager.claim("r")).await.unwrap_err(), Error::AlreadyClaimed("r".into()));
        assert_eq!(within(claim.lost()).await, Lost::MaxHold);
        eventually("the server hears of it at the latest with the ttl", || {
            server.list("status=active").is_empty()
        });
    });
}

#[test]
fn a_claim_that_was_long_in_the_queue_is_true_when_it_arrives() {
    let server = Server::start();
    runtime().block_on(async {
        // The long-poll is older than the ttl when the turn comes.
        let options = Options::url(&format!("http://{}", server.addr)).ttl(Duration::from_secs(2));
        let manager = LockManager::new(options).unwrap();
        server.claim("r", 4.0);
        let claim = within(manager.claim("r")).await.unwrap();
        let token = claim.validate().unwrap();
        let shown = manager.api().get(claim.id()).await.unwrap();
        assert_eq!((shown.status.as_str(), shown.token), ("active", token));
    });
}

#[test]
fn the_blocking_client_does_the_same() {
    let server = Server::start();
    let manager = blocking::LockManager::new(short(&format!("http://{}", server.addr))).unwrap();
    let claim = manager.claim("r").unwrap();
    assert_eq!(claim.validate().unwrap(), claim.token());
    claim.refresh(Some(Duration::from_secs(5))).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    claim.on_lost(move |lost| tell.send(lost).unwrap());
    server.patch(&format!("/v1/claims/{}/", claim.id()), r#"{"status": "revoked"}"#);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Lost::Ended("revoked".into()));
    assert!(matches!(claim.release(), Err(Error::Lost(_))));
    let claim = manager.claim("r").unwrap();
    let id = claim.id().to_string();
    drop(claim);
    assert_eq!(server.status(&format!("/v1/claims/{id}/")), "released", "a dropped claim is released");
    manager.claim("r").unwrap().release().unwrap();
}

#[test]
fn the_servers_own_rate_limit_is_not_the_end_of_a_claim() {
    let server = Server::start_with(&["--requests-per-second", "1"]);
    let refused = Arc::new(AtomicBool::new(false));
    let observed = refused.clone();
    runtime().block_on(async {
        let observer = move |_: &str, row: &leasehold_client::internals::machine::Row| {
            if (row.from, row.to) == (State::Renewing, State::RetryingRenew) {
                observed.store(true, Ordering::SeqCst);
            }
        };
        let options = short(&format!("http://{}", server.addr)).observer(Arc::new(observer));
        let manager = LockManager::new(options.ttl(Duration::from_secs(15))).unwrap();
        let claim = within(manager.claim("r")).await.unwrap();
        let until = claim.holds_until();
        // Somebody at the same address takes every request that the limit leaves, until a renewal is refused.
        let mut client = server.client();
        eventually("a renewal is refused", || {
            client.request("GET", "/v1/claims/", &[], b"");
            refused.load(Ordering::SeqCst) || claim.validate().is_err()
        });
        within(async {
            while claim.holds_until() <= until {
                claim.validate().expect("a claim outlives a 429");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert!(claim.validate().is_ok());
    });
}

#[test]
fn a_request_is_repeated_when_the_server_says_and_not_before() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let times = asked.clone();
    proxy.rule(move |kind| {
        if kind != "register" {
            return Fault::None;
        }
        let mut times = times.lock().unwrap();
        times.push(std::time::Instant::now());
        if times.len() == 1 { Fault::Later(429, 2) } else { Fault::None }
    });
    let manager = blocking::LockManager::new(short(&proxy.url())).unwrap();
    manager.claim("r").unwrap().release().unwrap();
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 2);
    assert!(asked[1] - asked[0] >= Duration::from_secs(2), "it was asked again too early");
}

#[test]
fn workers_of_one_process_queue_like_strangers() {
    const WORKERS: usize = 20;
    let server = Server::start();
    let manager = blocking::LockManager::new(short(&format!("http://{}", server.addr))).unwrap();
    let inside = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (manager, inside) = (manager.clone(), inside.clone());
            std::thread::spawn(move || {
                let claim = manager.claim("r").unwrap();
                assert_eq!(manager.claim("r").err(), Some(Error::AlreadyClaimed("r".into())), "its own");
                assert!(!inside.swap(true, Ordering::SeqCst), "two hold it at once");
                inside.store(false, Ordering::SeqCst);
                claim.release().unwrap();
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    // Tasks are workers, too.
    runtime().block_on(async {
        let manager = LockManager::new(short(&format!("http://{}", server.addr))).unwrap();
        let claim = manager.claim("r").await.unwrap();
        let other = manager.clone();
        let waiting = tokio::spawn(async move { other.claim("r").await });
        server.wait_for_queue("r", 1);
        claim.release().await.unwrap();
        within(waiting).await.unwrap().unwrap();
    });
}

/// The child of the next test: it holds a claim and does nothing else.
#[test]
fn a_process_that_wants_to_be_terminated() {
    let Ok(url) = std::env::var("LEASEHOLD_TEST_TERMINATED") else { return };
    let options = short(&url).on_lost(OnLost::Terminate);
    let manager = blocking::LockManager::new(options).unwrap();
    let claim = manager.claim("r").unwrap();
    claim.on_lost(move |_| {
        manager.claim("the callback came first").unwrap().release().unwrap();
    });
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn a_lost_claim_terminates_a_process_that_wants_it_after_its_callback() {
    use std::os::unix::process::ExitStatusExt as _;
    let server = Server::start();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::a_process_that_wants_to_be_terminated"])
        .env("LEASEHOLD_TEST_TERMINATED", format!("http://{}", server.addr))
        .spawn()
        .unwrap();
    eventually("it holds its claim", || server.list("resource=r&status=active").len() == 1);
    let id = server.list("resource=r")[0]["url"].as_str().unwrap().to_string();
    server.patch(&id[id.find("/v1/").unwrap()..], r#"{"status": "revoked"}"#);
    let mut status = None;
    eventually("it ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().signal(), Some(15));
    assert_eq!(server.list("resource=the+callback+came+first")[0]["status"], "released");
}

#[test]
fn not_acquired_unreachable_refused_and_unknown_are_different_errors() {
    let server = Server::start();
    server.claim("held", 500.0);
    let proxy = Proxy::before(server.addr);
    let kind = |resource: &'static str, wait: Wait| {
        let options = Options::url(&proxy.url());
        runtime().block_on(async move {
            let manager = LockManager::new(options).unwrap();
            let request = ClaimRequest::new(resource).wait(wait);
            let error = within(manager.request(request).unwrap().acquired()).await.unwrap_err();
            (error.kind(), error.to_string())
        })
    };
    let soon = Wait::For(Duration::from_millis(300));
    for wait in [soon, Wait::No] {
        assert_eq!(kind("held", wait).0, "timeout", "the server had queued it");
        for (fault, expected) in [
            (Fault::Cut, "unreachable"),
            (Fault::Hold, "unreachable"),
            (Fault::Answer(404), "refused"),
            (Fault::Answer(403), "refused"),
            // Whoever sent it does not say that nothing happened.
            (Fault::Answer(502), "unknown"),
            (Fault::Answer(503), "unknown"),
        ] {
            proxy.rule(move |kind| if kind == "register" { fault } else { Fault::None });
            let (kind, words) = kind("free", wait);
            assert_eq!(kind, expected, "{fault:?}: {words}");
        }
        proxy.heal();
    }
}

#[test]
fn a_ttl_that_changes_while_a_renewal_is_on_its_way_counts_once_the_server_has_it() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let asked = Arc::new(AtomicBool::new(false));
    let on_its_way = asked.clone();
    proxy.rule(move |kind| {
        if kind.starts_with("renew") && !on_its_way.swap(true, Ordering::SeqCst) {
            wait.recv().ok();
        }
        Fault::None
    });
    runtime().block_on(async {
        let manager = LockManager::new(Options::url(&proxy.url()).ttl(Duration::from_secs(12))).unwrap();
        let claims = [manager.claim("a").await.unwrap(), manager.claim("b").await.unwrap()];
        eventually("a renewal is on its way", || asked.load(Ordering::SeqCst));
        let ttl = Duration::from_secs(600);
        let (first, second, ()) =
            tokio::join!(claims[0].refresh(Some(ttl)), claims[1].refresh(Some(ttl)), async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                go.send(()).unwrap();
            });
        first.and(second).unwrap();
        for resource in ["a", "b"] {
            assert_eq!(server.list(&format!("resource={resource}"))[0]["initial_ttl"], 600.0, "{resource}");
        }
    });
}

#[test]
fn no_time_to_wait_is_enough_for_what_is_free() {
    let server = Server::start();
    server.claim("held", 500.0);
    let options = Options::url(&format!("http://{}", server.addr));
    let impatient = blocking::LockManager::new(options.clone().timeout(Duration::ZERO)).unwrap();
    impatient.claim("free").unwrap().release().unwrap();
    assert_eq!(impatient.claim("held").err().unwrap().kind(), "timeout");
    let patient = blocking::LockManager::new(options).unwrap();
    let request = |resource| ClaimRequest::new(resource).wait(Wait::For(Duration::ZERO));
    patient.request(request("free")).unwrap().release().unwrap();
    assert_eq!(patient.request(request("held")).err().unwrap().kind(), "timeout");
}

#[test]
fn a_ttl_that_a_claim_can_not_have_leaves_it_with_its_own() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    let manager = blocking::LockManager::new(Options::url(&proxy.url())).unwrap();
    let claim = manager.request(ClaimRequest::new("r").lead(Duration::from_secs(5))).unwrap();
    for seconds in [0.0, 5.0, 101.0 * 86_400.0, 1e12] {
        let refused = claim.refresh(Some(Duration::from_secs_f64(seconds))).unwrap_err();
        assert_eq!(refused.kind(), "invalid", "{seconds}: {refused}");
    }
    // One that only this server refuses.
    let mut refusals = 1;
    proxy.rule(move |kind| {
        let is_refused = kind == "renew" && std::mem::take(&mut refusals) > 0;
        if is_refused { Fault::Answer(400) } else { Fault::None }
    });
    assert_eq!(claim.refresh(Some(Duration::from_secs(600))).unwrap_err().kind(), "refused");
    assert!(claim.validate().is_ok());
    claim.refresh(None).unwrap();
    assert_eq!(server.list("resource=r&status=active")[0]["initial_ttl"], 30.0);
    claim.release().unwrap();
}

#[test]
fn the_work_under_a_claim_hears_that_its_manager_is_closed() {
    let server = Server::start();
    runtime().block_on(async {
        let manager = LockManager::new(short(&format!("http://{}", server.addr))).unwrap();
        let claim = within(manager.claim("r")).await.unwrap();
        within(manager.close()).await;
        assert_eq!(within(claim.lost()).await, Lost::Aborted);
        assert_eq!(server.list("resource=r")[0]["status"], "released");
        assert_eq!(within(claim.release()).await, Err(Error::Lost(Lost::Aborted)));
    });
}

#[test]
fn a_loss_is_told_though_all_threads_of_the_runtime_are_busy() {
    let server = Server::start();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().max_blocking_threads(1).enable_all().build().unwrap();
    let (finish, busy) = std::sync::mpsc::channel::<()>();
    runtime.block_on(async {
        let manager = LockManager::new(short(&format!("http://{}", server.addr))).unwrap();
        let claim = within(manager.claim("r")).await.unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        claim.on_lost(move |lost| tell.send((lost, tokio::runtime::Handle::try_current().is_ok())).unwrap());
        tokio::task::spawn_blocking(move || busy.recv());
        server.patch(&format!("/v1/claims/{}/", claim.id()), r#"{"status": "revoked"}"#);
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (Lost::Ended("revoked".into()), true));
    });
    finish.send(()).unwrap();
}

#[test]
fn the_last_claim_of_a_blocking_manager_is_released_within_a_runtime_too() {
    let server = Server::start();
    let options = || Options::url(&format!("http://{}", server.addr)).ttl(Duration::from_secs(600));
    let claim = |resource| blocking::LockManager::new(options()).unwrap().claim(resource).unwrap();
    let (one, two) = (claim("one"), claim("two"));
    runtime().block_on(async {
        tokio::task::spawn_blocking(move || drop(one)).await.unwrap();
        drop(two);
    });
    for resource in ["one", "two"] {
        eventually("it is released", || {
            server.list(&format!("resource={resource}"))[0]["status"] == "released"
        });
    }
}

#[test]
fn a_reader_that_can_only_ask_now_and_then_asks_often_enough_to_keep_its_place() {
    let server = Server::start();
    let proxy = Proxy::before(server.addr);
    proxy.rule(|kind| if kind == "activate" { Fault::NoQuery } else { Fault::None });
    server.claim("r", 500.0);
    runtime().block_on(async {
        let manager = LockManager::new(Options::url(&proxy.url()).ttl(Duration::from_secs(1))).unwrap();
        let _pending = manager.request(ClaimRequest::new("r").shared()).unwrap();
        server.wait_for_queue("r", 1);
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert!(server.list("resource=r&status=withdrawn").is_empty());
    });
}
