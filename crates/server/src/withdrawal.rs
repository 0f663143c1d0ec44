//! Waiting claims of users whose credentials were withdrawn are withdrawn, too.
//!
//! In:    users whose last credentials were taken away, from `access`. Out: commands that end waiting claims.
//! Never: touches what is held: that stays until its ttl is over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::table::{ListFilter, ListPage};
use leasehold_core::{Command, Status};

use crate::access::Access;
use crate::access::identity::user_of;
use leasehold_engine::withdrawals::withdrawal_while_waiting;
use leasehold_engine::{Engine, EngineError};

/// A request that was admitted just before the change may still make a claim: after this time the table is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long a node that can't end the claims waits before it tries again.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Why such a claim ended.
const REASON: &str = "its user's credentials were withdrawn";
/// Claims looked at while the table can't be written.
const CLAIMS_PER_LOOK: usize = 4096;

/// Ends them for as long as the node runs.
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
    // A claim that was granted a moment ago, on whichever node, no longer waits.
    engine.barrier().await?;
    let of_these = |_: &str, owner: &str| users.contains(user_of(owner));
    let filter = ListFilter { status: Some(Status::Waiting), ..ListFilter::default() };
    let mut page = ListPage::new(0, usize::MAX);
    while !page.done {
        engine.read(|table, now_us| {
            table.list_seen(&filter, Some(&of_these), &mut page, now_us, CLAIMS_PER_LOOK);
        });
        tokio::task::yield_now().await;
    }
    let commands: Vec<Command> =
        page.views.iter().map(|view| withdrawal_while_waiting(view, REASON)).collect();
    for some in commands.chunks(1000) {
        engine.submit_many(some.to_vec()).await?;
    }
    if !commands.is_empty() {
        tracing::info!(
            claims = commands.len(),
            ?users,
            "waiting claims were withdrawn with their users' credentials"
        );
    }
    Ok(())
}
