//! openraft's log on top of the write-ahead log: entries become bytes and back.
//!
//! In:    entries, votes, truncations and purges from openraft. Out: the same to `wal/`, and recent entries from memory.
//! Never: keeps more than a few megabytes of the log in memory: what is older is read back from disk.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use leasehold_core::Batch;
use leasehold_core::table::FIRST_TABLE_VERSION;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{BasicNode, EntryPayload, OptionalSend};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use super::encoding;
use super::table_version::{ENTRY_FORMAT_NEWEST, entry_format};
use super::types::{Entry, LogId, NodeId, TypeConfig, Vote};
use super::wal::{Record, Wal, WalError, WalOptions};
use crate::machine::{self, JoinHandle};

/// The first format of an entry's bytes, of which the first byte is the format: an entry was one batch, and nobody knew
/// whose. The later ones are those of `table_version.rs`.
const ENTRY_FORMAT_BATCH: u8 = 1;
/// Encoded entries kept in memory: far more than are ever between append and apply.
const CACHE_BYTES_MAX: usize = 1 << 20;
/// Entries that are read ahead at the most: as many as openraft asks for at a time when it starts.
const AHEAD_MAX: u64 = 64;

/// The log of one node. Clones share it; each reads ahead for itself.
#[derive(Clone)]
pub struct LogStore {
    wal: Wal,
    state: Arc<Mutex<State>>,
    ahead: Ahead,
}

/// What a reader that goes through the log from one end to the other asks for next: it is read and decoded while the
/// last piece is being applied. A start spends half of its time on either.
#[derive(Default)]
struct Ahead {
    /// Where the last piece from the disk ended.
    end: u64,
    next: Option<Piece>,
}

/// Entries that are being read.
struct Piece {
    range: Range<u64>,
    /// How often the log had been cut off at its end by then. What was read before another cut is worth nothing.
    cuts: u64,
    entries: JoinHandle<io::Result<Vec<Entry>>>,
}

impl Clone for Ahead {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// What openraft asks for without waiting for the disk.
#[derive(Default)]
struct State {
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    last: Option<LogId>,
    /// How often entries were cut off at the end.
    cuts: u64,
    /// The newest entries, consecutive, with their encoded sizes.
    cache: VecDeque<(Entry, usize)>,
    cache_bytes: usize,
}

impl LogStore {
    /// The newest entry.
    pub(super) fn end(&self) -> u64 {
        self.state.lock().last.map_or(0, |log_id| log_id.index)
    }

    /// Opens the log in `dir`.
    pub fn open(dir: &Path, options: WalOptions) -> Result<Self, WalError> {
        let (wal, found) = Wal::open(dir, options)?;
        let undecodable =
            |error: io::Error| WalError::Io { doing: "decode the log in", path: dir.into(), source: error };
        let mut state = State {
            vote: found.vote.as_deref().map(decode).transpose().map_err(undecodable)?,
            committed: found.committed.as_deref().map(decode).transpose().map_err(undecodable)?,
            purged: found.purged.as_ref().map(|(_, id)| decode(id)).transpose().map_err(undecodable)?,
            ..State::default()
        };
        state.last = match found.entries.is_empty() {
            true => state.purged,
            false => {
                let last = wal.read(found.entries.end - 1..found.entries.end).map_err(undecodable)?;
                let (_, bytes) = last.first().ok_or_else(|| undecodable(missing(found.entries.end - 1)))?;
                Some(decode_entry(bytes).map_err(undecodable)?.log_id)
            }
        };
        // On a full disk a short mark may have found room where the entries before it did not. They are on a majority of
        // other disks, and their leader sends them again; a mark beyond the log would keep the node from starting.
        if state.committed > state.last {
            state.committed = None;
        }
        Ok(Self { wal, state: Arc::new(Mutex::new(state)), ahead: Ahead::default() })
    }

    /// The log on disk.
    pub fn wal(&self) -> &Wal {
        &self.wal
    }

    /// Entries from the disk, with read-ahead for callers that ask for one range after the other.
    async fn read_older(&mut self, range: Range<u64>) -> io::Result<Vec<Entry>> {
        let len = range.end.saturating_sub(range.start);
        let goes_on = self.ahead.end == range.start;
        let entries = match self.ahead.next.take().filter(|piece| piece.range == range) {
            Some(piece) => {
                let entries = piece.entries.await.map_err(io::Error::other)??;
                // Unless it was cut off meanwhile, or was not all there yet.
                let whole = piece.cuts == self.state.lock().cuts && entries.len() as u64 == len;
                if whole { Some(entries) } else { None }
            }
            None => None,
        };
        let entries = match entries {
            Some(entries) => entries,
            None => read_entries(self.wal.clone(), range.clone()).await?,
        };
        self.ahead.end = range.end;
        // In the simulation every step has its place, and nothing is gained by reading ahead.
        if goes_on && len <= AHEAD_MAX && cfg!(not(feature = "sim")) {
            let next = range.end..range.end + len;
            let cuts = self.state.lock().cuts;
            let entries = machine::spawn(read_entries(self.wal.clone(), next.clone()));
            self.ahead.next = Some(Piece { range: next, cuts, entries });
        }
        Ok(entries)
    }

    async fn write(&self, record: Record) -> io::Result<()> {
        let (done, synced) = oneshot::channel();
        self.wal.append(vec![record], move |result| {
            done.send(result).ok();
        });
        synced.await.map_err(io::Error::other)?
    }
}

impl State {
    fn push(&mut self, entry: Entry, bytes: usize) {
        self.last = Some(entry.log_id);
        self.cache.push_back((entry, bytes));
        self.cache_bytes += bytes;
    }

    /// Forgets the oldest entries beyond the limit, unless they are not on disk yet.
    fn trim(&mut self, written_upto: Option<u64>) {
        while self.cache_bytes > CACHE_BYTES_MAX
            && let Some((entry, bytes)) = self.cache.front()
            && Some(entry.log_id.index) <= written_upto
        {
            self.cache_bytes -= bytes;
            self.cache.pop_front();
        }
    }

    fn cache_range(&self) -> Range<u64> {
        let first = self.cache.front().map_or(0, |(entry, _)| entry.log_id.index);
        first..first + self.cache.len() as u64
    }

    fn drop_cached(&mut self, gone: impl Fn(u64) -> bool) {
        self.cache.retain(|(entry, _)| !gone(entry.log_id.index));
        self.cache_bytes = self.cache.iter().map(|(_, bytes)| bytes).sum();
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        let (cached, older_end) = {
            let state = self.state.lock();
            let cache = state.cache_range();
            let skip = start.saturating_sub(cache.start) as usize;
            let take = end.min(cache.end).saturating_sub(start.max(cache.start)) as usize;
            let cached: Vec<Entry> =
                state.cache.iter().skip(skip).take(take).map(|(e, _)| e.clone()).collect();
            (cached, end.min(if state.cache.is_empty() { u64::MAX } else { cache.start }))
        };
        if start >= older_end {
            return Ok(cached);
        }
        let mut entries = self.read_older(start..older_end).await?;
        entries.extend(cached);
        Ok(entries)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.state.lock().vote)
    }

    /// A start reads the whole log; in pieces, so that memory stays bounded.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.try_get_log_entries(start..end.min(start + 256)).await
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let state = self.state.lock();
        Ok(LogState { last_purged_log_id: state.purged, last_log_id: state.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.write(Record::Vote(encode(vote)?)).await?;
        self.state.lock().vote = Some(*vote);
        Ok(())
    }

    /// Without a sync: after a crash the log's own tail tells what was committed, this only saves time.
    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        if let Some(committed) = committed {
            self.wal.save_committed(encode(&committed)?);
        }
        self.state.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.state.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut records = Vec::with_capacity(2);
        {
            let mut state = self.state.lock();
            state.trim(self.wal.written_upto());
            for entry in entries {
                let payload = encoding::entry_after(vec![format_of(&entry)], &entry)?;
                let index = entry.log_id.index;
                state.push(entry, payload.len());
                records.push(Record::Entry { index, payload });
            }
        }
        self.wal.append(records, move |result| callback.io_completed(result));
        Ok(())
    }

    async fn truncate_after(&mut self, last_kept: Option<LogId>) -> io::Result<()> {
        let from = last_kept.map_or(0, |id| id.index + 1);
        if self.state.lock().last.is_none_or(|last| last.index < from) {
            return Ok(());
        }
        {
            let mut state = self.state.lock();
            state.drop_cached(|index| index >= from);
            state.cuts += 1;
            state.last = last_kept.or(state.purged);
        }
        self.write(Record::TruncateFrom(from)).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        {
            let mut state = self.state.lock();
            state.drop_cached(|index| index <= upto.index);
            state.purged = Some(upto);
            state.last = state.last.max(Some(upto));
        }
        self.write(Record::PurgeUpto { index: upto.index, payload: encode(&upto)? }).await
    }
}

/// Reads and decodes entries where nobody waits for it.
async fn read_entries(wal: Wal, range: Range<u64>) -> io::Result<Vec<Entry>> {
    let read = move || wal.read(range)?.iter().map(|(_, bytes)| decode_entry(bytes)).collect();
    machine::blocking(read).await?
}

fn encode(value: &impl Serialize) -> io::Result<Bytes> {
    postcard::to_stdvec(value).map(Bytes::from).map_err(io::Error::other)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    postcard::from_bytes(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The oldest format that has everything in an entry: a node that can't read it must not take the entry for another one.
fn format_of(entry: &Entry) -> u8 {
    entry_format(match &entry.payload {
        EntryPayload::Normal(proposal) => proposal.table_version(),
        EntryPayload::Blank | EntryPayload::Membership(_) => FIRST_TABLE_VERSION,
    })
}

/// `format, log id, payload`.
fn decode_entry(bytes: &[u8]) -> io::Result<Entry> {
    match bytes.split_first() {
        Some((&ENTRY_FORMAT_BATCH, rest)) => {
            let (log_id, payload): (LogId, EntryPayload<Batch, NodeId, BasicNode>) = decode(rest)?;
            let payload = match payload {
                EntryPayload::Blank => EntryPayload::Blank,
                EntryPayload::Normal(batch) => EntryPayload::Normal(Arc::new(batch.into())),
                EntryPayload::Membership(membership) => EntryPayload::Membership(membership),
            };
            Ok(Entry { log_id, payload })
        }
        Some((2..=ENTRY_FORMAT_NEWEST, rest)) => {
            let (log_id, payload): (LogId, EntryPayload<_, _, _>) = decode(rest)?;
            Ok(Entry { log_id, payload })
        }
        format => {
            let found = format.map_or(0, |(format, _)| *format);
            let message = format!(
                "a log entry has format {found}, and this version reads formats up to {ENTRY_FORMAT_NEWEST}: \
                 start the version that wrote it, or a newer one"
            );
            Err(io::Error::new(io::ErrorKind::InvalidData, message))
        }
    }
}

fn missing(index: u64) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("log entry {index} is missing"))
}
