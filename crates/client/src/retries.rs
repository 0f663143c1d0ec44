//! How failed requests are repeated.
//!
//! In:    a kind of request and how often it failed in a row. Out: the pause before the next attempt.
//! Never: decides whether a request is repeated; the claim machine does.

use std::time::Duration;

use crate::machine::Request;

/// How one kind of request is repeated when it fails.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Retry {
    /// The first pause; it doubles each time.
    pub base: Duration,
    /// The longest pause.
    pub cap: Duration,
    /// How much of a pause is left to chance, 0 to 1: a herd that failed together should not come back together.
    pub jitter: f64,
    /// How long one attempt may take before it counts as failed.
    pub attempt: Duration,
}

/// The six of them, and the pauses between two questions of a claim that waits.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Retries {
    /// POST.
    pub register: Retry,
    /// PATCH `status=active`.
    pub activate: Retry,
    /// PATCH `ttl`, and `POST /v1/renewals`.
    pub renew: Retry,
    /// PATCH `status=released`.
    pub release: Retry,
    /// PATCH `status=withdrawn`.
    pub withdraw: Retry,
    /// PATCH `status=aborted`: fast, since something is failing already.
    pub abort: Retry,
    /// Between two questions on a server that does not know `?wait=`.
    pub poll: Retry,
}

const fn retry(base_ms: u64, cap_ms: u64, attempt_ms: u64) -> Retry {
    Retry {
        base: Duration::from_millis(base_ms),
        cap: Duration::from_millis(cap_ms),
        jitter: 0.5,
        attempt: Duration::from_millis(attempt_ms),
    }
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            register: retry(200, 5_000, 10_000),
            activate: retry(200, 5_000, 10_000),
            renew: retry(100, 1_000, 5_000),
            release: retry(100, 2_000, 5_000),
            withdraw: retry(100, 2_000, 5_000),
            abort: retry(20, 250, 1_000),
            poll: retry(250, 5_000, 10_000),
        }
    }
}

impl Retries {
    /// Those of one kind of request.
    pub(crate) fn of(&self, request: Request) -> Retry {
        match request {
            Request::Register => self.register,
            Request::Activate => self.activate,
            Request::Renew => self.renew,
            Request::Release => self.release,
            Request::Withdraw => self.withdraw,
            Request::Abort => self.abort,
        }
    }
}

impl Retry {
    /// All four of them. `jitter` is between 0 and 1.
    pub const fn new(base: Duration, cap: Duration, jitter: f64, attempt: Duration) -> Self {
        Self { base, cap, jitter, attempt }
    }

    /// The pause before repetition number `attempt`, counted from 0. `chance` is between 0 and 1.
    pub(crate) fn pause(&self, attempt: u32, chance: f64) -> Duration {
        let full =
            self.base.saturating_mul(1u32.checked_shl(attempt.min(16)).unwrap_or(u32::MAX)).min(self.cap);
        full.mul_f64(1.0 - self.jitter.clamp(0.0, 1.0) * chance.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_cap_and_leave_room_for_chance() {
        let retry = Retries::default().renew;
        assert_eq!(retry.pause(0, 0.0), retry.base);
        assert_eq!(retry.pause(1, 0.0), retry.base * 2);
        assert_eq!(retry.pause(60, 0.0), retry.cap);
        assert_eq!(retry.pause(0, 1.0), retry.base / 2);
        let retries = Retries::default();
        for other in [retries.register, retries.activate, retries.renew, retries.release, retries.withdraw] {
            assert!(
                retries.abort.cap < other.cap && retries.abort.base < other.base,
                "abort is the fast one"
            );
        }
    }
}
