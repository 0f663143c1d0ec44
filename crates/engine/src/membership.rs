//! Who belongs to the cluster: nodes come, go and are replaced while it works.
//!
//! In:    an operator's change, or a node without data that asks to be let in. Out: openraft's membership, changed by the
//!        leader, one change at a time.
//! Never: lets a node without data vote before the others have agreed to forget what it promised: it is taken out of the
//!        members first, and comes back as one that only learns until it has the whole log. What is said to one process of
//!        a node is not good for the next one, which may have lost its data again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{BasicNode, ChangeMembers};
use serde::{Deserialize, Serialize};

use super::leadership::Role;
use super::peer::{Answer, Ask};
use super::types::{NodeId, TypeConfig};
use super::{ClusterConfig, Engine, joining};
use crate::machine::{self, Instant};

/// Between two attempts to be let in.
const TRY_AGAIN: Duration = Duration::from_millis(300);
/// How long a node waits to be made what it was promised before it asks again.
const ASK_AGAIN: Duration = Duration::from_secs(4);
/// How long a transfer of leadership may take.
const TRANSFER_MAX: Duration = Duration::from_secs(5);
/// How long a node that is to take over is waited for before it is asked again.
const TRANSFER_AGAIN: Duration = Duration::from_secs(1);

/// What an operator can change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Let a node in; it has to be running, without data.
    Add {
        /// Its number.
        id: NodeId,
        /// Where its peers reach it.
        address: String,
    },
    /// Take a node out.
    Remove {
        /// Its number.
        id: NodeId,
    },
    /// Have this node lead.
    Transfer {
        /// Its number.
        to: NodeId,
    },
    /// A member has another address.
    Move {
        /// Its number.
        id: NodeId,
        /// Where its peers reach it now.
        address: String,
    },
}

/// Why a change did not happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Only a leader changes members, and there is none.
    #[error("no node leads now: try again when a majority of the nodes is up")]
    NotLeader,
    /// It may have happened, or may yet.
    #[error(
        "the leader was lost on the way: see `leasehold cluster status` for what has become of it, and try again"
    )]
    Unknown,
    /// It would be wrong.
    #[error("{0}")]
    Refused(String),
}

fn refused(why: impl std::fmt::Display) -> ChangeError {
    ChangeError::Refused(why.to_string())
}

impl From<RaftError<TypeConfig, ClientWriteError<TypeConfig>>> for ChangeError {
    fn from(error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> Self {
        match error {
            RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => Self::NotLeader,
            RaftError::APIError(ClientWriteError::ChangeMembershipError(why)) => refused(why),
            RaftError::APIError(ClientWriteError::PreconditionFailed(why)) => refused(why),
            RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) | RaftError::Fatal(_) => {
                Self::Unknown
            }
        }
    }
}

impl Engine {
    /// All members: where they are, and whether they vote. While the voters change, a majority of the old ones and one
    /// of the new ones decide; whoever is not among both does not vote yet, or any more.
    pub fn members(&self) -> BTreeMap<NodeId, (String, bool)> {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let votes = |id: &NodeId| membership.get_joint_config().iter().all(|voters| voters.contains(id));
        membership.nodes().map(|(id, node)| (*id, (node.addr.clone(), votes(id)))).collect()
    }

    /// Whether a node's voice is asked for, be it by the old voters or by the new ones.
    fn is_asked(&self, id: NodeId) -> bool {
        self.raft().metrics().borrow_watched().membership_config.voter_ids().any(|voter| voter == id)
    }

    pub(super) fn address_of(&self, id: NodeId) -> Option<String> {
        self.members().remove(&id).map(|(address, _)| address)
    }

    /// Makes a change, here or where the leader is.
    pub async fn change_members(self: &Arc<Self>, change: Change) -> Result<(), ChangeError> {
        match self.change_here(&change).await {
            Err(ChangeError::NotLeader) => {}
            done => return done,
        }
        let leader = self.known_leader().filter(|leader| *leader != self.node_id());
        let Some(leader) = leader else { return Err(ChangeError::NotLeader) };
        self.ask_to_change(leader, change).await
    }

    /// Makes a change if this node leads.
    pub(super) async fn change_here(self: &Arc<Self>, change: &Change) -> Result<(), ChangeError> {
        if !matches!(self.leadership.role(), Role::Leads { .. }) {
            return Err(ChangeError::NotLeader);
        }
        tracing::info!(?change, "a change of the members begins");
        match change {
            Change::Add { id, address } => match self.members().get(id) {
                Some((_, true)) => Ok(()),
                Some((known, false)) if known == address => self.promote(*id, address).await,
                _ => {
                    self.admit(*id, None, address).await?;
                    self.promote(*id, address).await
                }
            },
            Change::Remove { id } => self.remove(*id).await,
            Change::Transfer { to } => self.transfer(*to).await,
            Change::Move { id, address } => {
                let node = BTreeMap::from([(*id, BasicNode::new(address))]);
                self.change(ChangeMembers::SetNodes(node)).await
            }
        }
    }

    async fn change(&self, change: ChangeMembers<NodeId, BasicNode>) -> Result<(), ChangeError> {
        self.raft().change_membership(change, false).await?;
        Ok(())
    }

    /// Lets a node in: from now on it gets the log, and does not vote yet. `run` is the process of it that asked, if it was
    /// not an operator.
    pub(super) async fn admit(
        self: &Arc<Self>,
        id: NodeId,
        run: Option<u64>,
        address: &str,
    ) -> Result<(), ChangeError> {
        if !matches!(self.leadership.role(), Role::Leads { .. }) {
            return Err(ChangeError::NotLeader);
        }
        if id == self.node_id() {
            return Err(refused(format!("node {id} leads: two nodes have the same number")));
        }
        let _one_at_a_time = self.changing.lock().await;
        let away = || {
            refused(format!(
                "node {id} does not answer at {address}: start it first, with an empty data directory, --node-id {id} \
                 and the cluster's secret"
            ))
        };
        let asked = self.peers.ask_at(address, &Ask::Status { digest: false }).await;
        let Ok(Answer::Status(there)) = asked else { return Err(away()) };
        if there.id != id {
            return Err(refused(format!("node {} answers at {address}, not node {id}", there.id)));
        }
        if run.is_some_and(|run| run != there.run) {
            return Err(refused(format!("node {id} has been started anew since it asked")));
        }
        // One that was let in and asks again, since it has no answer, has nothing to be forgotten.
        if !there.admitted {
            self.forget_promises(id).await?;
            let welcomed = self.peers.ask_at(address, &Ask::Welcome { run: there.run }).await;
            if !matches!(welcomed, Ok(Answer::Done)) {
                return Err(away());
            }
        }
        if self.members().get(&id).is_some_and(|(_, voter)| *voter) {
            return Ok(());
        }
        // Unless a leader, now gone, had begun to make it a voter: then that is to be brought to its end.
        if !self.is_asked(id) {
            if self.address_of(id).is_some_and(|known| known != address) {
                let node = BTreeMap::from([(id, BasicNode::new(address))]);
                self.change(ChangeMembers::SetNodes(node)).await?;
            }
            self.raft().add_learner(id, BasicNode::new(address), false).await?;
            tracing::info!(id, address, "a node was let in; it votes as soon as it has the log");
        }
        let (engine, address) = (self.clone(), address.to_string());
        self.thread.spawn(async move {
            if let Err(error) = engine.promote(id, &address).await {
                tracing::warn!(id, %error, "a node that was let in could not be made a voter");
            }
        });
        Ok(())
    }

    /// Whatever a node promised or said to have is not counted on any more.
    async fn forget_promises(&self, id: NodeId) -> Result<(), ChangeError> {
        if self.is_asked(id) {
            tracing::warn!(id, "a voter has come back without its data: it is taken out, and comes in anew");
            self.change(ChangeMembers::RemoveVoters(BTreeSet::from([id]))).await
        } else if self.members().contains_key(&id) {
            self.change(ChangeMembers::RemoveNodes(BTreeSet::from([id]))).await
        } else {
            Ok(())
        }
    }

    /// Makes a voter of a node, once it has the log.
    async fn promote(&self, id: NodeId, address: &str) -> Result<(), ChangeError> {
        // A leader that does not vote (it was taken out as one without data, and elected by those who did not know yet) has
        // the log already, and would wait for itself for ever.
        if id != self.node_id() {
            self.raft().add_learner(id, BasicNode::new(address), true).await?;
        }
        let _one_at_a_time = self.changing.lock().await;
        if self.members().get(&id).is_some_and(|(_, voter)| *voter) {
            return Ok(());
        }
        let voters = BTreeSet::from([id]);
        self.raft().change_membership(ChangeMembers::AddVoterIds(voters), true).await?;
        tracing::info!(id, "a node votes");
        Ok(())
    }

    async fn remove(&self, id: NodeId) -> Result<(), ChangeError> {
        let _one_at_a_time = self.changing.lock().await;
        let members = self.members();
        let voters = members.values().filter(|(_, voter)| *voter).count();
        match members.get(&id) {
            None => Err(refused(format!("node {id} is not a member"))),
            Some((_, true)) if voters == 1 => Err(refused("the last node of a cluster can't be removed")),
            // Also one that a leader, now gone, had begun to take out.
            Some(_) if self.is_asked(id) => {
                self.change(ChangeMembers::RemoveVoters(BTreeSet::from([id]))).await
            }
            Some(_) => self.change(ChangeMembers::RemoveNodes(BTreeSet::from([id]))).await,
        }
    }

    /// Hands leadership to another node, and returns when it leads.
    pub(super) async fn transfer(&self, to: NodeId) -> Result<(), ChangeError> {
        if to == self.node_id() {
            return Ok(());
        }
        match self.members().get(&to) {
            Some((_, true)) => {}
            Some((_, false)) => return Err(refused(format!("node {to} does not vote yet"))),
            None => return Err(refused(format!("node {to} is not a member"))),
        }
        match self.hand_over(to).await? {
            leader if leader == to => Ok(()),
            // Another one was faster than the one that was asked: it hands on.
            leader => self.ask_to_change(leader, Change::Transfer { to }).await,
        }
    }

    /// Asks a node to take over, and returns when another one leads: that one, or whichever was faster in the election.
    pub(super) async fn hand_over(&self, to: NodeId) -> Result<NodeId, ChangeError> {
        let (mut server, own) = (self.raft().server_metrics(), self.node_id());
        let changed = async {
            loop {
                let leader = server.borrow_watched().current_leader;
                match leader.filter(|leader| *leader != own) {
                    Some(leader) => return leader,
                    None if server.changed().await.is_err() => return to,
                    None => {}
                }
            }
        };
        tokio::pin!(changed);
        // The node is asked more than once: the question may be lost, or come before what it has to know.
        for _ in 0..TRANSFER_MAX.as_secs() {
            self.raft().trigger().transfer_leader(to).await.map_err(refused)?;
            if let Ok(leader) = machine::timeout(TRANSFER_AGAIN, &mut changed).await {
                return Ok(leader);
            }
        }
        Err(refused(format!("node {to} did not take over in {TRANSFER_MAX:?}")))
    }

    async fn ask_to_change(&self, leader: NodeId, change: Change) -> Result<(), ChangeError> {
        match self.peers.ask(leader, &Ask::Change(change)).await {
            Ok(Answer::Done) => Ok(()),
            Ok(Answer::Rejected(why)) => Err(refused(why)),
            Ok(_) | Err(_) => Err(ChangeError::Unknown),
        }
    }

    /// Finds this node's place in the cluster when it starts: it has one, the cluster is new, or it has to be let in.
    /// Goes on until it votes, over restarts: whoever lets it in may be gone before that is done. `had_data` is how it was
    /// before peers could reach it.
    pub(super) async fn enter(self: Arc<Self>, cluster: ClusterConfig, had_data: bool) {
        let data_dir = &self.config.data_dir;
        let joining = !had_data || joining::is_marked(data_dir);
        while joining && let Err(error) = joining::mark(data_dir) {
            tracing::error!(%error, "this node can't write down that it is on its way into its cluster");
            machine::sleep(Duration::from_secs(1)).await;
        }
        if joining {
            self.join(&cluster).await;
            if let Err(error) = joining::unmark(data_dir) {
                tracing::error!(%error, "this node votes, and can't write that down");
            }
        }
        if !self.members().get(&cluster.node).is_some_and(|(_, voter)| *voter) {
            tracing::warn!(
                "this node was taken out of its cluster, and stays out: stop it, or empty its data directory and have it \
                 let in again"
            );
        }
        self.announce_address(&cluster.advertise).await;
    }

    /// Asks to be let in, and again, until it votes.
    async fn join(self: &Arc<Self>, cluster: &ClusterConfig) {
        let mut since = Instant::now();
        let mut told = false;
        loop {
            // The log that it is sent tells old stories first: it may have voted once, or be promised a vote that was never
            // agreed on.
            let votes = self.members().get(&cluster.node).is_some_and(|(_, voter)| *voter);
            if votes && self.votes_for_certain().await {
                return;
            }
            // Perhaps it was let in by a leader that was lost before others agreed. Then nobody sends it anything any more,
            // and it will not hear who leads now unless it asks.
            if since.elapsed() > ASK_AGAIN || !self.is_admitted() {
                since = Instant::now();
                match self.leads() {
                    // Elected by those who did not know yet that it had been taken out.
                    true => self.promote(cluster.node, &cluster.advertise).await.unwrap_or_else(|error| {
                        tracing::warn!(%error, "this node does not vote yet");
                    }),
                    false => self.seek_entry(cluster).await,
                }
            }
            if !told && !self.is_admitted() {
                told = true;
                tracing::info!(
                    "waiting for the other nodes: a new cluster begins when all its members have met"
                );
            }
            machine::sleep(TRY_AGAIN).await;
        }
    }

    /// Whether this node votes by what was agreed on, as new as the leader knows it.
    async fn votes_for_certain(&self) -> bool {
        if self.barrier().await.is_err() {
            return false;
        }
        let applied = self.shared.applied.load(Ordering::Acquire);
        // What openraft shows of itself comes a moment after it is so.
        let shown = self.raft().wait(Some(ASK_AGAIN)).applied_index_at_least(Some(applied), "votes").await;
        shown.is_ok_and(|metrics| {
            let voters = metrics.committed_membership_config.membership().get_joint_config();
            !voters.is_empty() && voters.iter().all(|voters| voters.contains(&self.node_id()))
        })
    }

    /// Asks the others how they are: a cluster at work is asked to let this node in, a new one is begun by its first node.
    async fn seek_entry(&self, cluster: &ClusterConfig) {
        let me = cluster.node;
        let others: Vec<&String> =
            cluster.peers.iter().filter(|(id, _)| **id != me).map(|(_, address)| address).collect();
        let mut fresh = Vec::new();
        let mut at_work = Vec::new();
        // Those it was started with may all be gone by now; its log, if it has got any, knows others.
        let members: Vec<String> =
            self.members().into_iter().filter(|(id, _)| *id != me).map(|(_, (address, _))| address).collect();
        for seed in others.iter().copied().chain(&cluster.join).chain(&members) {
            match self.peers.ask_at(seed, &Ask::Status { digest: false }).await {
                Ok(Answer::Status(status)) if status.last_log.unwrap_or(0) > 0 => at_work.push(seed),
                Ok(Answer::Status(status)) => fresh.push((seed, status.run)),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "a peer was asked for its state"),
            }
        }
        // Some may have been taken out themselves, and know nobody who leads.
        for seed in &at_work {
            if self.ask_to_join(seed, me, &cluster.advertise).await {
                return;
            }
        }
        if at_work.is_empty()
            && cluster.peers.keys().next() == Some(&me)
            && fresh.len() == others.len()
            && matches!(self.raft().is_initialized().await, Ok(false))
            && self.welcome_all(&fresh).await
        {
            self.open();
            self.found(&cluster.peers).await;
        }
    }

    /// Lets the other first members of a new cluster in; says whether all of them heard it.
    async fn welcome_all(&self, others: &[(&String, u64)]) -> bool {
        for (other, run) in others {
            if !matches!(self.peers.ask_at(other, &Ask::Welcome { run: *run }).await, Ok(Answer::Done)) {
                return false;
            }
        }
        true
    }

    /// Begins a new cluster.
    async fn found(&self, peers: &BTreeMap<NodeId, String>) {
        let members: BTreeMap<NodeId, BasicNode> =
            peers.iter().map(|(id, address)| (*id, BasicNode::new(address))).collect();
        match self.raft().initialize(members).await {
            Ok(()) => tracing::info!(nodes = peers.len(), "a new cluster begins"),
            Err(error) => {
                tracing::warn!(%error, "the cluster could not be begun: perhaps another node was faster");
            }
        }
    }

    /// Says whether this node was let in.
    async fn ask_to_join(&self, seed: &str, id: NodeId, address: &str) -> bool {
        let join = Ask::Join { id, run: self.awaited.run(), address: address.into() };
        // Whoever was asked may not lead any more, and then has no answer for long.
        let ask = async |at: &str| machine::timeout(ASK_AGAIN, self.peers.ask_at(at, &join)).await;
        let mut answer = ask(seed).await;
        if let Ok(Ok(Answer::AskLeader(_, Some(leader)))) = &answer {
            let leader = leader.clone();
            answer = ask(&leader).await;
        }
        match answer {
            Ok(Ok(Answer::Done)) => return true,
            Ok(Ok(Answer::Rejected(why))) => tracing::warn!(%why, "this node was not let in"),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "this node could not ask to be let in"),
            Err(_) => tracing::warn!("this node asked to be let in and has no answer yet"),
        }
        false
    }

    /// Tells the others where this node is now, if they think otherwise.
    async fn announce_address(self: &Arc<Self>, address: &str) {
        let id = self.node_id();
        loop {
            match self.address_of(id) {
                Some(known) if known != address => {
                    let change = Change::Move { id, address: address.into() };
                    if let Err(error) = self.change_members(change).await {
                        tracing::warn!(%error, known, address, "the others look for this node at its old address");
                    }
                }
                _ => return,
            }
            machine::sleep(Duration::from_secs(1)).await;
        }
    }
}
