//! A simulated disk with openraft's log on it: what was not synced is lost in a crash, but for a part that is not.
//!
//! In:    entries, votes, truncations, purges. Out: the same again, after a crash as far as it was synced.
//! Never: says that something is on disk before it is (but for a planted bug).

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;

use openraft::OptionalSend;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;

use super::Bug;
use super::runtime::{self, sleep_us};
use super::types::{Entry, LogId, SimConfig, SnapshotMeta, Vote};
use crate::random::Random;

/// What lies on a disk.
#[derive(Debug, Clone, Default)]
struct State {
    vote: Option<Vote>,
    entries: BTreeMap<u64, Entry>,
    purged: Option<LogId>,
}

#[derive(Debug, Clone)]
enum Write {
    Vote(Vote),
    Entry(Box<Entry>),
    TruncateFrom(u64),
    Purge(LogId),
}

impl State {
    fn write(&mut self, write: &Write) {
        match write {
            Write::Vote(vote) => self.vote = Some(*vote),
            Write::Entry(entry) => drop(self.entries.insert(entry.log_id.index, (**entry).clone())),
            Write::TruncateFrom(from) => drop(self.entries.split_off(from)),
            Write::Purge(upto) => {
                self.entries = self.entries.split_off(&(upto.index + 1));
                self.purged = Some(*upto);
            }
        }
    }
}

/// The disk of one node; it outlives the node's crashes. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Disk(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    node: u64,
    /// What a reader sees.
    seen: State,
    /// What survives a crash.
    synced: State,
    /// What lies between the two, and how much was ever written before it.
    unsynced: VecDeque<Write>,
    first_unsynced: u64,
    snapshot: Option<(SnapshotMeta, Vec<u8>)>,
    random: Random,
    /// How long a sync takes at the most.
    slow_us: u64,
    bug: Option<Bug>,
    /// Writes that a crash took away.
    lost: u64,
}

impl Disk {
    pub(super) fn new(node: u64, random: Random, bug: Option<Bug>) -> Self {
        let (seen, synced, unsynced, snapshot) = Default::default();
        let inner = Inner {
            node,
            seen,
            synced,
            unsynced,
            first_unsynced: 0,
            snapshot,
            random,
            slow_us: 4_000,
            bug,
            lost: 0,
        };
        Self(Arc::new(Mutex::new(inner)))
    }

    pub(super) fn set_slow_us(&self, slow_us: u64) {
        self.0.lock().slow_us = slow_us;
    }

    pub(super) fn lost(&self) -> u64 {
        self.0.lock().lost
    }

    /// The machine loses power: of what was not synced, the first few writes may have reached the disk, the last of them not
    /// whole, so that recovery cuts it off.
    pub(super) fn crash(&self) {
        let mut inner = self.0.lock();
        let inner = &mut *inner;
        let kept = inner.random.below(inner.unsynced.len() as u64 + 1) as usize;
        let kept = if inner.random.percent(50) { 0 } else { kept };
        inner.lost += (inner.unsynced.len() - kept) as u64;
        for write in inner.unsynced.drain(..).take(kept) {
            inner.synced.write(&write);
        }
        inner.first_unsynced = 0;
        inner.seen = inner.synced.clone();
    }

    pub(super) fn snapshot(&self) -> Option<(SnapshotMeta, Vec<u8>)> {
        self.0.lock().snapshot.clone()
    }

    /// A snapshot is written beside the old one, synced and renamed: it is there whole or not at all.
    /// One that was begun before another came from the leader, and is done after it, is of no use any more.
    pub(super) fn save_snapshot(&self, meta: SnapshotMeta, bytes: Vec<u8>) {
        let mut inner = self.0.lock();
        if inner.snapshot.as_ref().is_none_or(|(known, _)| known.last_log_id < meta.last_log_id) {
            inner.snapshot = Some((meta, bytes));
        }
    }

    /// Writes, and tells which write must be synced, and how long that takes.
    fn write(&self, writes: Vec<Write>) -> (u64, u64) {
        let mut inner = self.0.lock();
        for write in writes {
            inner.seen.write(&write);
            inner.unsynced.push_back(write);
        }
        let (upto, slow_us) = (inner.first_unsynced + inner.unsynced.len() as u64, inner.slow_us);
        (upto, 50 + inner.random.below(slow_us))
    }

    fn sync(&self, upto: u64) {
        let mut inner = self.0.lock();
        while inner.first_unsynced < upto
            && let Some(write) = inner.unsynced.pop_front()
        {
            inner.synced.write(&write);
            inner.first_unsynced += 1;
        }
    }

    async fn write_and_sync(&self, writes: Vec<Write>) {
        let (upto, length_us) = self.write(writes);
        sleep_us(length_us).await;
        self.sync(upto);
    }
}

impl RaftLogReader<SimConfig> for Disk {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        Ok(self.0.lock().seen.entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.0.lock().seen.vote)
    }
}

impl RaftLogStorage<SimConfig> for Disk {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<SimConfig>> {
        let inner = self.0.lock();
        let last = inner.seen.entries.values().next_back().map(|entry| entry.log_id);
        Ok(LogState { last_purged_log_id: inner.seen.purged, last_log_id: last.or(inner.seen.purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.write_and_sync(vec![Write::Vote(*vote)]).await;
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<SimConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let writes = entries.into_iter().map(|entry| Write::Entry(Box::new(entry))).collect();
        let (upto, length_us) = self.write(writes);
        let (node, bug) = {
            let inner = self.0.lock();
            (inner.node, inner.bug)
        };
        let disk = self.clone();
        let mut callback = Some(callback);
        if bug == Some(Bug::AckBeforeFsync)
            && let Some(callback) = callback.take()
        {
            callback.io_completed(Ok(()));
        }
        let length_us = if bug == Some(Bug::AckBeforeFsync) { 40 * length_us } else { length_us };
        runtime::spawn_on(node, async move {
            sleep_us(length_us).await;
            disk.sync(upto);
            if let Some(callback) = callback {
                callback.io_completed(Ok(()));
            }
        });
        Ok(())
    }

    async fn truncate_after(&mut self, last_kept: Option<LogId>) -> io::Result<()> {
        self.write_and_sync(vec![Write::TruncateFrom(last_kept.map_or(0, |id| id.index + 1))]).await;
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.write_and_sync(vec![Write::Purge(upto)]).await;
        Ok(())
    }
}
