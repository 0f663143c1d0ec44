//! Parcels that this node has sent towards the log and that have no outcome yet.
//!
//! In:    parcels from `propose.rs`, each with the requests that wait for its outcomes.
//! Out:   the outcomes, when this node's own table has applied the parcel. Leaders and followers do the same, so a client
//!        that reads from the node that answered it sees its own change.
//! Never: forgets a parcel before its outcome is known, or given up as unknown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::{ClaimId, Command, Outcome};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::EngineError;
use super::entry::{Origin, Origins, Parcel};
use super::freshness::Newest;
use super::hops::{self, Traced};
use super::types::NodeId;
#[cfg(feature = "sim")]
use crate::machine::simulated::{Bug, is_planted};
use crate::machine::{Instant, random};

/// Whether this node made a claim's id (with [`InFlight::claim_id`]).
pub(super) fn is_of_node(id: ClaimId, node: NodeId) -> bool {
    (id.as_u128() >> 112) as u64 == node & 0xffff
}

/// Whether a refused parcel may still happen. A planted bug says no, and the simulation must find it.
#[cfg(feature = "sim")]
fn is_in_doubt(in_doubt: bool) -> bool {
    if in_doubt {
        crate::machine::simulated::world().count("refused-in-doubt");
    }
    in_doubt && !is_planted(Bug::RefusedYetDone)
}

/// Where the outcomes of a parcel's commands go. A parcel has these in the order of its commands.
#[derive(Debug)]
pub enum OutcomeSender {
    /// The outcome of one command.
    One(oneshot::Sender<Result<Outcome, EngineError>>),
    /// The outcomes of several commands, and how many they are.
    Many(usize, oneshot::Sender<Result<Vec<Outcome>, EngineError>>),
}

impl OutcomeSender {
    /// Reports that there is no outcome.
    pub fn fail(self, error: EngineError) {
        match self {
            Self::One(reply) => drop(reply.send(Err(error))),
            Self::Many(_, reply) => drop(reply.send(Err(error))),
        }
    }
}

/// A parcel without an outcome.
#[derive(Debug)]
struct OnItsWay {
    commands: Arc<Vec<Command>>,
    replies: Vec<OutcomeSender>,
    /// Whether it was sent and may still reach the log. If not, it has to be sent (again).
    sent: bool,
    /// Whether an earlier copy may be in a log or on its way to one. Then a refusal does not prove that it did not happen.
    in_doubt: bool,
    /// When the oldest of its commands was submitted.
    since: Instant,
    /// When it was last sent.
    sent_at: Instant,
    /// The requests of its commands that are traced.
    traced: Traced,
}

/// The parcels of this process.
#[derive(Debug)]
pub struct InFlight {
    node: NodeId,
    run: u64,
    parcels: Mutex<Numbered>,
    /// Whether a parcel has to be sent again. Saves the proposer a look under the lock.
    unsent: AtomicBool,
    /// Notified when there is room for more parcels, or one has to be sent again.
    pub changed: Notify,
    /// Told of each parcel that was applied: the table then also has everything that was acknowledged before that parcel.
    newest: Arc<Newest>,
}

#[derive(Debug, Default)]
struct Numbered {
    newest: u64,
    on_their_way: BTreeMap<u64, OnItsWay>,
}

impl InFlight {
    /// No parcels yet, and a random number for this process.
    pub fn new(node: NodeId, newest: Arc<Newest>) -> Self {
        let (parcels, unsent, changed) = Default::default();
        Self { node, run: random(), parcels, unsent, changed, newest }
    }

    /// The number of this process. No other process, of any node, has the same.
    pub(super) fn run(&self) -> u64 {
        self.run
    }

    /// A new id for a claim that lives no longer than this process.
    pub(super) fn claim_id(&self) -> ClaimId {
        let random: u128 = random::<u128>() >> 48;
        ClaimId::from_u128(u128::from(self.node & 0xffff) << 112 | u128::from(self.run as u32) << 80 | random)
    }

    /// Whether an earlier process of this node made a claim's id.
    pub(super) fn is_of_earlier_run(&self, id: ClaimId) -> bool {
        is_of_node(id, self.node) && (id.as_u128() >> 80) as u32 != self.run as u32
    }

    /// Gives a parcel its name, and keeps it until its outcomes are known.
    pub(super) fn expect(
        &self,
        commands: Arc<Vec<Command>>,
        replies: Vec<OutcomeSender>,
        since: Instant,
        traced: Traced,
    ) -> Origin {
        let mut parcels = self.parcels.lock();
        parcels.newest += 1;
        let number = parcels.newest;
        let sent_at = Instant::now();
        parcels.on_their_way.insert(
            number,
            OnItsWay { commands, replies, sent: true, in_doubt: false, since, sent_at, traced },
        );
        Origin { node: self.node, run: self.run, number }
    }

    /// How many parcels have no outcome yet.
    pub(super) fn len(&self) -> usize {
        self.parcels.lock().on_their_way.len()
    }

    /// Whether there is anything to send again.
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent.load(Ordering::Acquire)
    }

    /// Takes the parcels that have to be sent again. They count as sent from now on.
    pub(super) fn take_unsent(&self) -> Vec<(Origin, Arc<Vec<Command>>)> {
        let mut parcels = self.parcels.lock();
        self.unsent.store(false, Ordering::Release);
        let unsent = parcels.on_their_way.iter_mut().filter(|(_, parcel)| !parcel.sent);
        unsent
            .map(|(&number, parcel)| {
                (parcel.sent, parcel.sent_at) = (true, Instant::now());
                (Origin { node: self.node, run: self.run, number }, parcel.commands.clone())
            })
            .collect()
    }

    /// A parcel did not reach the leader, as far as this node knows, and has to be sent again. `in_doubt`: it may have
    /// reached the leader all the same.
    pub(super) fn send_again(&self, origin: &Origin, in_doubt: bool) {
        if !self.is_ours(origin) {
            return;
        }
        if let Some(parcel) = self.parcels.lock().on_their_way.get_mut(&origin.number) {
            parcel.sent = false;
            parcel.in_doubt |= in_doubt;
            self.unsent.store(true, Ordering::Release);
        }
        self.changed.notify_one();
    }

    /// The leader has changed: parcels that are not in the table yet have to be sent to the new one.
    pub(super) fn send_all_again(&self) {
        self.send_again_older(Duration::ZERO);
    }

    /// What was sent so long ago and is not in the table yet has to be sent again: the leader that took it may have been
    /// unable to put it into the log.
    pub(super) fn send_again_older(&self, max: Duration) {
        let mut parcels = self.parcels.lock();
        let is_lost = |parcel: &OnItsWay| parcel.sent && parcel.sent_at.elapsed() >= max;
        for parcel in parcels.on_their_way.values_mut().filter(|parcel| is_lost(parcel)) {
            (parcel.sent, parcel.in_doubt) = (false, true);
        }
        if parcels.on_their_way.values().any(|parcel| !parcel.sent) {
            self.unsent.store(true, Ordering::Release);
            self.changed.notify_one();
        }
    }

    /// A parcel was refused before it reached the log: nothing happened, unless an earlier copy is on its way.
    pub(super) fn refuse(&self, origin: &Origin, error: &EngineError) {
        let refused = self.parcels.lock().on_their_way.remove(&origin.number);
        if let Some(parcel) = refused {
            let in_doubt = parcel.in_doubt;
            #[cfg(feature = "sim")]
            let in_doubt = is_in_doubt(in_doubt);
            let error = if in_doubt { &EngineError::Unknown } else { error };
            parcel.replies.into_iter().for_each(|reply| reply.fail(error.clone()));
        }
        self.changed.notify_one();
    }

    /// Reports all parcels as unknown.
    pub(super) fn give_up(&self) {
        self.give_up_if(|_, _| true);
    }

    /// Gives up on the parcels that have waited for longer than this. Says whether there were any.
    pub(super) fn give_up_older(&self, max: Duration) -> bool {
        #[cfg(feature = "sim")]
        if is_planted(Bug::WedgedFollower) {
            return false;
        }
        self.give_up_if(|_, parcel| parcel.since.elapsed() > max)
    }

    /// A snapshot has replaced this node's table. The parcels that it covers have happened, and will never be applied
    /// here: their outcomes are not in the snapshot.
    pub(super) fn covered_by(&self, origins: &Origins) {
        #[cfg(feature = "sim")]
        if is_planted(Bug::WedgedFollower) {
            return;
        }
        self.give_up_if(|origin, _| origins.contains(origin));
    }

    fn give_up_if(&self, hopeless: impl Fn(&Origin, &OnItsWay) -> bool) -> bool {
        let mut given_up = Vec::new();
        self.parcels.lock().on_their_way.retain(|&number, parcel| {
            let origin = Origin { node: self.node, run: self.run, number };
            let hopeless = hopeless(&origin, parcel);
            if hopeless {
                given_up.append(&mut parcel.replies);
            }
            !hopeless
        });
        if given_up.is_empty() {
            return false;
        }
        given_up.into_iter().for_each(|reply| reply.fail(EngineError::Unknown));
        // There is room for other parcels now.
        self.changed.notify_one();
        true
    }

    /// When the oldest command on its way was submitted.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.parcels.lock().on_their_way.values().map(|parcel| parcel.since).min()
    }

    /// For requests that are traced: a parcel has come through this hop.
    pub(super) fn passed(&self, origin: &Origin, hop: &'static str) {
        if hops::is_on()
            && self.is_ours(origin)
            && let Some(parcel) = self.parcels.lock().on_their_way.get_mut(&origin.number)
        {
            parcel.traced.passed(hop);
        }
    }

    /// A parcel has been applied to this node's table, for the first time: its outcomes, taken from `outcomes`.
    pub fn applied(&self, parcel: &Parcel, outcomes: &mut impl Iterator<Item = Outcome>) {
        let mut own = outcomes.take(parcel.commands.len());
        let Some(mut sent) = self.take(parcel) else {
            own.for_each(drop);
            return;
        };
        self.changed.notify_one();
        self.newest.note(sent.since);
        sent.traced.passed("apply");
        for reply in sent.replies {
            match reply {
                OutcomeSender::One(reply) => {
                    if let Some(outcome) = own.next() {
                        reply.send(Ok(outcome)).ok();
                    }
                }
                OutcomeSender::Many(len, reply) => {
                    reply.send(Ok(own.by_ref().take(len).collect())).ok();
                }
            }
        }
    }

    fn take(&self, parcel: &Parcel) -> Option<OnItsWay> {
        let origin = parcel.origin.filter(|origin| self.is_ours(origin))?;
        self.parcels.lock().on_their_way.remove(&origin.number)
    }

    fn is_ours(&self, origin: &Origin) -> bool {
        origin.node == self.node && origin.run == self.run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leader that has lost its majority may take a parcel and drop it.
    #[test]
    fn a_parcel_that_a_leader_took_and_lost_is_sent_again_and_stays_in_doubt() {
        let in_flight = InFlight::new(1, Arc::default());
        let (reply, mut told) = oneshot::channel();
        let commands = Arc::new(vec![Command::Tick]);
        let origin =
            in_flight.expect(commands, vec![OutcomeSender::One(reply)], Instant::now(), Traced::default());
        in_flight.send_again_older(Duration::from_secs(3600));
        assert!(in_flight.take_unsent().is_empty(), "it is given time");
        in_flight.send_again_older(Duration::ZERO);
        assert_eq!(in_flight.take_unsent().len(), 1);
        in_flight.send_again_older(Duration::from_secs(3600));
        assert!(in_flight.take_unsent().is_empty(), "it was sent just now");
        in_flight.refuse(&origin, &EngineError::DiskFull);
        assert_eq!(told.try_recv().unwrap(), Err(EngineError::Unknown), "its first copy may be in a log");
    }
}
