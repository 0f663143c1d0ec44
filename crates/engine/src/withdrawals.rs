//! Claims that nobody waits for any more, until they are certainly gone.
//!
//! In:    claims whose clients went away before they could be told. Out: commands that withdraw them, again and again
//!        until an outcome comes: through cuts, full disks and leader changes.
//! Never: keeps a claim beyond this process. What a node leaves behind when it ends is withdrawn when it starts again, or
//!        by the leader when it does not (`server/src/api/locks/orphans.rs`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ClaimId, Command, Ending, Guard, Outcome, Rejection, Target, View};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Engine;
use crate::machine;

/// Withdrawals in one command to the log.
const BATCH_LEN: usize = 1000;
/// How long a withdrawal that did not come through rests.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How often a claim is withdrawn that nobody knows: the command that makes it may still be on its way.
const UNKNOWN_TRIES: u32 = 10;
/// And how long it rests in between.
const UNKNOWN_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What is to be withdrawn.
#[derive(Debug, Default)]
pub(super) struct Withdrawals {
    kept: Mutex<VecDeque<Withdrawal>>,
    wake: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Withdrawal {
    id: ClaimId,
    reason: &'static str,
    /// How often the table did not know the claim.
    unknown: u32,
}

/// The command that withdraws a claim.
pub fn withdrawal(id: ClaimId, reason: &str) -> Command {
    Command::Finish {
        target: Target::Claim(id),
        guard: Guard::default(),
        ending: Ending::Withdrawn,
        reason: Some(reason.into()),
        purge_data: false,
    }
}

/// The command that withdraws a claim which waits, if it still does: a grant makes another version of it.
pub fn withdrawal_while_waiting(view: &View, reason: &str) -> Command {
    Command::Finish {
        target: Target::Claim(view.claim.id),
        guard: Guard { owner: None, version: Some(view.claim.version) },
        ending: Ending::Withdrawn,
        reason: Some(reason.into()),
        purge_data: false,
    }
}

impl Engine {
    /// Withdraws a claim, whenever that becomes possible.
    pub fn withdraw(&self, id: ClaimId, reason: &'static str) {
        self.keep_withdrawal(Withdrawal { id, reason, unknown: 0 });
    }

    fn keep_withdrawal(&self, withdrawal: Withdrawal) {
        self.withdrawals.kept.lock().push_back(withdrawal);
        self.withdrawals.wake.notify_one();
    }

    /// Sends withdrawals, for ever.
    pub(super) async fn send_withdrawals(self: Arc<Self>) {
        loop {
            self.withdrawals.wake.notified().await;
            while let Some(batch) = self.next_withdrawals() {
                let commands = batch.iter().map(|kept| withdrawal(kept.id, kept.reason)).collect();
                match self.submit_many(commands).await {
                    Ok(outcomes) => self.look_after_unknown(&batch, &outcomes),
                    Err(error) => {
                        tracing::debug!(%error, claims = batch.len(), "claims that nobody waits for stay for now");
                        #[cfg(feature = "sim")]
                        if machine::simulated::is_planted(machine::simulated::Bug::GhostLock) {
                            continue;
                        }
                        self.withdrawals.kept.lock().extend(batch);
                        machine::sleep(AGAIN_AFTER).await;
                    }
                }
            }
        }
    }

    fn next_withdrawals(&self) -> Option<Vec<Withdrawal>> {
        let mut kept = self.withdrawals.kept.lock();
        let len = kept.len().min(BATCH_LEN);
        (len > 0).then(|| kept.drain(..len).collect())
    }

    /// A claim whose own command was lost on its way may be made after its withdrawal.
    fn look_after_unknown(self: &Arc<Self>, batch: &[Withdrawal], outcomes: &[Outcome]) {
        let unknown = batch.iter().zip(outcomes).filter(|(kept, outcome)| {
            kept.unknown < UNKNOWN_TRIES && matches!(outcome, Outcome::Rejected(Rejection::Unknown(_)))
        });
        let again: Vec<_> =
            unknown.map(|(kept, _)| Withdrawal { unknown: kept.unknown + 1, ..*kept }).collect();
        if again.is_empty() {
            return;
        }
        let engine = Arc::downgrade(self);
        machine::spawn(async move {
            machine::sleep(UNKNOWN_AGAIN_AFTER).await;
            if let Some(engine) = engine.upgrade() {
                again.into_iter().for_each(|kept| engine.keep_withdrawal(kept));
            }
        });
    }
}
