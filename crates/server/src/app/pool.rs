//! The pool makes answers that take long, so that they don't hold up the engine's own thread.
//!
//! In:    a future of a response. Out: the response.
//! Never: goes on when its client has gone.

use std::panic::resume_unwind;

use tokio::runtime::Handle;

use crate::message::ResponseFuture;
use crate::message::problem::engine_problem;
use leasehold_engine::EngineError;
use leasehold_engine::machine::StopOnDrop;

/// The threads of a runtime; in the simulation, the one thread that asks.
#[derive(Debug, Clone, Default)]
pub struct Pool(Option<Handle>);

impl Pool {
    /// The threads of the current runtime.
    pub fn here() -> Self {
        Self(Some(Handle::current()))
    }

    /// Starts a task on the pool.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match &self.0 {
            Some(threads) => drop(threads.spawn(task)),
            None => drop(leasehold_engine::machine::spawn(task)),
        }
    }

    /// Runs this future on the pool.
    pub(crate) fn make(&self, answer: ResponseFuture) -> ResponseFuture {
        let Some(threads) = &self.0 else { return answer };
        let mut making = StopOnDrop(threads.spawn(answer));
        Box::pin(async move {
            match (&mut making.0).await {
                Ok(response) => response,
                Err(ended) => match ended.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    Err(_) => engine_problem(&EngineError::Stopping),
                },
            }
        })
    }
}
