//! The members of the cluster: nodes are added, removed and replaced while it runs.
//!
//! In:    an operator's change, or a node without data that asks to join. Out: openraft's membership, changed by the
//!        leader, one change at a time.
//! Never: makes a node without data a voter before the others have agreed to forget what it promised: the node is removed
//!        first, and added again as a learner until it has the whole log. What is said to one process of a node is not valid
//!        for the next one, which may have lost its data again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{BasicNode, ChangeMembers};
use serde::{Deserialize, Serialize};

use super::Engine;
use super::leadership::Role;
use super::peer::{Ask, PeerAnswer};
use super::types::{NodeId, TypeConfig};
use crate::machine;

/// How long a change may take to be agreed on. Its outcome is unknown then: it may be agreed on as soon as a majority is back.
const AGREED_WITHIN: Duration = Duration::from_secs(5);
/// How long a transfer of leadership may take.
const TRANSFER_MAX: Duration = Duration::from_secs(5);
/// How long the leader waits for a node to take over before it asks that node again.
const TRANSFER_AGAIN: Duration = Duration::from_secs(1);

const LAST_NODE: &str = "the last node of a cluster can't be removed";

/// What an operator can change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembershipChange {
    /// Add a node, which has to run and have no data.
    Add {
        /// Its number.
        id: NodeId,
        /// Where its peers reach it.
        address: String,
    },
    /// Remove a node.
    Remove {
        /// Its number.
        id: NodeId,
    },
    /// Hand leadership to a node.
    Transfer {
        /// Its number.
        to: NodeId,
    },
    /// Change the address of a member.
    Move {
        /// Its number.
        id: NodeId,
        /// Where its peers reach it now.
        address: String,
    },
}

impl std::fmt::Display for MembershipChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Add { id, address } => write!(f, "add node {id} at {address}"),
            Self::Remove { id } => write!(f, "remove node {id}"),
            Self::Transfer { to } => write!(f, "hand leadership to node {to}"),
            Self::Move { id, address } => write!(f, "move node {id} to {address}"),
        }
    }
}

/// Why a change did not happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Only a leader changes members, and there is none.
    #[error("no node leads now: try again when a majority of the nodes is up")]
    NotLeader,
    /// The change may have happened, or may still happen.
    #[error(
        "the outcome is unknown: no majority agreed to the change in time, or the leader was lost on the way. Look at \
         `leasehold cluster status`, and try again if nothing changed"
    )]
    Unknown,
    /// The change is not possible, and why.
    #[error("{0}")]
    Refused(String),
}

fn not_a_member(id: NodeId) -> ChangeError {
    refused(format!("node {id} is not a member (`leasehold cluster status` lists the members)"))
}

fn refused(why: impl std::fmt::Display) -> ChangeError {
    ChangeError::Refused(why.to_string())
}

impl From<RaftError<TypeConfig, ClientWriteError<TypeConfig>>> for ChangeError {
    fn from(error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> Self {
        match error {
            RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => Self::NotLeader,
            // openraft's own words for these are full of log ids.
            RaftError::APIError(ClientWriteError::ChangeMembershipError(why)) => match why {
                ChangeMembershipError::InProgress(_) => {
                    refused("another change of the members is being made: try again in a moment")
                }
                ChangeMembershipError::UncommittedLeaderLog(_) => {
                    refused("the leader was elected just now: try again in a moment")
                }
                ChangeMembershipError::EmptyMembership(_) => refused(LAST_NODE),
                why => refused(why),
            },
            RaftError::APIError(ClientWriteError::PreconditionFailed(why)) => refused(why),
            RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) | RaftError::Fatal(_) => {
                Self::Unknown
            }
        }
    }
}

impl Engine {
    /// All members: their addresses, and whether they are voters. While the voters change, a majority of the old ones and one
    /// of the new ones decide; only a node that is in both counts as a voter.
    pub fn members(&self) -> BTreeMap<NodeId, (String, bool)> {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let votes = |id: &NodeId| membership.get_joint_config().iter().all(|voters| voters.contains(id));
        membership.nodes().map(|(id, node)| (*id, (node.addr.clone(), votes(id)))).collect()
    }

    /// Whether a node is among the old voters or the new ones.
    fn is_asked(&self, id: NodeId) -> bool {
        self.raft().metrics().borrow_watched().membership_config.voter_ids().any(|voter| voter == id)
    }

    /// Whether a node is a member in the committed membership.
    fn is_agreed_on(&self, id: NodeId) -> bool {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        metrics.committed_membership_config.nodes().any(|(member, _)| *member == id)
    }

    pub(super) fn address_of(&self, id: NodeId) -> Option<String> {
        self.members().remove(&id).map(|(address, _)| address)
    }

    /// Makes a change: here if this node leads, else through the leader.
    pub async fn change_members(self: &Arc<Self>, change: MembershipChange) -> Result<(), ChangeError> {
        match self.change_here(&change).await {
            Err(ChangeError::NotLeader) => {}
            done => return done,
        }
        let leader = self.known_leader().filter(|leader| *leader != self.node_id());
        let Some(leader) = leader else { return Err(ChangeError::NotLeader) };
        self.ask_to_change(leader, change).await
    }

    /// Makes a change if this node leads.
    pub(super) async fn change_here(self: &Arc<Self>, change: &MembershipChange) -> Result<(), ChangeError> {
        if !matches!(self.leadership.role(), Role::Leads { .. }) {
            return Err(ChangeError::NotLeader);
        }
        // A node that has moved says so itself, and the journal reports it.
        if !matches!(change, MembershipChange::Move { .. }) {
            tracing::info!("asked to change the cluster: {change}");
        }
        let changed = self.change_as_leader(change).await;
        // A node that was removed and has moved asks every second: it logs the refusal itself, once.
        if let Err(ChangeError::Refused(why)) = &changed
            && !matches!(change, MembershipChange::Move { .. })
        {
            tracing::info!("refused to {change}: {why}");
        }
        changed
    }

    async fn change_as_leader(self: &Arc<Self>, change: &MembershipChange) -> Result<(), ChangeError> {
        match change {
            MembershipChange::Add { id, address } => match self.members().get(id) {
                Some((known, true)) if known == address => Ok(()),
                Some((known, true)) => Err(refused(format!(
                    "node {id} is a member already, at {known}: a member that has moved tells the others by itself when it starts"
                ))),
                Some((known, false)) if known == address => self.promote(*id, address).await,
                _ => {
                    self.admit(*id, None, address).await?;
                    self.promote(*id, address).await
                }
            },
            MembershipChange::Remove { id } => self.remove(*id).await,
            MembershipChange::Transfer { to } => self.transfer(*to).await,
            MembershipChange::Move { id, .. } if !self.members().contains_key(id) => Err(not_a_member(*id)),
            MembershipChange::Move { id, address } => {
                let node = BTreeMap::from([(*id, BasicNode::new(address))]);
                self.change(ChangeMembers::SetNodes(node)).await
            }
        }
    }

    async fn change(&self, change: ChangeMembers<NodeId, BasicNode>) -> Result<(), ChangeError> {
        match machine::timeout(AGREED_WITHIN, self.raft().change_membership(change, false)).await {
            Ok(changed) => Ok(changed.map(|_| ())?),
            Err(_) => Err(ChangeError::Unknown),
        }
    }

    /// Adds a node as a learner: it gets the log from now on, and is made a voter when it has all of it. `run` is the process
    /// of the node that asked to join; `None`: an operator asked.
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
            return Err(refused(format!(
                "node {id} is the leader: give the new node a number that no other node has (--node-id)"
            )));
        }
        let _one_at_a_time = self.changing.lock().await;
        let away = || {
            refused(format!(
                "node {id} does not answer at {address}: start it first, with an empty data directory, --node-id {id} \
                 and the cluster's secret"
            ))
        };
        let asked = self.peers.ask_at(address, &Ask::Status { digest: false }).await;
        let Ok(PeerAnswer::Status(there)) = asked else { return Err(away()) };
        if there.id != id {
            return Err(refused(format!(
                "node {} answers at {address}, not node {id}: correct the number or the address",
                there.id
            )));
        }
        if run.is_some_and(|run| run != there.run) {
            return Err(refused(format!(
                "node {id} was restarted after it had asked to join; it asks again by itself"
            )));
        }
        // A node that was added and asks again, because it got no answer, has promised nothing that must be forgotten.
        if !there.admitted {
            self.forget_promises(id).await?;
            let welcomed = self.peers.ask_at(address, &Ask::Welcome { run: there.run }).await;
            if !matches!(welcomed, Ok(PeerAnswer::Done)) {
                return Err(away());
            }
        }
        if let Some((known, true)) = self.members().get(&id) {
            // It has moved since a leader, now gone, made it a voter.
            if known != address {
                let node = BTreeMap::from([(id, BasicNode::new(address))]);
                self.change(ChangeMembers::SetNodes(node)).await?;
            }
            return Ok(());
        }
        // If an earlier leader had begun to make it a voter, `promote` completes that.
        if !self.is_asked(id) {
            if self.address_of(id).is_some_and(|known| known != address) {
                let node = BTreeMap::from([(id, BasicNode::new(address))]);
                self.change(ChangeMembers::SetNodes(node)).await?;
            }
            self.raft().add_learner(id, BasicNode::new(address), false).await?;
        }
        let (engine, address) = (self.clone(), address.to_string());
        self.thread.spawn(async move {
            if let Err(error) = engine.promote(id, &address).await {
                tracing::warn!("node {id} has joined, and could not be made a voter yet: {error}");
            }
        });
        Ok(())
    }

    /// Removes a node, or its vote, so that the cluster no longer relies on what it promised or said that it has.
    async fn forget_promises(&self, id: NodeId) -> Result<(), ChangeError> {
        if self.is_asked(id) {
            tracing::warn!(
                "node {id} has come back without its data: it loses its vote until it has copied the log"
            );
            self.change(ChangeMembers::RemoveVoters(BTreeSet::from([id]))).await
        } else if self.members().contains_key(&id) {
            self.change(ChangeMembers::RemoveNodes(BTreeSet::from([id]))).await
        } else {
            Ok(())
        }
    }

    /// Makes a node a voter once it has the log.
    pub(super) async fn promote(&self, id: NodeId, address: &str) -> Result<(), ChangeError> {
        // A leader may be no voter: removed since it had lost its data, and elected by nodes that did not know that yet. It
        // has the log already, and would wait for itself for ever.
        if id != self.node_id() {
            self.raft().add_learner(id, BasicNode::new(address), true).await?;
        }
        let _one_at_a_time = self.changing.lock().await;
        if self.members().get(&id).is_some_and(|(_, voter)| *voter) {
            return Ok(());
        }
        let voters = BTreeSet::from([id]);
        self.raft().change_membership(ChangeMembers::AddVoterIds(voters), true).await?;
        Ok(())
    }

    async fn remove(&self, id: NodeId) -> Result<(), ChangeError> {
        let _one_at_a_time = self.changing.lock().await;
        let members = self.members();
        let voters = members.values().filter(|(_, voter)| *voter).count();
        match members.get(&id) {
            // The change that removed it is not committed, and may still be lost.
            None if self.is_agreed_on(id) => Err(ChangeError::Unknown),
            None => Err(not_a_member(id)),
            Some((_, true)) if voters == 1 => Err(refused(LAST_NODE)),
            // This also completes a removal that an earlier leader had begun.
            Some(_) if self.is_asked(id) => {
                self.leaves_a_majority(id, &members).await?;
                self.change(ChangeMembers::RemoveVoters(BTreeSet::from([id]))).await
            }
            Some(_) => self.change(ChangeMembers::RemoveNodes(BTreeSet::from([id]))).await,
        }
    }

    /// Whether this node answers now: what was heard of it a moment ago proves nothing.
    async fn member_answers(&self, id: NodeId) -> bool {
        let asked = || self.peers.ask(id, &Ask::Status { digest: false });
        id == self.node_id() || matches!(asked().await, Ok(PeerAnswer::Status(_)))
    }

    /// Whether the voters that are left without this node can decide: enough of them answer.
    async fn leaves_a_majority(
        &self,
        id: NodeId,
        members: &BTreeMap<NodeId, (String, bool)>,
    ) -> Result<(), ChangeError> {
        let left = members.iter().filter(|(other, (_, votes))| *votes && **other != id).map(|(id, _)| *id);
        let left: Vec<NodeId> = left.collect();
        let mut silent = Vec::new();
        for other in &left {
            if !self.member_answers(*other).await {
                silent.push(*other);
            }
        }
        let (up, needed) = (left.len() - silent.len(), left.len() / 2 + 1);
        if up >= needed {
            return Ok(());
        }
        let silent: Vec<String> = silent.iter().map(ToString::to_string).collect();
        let (silent, count) = (silent.join(", "), left.len());
        Err(refused(format!(
            "node {silent} does not answer: without node {id}, only {up} of {count} voters would be left, and {needed} are needed. \
             Bring node {silent} back, or remove it first"
        )))
    }

    /// Hands leadership to another node, and returns when it leads.
    pub(super) async fn transfer(&self, to: NodeId) -> Result<(), ChangeError> {
        if to == self.node_id() {
            return Ok(());
        }
        match self.members().get(&to) {
            Some((_, true)) => {}
            Some((_, false)) => {
                return Err(refused(format!(
                    "node {to} does not vote yet: try again when it does (`leasehold cluster status`)"
                )));
            }
            None => return Err(not_a_member(to)),
        }
        if !self.member_answers(to).await {
            return Err(refused(format!(
                "node {to} does not answer: leadership stays here. Bring it back, or name another node"
            )));
        }
        match self.hand_over(to).await? {
            leader if leader == to => Ok(()),
            // Another node won the election: it is asked to hand leadership on.
            leader => self.ask_to_change(leader, MembershipChange::Transfer { to }).await,
        }
    }

    /// Asks a node to take over, and returns when another node leads: that one, or a faster one that won the election.
    pub(super) async fn hand_over(&self, to: NodeId) -> Result<NodeId, ChangeError> {
        self.journal.hands_over(to);
        let leader = self.ask_to_lead(to).await;
        self.journal.handed_over(leader.as_ref().ok().copied(), &self.members());
        leader
    }

    async fn ask_to_lead(&self, to: NodeId) -> Result<NodeId, ChangeError> {
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
        // The node is asked more than once: the request may be lost, or arrive before the node is up to date.
        for _ in 0..TRANSFER_MAX.as_secs() {
            self.raft().trigger().transfer_leader(to).await.map_err(refused)?;
            if let Ok(leader) = machine::timeout(TRANSFER_AGAIN, &mut changed).await {
                return Ok(leader);
            }
            if !self.leads() {
                return Err(refused("this node no longer leads, and no other node took over"));
            }
        }
        Err(refused(format!("node {to} did not take over within {} s: try again", TRANSFER_MAX.as_secs())))
    }

    async fn ask_to_change(&self, leader: NodeId, change: MembershipChange) -> Result<(), ChangeError> {
        match self.peers.ask(leader, &Ask::Change(change)).await {
            Ok(PeerAnswer::Done) => Ok(()),
            Ok(PeerAnswer::Rejected(why)) => Err(refused(why)),
            Ok(_) | Err(_) => Err(ChangeError::Unknown),
        }
    }
}
