//! The flusher: writes the log, on its own thread or on the caller's, one at a time.
//!
//! In:    everything queued by `Wal::append` and `Wal::save_committed` since its last round.
//! Out:   one frame, one write, one fdatasync; then the callers are told, in the order they came.
//! Never: writes a frame before the one before it is synced. Recovery relies on it.
//!
//! The road of a round: `Queue::take` -> `flush` -> `stage` each append into the frame buffer, taking a new
//! segment (`make_room`) when it does not fit -> `write_frame` -> `finish`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::queue::{Done, Failure, Pending, answer};
use super::record::Item;
use super::segment::{self, Segment};
use super::state::Cursor;
use super::{Flushed, SLOW_SYNC, SharedWal, frame};
use crate::machine::Instant;
use crate::machine::fs::FileExt;

/// The frame buffer is kept between frames up to this size; a rare huge frame gives its memory back.
const FRAME_KEEP_BYTES: usize = 1 << 20;

/// The writing end of the log.
pub(super) struct Flusher {
    /// What other threads see.
    shared: Arc<SharedWal>,
    /// The segment being written.
    active: Segment,
    /// Where the next frame goes in it.
    tail: u64,
    /// The sequence number of the next frame.
    sequence: u64,
    /// The log's end as it will be when the staged records are written.
    cursor: Cursor,
    /// The frame being filled; its memory is used again and again.
    frame: Vec<u8>,
    /// Records in the frame; zero means that no frame has been begun.
    records: u32,
    /// What was taken from the queue last; its memory is used again.
    batch: Vec<Pending>,
    /// Who waits for the frame.
    waiting: Vec<Done>,
    /// Set by the first failed write or sync, and never cleared.
    failure: Option<Failure>,
}

impl Flusher {
    pub(super) fn new(shared: Arc<SharedWal>, active: Segment, tail: u64, sequence: u64) -> Self {
        let cursor = shared.log.read().state.cursor;
        let flusher = Self {
            shared,
            active,
            tail,
            sequence,
            cursor,
            frame: Vec::new(),
            records: 0,
            batch: Vec::new(),
            waiting: Vec::new(),
            failure: None,
        };
        flusher.publish_room();
        flusher
    }

    /// Writes everything queued and answers everyone who waits for it.
    pub(super) fn flush(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        let committed = self.shared.queue.take(&mut batch);
        self.flush_batch(&mut batch, committed);
        self.batch = batch;
    }

    /// Writes a batch and answers everyone in it.
    fn flush_batch(&mut self, batch: &mut Vec<Pending>, committed: Option<Bytes>) {
        let mut rest = batch.drain(..);
        let mut failed = self.failure.as_ref().map(Failure::error);
        if failed.is_none() {
            failed = self.write_batch(&mut rest, committed).err();
        }
        if let Some(error) = failed {
            let failure = Failure::new(&error);
            for done in self.waiting.drain(..).chain(rest.map(|pending| pending.done)) {
                answer(done, Err(failure.error()));
            }
        }
    }

    fn write_batch(
        &mut self,
        rest: &mut impl Iterator<Item = Pending>,
        committed: Option<Bytes>,
    ) -> io::Result<()> {
        for Pending { records, done } in rest {
            if let Err(what) = self.check(&records) {
                // Only this caller is wrong, and it must still be answered in its turn.
                self.waiting.push(Box::new(move |result: io::Result<()>| {
                    done(result.and(Err(io::Error::new(io::ErrorKind::InvalidInput, what))));
                }));
                continue;
            }
            let len = records.iter().map(|record| record.item().encoded_len()).sum();
            let room = self.make_room(len);
            self.waiting.push(done);
            room?;
            for record in &records {
                self.stage(&record.item());
            }
        }
        if let Some(committed) = committed {
            let item = Item::Committed(&committed);
            self.make_room(item.encoded_len())?;
            self.stage(&item);
        }
        self.write_frame()
    }

    /// Whether the records may follow what is staged; all of them or none.
    fn check(&self, records: &[super::Record]) -> Result<(), String> {
        let mut cursor = self.cursor;
        let mut len = 0;
        for record in records {
            cursor.step(&record.item())?;
            len += record.item().encoded_len();
        }
        if len > frame::LEN_MAX {
            Err("the append is larger than a frame of the log can be".into())
        } else {
            Ok(())
        }
    }

    fn stage(&mut self, item: &Item<'_>) {
        if self.records == 0 {
            self.begin_frame();
        }
        // `check` has been here before, so the only answer left is whether the record changes anything.
        if self.cursor.step(item) == Ok(true) {
            item.encode(&mut self.frame);
            self.records += 1;
        }
    }

    fn begin_frame(&mut self) {
        frame::begin(&mut self.frame);
        if self.tail == segment::HEADER_LEN as u64 {
            for item in self.shared.log.read().state.preamble() {
                item.encode(&mut self.frame);
                self.records += 1;
            }
        }
    }

    /// Makes sure that `len` more bytes fit behind what is staged, if need be in the next segment.
    fn make_room(&mut self, len: usize) -> io::Result<()> {
        if self.fits(len) {
            return Ok(());
        }
        self.write_frame()?;
        if self.tail > segment::HEADER_LEN as u64 && !self.fits(len) {
            self.next_segment()?;
        }
        if self.fits(len) { Ok(()) } else { self.grow(len) }
    }

    fn fits(&self, len: usize) -> bool {
        self.tail + self.frame_len_with(len) <= self.active.capacity
    }

    fn frame_len_with(&self, len: usize) -> u64 {
        let staged = if self.records > 0 {
            self.frame.len()
        } else if self.tail == segment::HEADER_LEN as u64 {
            let log = self.shared.log.read();
            frame::HEADER_LEN + log.state.preamble().map(|item| item.encoded_len()).sum::<usize>()
        } else {
            frame::HEADER_LEN
        };
        (staged + len).next_multiple_of(frame::ALIGN) as u64
    }

    fn next_segment(&mut self) -> io::Result<()> {
        let Some(spare) = self.shared.keeper.take() else {
            return Err(io::Error::new(io::ErrorKind::StorageFull, self.shared.keeper.why_none()));
        };
        self.shared.log.write().files.insert(spare.number, spare.file.clone());
        self.active = spare;
        self.tail = segment::HEADER_LEN as u64;
        self.publish_room();
        Ok(())
    }

    /// Makes the still empty segment large enough for one frame that is larger than a segment.
    fn grow(&mut self, len: usize) -> io::Result<()> {
        let capacity = self.tail + self.frame_len_with(len);
        let file = &self.active.file;
        let grown = segment::write_zeros(file, self.active.capacity, capacity).and_then(|()| file.sync_all());
        if let Err(error) = grown {
            if error.kind() != io::ErrorKind::StorageFull && error.kind() != io::ErrorKind::QuotaExceeded {
                return Err(self.fail(&error));
            }
            file.set_len(self.active.capacity).map_err(|error| self.fail(&error))?;
            return Err(error);
        }
        self.active.capacity = capacity;
        Ok(())
    }

    /// Writes and syncs what is staged and tells those who wait for it.
    fn write_frame(&mut self) -> io::Result<()> {
        if self.records > 0 {
            frame::seal(&mut self.frame, self.active.marker, self.sequence, self.records);
            let started = Instant::now();
            *self.shared.writing.lock() = Some(started);
            let written = self.active.file.write_all_at(&self.frame, self.tail);
            let written = written.and_then(|()| self.sync());
            *self.shared.writing.lock() = None;
            written.map_err(|error| self.fail(&error))?;
            let took = started.elapsed();
            self.shared.slow.store(took >= SLOW_SYNC, Ordering::Relaxed);
            if let Some(observe) = &self.shared.options.observe {
                let (bytes, records) = (self.frame.len() as u64, self.records);
                observe(Flushed { took, bytes, records });
            }
            self.finish()?;
        }
        self.waiting.drain(..).for_each(|done| answer(done, Ok(())));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        #[cfg(feature = "sim")]
        if crate::machine::simulated::is_planted(crate::machine::simulated::Bug::AckBeforeFsync) {
            let file = self.active.file.clone();
            crate::machine::spawn(async move {
                // So that a frame or two are at stake. Of many, some behind a lost one would be there, and the log
                // would say by itself that it is damaged.
                crate::machine::simulated::runtime::sleep_us(50_000).await;
                file.sync_data().ok();
            });
            return Ok(());
        }
        self.active.file.sync_data()
    }

    /// The frame is on disk: makes its records visible, and has segments deleted that it has emptied.
    fn finish(&mut self) -> io::Result<()> {
        let body = &self.frame[frame::HEADER_LEN..];
        let body_at = self.tail as usize + frame::HEADER_LEN;
        let mut log = self.shared.log.write();
        let applied = log.state.apply(self.active.number, body_at, body);
        let needed = log.state.first_needed_segment();
        let kept = log.files.split_off(&needed);
        let dead = std::mem::replace(&mut log.files, kept);
        self.shared.live_bytes.store(log.state.live_bytes, Ordering::Relaxed);
        drop(log);
        if !dead.is_empty() {
            // The files must be closed before they are deleted, or their space is not given back.
            let numbers: Vec<u32> = dead.into_keys().collect();
            self.shared.keeper.delete(numbers);
        }
        self.tail += self.frame.len() as u64;
        self.sequence += 1;
        self.records = 0;
        self.frame.clear();
        self.frame.shrink_to(FRAME_KEEP_BYTES);
        self.publish_room();
        applied.map(drop).map_err(|what| self.fail(&io::Error::other(what)))
    }

    fn publish_room(&self) {
        let left = self.active.capacity.saturating_sub(self.tail);
        self.shared.left_bytes.store(left, Ordering::Relaxed);
    }

    /// After a failed write or sync nobody knows what is on disk: no more appends, ever.
    fn fail(&mut self, error: &io::Error) -> io::Error {
        let failure = Failure::new(error);
        tracing::error!(
            %error, segment = self.active.number, offset = self.tail,
            "the log could not be written: this node stops"
        );
        self.shared.queue.fail(failure.clone());
        let answer = failure.error();
        self.failure = Some(failure);
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::sync::mpsc;

    use parking_lot::RwLock;

    use super::super::keeper::Keeper;
    use super::super::queue::Queue;
    use super::super::reader::Log;
    use super::super::state::LogState;
    use super::super::{Record, WalOptions};
    use super::*;

    fn shared() -> Arc<SharedWal> {
        Arc::new(SharedWal {
            options: WalOptions::default(),
            queue: Queue::default(),
            flush_in_caller: AtomicBool::new(false),
            writing: parking_lot::Mutex::default(),
            slow: AtomicBool::new(false),
            keeper: Keeper::new(&std::env::temp_dir(), 4096, None, 2),
            log: RwLock::new(Log { state: LogState::default(), files: BTreeMap::new() }),
            live_bytes: AtomicU64::new(0),
            left_bytes: AtomicU64::new(0),
        })
    }

    fn push(queue: &Queue, index: u64, tell: &mpsc::Sender<io::Result<()>>) {
        let records = vec![Record::Entry { index, payload: Bytes::from_static(b"x") }];
        let tell = tell.clone();
        queue.push(Pending { records, done: Box::new(move |result| tell.send(result).unwrap()) }, false);
    }

    #[test]
    fn after_a_failed_write_every_append_fails_the_same_way() {
        // Any file that can't be written will do.
        let file = Arc::new(File::open(std::env::current_exe().unwrap()).unwrap());
        let active = Segment { number: 1, marker: 1, file, capacity: 4096 };
        let shared = shared();
        let mut flusher = Flusher::new(shared.clone(), active, segment::HEADER_LEN as u64, 1);
        let (tell, told) = mpsc::channel();
        let mut batch = Vec::new();
        push(&shared.queue, 0, &tell);
        push(&shared.queue, 1, &tell);
        let committed = shared.queue.take(&mut batch);
        // This one is on its way when the write fails.
        push(&shared.queue, 2, &tell);
        flusher.flush_batch(&mut batch, committed);
        let committed = shared.queue.take(&mut batch);
        flusher.flush_batch(&mut batch, committed);
        // And this one comes later.
        push(&shared.queue, 3, &tell);
        let errors: Vec<_> = told.try_iter().map(|result| result.unwrap_err().to_string()).collect();
        assert_eq!(errors.len(), 4);
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        assert_eq!(shared.log.read().state.live(), 0..0);
    }
}
