//! Answers that take long are made by other threads than the engine's own, which serves connections too.
//!
//! In:    an answer in the making. Out: the answer.
//! Never: goes on when nobody waits for it any more.

use std::panic::resume_unwind;

use tokio::runtime::Handle;

use crate::message::Answer;
use crate::message::problem::engine_problem;
use leasehold_engine::EngineError;
use leasehold_engine::machine::StopOnDrop;

/// Where they are made: on the threads of a runtime, or, in the simulation, where they are asked for.
#[derive(Debug, Clone, Default)]
pub struct Aside(Option<Handle>);

impl Aside {
    /// On the threads of this runtime.
    pub fn here() -> Self {
        Self(Some(Handle::current()))
    }

    /// Starts a task there.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match &self.0 {
            Some(threads) => drop(threads.spawn(task)),
            None => drop(leasehold_engine::machine::spawn(task)),
        }
    }

    /// Has an answer made there.
    pub(crate) fn make(&self, answer: Answer) -> Answer {
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
