//! Reading entries back from the segments, for replication to a node that lags and for the start.
//!
//! In:    a range of indexes from the log store.
//! Out:   payloads, each checked against the checksum taken when it was written or recovered.
//! Never: reads what is not synced; never blocks the flusher during disk reads.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::state::{LogState, Slot};
use crate::machine::fs::{File, FileExt};

/// Neighbours are fetched by one system call up to this many bytes.
const CHUNK_BYTES: u32 = 1 << 20;

/// The state of the log together with the files it points into.
pub(super) struct Log {
    /// Where everything is.
    pub(super) state: LogState,
    /// The open files of all segments that may hold live entries.
    pub(super) files: BTreeMap<u32, Arc<File>>,
}

/// Entries that lie close together in one file.
struct Chunk {
    file: Arc<File>,
    start: u32,
    end: u32,
    slots: Vec<(u64, Slot)>,
}

/// Reads of the range whatever is live. Plan under the lock, fetch outside it: files stay open as long as
/// the plan holds them, and nothing written is ever changed.
pub(super) fn read(log: &parking_lot::RwLock<Log>, range: Range<u64>) -> io::Result<Vec<(u64, Bytes)>> {
    let chunks = plan(&log.read(), range)?;
    let mut entries = Vec::with_capacity(chunks.iter().map(|chunk| chunk.slots.len()).sum());
    for chunk in chunks {
        fetch(&chunk, &mut entries)?;
    }
    Ok(entries)
}

fn plan(log: &Log, range: Range<u64>) -> io::Result<Vec<Chunk>> {
    let live = log.state.live();
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut segment = 0;
    for index in range.start.max(live.start)..range.end.min(live.end) {
        let Some(slot) = log.state.slot(index) else { continue };
        let end = slot.offset + slot.len;
        match chunks.last_mut() {
            Some(chunk) if segment == slot.segment && end - chunk.start <= CHUNK_BYTES => {
                chunk.end = end;
                chunk.slots.push((index, slot));
            }
            _ => {
                let file = log.files.get(&slot.segment).cloned().ok_or_else(|| lost(index))?;
                chunks.push(Chunk { file, start: slot.offset, end, slots: vec![(index, slot)] });
            }
        }
        segment = slot.segment;
    }
    Ok(chunks)
}

fn fetch(chunk: &Chunk, entries: &mut Vec<(u64, Bytes)>) -> io::Result<()> {
    let mut buffer = vec![0; (chunk.end - chunk.start) as usize];
    chunk.file.read_exact_at(&mut buffer, u64::from(chunk.start))?;
    let buffer = Bytes::from(buffer);
    for &(index, slot) in &chunk.slots {
        let at = (slot.offset - chunk.start) as usize;
        let payload = buffer.slice(at..at + slot.len as usize);
        if crc32fast::hash(&payload) != slot.crc {
            let what = format!(
                "log entry {index} is damaged on disk (segment {}, byte {})",
                slot.segment, slot.offset
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        entries.push((index, payload));
    }
    Ok(())
}

fn lost(index: u64) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("the segment of log entry {index} is not open"))
}
