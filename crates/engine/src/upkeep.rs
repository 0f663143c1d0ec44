//! What happens without any request: claims expire, the log is cut, a leader without room for it steps down, and a
//! member that has lost its data is added again.
//!
//! In:    the table's earliest deadline, the length of the log, the room for it, members that are silent. Out: ticks,
//!        which end what is due; snapshots; another leader; voters.
//! Never: ends a claim itself: a tick is a command like any other, and the table decides.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::Command;

use super::leadership::Role;
use super::peer::{Ask, PeerAnswer};
use super::state_machine::NO_DEADLINE;
use super::types::NodeId;
use super::wakeups::sleep_about;
use super::wal::Room;
use super::{Engine, snapshot_file};
use crate::machine::{self, Instant};

/// Entries are stamped at least this often while anything is held that has a deadline.
const STAMP_EVERY_US: u64 = 1_000_000;
/// The shortest pause before the clock is looked at again: what the timer can tell apart.
const TICK_PAUSE_MIN: Duration = Duration::from_millis(1);
/// In a large table, take a snapshot when the log exceeds this fraction of the last snapshot. A longer log makes a start
/// slower, since the start applies it; a shorter one makes snapshots most of what is written.
const SNAPSHOT_TO_LOG: u64 = 3;
/// How often a node looks whether its log has become long.
const LOG_LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often a leader looks whether there is room for its log.
const ROOM_LOOK_EVERY: Duration = Duration::from_millis(250);
/// A node that the leader heard within this time counts as there. Heartbeats come far more often.
const HEARD_MS_MAX: u64 = 2000;
/// The pause after a leader with a full disk has tried to hand over leadership: the other disks may be full as well.
const HAND_OVER_EVERY: Duration = Duration::from_secs(10);
/// How often a leader looks after members that are silent. One that has lost its data asks by itself far sooner, as a rule.
const SILENT_LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long a leader whose settings did not get through waits before it tries again.
const CONFIGURE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Moves the table clock when something is due, so that expiry and hand-over need no request.
pub(super) async fn tick(engine: Arc<Engine>) {
    let mut last_us = 0;
    let mut configured = None;
    let mut configure_at = Instant::now();
    let mut told = None;
    loop {
        let Role::Leads { term } = engine.leadership.role() else {
            engine.leadership.ticker.notified().await;
            continue;
        };
        // A new table version knows more settings.
        let wanted = Some((term, engine.table_version()));
        if configured != wanted && Instant::now() >= configure_at {
            match engine.configure().await {
                Ok(()) => configured = wanted,
                Err(error) => {
                    configure_at = Instant::now() + CONFIGURE_AGAIN_AFTER;
                    if told.replace(term) != Some(term) {
                        tracing::warn!(
                            %error,
                            "the limits of this node could not be put into effect yet; trying every second"
                        );
                    }
                }
            }
        }
        let deadline_us = engine.shared.earliest_deadline_us.load(Ordering::Acquire);
        if deadline_us == NO_DEADLINE {
            tokio::select! {
                biased;
                () = engine.shared.deadline_moved.notified() => {}
                () = engine.leadership.ticker.notified() => {}
                () = machine::sleep_until(configure_at), if configured != wanted => {}
            }
            continue;
        }
        last_us = engine.shared.table.read().clock().now_us.max(last_us);
        let next_us = deadline_us.min(last_us + STAMP_EVERY_US);
        if next_us > engine.clock.now_us() {
            // A clock that stands still, since its leader has not pulsed for a while, must not be asked again at once.
            let at = engine.clock.instant_of(next_us).max(Instant::now() + TICK_PAUSE_MIN);
            tokio::select! {
                biased;
                () = machine::sleep_until(at) => {}
                () = engine.shared.deadline_moved.notified() => {}
                () = engine.leadership.ticker.notified() => {}
            }
        } else if let Err(error) = engine.submit(Command::Tick).await {
            // The cause is reported where it happens.
            tracing::debug!(%error, "the table clock could not be moved");
            machine::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Takes a snapshot when the log has become long, so that it can be cut.
pub(super) async fn take_snapshots(engine: Arc<Engine>) {
    let dir = engine.snapshot_dir();
    // What the last snapshot left behind for nodes that were away for a moment does not count as growth.
    let mut left = 0;
    loop {
        sleep_about(LOG_LOOK_EVERY).await;
        let bytes = engine.log.wal().log_bytes();
        left = bytes.min(left);
        if bytes - left < engine.config.snapshot_log_bytes {
            continue;
        }
        let last = snapshot_file::newest_len(&dir).unwrap_or(0);
        if bytes - left < last / SNAPSHOT_TO_LOG {
            continue;
        }
        let mut progress = engine.raft.watch_snapshot_progress();
        if engine.raft.trigger().snapshot().await.is_err() {
            return;
        }
        let _ = machine::timeout(Duration::from_secs(120), progress.changed()).await;
        left = engine.log.wal().log_bytes();
    }
}

/// Has another node lead when this one's disk is full: as leader it refuses every change, for the whole cluster. Only if
/// the others are a majority without it: a follower whose disk is full stops.
pub(super) async fn hand_over_when_full(engine: Arc<Engine>) {
    loop {
        sleep_about(ROOM_LOOK_EVERY).await;
        if engine.leads() && engine.log.wal().room() == Room::Low && others_are_a_majority(&engine).await {
            tracing::warn!(
                "the disk of this node is full: handing leadership to another node. Free space on the disk of \
                 the data directory"
            );
            engine.step_down().await;
            machine::sleep(HAND_OVER_EVERY).await;
        }
    }
}

/// Whether, as the leader sees it, the others could go on without this node: enough of them were heard just now.
async fn others_are_a_majority(engine: &Engine) -> bool {
    let heard = heard(engine).await;
    let members = engine.members();
    let voters: Vec<_> = members.iter().filter(|(_, (_, voter))| *voter).map(|(id, _)| id).collect();
    voters.iter().filter(|id| heard.contains(id)).count() > voters.len() / 2
}

/// Those that the leader has heard just now.
pub(super) async fn heard(engine: &Engine) -> BTreeSet<NodeId> {
    let others = engine.status(false).await.others;
    let is_heard = |(_, ms): &(_, Option<u64>)| ms.is_some_and(|ms| ms <= HEARD_MS_MAX);
    others.into_iter().filter(|(_, other)| is_heard(other)).map(|(id, _)| id).collect()
}

/// Adds members again that have lost their data. Such a node asks by itself, but may know no member to ask: the peers of its
/// settings may have been removed since.
pub(super) async fn take_back(engine: Arc<Engine>) {
    loop {
        sleep_about(SILENT_LOOK_EVERY).await;
        if !engine.leads() {
            continue;
        }
        let heard = heard(&engine).await;
        let silent = |id: &NodeId| *id != engine.node_id() && !heard.contains(id);
        for (id, (address, _)) in engine.members().into_iter().filter(|(id, _)| silent(id)) {
            let asked = engine.peers.ask_at(&address, &Ask::Status { digest: false }).await;
            let Ok(PeerAnswer::Status(there)) = asked else { continue };
            if there.id == id
                && !there.admitted
                && let Err(error) = engine.admit(id, Some(there.run), &address).await
            {
                engine.journal.waits(
                    &id.to_string(),
                    &format!("node {id} has lost its data and can't join again yet: {error}"),
                );
            }
        }
    }
}
