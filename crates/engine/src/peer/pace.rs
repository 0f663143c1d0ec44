//! How often a peer that does not answer is called.
//!
//! In:    calls that are about to be made, and what became of them; calls of that peer. Out: the moment to call.
//! Never: makes a caller wait for longer than a second, or at all once the peer has called by itself.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::machine::{self, Instant};

/// The pause after the first call that failed. Each further one is twice as long ...
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// ... up to this.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The calls to one peer, whatever they are for.
#[derive(Debug, Default)]
pub(super) struct Pace {
    calls: Mutex<Calls>,
    /// Told when the peer has called.
    heard: Notify,
    /// Told when the peer is there again after calls in vain.
    back: Notify,
}

#[derive(Debug, Default)]
struct Calls {
    /// Calls in a row that nobody has answered, those on their way among them.
    unanswered: u32,
    /// When the next one may be made.
    not_before: Option<Instant>,
}

impl Pace {
    /// Returns when the peer may be called. From then on that counts as a call without an answer.
    pub(super) async fn next(&self) {
        loop {
            let heard = self.heard.notified();
            let at = {
                let mut calls = self.calls.lock();
                match calls.not_before.filter(|at| *at > Instant::now()) {
                    None => {
                        calls.not_before = Some(Instant::now() + pause(calls.unanswered));
                        calls.unanswered = calls.unanswered.saturating_add(1);
                        return;
                    }
                    Some(at) => at,
                }
            };
            tokio::select! {
                biased;
                () = heard => {}
                () = machine::sleep_until(at) => {}
            }
        }
    }

    /// The peer is there: it answered, or called.
    pub(super) fn is_there(&self) {
        let before = std::mem::take(&mut *self.calls.lock());
        self.heard.notify_waiters();
        // One of them may be the call that was answered just now.
        if before.unanswered > 1 {
            self.back.notify_waiters();
        }
    }

    /// Returns when the peer is there again after calls in vain. Connections from before may be stuck.
    pub(super) async fn is_back(&self) {
        self.back.notified().await;
    }
}

/// Between half of the step and all of it, so that nodes that lost a peer together do not call it together.
fn pause(unanswered: u32) -> Duration {
    let step = PAUSE_MIN.saturating_mul(1 << unanswered.min(10)).min(PAUSE_MAX);
    step / 2 + step.mul_f64(f64::from(machine::random::<u32>()) / f64::from(u32::MAX) / 2.0)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn pauses_grow_to_a_second_and_no_further() {
        for unanswered in 0..100 {
            let step = PAUSE_MIN.saturating_mul(1 << unanswered.min(10)).min(PAUSE_MAX);
            assert!((step / 2..=step).contains(&pause(unanswered)), "{unanswered}");
        }
        assert!(pause(u32::MAX) <= PAUSE_MAX);
    }

    #[tokio::test]
    async fn a_call_of_the_peer_ends_the_pause() {
        let pace = Pace::default();
        pace.next().await;
        pace.calls.lock().not_before = Some(Instant::now() + Duration::from_secs(3600));
        let (next, there) = (pace.next(), async { pace.is_there() });
        tokio::join!(biased; next, there);
        assert_eq!(pace.calls.lock().unanswered, 1);
    }

    #[test]
    fn a_peer_is_back_when_it_answers_after_calls_in_vain() {
        let pace = Pace::default();
        let mut context = Context::from_waker(Waker::noop());
        for (calls, is_back) in [(1, false), (2, true)] {
            let mut back = std::pin::pin!(pace.is_back());
            assert!(back.as_mut().poll(&mut context).is_pending());
            pace.calls.lock().unanswered = calls;
            pace.is_there();
            assert_eq!(back.as_mut().poll(&mut context).is_ready(), is_back, "after {calls} calls");
        }
    }
}
