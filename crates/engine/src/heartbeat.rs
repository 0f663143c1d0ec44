//! Heartbeats of a leader, and when openraft looks at its clock.
//!
//! In:    openraft's state, and how long ago the leader was heard. Out: heartbeats while this node leads others; openraft's
//!        ticks, or calls for votes, while a leader is missing.
//! Never: lets openraft tick for nothing: every node would wake up for it many times a second. Never stops its ticks before a
//!        leader was heard, while one is missed since lately, or in an election. Never calls for votes right after this node
//!        has voted: the node it voted for would lose its election, again and again.

use std::sync::Arc;
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;

use super::clock::TableClock;
use super::types::Raft;
use super::wakeups::sleep_about;
#[cfg(feature = "sim")]
use crate::machine::simulated::{Bug, is_planted};
use crate::machine::{self, Instant};

/// For this many leases without a leader, openraft itself decides when to ask for votes. After that, this node asks less
/// often.
const LONG: u32 = 8;

/// The task that sends heartbeats, and what it needs.
pub(super) struct Heartbeat {
    pub(super) raft: Raft,
    pub(super) clock: Arc<TableClock>,
    /// The time between two heartbeats of a leader.
    pub(super) interval: Duration,
    /// For this long after a leader was heard, no other node is elected.
    pub(super) lease: Duration,
}

/// What openraft needs of this node at the moment.
enum Need {
    /// Heartbeats.
    Beats,
    /// Nothing for this long, unless its state changes before.
    Nothing(Duration),
    /// Ticks.
    Ticks,
    /// A call for votes, unless its state changes before.
    Votes,
}

impl Heartbeat {
    /// Gives openraft what it needs, for ever: heartbeats, ticks, calls for votes.
    pub(super) async fn run(self) {
        let began = Instant::now();
        let mut led = None;
        let mut server = self.raft.server_metrics();
        loop {
            let need = self.need(began, led);
            if matches!(need, Need::Beats) {
                led = Some(Instant::now());
            }
            self.raft.runtime_config().tick(matches!(need, Need::Ticks));
            #[cfg(feature = "sim")]
            if is_planted(Bug::HastyVotes) {
                led = None;
                if matches!(need, Need::Votes) {
                    self.raft.trigger().elect(true).await.ok();
                }
            }
            let pause = match need {
                Need::Beats if self.raft.trigger().heartbeat().await.is_err() => return,
                Need::Beats => self.interval,
                Need::Nothing(time) => time,
                Need::Ticks => self.lease,
                // A random pause, so that nodes do not ask for votes at the same time.
                Need::Votes => {
                    self.lease.mul_f64(1.0 + f64::from(machine::random::<u32>()) / f64::from(u32::MAX))
                }
            };
            tokio::select! {
                biased;
                changed = server.changed() => if changed.is_err() { return },
                () = sleep_about(pause) => {
                    if matches!(need, Need::Votes) && self.raft.trigger().elect(true).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// `led` is when this node last led, if this process did.
    fn need(&self, began: Instant, led: Option<Instant>) -> Need {
        let server = self.raft.server_metrics();
        let server = server.borrow_watched();
        let members = server.membership_config.nodes().count();
        match server.state {
            ServerState::Leader if members > 1 => Need::Beats,
            ServerState::Leader => Need::Nothing(self.lease),
            ServerState::Candidate => Need::Ticks,
            _ => {
                // While this node led, it heard no leader, and none was missing.
                let silence = self.clock.since_heard().min(led.map_or(Duration::MAX, |led| led.elapsed()));
                self.need_of_follower(server.current_leader.is_some(), silence, began.elapsed())
            }
        }
    }

    /// A follower waits for a leader that this process heard within the lease.
    fn need_of_follower(&self, knows_leader: bool, silence: Duration, age: Duration) -> Need {
        match self.lease.checked_sub(silence) {
            Some(left) if knows_leader && !left.is_zero() && silence < age => Need::Nothing(left),
            _ if silence < LONG * self.lease => Need::Ticks,
            _ => Need::Votes,
        }
    }
}
