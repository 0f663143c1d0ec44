//! How a node joins its cluster when it starts.
//!
//! In:    the settings of the cluster, and whether this node has data. Out: a voter; or a removed node, which says so.
//! Never: gives up: the leader that adds this node may be lost before the node is a voter, so the node asks again until it is
//!        one, also after restarts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::BasicNode;

use super::membership::{ChangeError, MembershipChange};
use super::peer::{Ask, PeerAnswer, PeerError};
use super::types::NodeId;
use super::{ClusterConfig, Engine, join_mark};
use crate::machine::{self, Instant};

/// The pause between two attempts to join.
const TRY_AGAIN: Duration = Duration::from_millis(300);
/// How long a node that was added waits to become a voter before it asks again.
const ASK_AGAIN: Duration = Duration::from_secs(4);

impl Engine {
    /// Makes this node part of its cluster: it is a member already, the cluster is new, or it has to join. Goes on until the
    /// node is a voter. `had_data` says whether it had data before peers could reach it.
    pub(super) async fn enter(self: Arc<Self>, cluster: ClusterConfig, had_data: bool) {
        let data_dir = &self.config.data_dir;
        let joining = !had_data || join_mark::is_marked(data_dir);
        // A first member waits for the other first members instead. If their cluster runs already, it asks to join it.
        self.joining.store(joining && !cluster.peers.contains_key(&cluster.node), Ordering::Release);
        while joining && let Err(error) = join_mark::mark(data_dir) {
            let file = join_mark::path(data_dir);
            let file = file.display();
            tracing::error!(
                %file, %error,
                "this node can't join its cluster: a file can't be written; trying every second"
            );
            machine::sleep(Duration::from_secs(1)).await;
        }
        if joining {
            self.join(&cluster).await;
            if let Err(error) = join_mark::unmark(data_dir) {
                let file = join_mark::path(data_dir);
                tracing::error!(
                    file = %file.display(), %error,
                    "this node votes, but a file of its data directory can't be deleted"
                );
            }
        }
        self.joining.store(false, Ordering::Release);
        self.journal.entered(self.members(), joining);
        if self.is_removed() {
            tracing::warn!(
                "this node was removed from its cluster before it started, and stays out: stop it, or empty its data \
                 directory to have it join again"
            );
        }
        self.announce_address(&cluster).await;
    }

    /// Asks to join, again and again, until this node is a voter.
    async fn join(self: &Arc<Self>, cluster: &ClusterConfig) {
        let mut since = Instant::now();
        loop {
            // The log that the leader sends begins with old entries. They may call this node a voter because it was one once,
            // or because of a change that was never committed.
            let votes = self.members().get(&cluster.node).is_some_and(|(_, voter)| *voter);
            if votes && self.votes_for_certain().await {
                return;
            }
            // The leader that added this node may have been lost before a majority agreed. Then no node sends it anything, and
            // it learns who leads now only if it asks.
            if since.elapsed() > ASK_AGAIN || !self.is_admitted() {
                since = Instant::now();
                match self.leads() {
                    // Nodes that did not know yet that this one was removed have elected it.
                    true => self.promote(cluster.node, &cluster.advertise).await.unwrap_or_else(|error| {
                        self.journal.waits("vote", &format!("this node does not vote yet: {error}"));
                    }),
                    false => self.seek_entry(cluster).await,
                }
            }
            machine::sleep(TRY_AGAIN).await;
        }
    }

    /// Whether this node is a voter in the membership that is committed, as far as the leader knows.
    async fn votes_for_certain(&self) -> bool {
        if self.barrier().await.is_err() {
            return false;
        }
        let applied = self.shared.applied.load(Ordering::Acquire);
        // The metrics of openraft come a moment after its state.
        let shown = self.raft().wait(Some(ASK_AGAIN)).applied_index_at_least(Some(applied), "votes").await;
        shown.is_ok_and(|metrics| {
            let voters = metrics.committed_membership_config.membership().get_joint_config();
            !voters.is_empty() && voters.iter().all(|voters| voters.contains(&self.node_id()))
        })
    }

    /// Asks the other nodes for their status. This node asks to join a cluster that runs; the first member begins a new one.
    async fn seek_entry(&self, cluster: &ClusterConfig) {
        let me = cluster.node;
        let others: Vec<&String> =
            cluster.peers.iter().filter(|(id, _)| **id != me).map(|(_, address)| address).collect();
        let (mut fresh, mut at_work, mut silent) = (Vec::new(), Vec::new(), BTreeMap::new());
        // The peers of its settings may all be gone by now. Its log, if it has one, knows others.
        let members: Vec<String> =
            self.members().into_iter().filter(|(id, _)| *id != me).map(|(_, (address, _))| address).collect();
        for seed in others.iter().copied().chain(&cluster.join).chain(&members) {
            match self.peers.ask_at(seed, &Ask::Status { digest: false }).await {
                Ok(PeerAnswer::Status(status)) if status.last_log.unwrap_or(0) > 0 => at_work.push(seed),
                Ok(PeerAnswer::Status(status)) => fresh.push((seed, status.run)),
                Ok(_) => {}
                Err(error) => {
                    silent.insert(seed, error.to_string());
                }
            }
        }
        if at_work.is_empty() && !silent.is_empty() {
            self.journal.waits_for(&silent);
        }
        // Some of them may have been removed themselves, and know no leader.
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

    /// Adds the other first members of a new cluster; says whether all of them confirmed it.
    async fn welcome_all(&self, others: &[(&String, u64)]) -> bool {
        for (other, run) in others {
            if !matches!(self.peers.ask_at(other, &Ask::Welcome { run: *run }).await, Ok(PeerAnswer::Done)) {
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
            Ok(()) => tracing::info!("a new cluster of {} nodes begins", peers.len()),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "this node could not start the new cluster: another node may have done so already"
                );
            }
        }
    }

    /// Asks a node, and then the leader that it names, to add this node; says whether this node was added.
    async fn ask_to_join(&self, seed: &str, id: NodeId, address: &str) -> bool {
        self.joining.store(true, Ordering::Release);
        let answer = self
            .ask_leader_through(seed, &Ask::Join { id, run: self.in_flight.run(), address: address.into() })
            .await;
        match answer {
            Some(Ok(PeerAnswer::Done)) => return true,
            Some(Ok(PeerAnswer::Rejected(why))) => {
                self.journal.waits(&why, &format!("this node can't join its cluster yet: {why}"));
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                self.journal.waits(seed, &format!("this node can't ask to join its cluster: {error}"));
            }
            None => self.journal.waits(
                "answer",
                "this node has asked to join its cluster and has no answer yet; asking again",
            ),
        }
        false
    }

    /// Asks the node at an address, or the leader that it names; `None`: there is no answer yet.
    async fn ask_leader_through(&self, seed: &str, ask: &Ask) -> Option<Result<PeerAnswer, PeerError>> {
        // A node that no longer leads may take long to answer.
        let ask_at = async |at: &str| machine::timeout(ASK_AGAIN, self.peers.ask_at(at, ask)).await.ok();
        match ask_at(seed).await {
            Some(Ok(PeerAnswer::AskLeader(_, Some(leader)))) => ask_at(&leader).await,
            answer => answer,
        }
    }

    /// Tells the others the address of this node if they know another one.
    async fn announce_address(self: &Arc<Self>, cluster: &ClusterConfig) {
        let (id, address) = (cluster.node, &cluster.advertise);
        let mut told = false;
        loop {
            match self.address_of(id) {
                Some(known) if known != *address => {
                    if let Err(error) = self.announce(cluster).await
                        && !std::mem::replace(&mut told, true)
                    {
                        tracing::warn!(
                            "this node is at {address} now, and the other nodes still look for it at {known}: {error}; \
                             trying every second"
                        );
                    }
                }
                _ => return,
            }
            machine::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Has the leader note the new address. A node that the leader looks for elsewhere does not hear of it, so the others are
    /// asked who leads.
    async fn announce(self: &Arc<Self>, cluster: &ClusterConfig) -> Result<(), ChangeError> {
        let change = MembershipChange::Move { id: cluster.node, address: cluster.advertise.clone() };
        match self.change_members(change.clone()).await {
            Err(ChangeError::NotLeader) => {}
            done => return done,
        }
        let members = self.members().into_iter().map(|(id, (address, _))| (id, address));
        let others = members.chain(cluster.peers.clone()).filter(|(id, _)| *id != cluster.node);
        for seed in others.map(|(_, address)| address).chain(cluster.join.clone()) {
            match self.ask_leader_through(&seed, &Ask::Change(change.clone())).await {
                Some(Ok(PeerAnswer::Done)) => return Ok(()),
                Some(Ok(PeerAnswer::Rejected(why))) => return Err(ChangeError::Refused(why)),
                _ => {}
            }
        }
        Err(ChangeError::NotLeader)
    }
}
