//! The journal: what an operator reads about this node's place in its cluster, one line for each change.
//!
//! In:    what `leadership.rs` sees each time it looks; hand-overs; how far this node is with joining.
//! Out:   log lines that name nodes by number and address, and say why.
//! Never: repeats a line, or reports a peer that was silent only for a moment. A node that is alone has nothing to report.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;

use super::leadership::Role;
use super::types::NodeId;
use crate::machine::Instant;

/// A peer that was silent for less than this, or for less than two leader's silences, is not reported: it may be busy.
const LOST_AFTER: Duration = Duration::from_secs(2);

/// The members: where their peers reach them, and whether they vote.
pub(super) type Members = BTreeMap<NodeId, (String, bool)>;

/// What one look found.
pub(super) struct Look {
    /// The leader that openraft follows, if it follows one.
    pub(super) leader: Option<NodeId>,
    pub(super) term: u64,
    /// Whether openraft takes this node for the leader.
    pub(super) leads: bool,
    /// What the node makes of it.
    pub(super) role: Role,
    /// For how long the leader, or on the leader a majority, was not heard.
    pub(super) silence: Duration,
    pub(super) members: Members,
    /// On the leader: how long ago each other node was heard.
    pub(super) heard: BTreeMap<NodeId, Duration>,
}

/// What has been reported so far.
pub(super) struct Journal {
    node: NodeId,
    /// A peer is lost when it was silent for this long.
    lost_after: Duration,
    /// A leader that was not heard since then is known from the disk alone, and may be gone.
    started: Instant,
    reported: Mutex<Reported>,
}

#[derive(Default)]
struct Reported {
    /// The term in which this node leads, and since when.
    leads: Option<(u64, Instant)>,
    /// The term in which it stopped leading because it heard no majority.
    majority_lost: Option<u64>,
    /// The other node that led last, and its term.
    leader: Option<(NodeId, u64)>,
    leader_lost: bool,
    /// Since when the leader knows each peer: one that was just added was not heard before.
    met: BTreeMap<NodeId, Instant>,
    /// Peers that the leader misses, and since when.
    lost: BTreeMap<NodeId, Instant>,
    /// Whom this node asked to take over, and where leadership went.
    handing_to: Option<NodeId>,
    handed_to: Option<NodeId>,
    /// When the last look was, and the last after a long pause.
    looked: Option<Instant>,
    stood_still_at: Option<Instant>,
    /// Who asked this node to take over.
    asked_by: Option<NodeId>,
    /// What this node waits for while it joins.
    waits_for: String,
    /// `None` until this node has joined: the log that the leader sends begins with old changes, which are no news.
    members: Option<Members>,
}

impl Journal {
    pub(super) fn new(node: NodeId, leader_silence: Duration) -> Self {
        let (started, reported) = (Instant::now(), Mutex::default());
        Self { node, lost_after: LOST_AFTER.max(2 * leader_silence), started, reported }
    }

    /// This node asks another one to take over.
    pub(super) fn hands_over(&self, to: NodeId) {
        self.reported.lock().handing_to = Some(to);
    }

    /// The attempt is over. With a leader, this is where leadership went.
    pub(super) fn handed_over(&self, leader: Option<NodeId>, members: &Members) {
        let mut reported = self.reported.lock();
        if let (Some(leader), Some(_)) = (leader, reported.leads) {
            reported.hand_over_to(leader, members);
        }
        reported.handing_to = None;
    }

    /// The leader asks this node to take over.
    pub(super) fn asked_to_lead(&self, by: NodeId) {
        self.reported.lock().asked_by = Some(by);
    }

    /// This node waits for something; `what` tells one thing from another.
    pub(super) fn waits(&self, what: &str, text: &str) {
        let mut reported = self.reported.lock();
        if reported.waits_for != what {
            reported.waits_for = what.into();
            tracing::info!("{text}");
        }
    }

    /// No cluster runs yet, and these addresses don't answer, or not as nodes of this cluster.
    pub(super) fn waits_for(&self, silent: &BTreeMap<&String, String>) {
        let what: Vec<String> = silent.iter().map(|(address, why)| format!("{address} {why}")).collect();
        let why: Vec<String> = silent.values().map(|why| format!("; {why}")).collect();
        let text =
            "waiting for the other nodes: a new cluster starts when all its nodes can reach each other";
        self.waits(&what.join(" "), &format!("{text}{}", why.concat()));
    }

    /// A leader has added this node.
    pub(super) fn let_in(&self) {
        tracing::info!("this node has joined its cluster: it votes as soon as it has the log");
    }

    /// This node has joined; from now on changes of the members are news.
    pub(super) fn entered(&self, members: Members, joined: bool) {
        let voters = voters(&members);
        if joined && members.get(&self.node).is_some_and(|(_, votes)| *votes) {
            tracing::info!(voters, "this node votes now, one of {voters}");
        }
        self.reported.lock().members = Some(members);
    }

    /// Reports what has changed since the last look.
    pub(super) fn look(&self, look: &Look) {
        let mut reported = self.reported.lock();
        let stood_still = reported.stood_still(self.lost_after);
        reported.leadership(look, self.node);
        if look.silence < self.started.elapsed() {
            reported.leader(look, self.node, stood_still);
        }
        reported.peers(look, self.lost_after);
        reported.members(look, self.node);
    }
}

impl Reported {
    fn stop_leading(&mut self, why: &str) {
        self.leads = None;
        self.lost.clear();
        tracing::info!("this node no longer leads: {why}");
    }

    fn hand_over_to(&mut self, leader: NodeId, members: &Members) {
        self.handed_to = Some(leader);
        self.stop_leading(&format!("it handed leadership over to {}", name(leader, members)));
    }

    /// Whether nothing happened on this node for long until just now: then others are not to blame for what it missed.
    fn stood_still(&mut self, long: Duration) -> bool {
        let gap = self.looked.replace(Instant::now()).map_or(Duration::ZERO, |looked| looked.elapsed());
        if gap > long {
            self.stood_still_at = self.looked;
            let gap = seconds(gap);
            tracing::warn!(
                "this node stood still for {gap}: it was suspended, or waited for its disk or for a processor"
            );
        }
        self.stood_still_at.is_some_and(|at| at.elapsed() < long)
    }

    /// Whether this node leads, and why it began or stopped to.
    fn leadership(&mut self, look: &Look, own: NodeId) {
        match (look.role, self.leads) {
            (Role::Leads { term }, Some((known, _))) if term == known => {}
            (Role::Leads { term }, _) => {
                let why = match (self.majority_lost.take(), self.asked_by.take(), self.leader.take()) {
                    (Some(lost), ..) if lost == term => "a majority is heard again".into(),
                    (_, Some(by), _) => format!("{} handed over", name(by, &look.members)),
                    (.., Some((before, _))) => {
                        format!("elected, since {} was not heard", name(before, &look.members))
                    }
                    _ => "elected".into(),
                };
                self.leads = Some((term, Instant::now()));
                self.leader_lost = false;
                tracing::info!(term, "this node leads now: {why}");
            }
            (_, Some((term, _))) if !look.leads || look.term != term => {
                let why = match (self.handing_to, look.leader.filter(|leader| *leader != own)) {
                    (Some(_), Some(leader)) => return self.hand_over_to(leader, &look.members),
                    // Not known yet where it went.
                    (Some(_), None) => return,
                    (None, Some(leader)) => format!("{} was elected", name(leader, &look.members)),
                    (None, None) => format!("other nodes began an election, term {}", look.term),
                };
                self.stop_leading(&why);
            }
            (_, Some((term, _))) if look.silence != Duration::MAX => {
                self.leads = None;
                self.lost.clear();
                self.majority_lost = Some(term);
                let voter = |id: &NodeId| look.members.get(id).is_some_and(|(_, votes)| *votes);
                let silent: Vec<NodeId> = look
                    .heard
                    .iter()
                    .filter(|(id, silence)| voter(id) && **silence >= look.silence / 2)
                    .map(|(id, _)| *id)
                    .collect();
                let named: Vec<String> = silent.iter().map(|id| name(*id, &look.members)).collect();
                let voters = voters(&look.members);
                tracing::warn!(
                    term,
                    "this node no longer leads: a majority was not heard for {}; silent: {}; {} of {voters} voters are left, \
                     {} are needed",
                    seconds(look.silence),
                    named.join(", "),
                    voters.saturating_sub(silent.len()),
                    voters / 2 + 1
                );
            }
            _ => {}
        }
    }

    /// Who else leads, and whether it is heard.
    fn leader(&mut self, look: &Look, own: NodeId, stood_still: bool) {
        let Some(leader) = look.leader.filter(|leader| *leader != own && !look.leads) else { return };
        let named = name(leader, &look.members);
        let followed = matches!(look.role, Role::Follows { .. });
        if followed && self.leader != Some((leader, look.term)) {
            let before = self.leader.filter(|(before, _)| *before != leader);
            let before = before
                .map_or(String::new(), |(before, _)| format!(", {} did before", name(before, &look.members)));
            if self.handed_to.take() != Some(leader) {
                tracing::info!(node = leader, term = look.term, "{named} leads now{before}");
            }
            (self.leader, self.leader_lost, self.majority_lost) = (Some((leader, look.term)), false, None);
            self.asked_by = None;
        } else if followed && self.leader_lost {
            self.leader_lost = false;
            tracing::info!(node = leader, term = look.term, "the leader, {named}, is heard again");
        } else if !followed && !self.leader_lost && self.leader == Some((leader, look.term)) {
            // Not missed are a leader that handed over, one that this node could not hear, and any by a node that was removed.
            self.leader_lost = !stood_still;
            let votes = look.members.get(&own).is_some_and(|(_, votes)| *votes);
            if votes && self.asked_by.is_none() && !stood_still {
                let silence = seconds(look.silence);
                tracing::warn!(
                    node = leader,
                    "the leader, {named}, was not heard for {silence}: an election begins"
                );
            }
        }
    }

    /// On the leader: peers that are silent, and those that are back.
    fn peers(&mut self, look: &Look, lost_after: Duration) {
        let Some((_, since)) = self.leads else { return };
        let others: Vec<NodeId> = look.heard.keys().copied().collect();
        self.lost.retain(|id, _| others.contains(id));
        self.met.retain(|id, _| others.contains(id));
        for id in &others {
            self.met.entry(*id).or_insert_with(Instant::now);
        }
        let met = &self.met;
        let silence = |id: &NodeId| look.heard[id].min(since.elapsed()).min(met[id].elapsed());
        let silent: BTreeSet<NodeId> = others.iter().filter(|id| silence(id) > lost_after).copied().collect();
        let voter = |id: &NodeId| look.members.get(id).is_some_and(|(_, votes)| *votes);
        let voters = voters(&look.members);
        let left = voters - silent.iter().filter(|id| voter(id)).count().min(voters);
        for id in others {
            let named = name(id, &look.members);
            match (silent.contains(&id), self.lost.get(&id)) {
                (true, None) => {
                    let silence = silence(&id);
                    // No longer than this node has led.
                    self.lost.insert(id, Instant::now() - silence);
                    let needed = voters / 2 + 1;
                    let silence = seconds(silence);
                    tracing::warn!(
                        node = id,
                        "{named} is lost: not heard for {silence}; {left} of {voters} voters are left, {needed} are needed"
                    );
                }
                (false, Some(since)) => {
                    let away = seconds(since.elapsed());
                    self.lost.remove(&id);
                    tracing::info!(
                        node = id,
                        "{named} is back after {away}; {left} of {voters} voters are heard"
                    );
                }
                _ => {}
            }
        }
    }

    /// Members that were added or removed, and those that became voters.
    fn members(&mut self, look: &Look, own: NodeId) {
        let Some(known) = &self.members else { return };
        if *known == look.members {
            return;
        }
        let voters = voters(&look.members);
        for (id, (address, votes)) in &look.members {
            match known.get(id) {
                None => tracing::info!(
                    node = id,
                    "node {id} at {address} has joined the cluster: it votes as soon as it has the log"
                ),
                Some((_, false)) if *votes => {
                    tracing::info!(node = id, voters, "node {id} at {address} votes now, one of {voters}");
                }
                Some((_, true)) if !votes && *id == own => tracing::warn!(
                    "this node was removed from its cluster, and stays out: stop it, or empty its data directory to have it \
                     join again"
                ),
                Some((before, _)) if before != address => {
                    tracing::info!(node = id, "node {id} moved from {before} to {address}");
                }
                _ => {}
            }
        }
        for (id, (address, _)) in known.iter().filter(|(id, _)| !look.members.contains_key(id) && **id != own)
        {
            tracing::info!(node = id, voters, "node {id} at {address} was removed; {voters} voters are left");
        }
        self.members = Some(look.members.clone());
    }
}

fn voters(members: &Members) -> usize {
    members.values().filter(|(_, votes)| *votes).count()
}

/// A node as people know it.
fn name(id: NodeId, members: &Members) -> String {
    match members.get(&id) {
        Some((address, _)) => format!("node {id} at {address}"),
        None => format!("node {id}"),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
