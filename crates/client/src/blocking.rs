//! The same for callers without a runtime: every call blocks its thread.
//!
//! In:    options. Out: [`LockManager`] and [`Claim`], over one background thread for all claims.
//! Never: starts a thread for a claim.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::clock::BootInstant;
use crate::error::{Error, Lost};
use crate::item::GrantedItem;
use crate::request::ClaimRequest;
use crate::settings::Options;

/// How long a dropped claim holds its thread up while the server is told.
const DROP_WITHIN: Duration = Duration::from_secs(5);

/// A runtime that may be dropped anywhere.
struct Background(Option<Runtime>);

impl Background {
    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("the runtime lives until it is dropped")
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime().block_on(future)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Makes claims, renews them in the background, and says when one is lost. Cheap to clone.
#[derive(Clone)]
pub struct LockManager {
    manager: crate::LockManager,
    background: Arc<Background>,
}

impl LockManager {
    /// Starts the background thread; connects to nothing yet.
    pub fn new(options: Options) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime =
            runtime.map_err(|error| Error::Invalid(format!("no thread can be started: {error}")))?;
        let manager = {
            let _within = runtime.enter();
            crate::LockManager::new(options)?
        };
        Ok(Self { manager, background: Arc::new(Background(Some(runtime))) })
    }

    /// Claims a resource and waits for its turn, for as long as the manager's `timeout` says.
    ///
    /// # Panics
    /// In async code, which must not block.
    pub fn claim(&self, resource: &str) -> Result<Claim, Error> {
        self.request(ClaimRequest::new(resource))
    }

    /// The same with more to say.
    ///
    /// # Panics
    /// In async code, which must not block.
    pub fn request(&self, request: ClaimRequest) -> Result<Claim, Error> {
        let claim = self.background.block_on(self.manager.request(request)?.acquired())?;
        Ok(Claim { claim: Some(claim), background: self.background.clone() })
    }

    /// Gives everything up and waits until the server knows. A claim that is still held counts as lost.
    ///
    /// # Panics
    /// In async code, which must not block.
    pub fn close(&self) {
        self.background.block_on(self.manager.close());
    }
}

/// A claim that holds its resource, until it is released, dropped or lost. Dropping it waits, shortly, for the server to
/// hear of it; within another runtime, `spawn_blocking` included, that is done in the background.
pub struct Claim {
    claim: Option<crate::Claim>,
    background: Arc<Background>,
}

impl Claim {
    fn claim(&self) -> &crate::Claim {
        self.claim.as_ref().expect("a claim stays until it is released")
    }

    /// What it holds.
    pub fn resource(&self) -> &str {
        self.claim().resource()
    }

    /// Its id on the server.
    pub fn id(&self) -> &str {
        self.claim().id()
    }

    /// The fencing token; none if the claim holds several resources whose tokens differ.
    pub fn token(&self) -> Option<u64> {
        self.claim().token()
    }

    /// What it holds, one by one.
    pub fn items(&self) -> &[GrantedItem] {
        self.claim().items()
    }

    /// The numbers of the slots of the first resource that it holds, from 1.
    pub fn slots(&self) -> &[u32] {
        self.claim().slots()
    }

    /// The session that it belongs to.
    pub fn session(&self) -> Option<&str> {
        self.claim().session()
    }

    /// Whether it certainly holds at this moment, by this machine's own clock.
    pub fn validate(&self) -> Result<Option<u64>, Error> {
        self.claim().validate()
    }

    /// Until when it certainly holds if no renewal gets through.
    pub fn holds_until(&self) -> BootInstant {
        self.claim().holds_until()
    }

    /// Calls a function once, on a thread of its own, if and when the claim is lost. With `OnLost::Terminate` the
    /// process gets its SIGTERM when the function has returned.
    pub fn on_lost(&self, tell: impl FnOnce(Lost) + Send + 'static) {
        self.claim().on_lost(tell);
    }

    /// Waits up to so long for the claim to be lost.
    ///
    /// # Panics
    /// In async code, which must not block.
    pub fn wait_lost(&self, within: Duration) -> Option<Lost> {
        let lost = self.claim().lost();
        self.background.block_on(async { tokio::time::timeout(within, lost).await.ok() })
    }

    /// Renews it now.
    ///
    /// # Panics
    /// In async code, which must not block.
    pub fn refresh(&self, ttl: Option<Duration>) -> Result<(), Error> {
        self.background.block_on(self.claim().refresh(ttl))
    }

    /// Gives the resource up.
    ///
    /// # Panics
    /// In async code, which must not block.
    pub fn release(mut self) -> Result<(), Error> {
        let claim = self.claim.take().expect("a claim stays until it is released");
        self.background.block_on(claim.release())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(claim) = self.claim.take() else { return };
        let releasing = async { tokio::time::timeout(DROP_WITHIN, claim.release()).await.ok() };
        if tokio::runtime::Handle::try_current().is_err() {
            self.background.block_on(releasing);
            return;
        }
        // Within another runtime nothing may block: the background does it, and stays until then.
        let background = self.background.clone();
        self.background.runtime().spawn(async move {
            releasing.await;
            drop(background);
        });
    }
}
