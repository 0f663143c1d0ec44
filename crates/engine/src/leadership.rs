//! Who leads, as far as this node can tell, and whether anybody does.
//!
//! In:    openraft's state and the instants at which leader and majority were heard.
//! Out:   a [`Role`] for proposer, ticker and reads; pulses for the table clock while this node leads a majority.
//! Never: calls a node leader that has lost its majority, or before its table has everything from before its term.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openraft::Instant as _;
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::ReadPolicy;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::clock::TableClock;
use super::in_flight::InFlight;
use super::journal::{Journal, Look};
use super::peer::{Ask, PeerAnswer, Peers};
use super::propose::Proposer;
use super::state_machine::SharedTable;
use super::types::{NodeId, Raft};
use super::wakeups::sleep_about;
use super::wal::Wal;
use crate::machine::{self, Instant};

/// How often the watch looks while all is well: often enough for the table clock, which stands still after a second without a
/// pulse.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The shortest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// What this node is to the cluster at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It orders commands.
    Leads {
        /// Since this term.
        term: u64,
    },
    /// Commands go to this node.
    Follows {
        /// The leader.
        leader: NodeId,
    },
    /// There is no leader, but not for long: requests wait for one.
    None,
    /// There has been no leader for so long that requests fail.
    Gone,
}

/// The role, and who wants to know of a change.
#[derive(Debug)]
pub(super) struct Leadership {
    role: Mutex<Role>,
    /// Whether this node leads, and is the only one that votes.
    alone: AtomicBool,
    /// Whether the leader refused the last request of this node, or did not answer it: it may have lost its majority.
    refused: AtomicBool,
    /// Notified when the role has changed, and from time to time while there is no leader.
    pub(super) changed: Notify,
    /// Told as well: the ticker.
    pub(super) ticker: Notify,
    /// Told as well: reads.
    pub(super) reader: Notify,
}

impl Default for Leadership {
    fn default() -> Self {
        let (alone, refused, changed, ticker, reader) = Default::default();
        Self { role: Mutex::new(Role::None), alone, refused, changed, ticker, reader }
    }
}

/// How patient a node is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// A leader that was not heard for this long counts as lost; so does, on the leader, a majority.
    pub(super) silence: Duration,
    /// How long requests wait for a new leader before they fail.
    pub(super) leaderless: Duration,
}

impl Leadership {
    /// What this node is now.
    pub(super) fn role(&self) -> Role {
        *self.role.lock()
    }

    /// Whether this node is all there is: its own table is as new as any answer.
    pub(super) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    /// The leader was asked for something, and took it or did not.
    pub(super) fn leader_took(&self, taken: bool) {
        self.refused.store(!taken, Ordering::Release);
    }

    fn set(&self, role: Role, voters: usize) {
        self.alone.store(voters == 1 && matches!(role, Role::Leads { .. }), Ordering::Release);
        let before = std::mem::replace(&mut *self.role.lock(), role);
        if before != role || matches!(role, Role::Gone) {
            self.changed.notify_one();
            self.ticker.notify_one();
            self.reader.notify_waiters();
        }
    }
}

/// The task that watches who leads, and tells the rest of the node.
pub(super) struct LeadershipWatch {
    pub(super) raft: Raft,
    pub(super) leadership: Arc<Leadership>,
    pub(super) clock: Arc<TableClock>,
    pub(super) shared: Arc<SharedTable>,
    pub(super) in_flight: Arc<InFlight>,
    pub(super) proposer: Arc<Proposer>,
    pub(super) peers: Arc<Peers>,
    pub(super) wal: Wal,
    pub(super) patience: Patience,
    /// `None` on a node that is alone.
    pub(super) journal: Option<Arc<Journal>>,
}

/// What openraft says.
struct Seen {
    leader: Option<NodeId>,
    term: u64,
    leads: bool,
    voters: usize,
    /// For how long neither leader nor majority was heard.
    silence: Duration,
}

impl LeadershipWatch {
    /// Keeps the role right, for ever.
    pub(super) async fn run(self) {
        let mut server = self.raft.server_metrics();
        let mut known = (None, 0);
        let (mut well, mut news) = (Instant::now(), Instant::now());
        loop {
            let seen = self.look();
            if known != (seen.leader, seen.term) && seen.leader.is_some() {
                (known, news) = ((seen.leader, seen.term), Instant::now());
                // A refusal of the old leader says nothing about the new one. Nothing more goes to the old one, which may
                // take a second to notice that it no longer leads.
                self.leadership.leader_took(true);
                self.leadership.set(Role::None, seen.voters);
                self.in_flight.send_all_again();
            }
            self.know_members();
            // A leader has others to send entries to while its own disk syncs. A follower, like a node alone, has nothing
            // to do but to wait for its disk.
            self.wal.flush_in_caller(!seen.leads || seen.voters == 1);
            let role = self.role(&seen).await;
            self.write_journal(&seen, role);
            match role {
                Role::Leads { .. } => self.clock.pulse(),
                _ => self.clock.follow(self.shared.table.read().clock().now_us),
            }
            self.proposer.give_up_overdue();
            // A new leader is heard of also while the one before is asked, which may be gone.
            let refused = tokio::select! {
                biased;
                changed = server.changed() => if changed.is_err() { return } else { continue },
                refused = self.is_refused(role) => refused,
            };
            let is_well = !refused && matches!(role, Role::Leads { .. } | Role::Follows { .. });
            if is_well {
                well = Instant::now();
                self.leadership.set(role, seen.voters);
            } else if refused && well.elapsed() < self.patience.leaderless {
                self.leadership.set(role, seen.voters);
            } else if well.elapsed() < self.patience.leaderless {
                self.leadership.set(Role::None, seen.voters);
            } else {
                self.leadership.set(Role::Gone, seen.voters);
            }
            let pause = self.pause(is_well, seen.silence, news.elapsed());
            tokio::select! {
                biased;
                changed = server.changed() => if changed.is_err() { return },
                () = sleep_about(pause) => {}
            }
        }
    }

    /// How long the role stays right by itself: while all is well, until leader or majority will have been silent for too
    /// long. A leader that was elected just now hears its majority within milliseconds, and clients wait for that.
    fn pause(&self, is_well: bool, silence: Duration, since_news: Duration) -> Duration {
        let often = (self.patience.silence / 6).clamp(PAUSE_MIN, LOOK_EVERY);
        match self.patience.silence.checked_sub(silence) {
            Some(left) if is_well => (left + PAUSE_MIN).min(LOOK_EVERY),
            _ if since_news < self.patience.silence => PAUSE_MIN,
            _ if self.leadership.role() == Role::Gone => LOOK_EVERY,
            _ => often,
        }
    }

    /// Whether a leader that refused something still can't be used: it is asked.
    async fn is_refused(&self, role: Role) -> bool {
        let Role::Follows { leader } = role else { return false };
        if self.leadership.refused.load(Ordering::Acquire) {
            let asked = machine::timeout(self.patience.silence, self.peers.ask(leader, &Ask::Barrier)).await;
            self.leadership.leader_took(matches!(asked, Ok(Ok(PeerAnswer::Barrier { .. }))));
        }
        self.leadership.refused.load(Ordering::Acquire)
    }

    /// Whoever leads has to be reached by those who follow it.
    fn know_members(&self) {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.nodes().for_each(|(id, node)| self.peers.know(*id, &node.addr));
    }

    fn write_journal(&self, seen: &Seen, role: Role) {
        let Some(journal) = &self.journal else { return };
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let votes = |id: &NodeId| membership.get_joint_config().iter().all(|voters| voters.contains(id));
        let members = membership.nodes().map(|(id, node)| (*id, (node.addr.clone(), votes(id)))).collect();
        let others = metrics.heartbeat.iter().flatten().filter(|(id, _)| **id != metrics.id);
        let heard =
            others.map(|(id, acked)| (*id, acked.as_ref().map_or(Duration::MAX, |acked| acked.elapsed())));
        let &Seen { leader, term, leads, silence, .. } = seen;
        let heard = heard.collect();
        journal.look(&Look { leader, term, leads, role, silence, members, heard });
    }

    fn look(&self) -> Seen {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let leads = metrics.state == ServerState::Leader;
        let voters = metrics.membership_config.voter_ids().count();
        let silence = match leads {
            // The log names the leader of the last run. Nobody knows whether that node still leads, or still counts on this one.
            false if !self.clock.has_heard() => Duration::MAX,
            false => self.clock.since_heard(),
            true if voters == 1 => Duration::ZERO,
            true => metrics.last_quorum_acked.as_ref().map_or(Duration::MAX, |acked| acked.elapsed()),
        };
        Seen { leader: metrics.current_leader, term: metrics.current_term, leads, voters, silence }
    }

    async fn role(&self, seen: &Seen) -> Role {
        match (self.leadership.role(), seen.leader) {
            _ if seen.silence > self.patience.silence => Role::None,
            (Role::Leads { term }, _) if seen.leads && term == seen.term => Role::Leads { term },
            _ if seen.leads => self.take_over(seen.term).await,
            (_, Some(leader)) if leader != *self.raft.node_id() => Role::Follows { leader },
            _ => Role::None,
        }
    }

    /// A new leader begins where the table will be once it has all that its predecessors committed.
    async fn take_over(&self, term: u64) -> Role {
        let caught_up = self.raft.ensure_linearizable(ReadPolicy::ReadIndex);
        match machine::timeout(self.patience.silence, caught_up).await {
            Ok(Ok(_)) => {
                self.clock.lead(term, self.shared.table.read().clock().now_us);
                Role::Leads { term }
            }
            _ => Role::None,
        }
    }
}
