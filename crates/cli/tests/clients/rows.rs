//! Every row of the claim machine, reached over a real socket, against the real server, through a proxy that fails.
//!
//! In:    faults, request by request. Out: the rows that claims went through; the last check counts that none is missing.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{PATIENCE, Server};
use crate::proxy::{Fault, Kind, Proxy};
use leasehold_client::internals::machine::TRANSITIONS;
use leasehold_client::internals::machine::{Row, State};
use leasehold_client::{Claim, ClaimRequest, Error, LockManager, Options, Pending, Retries, Wait};

const SOON: Duration = Duration::from_millis(400);
const NEVER: Duration = Duration::from_secs(500);

/// One server, and what was seen of all claims.
struct World {
    server: Server,
    rows: Arc<Mutex<Vec<(String, &'static Row)>>>,
}

/// One scenario: its own proxy, manager and resource.
struct Scene<'a> {
    world: &'a World,
    proxy: Proxy,
    manager: LockManager,
    resource: String,
}

fn quick() -> Options {
    let mut retries = Retries::default();
    for retry in [
        &mut retries.register,
        &mut retries.activate,
        &mut retries.renew,
        &mut retries.release,
        &mut retries.withdraw,
        &mut retries.abort,
        &mut retries.poll,
    ] {
        retry.base = Duration::from_millis(5);
        retry.cap = Duration::from_millis(20);
    }
    Options::default().retries(retries).ttl(Duration::from_secs(300)).end_timeout(NEVER).long_poll(NEVER)
}

impl World {
    fn scene(&self, options: Options) -> Scene<'_> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let resource = format!("row-{}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let proxy = Proxy::before(self.server.addr);
        let rows = self.rows.clone();
        let observer = Arc::new(move |resource: &str, row: &'static Row| {
            rows.lock().unwrap().push((resource.into(), row));
        });
        let mut options = options.observer(observer);
        options.urls = vec![proxy.url()];
        let manager = LockManager::new(options).unwrap();
        Scene { world: self, proxy, manager, resource }
    }
}

impl Scene<'_> {
    fn fault(self, kind: Kind, fault: Fault) -> Self {
        self.proxy.rule(move |asked| if asked == kind { fault } else { Fault::None });
        self
    }

    /// The first request of a kind fails, the next gets through.
    fn fault_once(self, kind: Kind, fault: Fault) -> Self {
        let mut is_over = false;
        self.proxy.rule(move |asked| {
            if asked == kind && !std::mem::replace(&mut is_over, true) { fault } else { Fault::None }
        });
        self
    }

    /// Somebody else holds the resource.
    fn held(self) -> Self {
        self.world.server.claim(&self.resource, 500.0);
        self
    }

    fn request(&self, wait: Wait) -> Pending {
        self.manager.request(ClaimRequest::new(&self.resource).wait(wait)).unwrap()
    }

    async fn claim(&self) -> Claim {
        within(self.request(Wait::Forever).acquired()).await.unwrap()
    }

    /// Returns when the claim has gone this way.
    async fn went(&self, from: State, to: State) {
        within(async {
            let went = || {
                let rows = self.world.rows.lock().unwrap();
                rows.iter()
                    .any(|(resource, row)| *resource == self.resource && (row.from, row.to) == (from, to))
            };
            while !went() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// A signal, which does not wait for the end.
    fn signal(&self) -> tokio::task::JoinHandle<()> {
        let manager = self.manager.clone();
        tokio::spawn(async move { manager.abort().await })
    }

    /// Nothing of the scene's own claims is left on the server.
    fn leaves_nothing(&self) {
        let live = self.world.server.list(&format!("resource={}", self.resource));
        let is_ours = |claim: &&serde_json::Value| match claim["status"].as_str() {
            Some("waiting") => true,
            Some("active") => claim["initial_ttl"] != 500.0,
            _ => false,
        };
        let live: Vec<_> = live.iter().filter(is_ours).collect();
        assert!(live.is_empty(), "{live:?}");
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

#[test]
fn every_row_is_reached_over_a_real_socket() {
    let world = World { server: Server::start(), rows: Arc::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        a_claim_that_all_goes_well_for(&world).await;
        registering(&world).await;
        waiting(&world).await;
        activating(&world).await;
        renewing(&world).await;
        for ending in [Ending::Release, Ending::Withdraw, Ending::Abort] {
            endings(&world, ending).await;
        }
    });
    let rows = world.rows.lock().unwrap();
    let reached: BTreeSet<String> =
        rows.iter().map(|(_, row)| format!("{} --{}--> {}", row.from, row.on, row.to)).collect();
    let missing: Vec<String> = TRANSITIONS
        .iter()
        .map(|row| format!("{} --{}--> {}", row.from, row.on, row.to))
        .filter(|row| !reached.contains(row))
        .collect();
    assert!(missing.is_empty(), "rows that no claim went through: {missing:#?}");
}

async fn a_claim_that_all_goes_well_for(world: &World) {
    let scene = world.scene(quick());
    let claim = scene.claim().await;
    within(claim.refresh(None)).await.unwrap();
    assert!(claim.validate().unwrap().is_some());
    within(claim.release()).await.unwrap();
    // Through the queue: asked, told to wait, asked again, its turn.
    let scene = world.scene(quick().long_poll(SOON));
    let holder = world.server.claim(&scene.resource, 500.0);
    let pending = scene.request(Wait::Forever);
    scene.went(State::Activating, State::Waiting).await;
    world.server.patch(&holder, r#"{"status": "released"}"#);
    let claim = within(pending.acquired()).await.unwrap();
    within(claim.release()).await.unwrap();
}

async fn registering(world: &World) {
    let refused = world.scene(quick()).fault("register", Fault::Answer(403));
    let error = within(refused.request(Wait::Forever).acquired()).await.unwrap_err();
    assert!(matches!(error, Error::Refused { status: 403, .. }), "{error}");
    for fault in [
        Fault::Answer(503),
        Fault::Answer(404),
        Fault::Answer(429),
        Fault::Later(408, 0),
        Fault::Cut,
        Fault::Lose,
    ] {
        let scene = world.scene(quick()).fault_once("register", fault);
        within(scene.claim().await.release()).await.unwrap();
        assert_eq!(
            world.server.list(&format!("resource={}", scene.resource)).len(),
            1,
            "{fault:?}: one claim, no ghost"
        );
    }
    for fault in [Fault::Hold, Fault::Mute] {
        let scene = world.scene(quick()).fault_once("register", fault);
        let error = within(scene.request(Wait::For(SOON)).acquired()).await.unwrap_err();
        assert_eq!(error.kind(), "unreachable", "{fault:?}");
        within(scene.manager.close()).await;
        scene.leaves_nothing();
        let scene = world.scene(quick()).fault_once("register", fault);
        let pending = scene.request(Wait::Forever);
        scene.went(State::New, State::Registering).await;
        crate::common::eventually("the POST is there", || scene.proxy.count("register") == 1);
        within(scene.signal()).await.unwrap();
        assert_eq!(within(pending.acquired()).await.unwrap_err(), Error::Aborted, "{fault:?}");
        scene.leaves_nothing();
    }
    let mut slow = quick();
    slow.retries.register.base = NEVER;
    slow.retries.register.cap = NEVER;
    let scene = world.scene(slow.clone()).fault("register", Fault::Answer(503));
    let error = within(scene.request(Wait::For(SOON)).acquired()).await.unwrap_err();
    // Something answers 503, and does not say that the request did not happen.
    assert_eq!(error.kind(), "unknown", "nobody said that it is held");
    let scene = world.scene(slow).fault_once("register", Fault::Answer(503));
    let pending = scene.request(Wait::Forever);
    scene.went(State::Registering, State::RetryingRegister).await;
    within(scene.signal()).await.unwrap();
    assert_eq!(within(pending.acquired()).await.unwrap_err(), Error::Aborted);
}

async fn waiting(world: &World) {
    let mut slow = quick().long_poll(Duration::ZERO);
    slow.retries.poll.base = NEVER;
    slow.retries.poll.cap = NEVER;
    let scene = world.scene(slow.clone()).held();
    let error = within(scene.request(Wait::For(SOON)).acquired()).await.unwrap_err();
    assert_eq!(error.kind(), "timeout");
    scene.went(State::Waiting, State::Withdrawing).await;
    scene.leaves_nothing();
    let scene = world.scene(slow).held();
    let pending = scene.request(Wait::Forever);
    scene.went(State::Registering, State::Waiting).await;
    within(scene.signal()).await.unwrap();
    assert_eq!(within(pending.acquired()).await.unwrap_err(), Error::Aborted);
    scene.leaves_nothing();
}

async fn activating(world: &World) {
    let scene = world.scene(quick()).held().fault("activate", Fault::Answer(403));
    let error = within(scene.request(Wait::Forever).acquired()).await.unwrap_err();
    assert!(matches!(error, Error::Refused { status: 403, .. }), "{error}");
    for fault in [Fault::Answer(503), Fault::Answer(429), Fault::Answer(408), Fault::Cut, Fault::Lose] {
        let scene = world.scene(quick().long_poll(SOON)).fault_once("activate", fault);
        let holder = world.server.claim(&scene.resource, 500.0);
        let pending = scene.request(Wait::Forever);
        // A broken connection that was idle before is replaced without the machine hearing of it.
        if fault == Fault::Answer(503) {
            scene.went(State::RetryingActivate, State::Activating).await;
        }
        world.server.patch(&holder, r#"{"status": "released"}"#);
        within(within(pending.acquired()).await.unwrap().release()).await.unwrap();
    }
    let scene = world.scene(quick()).held();
    let error = within(scene.request(Wait::For(SOON)).acquired()).await.unwrap_err();
    assert_eq!(error.kind(), "timeout");
    scene.went(State::Activating, State::Withdrawing).await;
    scene.leaves_nothing();
    let scene = world.scene(quick()).held();
    let pending = scene.request(Wait::Forever);
    scene.went(State::Waiting, State::Activating).await;
    within(scene.signal()).await.unwrap();
    drop(pending);
    scene.leaves_nothing();
    let mut slow = quick();
    slow.retries.activate.base = NEVER;
    slow.retries.activate.cap = NEVER;
    let scene = world.scene(slow.clone()).held().fault("activate", Fault::Answer(500));
    let error = within(scene.request(Wait::For(SOON)).acquired()).await.unwrap_err();
    assert_eq!(error.kind(), "timeout");
    scene.went(State::RetryingActivate, State::Withdrawing).await;
    let scene = world.scene(slow).held().fault("activate", Fault::Answer(500));
    let pending = scene.request(Wait::Forever);
    scene.went(State::Activating, State::RetryingActivate).await;
    within(scene.signal()).await.unwrap();
    drop(pending);
    scene.leaves_nothing();
}

async fn renewing(world: &World) {
    let scene = world.scene(quick()).fault("renew", Fault::Answer(404));
    let claim = scene.claim().await;
    assert!(within(claim.refresh(None)).await.is_err());
    within(claim.lost()).await;
    assert!(claim.validate().is_err());
    for fault in [Fault::Answer(503), Fault::Answer(429), Fault::Answer(408), Fault::Cut, Fault::Lose] {
        let scene = world.scene(quick()).fault_once("renew", fault);
        let claim = scene.claim().await;
        within(claim.refresh(None)).await.unwrap();
        if fault == Fault::Answer(503) {
            scene.went(State::Renewing, State::RetryingRenew).await;
        }
        within(claim.release()).await.unwrap();
    }
    let scene = world.scene(quick()).fault("renew", Fault::Hold);
    let claim = scene.claim().await;
    let (_, released) = within(async {
        tokio::join!(claim.refresh(None), async {
            scene.went(State::Active, State::Renewing).await;
            within(scene.manager.close()).await;
        })
    })
    .await;
    let () = released;
    scene.went(State::Renewing, State::Releasing).await;
    let scene = world.scene(quick()).fault("renew", Fault::Hold);
    let claim = scene.claim().await;
    within(async {
        tokio::join!(claim.refresh(None), async {
            scene.went(State::Active, State::Renewing).await;
            within(scene.signal()).await.unwrap();
        })
    })
    .await
    .0
    .unwrap_err();
    within(claim.lost()).await;
    let scene = world.scene(quick());
    let claim = scene.claim().await;
    within(scene.signal()).await.unwrap();
    within(claim.lost()).await;
    let mut slow = quick();
    slow.retries.renew.base = NEVER;
    slow.retries.renew.cap = NEVER;
    for is_signal in [false, true] {
        let scene = world.scene(slow.clone()).fault("renew", Fault::Answer(503));
        let claim = scene.claim().await;
        within(async {
            tokio::join!(claim.refresh(None), async {
                scene.went(State::Renewing, State::RetryingRenew).await;
                if is_signal {
                    within(scene.signal()).await.unwrap();
                } else {
                    within(scene.manager.close()).await;
                }
            })
        })
        .await
        .0
        .unwrap_err();
    }
}

#[derive(Clone, Copy)]
enum Ending {
    Release,
    Withdraw,
    Abort,
}

impl Ending {
    fn kind(self) -> Kind {
        match self {
            Self::Release => "release",
            Self::Withdraw => "withdraw",
            Self::Abort => "abort",
        }
    }

    fn states(self) -> (State, State, State) {
        match self {
            Self::Release => (State::Releasing, State::RetryingRelease, State::Released),
            Self::Withdraw => (State::Withdrawing, State::RetryingWithdraw, State::Withdrawn),
            Self::Abort => (State::Aborting, State::RetryingAbort, State::Aborted),
        }
    }

    /// Brings a claim to this end.
    async fn begin(self, scene: &Scene<'_>) -> tokio::task::JoinHandle<Result<(), Error>> {
        match self {
            Self::Release => {
                let claim = scene.claim().await;
                tokio::spawn(claim.release())
            }
            Self::Withdraw => {
                scene.world.server.claim(&scene.resource, 500.0);
                let pending = scene.request(Wait::No);
                tokio::spawn(async move { pending.acquired().await.map(drop) })
            }
            Self::Abort => {
                let claim = scene.claim().await;
                let signal = scene.signal();
                tokio::spawn(async move {
                    signal.await.ok();
                    drop(claim);
                    Ok(())
                })
            }
        }
    }
}

async fn endings(world: &World, ending: Ending) {
    let (at_it, retrying, over) = ending.states();
    for fault in
        [Fault::None, Fault::Answer(503), Fault::Answer(429), Fault::Answer(408), Fault::Cut, Fault::Lose]
    {
        let scene = world.scene(quick()).fault_once(ending.kind(), fault);
        let end = ending.begin(&scene).await;
        within(end).await.unwrap().ok();
        scene.went(at_it, over).await;
    }
    let scene = world.scene(quick()).fault(ending.kind(), Fault::Answer(403));
    within(ending.begin(&scene).await).await.unwrap().ok();
    scene.went(at_it, State::Fail).await;
    // Its time is over, or a signal comes: while the request is on its way, and while it waits to be repeated.
    let mut slow = quick();
    for retry in [&mut slow.retries.release, &mut slow.retries.withdraw, &mut slow.retries.abort] {
        *retry = leasehold_client::Retry::new(NEVER, NEVER, 0.0, NEVER);
    }
    let short = slow.clone().end_timeout(SOON);
    for (fault, state) in [(Fault::Hold, at_it), (Fault::Answer(503), retrying)] {
        let scene = world.scene(short.clone()).fault(ending.kind(), fault);
        within(ending.begin(&scene).await).await.unwrap().ok();
        scene.went(state, State::Done).await;
        let scene = world.scene(slow.clone().end_timeout(NEVER)).fault(ending.kind(), fault);
        let end = ending.begin(&scene).await;
        let before = if state == at_it { None } else { Some(at_it) };
        match before {
            Some(before) => scene.went(before, state).await,
            None => crate::common::eventually("its last request is there", || {
                scene.proxy.count(ending.kind()) == 1
            }),
        }
        within(scene.signal()).await.unwrap();
        within(end).await.unwrap().ok();
        scene.went(state, State::Done).await;
    }
}
