//! What this node has sent towards the log and still waits for.
//!
//! In:    parcels from `propose.rs`, each with those who wait for its outcomes.
//! Out:   the outcomes, when this node's own table has applied the parcel: on every node, leader or not, the same way.
//!        So whoever is answered finds what it did in the table of the node that answered.
//! Never: forgets a parcel before its outcome is known, or somebody says that it is unknown.

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
use super::types::NodeId;
#[cfg(feature = "sim")]
use crate::machine::simulated::{Bug, is_planted};
use crate::machine::{Instant, random};

/// Whether such an id ([`Awaited::claim_id`]) was given by this node.
pub(super) fn is_of_node(id: ClaimId, node: NodeId) -> bool {
    (id.as_u128() >> 112) as u64 == node & 0xffff
}

/// Whether a refused parcel that is in doubt counts as such: a bug that the simulation must find.
#[cfg(feature = "sim")]
fn is_in_doubt(in_doubt: bool) -> bool {
    if in_doubt {
        crate::machine::simulated::world().count("refused-in-doubt");
    }
    in_doubt && !is_planted(Bug::RefusedYetDone)
}

/// Who waits for which outcomes of a parcel, in its order.
#[derive(Debug)]
pub enum Reply {
    /// One command's.
    One(oneshot::Sender<Result<Outcome, EngineError>>),
    /// Those of so many commands.
    Many(usize, oneshot::Sender<Result<Vec<Outcome>, EngineError>>),
}

impl Reply {
    /// Tells that there is no outcome.
    pub fn fail(self, error: EngineError) {
        match self {
            Self::One(reply) => drop(reply.send(Err(error))),
            Self::Many(_, reply) => drop(reply.send(Err(error))),
        }
    }
}

/// A parcel on its way.
#[derive(Debug)]
struct OnItsWay {
    commands: Arc<Vec<Command>>,
    replies: Vec<Reply>,
    /// Whether somebody has it who may yet get it into the log; otherwise it is to be sent (again).
    sent: bool,
    /// Whether a copy of it may be in somebody's hands, or in a log: then nobody can say that it did not happen.
    in_doubt: bool,
    /// When the oldest of its commands was submitted.
    since: Instant,
}

/// The parcels of this run of this node.
#[derive(Debug)]
pub struct Awaited {
    node: NodeId,
    run: u64,
    parcels: Mutex<Numbered>,
    /// Whether any is to be sent again, so that the proposer need not look.
    unsent: AtomicBool,
    /// Told when there is room for more, or one is to be sent again.
    pub changed: Notify,
    /// Told of each parcel that was applied: what was acknowledged before it was made is in the table as well.
    newest: Arc<Newest>,
}

#[derive(Debug, Default)]
struct Numbered {
    newest: u64,
    on_their_way: BTreeMap<u64, OnItsWay>,
}

impl Awaited {
    /// Nothing yet, for a run that no other has had.
    pub fn new(node: NodeId, newest: Arc<Newest>) -> Self {
        let (parcels, unsent, changed) = Default::default();
        Self { node, run: random(), parcels, unsent, changed, newest }
    }

    /// Which process this is: no other, of this node or another one, has the same number.
    pub(super) fn run(&self) -> u64 {
        self.run
    }

    /// A new id for a claim that lives no longer than this process.
    pub(super) fn claim_id(&self) -> ClaimId {
        let random: u128 = random::<u128>() >> 48;
        ClaimId::from_u128(u128::from(self.node & 0xffff) << 112 | u128::from(self.run as u32) << 80 | random)
    }

    /// Whether such an id was given by an earlier process of this node.
    pub(super) fn is_of_earlier_run(&self, id: ClaimId) -> bool {
        is_of_node(id, self.node) && (id.as_u128() >> 80) as u32 != self.run as u32
    }

    /// Gives a parcel its name and waits for it.
    pub(super) fn expect(&self, commands: Arc<Vec<Command>>, replies: Vec<Reply>, since: Instant) -> Origin {
        let mut parcels = self.parcels.lock();
        parcels.newest += 1;
        let number = parcels.newest;
        parcels
            .on_their_way
            .insert(number, OnItsWay { commands, replies, sent: true, in_doubt: false, since });
        Origin { node: self.node, run: self.run, number }
    }

    /// How many are on their way.
    pub(super) fn len(&self) -> usize {
        self.parcels.lock().on_their_way.len()
    }

    /// Whether there is anything to send again.
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent.load(Ordering::Acquire)
    }

    /// Takes what is to be sent again: it counts as sent from now on.
    pub(super) fn take_unsent(&self) -> Vec<(Origin, Arc<Vec<Command>>)> {
        let mut parcels = self.parcels.lock();
        self.unsent.store(false, Ordering::Release);
        let unsent = parcels.on_their_way.iter_mut().filter(|(_, parcel)| !parcel.sent);
        unsent
            .map(|(&number, parcel)| {
                parcel.sent = true;
                (Origin { node: self.node, run: self.run, number }, parcel.commands.clone())
            })
            .collect()
    }

    /// One did not get through, as far as anybody knows: it has to be sent again. `in_doubt`: it may have got through all
    /// the same.
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

    /// There is another leader: whatever is not in the table yet has to be sent to it.
    pub(super) fn send_all_again(&self) {
        let mut parcels = self.parcels.lock();
        parcels.on_their_way.values_mut().for_each(|parcel| {
            parcel.in_doubt |= parcel.sent;
            parcel.sent = false;
        });
        self.unsent.store(!parcels.on_their_way.is_empty(), Ordering::Release);
        self.changed.notify_one();
    }

    /// One was refused before it came near the log: nothing happened, unless an earlier copy of it is on its way.
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

    /// Nobody knows what becomes of them.
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
        // There is room for others now.
        self.changed.notify_one();
        true
    }

    /// When the oldest command on its way was submitted.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.parcels.lock().on_their_way.values().map(|parcel| parcel.since).min()
    }

    /// A parcel has been applied to this node's table, for the first time: its outcomes, taken from `outcomes`.
    pub fn applied(&self, parcel: &Parcel, outcomes: &mut impl Iterator<Item = Outcome>) {
        let mut own = outcomes.take(parcel.commands.len());
        let Some(awaited) = self.take(parcel) else {
            own.for_each(drop);
            return;
        };
        self.changed.notify_one();
        self.newest.note(awaited.since);
        for reply in awaited.replies {
            match reply {
                Reply::One(reply) => {
                    if let Some(outcome) = own.next() {
                        reply.send(Ok(outcome)).ok();
                    }
                }
                Reply::Many(len, reply) => {
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
