//! The engine's own thread: proposer, openraft, log and table run there, one after the other, and some connections.
//!
//! In:    tasks of the engine, and some connections (`server/src/serve/placement.rs`). Out: their results, on the
//!        thread that asked.
//! Never: runs long work (`server/src/app/pool.rs` does). Tasks on one thread pass messages through a local queue, without
//!        waking another thread; and requests that arrive during a sync all share the next entry.

use std::future::Future;
use std::io;
#[cfg(not(feature = "sim"))]
use std::thread;

#[cfg(not(feature = "sim"))]
use tokio::runtime::{Builder, Handle};
#[cfg(not(feature = "sim"))]
use tokio::sync::oneshot;

use crate::machine::JoinHandle;
#[cfg(not(feature = "sim"))]
use crate::{machine::Instant, wakeups};

/// A thread with a runtime of its own. It ends when this is dropped.
pub(super) struct EngineThread {
    #[cfg(not(feature = "sim"))]
    handle: Handle,
    /// The thread ends when this is dropped.
    #[cfg(not(feature = "sim"))]
    _stop: oneshot::Sender<()>,
}

#[cfg(not(feature = "sim"))]
impl EngineThread {
    pub(super) fn start() -> io::Result<Self> {
        // A moment before the runtime takes the time from which its timer counts milliseconds.
        let began = Instant::now();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        thread::Builder::new().name("engine".into()).spawn(move || {
            wakeups::timer_began(began);
            runtime.block_on(async { stopped.await.ok() });
            // Does not wait for a snapshot that is being written; an unfinished file is removed at the next start.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, _stop: stop })
    }

    pub(super) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.handle.spawn(future)
    }
}

/// In the simulation there is one thread, and a node is whose task runs on it.
#[cfg(feature = "sim")]
impl EngineThread {
    pub(super) fn start() -> io::Result<Self> {
        Ok(Self {})
    }

    pub(super) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        crate::machine::spawn(future)
    }
}

impl EngineThread {
    /// Runs a future on that thread and waits for it on this one.
    pub(super) async fn run<T, E, F>(&self, future: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: Send + From<io::Error> + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.spawn(future).await.map_err(io::Error::other)?
    }
}
