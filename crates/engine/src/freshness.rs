//! How old this node's table may be.
//!
//! In:    read barriers that were passed, own commands that were applied, and a leader's word with its majority.
//! Out:   an instant: the table has everything that was acknowledged anywhere before it.
//! Never: guesses. That the leader was heard just now proves nothing: its message may have waited in a socket for as long
//!        as this node was frozen, and another node may lead since.

use std::fmt;
use std::time::Duration;

use openraft::Instant as _;
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;

use super::Engine;
use super::leadership::Role;
use crate::machine::Instant;

/// What is known of the age of a table, at the moment it was asked for. It is shown with the age that it has come to.
#[derive(Debug, Clone, Copy)]
pub struct Freshness(Option<Instant>);

impl Freshness {
    /// How old the table is at most; `None`: nobody knows.
    pub fn bound(&self) -> Option<Duration> {
        self.0.map(|at| at.elapsed())
    }
}

impl fmt::Display for Freshness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bound() {
            None => f.write_str("unknown"),
            // An upper bound is rounded up.
            Some(bound) => {
                let ms = bound.as_micros().div_ceil(1000);
                write!(f, "{}.{:03}", ms / 1000, ms % 1000)
            }
        }
    }
}

/// The newest such instant that barriers and commands have shown.
#[derive(Debug, Default)]
pub struct Newest(Mutex<Option<Instant>>);

impl Newest {
    /// The table has everything that was acknowledged before this instant.
    pub(super) fn note(&self, at: Instant) {
        let mut newest = self.0.lock();
        *newest = (*newest).max(Some(at));
    }
}

impl Engine {
    /// How old this node's table may be. Where that is not known well, finding out is begun, for those who ask next.
    pub fn freshness(&self) -> Freshness {
        let newest = *self.newest.0.lock();
        let newest = newest.max(self.confirmed_leader());
        #[cfg(feature = "sim")]
        let newest =
            match crate::machine::simulated::is_planted(crate::machine::simulated::Bug::FalseFreshness) {
                true => Some(Instant::now() - self.clock.since_heard()),
                false => newest,
            };
        self.barrier.pass_for_nobody(newest);
        Freshness(newest)
    }

    /// When a majority last confirmed that this node leads. Whatever was acknowledged before that is committed as far as
    /// this node knows, and in its table if that has come so far.
    fn confirmed_leader(&self) -> Option<Instant> {
        let Role::Leads { term } = self.leadership.role() else { return None };
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let leads = metrics.state == ServerState::Leader && metrics.current_term == term;
        let applied = self.shared.applied.load(std::sync::atomic::Ordering::Acquire);
        let is_applied = metrics.cluster_committed.as_ref().is_none_or(|id| id.index <= applied);
        let acked = metrics.last_quorum_acked.as_ref().filter(|_| leads && is_applied)?;
        Some(Instant::now() - acked.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_an_upper_bound_or_unknown() {
        assert_eq!(Freshness(None).to_string(), "unknown");
        let at = Instant::now() - Duration::from_micros(1_000_001);
        let shown: f64 = Freshness(Some(at)).to_string().parse().unwrap();
        assert!(shown >= 1.001, "{shown}");
        let newest = Newest::default();
        newest.note(at);
        newest.note(at - Duration::from_secs(1));
        assert_eq!(*newest.0.lock(), Some(at), "what was known is not forgotten");
    }
}
