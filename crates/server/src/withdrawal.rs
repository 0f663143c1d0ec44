//! Withdraws the waiting claims of users whose credentials were withdrawn.
//!
//! In:    users whose last credentials were taken away, from `access`. Out: commands that end waiting claims.
//! Never: touches claims that hold their resource: they stay until their ttl is over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::View;

use crate::access::Access;
use crate::access::identity::user_of;
use leasehold_engine::{Engine, EngineError};

/// A request that was admitted just before the change may still make a claim, so the table is searched again after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The pause before a node that could not withdraw the claims tries again.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Why such a claim ended.
const REASON: &str = "its user's credentials were withdrawn";

/// Withdraws them for as long as the node runs.
pub async fn follow(engine: Arc<Engine>, access: Arc<Access>) {
    loop {
        let users = access.withdrawn().await;
        for _ in 0..2 {
            while let Err(error) = withdraw_waiting(&engine, &users).await {
                tracing::warn!(%error, "waiting claims of withdrawn users could not be ended yet: trying again");
                tokio::time::sleep(TRY_AGAIN).await;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

async fn withdraw_waiting(engine: &Engine, users: &BTreeSet<Arc<str>>) -> Result<(), EngineError> {
    let of_these = |view: &View| users.contains(user_of(&view.claim.owner));
    let claims = engine.withdraw_waiting(REASON, of_these).await?;
    if claims > 0 {
        tracing::info!(claims, ?users, "waiting claims were withdrawn with their users' credentials");
    }
    Ok(())
}
