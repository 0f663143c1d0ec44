//! Withdraws claims that nobody waits for any more.
//!
//! In:    claims whose clients went away before they could be told; sweeps over the waiting claims.
//! Out:   commands that withdraw them. Those of single claims are repeated until an outcome comes: through cuts, full disks
//!        and leader changes.
//! Never: keeps a claim beyond this process. What a node leaves behind when it ends is withdrawn when it starts again, or
//!        by the leader when it does not (`server/src/api/locks/orphans.rs`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::table::{ListFilter, ListPage};
use leasehold_core::{ClaimId, Command, Ending, Guard, Outcome, Rejection, Status, Target, View};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Engine, EngineError};
use crate::machine;

/// Withdrawals in one command to the log.
const BATCH_LEN: usize = 1000;
/// Claims looked at while the table can't be written.
const CLAIMS_PER_LOOK: usize = 4096;
/// The pause before a failed withdrawal is sent again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How many times an unknown claim is withdrawn: the command that makes it may still be on its way.
const UNKNOWN_TRIES: u32 = 10;
/// The pause between two withdrawals of an unknown claim.
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
fn withdrawal_while_waiting(view: &View, reason: &str) -> Command {
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

    /// Withdraws the waiting claims that are `wanted`, unless they have been granted since. Returns how many there were.
    pub async fn withdraw_waiting(
        &self,
        reason: &str,
        wanted: impl Fn(&View) -> bool,
    ) -> Result<usize, EngineError> {
        // A claim that was granted a moment ago, on whichever node, no longer waits.
        self.barrier().await?;
        let filter = ListFilter { status: Some(Status::Waiting), ..ListFilter::default() };
        let (mut page, mut commands) = (ListPage::new(0, usize::MAX), Vec::new());
        while !page.done {
            self.read(|table, now_us| table.list(&filter, &mut page, now_us, CLAIMS_PER_LOOK));
            let found = page.views.drain(..).filter(|view| wanted(view));
            commands.extend(found.map(|view| withdrawal_while_waiting(&view, reason)));
            tokio::task::yield_now().await;
        }
        for batch in commands.chunks(BATCH_LEN) {
            self.submit_many(batch.to_vec()).await?;
        }
        Ok(commands.len())
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
                        let claims = batch.len();
                        tracing::debug!(%error, claims, "claims that nobody waits for could not be withdrawn yet");
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
