//! Claims whose answers are lost: no client can know of such a claim, so it is taken back.
//!
//! In:    a claim that a request is about to make. Out: nothing, once its client was told; otherwise its withdrawal.
//! Never: takes back a claim that may be found again: one under an idempotency key is not guarded.

use std::sync::Arc;

use leasehold_core::ClaimId;
use leasehold_engine::{Engine, EngineError};

/// A claim whose client has no answer yet. Dropping this takes the claim back: a request is dropped when its connection is gone.
pub struct UnansweredClaim {
    engine: Arc<Engine>,
    claim: Option<ClaimId>,
}

impl UnansweredClaim {
    /// Guards a claim, or nothing.
    pub fn new(engine: &Arc<Engine>, claim: Option<ClaimId>) -> Self {
        Self { engine: engine.clone(), claim }
    }

    /// The result of the command that makes the claim. If it certainly did not happen, there is nothing to take back.
    pub fn watch<T>(&mut self, made: Result<T, EngineError>) -> Result<T, EngineError> {
        made.inspect_err(|error| {
            if error.is_certain() {
                self.claim = None;
            }
        })
    }

    /// The client knows of the claim, or the claim is over.
    pub fn defuse(mut self) {
        self.claim = None;
    }

    /// The answer is on its way: from now on the connection decides, and calls this if the answer did not arrive.
    pub fn into_take_back(mut self) -> Box<dyn FnOnce() + Send> {
        let (engine, claim) = (self.engine.clone(), self.claim.take());
        Box::new(move || {
            if let Some(id) = claim {
                tracing::info!(claim = %id, "a lock was taken back: its client was gone before the answer came");
                engine.withdraw(id, "its client was gone before the answer reached it");
            }
        })
    }
}

impl Drop for UnansweredClaim {
    fn drop(&mut self) {
        if let Some(id) = self.claim {
            self.engine.withdraw(id, "its client went away while it waited");
        }
    }
}
