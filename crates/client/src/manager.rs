//! The lock manager: makes claims and looks after them.
//!
//! In:    options. Out: claims; and a few plain requests for those who only look.
//! Never: blocks a thread; `blocking.rs` is for callers without a runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use zeroize::Zeroize as _;

use crate::api::Api;
use crate::claim::{Claim, Pending};
use crate::driver::{self, Command, Predecessor, SharedClaim};
use crate::error::Error;
use crate::http::Http;
use crate::request::{ClaimRequest, Worker};
use crate::session::Sessions;
use crate::settings::Options;

/// Makes claims, renews them all over one pool of connections, and says when one is lost. Cheap to clone.
#[derive(Clone)]
pub struct LockManager {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    http: Arc<Http>,
    commands: mpsc::UnboundedSender<Command>,
    next_key: AtomicU64,
    /// None if they are turned off.
    sessions: Option<Sessions>,
    runtime: Handle,
}

impl LockManager {
    /// Connects to nothing yet. Must be called within a tokio runtime of any flavour, which has to live as long as the
    /// claims; programs without one use [`crate::blocking`].
    ///
    /// # Panics
    /// If the runtime was built without `enable_all` (or `enable_io` and `enable_time`).
    pub fn new(mut options: Options) -> Result<Self, Error> {
        let runtime = Handle::try_current().map_err(|_| {
            let why =
                "a LockManager needs a tokio runtime around it; use leasehold_client::blocking without one";
            Error::Invalid(why.into())
        })?;
        let http = Arc::new(Http::new(&options)?);
        // From here on the key is needed there alone.
        options.key.zeroize();
        let commands = driver::start(options.clone(), http.clone())?;
        let next_key = AtomicU64::new(1);
        let sessions = options.sessions.then(Sessions::new);
        Ok(Self { inner: Arc::new(Inner { options, http, commands, next_key, sessions, runtime }) })
    }

    /// Claims a resource and waits for its turn, for as long as the manager's `timeout` says.
    pub async fn claim(&self, resource: &str) -> Result<Claim, Error> {
        self.request(ClaimRequest::new(resource))?.acquired().await
    }

    /// Claims a resource; the handle shows how it waits.
    pub fn request(&self, request: ClaimRequest) -> Result<Pending, Error> {
        self.begin(request, None)
    }

    /// Goes on with a claim that another process has made and can't renew any more.
    pub(crate) fn take_up(&self, request: ClaimRequest, claim: Predecessor) -> Result<Pending, Error> {
        self.begin(request, Some(claim))
    }

    fn begin(&self, mut request: ClaimRequest, predecessor: Option<Predecessor>) -> Result<Pending, Error> {
        request.check(&self.inner.options)?;
        // Here, since the driver is a task of its own.
        let worker = request.worker.get_or_insert_with(Worker::current);
        if let (None, Some(sessions)) = (&request.session, &self.inner.sessions) {
            request.session = sessions.of(worker);
        }
        let key = self.inner.next_key.fetch_add(1, Ordering::Relaxed);
        let on_lost = request.on_lost.unwrap_or(self.inner.options.on_lost);
        let (resource, runtime) = (request.resource.clone(), self.inner.runtime.clone());
        let shared = Arc::new(SharedClaim::new(resource, request.lead, on_lost, runtime));
        let (reply, answer) = oneshot::channel();
        let command =
            Command::Claim { key, request: Box::new(request), shared: shared.clone(), reply, predecessor };
        self.inner.commands.send(command).map_err(|_| Error::Closed)?;
        Ok(Pending::new(key, shared, self.inner.commands.clone(), answer))
    }

    /// Plain requests, over the same connections.
    pub fn api(&self) -> Api {
        Api::over(self.inner.http.clone())
    }

    /// Gives everything up, waits until the server knows or `end_timeout` is over, and takes no more claims. A claim that is
    /// still held counts as lost.
    pub async fn close(&self) {
        self.end(Command::Close).await;
    }

    /// The same, as on a signal: claims end as `aborted`, and fast.
    pub async fn abort(&self) {
        self.end(Command::Signal).await;
    }

    async fn end(&self, command: Command) {
        let (reply, idle) = oneshot::channel();
        self.inner.commands.send(command).ok();
        self.inner.commands.send(Command::Idle(reply)).ok();
        idle.await.ok();
    }
}
