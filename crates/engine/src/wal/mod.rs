//! The log on disk: entries, vote and marks, durable before anyone is told.
//!
//! In:    `Record`s with opaque payloads, from the log store.
//! Out:   a call of `done` once they are synced; entries read back; on open, what survived.
//! Never: knows what a payload means, acknowledges what is not synced, repairs what a crash can't explain.
//!
//! The road of an append:
//! 1. `Wal::append` queues it (`queue.rs`) and wakes the flusher, or becomes it (`flush_in_caller`).
//! 2. `flusher.rs` packs everything queued into one frame (`record.rs`, `frame.rs`), writes it into a
//!    segment that is zeros so far (`segment.rs`) and calls fdatasync, once.
//! 3. It applies the frame to the state in memory (`state.rs`) and calls each `done` in order.
//!
//! Beside it, `keeper.rs` prepares the next segment and deletes dead ones, `reader.rs` reads entries back,
//! and `recover.rs` opens the log, using the same `state.rs`.

mod error;
mod flusher;
mod frame;
mod keeper;
mod queue;
mod reader;
mod record;
mod recover;
mod segment;
#[cfg(feature = "sim")]
mod simulated;
mod state;

use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

pub use error::WalError;
pub use record::Record;

use flusher::Flusher;
use keeper::Keeper;
use queue::{Failure, Pending, Queue};
use reader::Log;
use recover::Found;

use crate::machine::{Instant, fs};

/// A sync that takes as long as this costs more than waking two threads.
const SLOW_SYNC: Duration = Duration::from_millis(2);

/// How a log is laid out and watched.
#[derive(Clone)]
pub struct WalOptions {
    /// Size of a segment file. 8 MiB is prepared in some 20 ms, and a log of one segment reads back as fast.
    /// A larger one makes purging coarser; a smaller one makes more files. Between 4 KiB and 1 GiB.
    pub segment_bytes: u64,
    /// With less than this left and the next segment not ready, `Wal::room` says `Soon` or `Low`. It must hold everything
    /// that is appended after clients are refused: ticks, votes, and the purge that makes room again.
    pub low_room_bytes: u64,
    /// What [`Wal::flush_in_caller`] says at first.
    pub flush_in_caller: bool,
    /// Called after each fdatasync, for metrics.
    pub observe: Option<Observe>,
}

/// See `WalOptions::observe`.
pub type Observe = Arc<dyn Fn(Flushed) + Send + Sync>;

impl Default for WalOptions {
    fn default() -> Self {
        Self { segment_bytes: 8 << 20, low_room_bytes: 1 << 20, flush_in_caller: false, observe: None }
    }
}

/// One write and fdatasync of the flusher.
#[derive(Clone, Copy, Debug)]
pub struct Flushed {
    /// Time of both.
    pub took: Duration,
    /// Bytes written.
    pub bytes: u64,
    /// Records in them.
    pub records: u32,
}

/// What was in the log when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The latest vote.
    pub vote: Option<Bytes>,
    /// The latest committed mark that reached the disk; it may lag behind what was saved.
    pub committed: Option<Bytes>,
    /// The latest purge.
    pub purged: Option<(u64, Bytes)>,
    /// The entries that can be read; empty if `start == end`.
    pub entries: Range<u64>,
    /// The frame a crash had left unfinished. It was cut off; nobody had been told it was durable.
    pub torn: Option<Torn>,
}

/// A torn tail that was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The segment file.
    pub file: PathBuf,
    /// Where the cut is.
    pub offset: u64,
    /// How many bytes after it were not zero.
    pub bytes: u64,
}

/// Whether the log can take client commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Yes.
    Enough,
    /// Not before the next segment is there, which is being prepared: after a pause of the machine, or on a slow disk.
    Soon,
    /// No: the disk is full. What is left is for ticks, votes and the purge that makes room.
    Low,
}

/// What a full disk has, and what the log needs of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Free space that this process may use, if the system tells.
    pub free_bytes: Option<u64>,
    /// The size of a log segment. The file system needs a little more for its own records.
    pub needed_bytes: u64,
}

impl std::fmt::Display for NoRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Rounded down: what is missing must not disappear.
        let mib = |bytes: u64| (bytes / 1024 * 10 / 1024) as f64 / 10.0;
        match self.free_bytes {
            Some(free) => write!(f, "{} MiB are free on its disk", mib(free))?,
            None => write!(f, "nobody knows how much is free on its disk")?,
        }
        write!(f, ", a little more than {} MiB are needed", mib(self.needed_bytes))
    }
}

/// An open log. Clones share it; the last one to go flushes and closes it.
#[derive(Clone)]
pub struct Wal {
    inner: Arc<Handle>,
}

/// What the threads and the callers share.
struct SharedWal {
    options: WalOptions,
    queue: Queue,
    flush_in_caller: AtomicBool,
    /// Whether the disk took [`SLOW_SYNC`] or longer the last time.
    slow: AtomicBool,
    /// Since when the disk has been at work on the frame that is being written.
    writing: Mutex<Option<Instant>>,
    keeper: Keeper,
    log: RwLock<Log>,
    /// Payload bytes of the live entries.
    live_bytes: AtomicU64,
    /// Bytes left in the active segment.
    left_bytes: AtomicU64,
}

/// Owns the threads, so that they end when the last `Wal` goes.
struct Handle {
    shared: Arc<SharedWal>,
    flusher: Arc<Mutex<Flusher>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Whether a flush is on its way.
    #[cfg(feature = "sim")]
    flushing: std::sync::atomic::AtomicBool,
}

impl Wal {
    /// Opens the log in `dir`, creating it if there is none. The caller holds the lock of the data
    /// directory: two processes must never open the same log.
    pub fn open(dir: &Path, mut options: WalOptions) -> Result<(Self, Recovered), WalError> {
        options.segment_bytes = options.segment_bytes.clamp(4 << 10, 1 << 30);
        let found = match prepare_dir(dir).and_then(|()| recover::recover(dir, options.segment_bytes))? {
            Some(found) => found,
            None => create_first(dir, options.segment_bytes)?,
        };
        if let Some(torn) = &found.torn {
            tracing::warn!(
                file = %torn.file.display(), offset = torn.offset, bytes = torn.bytes,
                "cut an unfinished write off the end of the log, left by a crash"
            );
        }
        let recovered = recovered(&found);
        let wal = start(dir, options, found).map_err(WalError::io("start the threads for", dir))?;
        Ok((wal, recovered))
    }

    /// Queues records to be written in one piece and synced. `done` is called exactly once, on whichever thread
    /// flushes and in the order of the appends; it must be quick. Errors:
    /// - `InvalidInput`: the records don't follow the log (a gap); nothing was written.
    /// - `StorageFull`: no segment could be prepared in time; nothing was written, and the log works again
    ///   once there is space.
    /// - anything else: a write or sync failed. Every later append fails the same way; stop the node.
    pub fn append(&self, records: Vec<Record>, done: impl FnOnce(io::Result<()>) + Send + 'static) {
        let Handle { shared, flusher, .. } = &*self.inner;
        let here = shared.flush_in_caller.load(Ordering::Relaxed) && !shared.slow.load(Ordering::Relaxed);
        shared.queue.push(Pending { records, done: Box::new(done) }, !here);
        if here {
            flusher.lock().flush();
        }
        #[cfg(feature = "sim")]
        simulated::flush_soon(&self.inner);
    }

    /// Whether `append` itself writes and syncs before it returns, instead of leaving that to another thread. Two threads
    /// fewer to wake an append; for a caller that has nothing else to do meanwhile. Appends keep their order. While the
    /// disk is slow another thread does it all the same: the caller may have others to answer.
    pub fn flush_in_caller(&self, here: bool) {
        // In the simulation the disk takes its time, and the caller must not wait for it.
        self.inner.shared.flush_in_caller.store(here && cfg!(not(feature = "sim")), Ordering::Relaxed);
    }

    /// What is queued is on its way to the disk at the moment at which the power goes.
    #[cfg(feature = "sim")]
    pub fn lose_power(&self) {
        self.inner.flusher.lock().flush();
    }

    /// Remembers how far the log is committed. It costs no write of its own: it travels with the next
    /// append, or is written after a second of quiet. A crash may lose it, which is harmless.
    pub fn save_committed(&self, committed: Bytes) {
        self.inner.shared.queue.set_committed(committed);
    }

    /// Reads the entries of the range that are synced and neither truncated nor purged.
    pub fn read(&self, range: Range<u64>) -> io::Result<Vec<(u64, Bytes)>> {
        reader::read(&self.inner.shared.log, range)
    }

    /// The entries that can be read; empty if `start == end`.
    pub fn entries(&self) -> Range<u64> {
        self.inner.shared.log.read().state.live()
    }

    /// The last entry that can be read.
    pub fn written_upto(&self) -> Option<u64> {
        let live = self.entries();
        (!live.is_empty()).then(|| live.end - 1)
    }

    /// Payload bytes of all entries that are not purged: what a restart has to read and apply.
    pub fn log_bytes(&self) -> u64 {
        self.inner.shared.live_bytes.load(Ordering::Relaxed)
    }

    /// For how long the disk has been at work on one frame, if it is.
    pub fn writing_for(&self) -> Option<Duration> {
        self.inner.shared.writing.lock().map(|since| since.elapsed())
    }

    /// Whether there is room for client commands.
    pub fn room(&self) -> Room {
        let shared = &self.inner.shared;
        if shared.left_bytes.load(Ordering::Relaxed) >= shared.options.low_room_bytes {
            return Room::Enough;
        }
        shared.keeper.room()
    }

    /// What the disk lacks for the next segment, if the last attempt to prepare one failed for that. Asks no disk.
    pub fn no_room(&self) -> Option<NoRoom> {
        self.inner.shared.keeper.no_room()
    }

    /// Writes what is queued, deletes what is dead and ends the threads. Later appends fail.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl Handle {
    fn close(&self) {
        self.shared.queue.close();
        let threads = std::mem::take(&mut *self.threads.lock());
        // A `done` may own the last `Wal`: the flusher can't wait for itself, and both end by themselves.
        if threads.iter().any(|thread| thread.thread().id() == thread::current().id()) {
            return;
        }
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

fn prepare_dir(dir: &Path) -> Result<(), WalError> {
    if fs::is_dir(dir) {
        return Ok(());
    }
    fs::create_dir(dir).map_err(WalError::io("create", dir))?;
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    segment::sync_dir(parent).map_err(WalError::io("sync", parent))
}

fn create_first(dir: &Path, segment_bytes: u64) -> Result<Found, WalError> {
    let first = segment::prepare(dir, 1, segment_bytes)
        .map_err(WalError::io("create the first log segment in", dir))?;
    let tail = segment::HEADER_LEN as u64;
    let segments = vec![first];
    Ok(Found { state: state::LogState::default(), segments, tail, sequence: 1, spare: None, torn: None })
}

fn recovered(found: &Found) -> Recovered {
    let state = &found.state;
    Recovered {
        vote: state.vote.clone(),
        committed: state.committed.clone(),
        purged: state.cursor.purged.zip(state.purged.clone()),
        entries: state.live(),
        torn: found.torn.clone(),
    }
}

/// Starts the threads. The flusher closes the keeper when it ends, since it may still need a segment.
fn start(dir: &Path, options: WalOptions, found: Found) -> io::Result<Wal> {
    let Found { state, mut segments, tail, sequence, spare, .. } = found;
    let Some(active) = segments.last().cloned() else {
        return Err(io::Error::other("a recovered log has at least one segment"));
    };
    let needed = state.first_needed_segment();
    let dead: Vec<u32> = segments.extract_if(.., |s| s.number < needed).map(|s| s.number).collect();
    let keeper = Keeper::new(dir, options.segment_bytes, spare, active.number + 1);
    keeper.delete(dead);
    let files = segments.into_iter().map(|segment| (segment.number, segment.file)).collect();
    let shared = Arc::new(SharedWal {
        flush_in_caller: AtomicBool::new(options.flush_in_caller),
        writing: Mutex::default(),
        slow: AtomicBool::new(false),
        options,
        queue: Queue::default(),
        keeper,
        live_bytes: AtomicU64::new(state.live_bytes),
        left_bytes: AtomicU64::new(0),
        log: RwLock::new(Log { state, files }),
    });
    let flusher = Arc::new(Mutex::new(Flusher::new(shared.clone(), active, tail, sequence)));
    let handle = Handle {
        shared: shared.clone(),
        flusher: flusher.clone(),
        threads: Mutex::new(Vec::new()),
        #[cfg(feature = "sim")]
        flushing: Default::default(),
    };
    #[cfg(feature = "sim")]
    simulated::keep(&shared);
    #[cfg(not(feature = "sim"))]
    {
        let for_keeper = shared.clone();
        let keeping =
            thread::Builder::new().name("wal-keeper".into()).spawn(move || for_keeper.keeper.run())?;
        let flushing =
            thread::Builder::new().name("wal-flusher".into()).spawn(move || flush(&shared, &flusher));
        if flushing.is_err() {
            handle.shared.keeper.close();
        }
        handle.threads.lock().extend([keeping, flushing?]);
    }
    Ok(Wal { inner: Arc::new(handle) })
}

/// The flusher thread. A `done` that panics must not leave the others waiting for ever.
fn flush(shared: &SharedWal, flusher: &Mutex<Flusher>) {
    let run = || {
        while shared.queue.wait() {
            flusher.lock().flush();
        }
    };
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        shared.queue.fail_queued(&Failure::new(&io::Error::other("the log's flusher has panicked")));
    }
    shared.keeper.close();
}

#[cfg(all(test, not(feature = "sim")))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_is_missing_is_not_rounded_away() {
        let says = |free_bytes| NoRoom { free_bytes, needed_bytes: 8 << 20 }.to_string();
        assert_eq!(
            says(Some(8_000_000)),
            "7.6 MiB are free on its disk, a little more than 8 MiB are needed"
        );
        assert_eq!(
            says(Some((8 << 20) - 1)),
            "7.9 MiB are free on its disk, a little more than 8 MiB are needed"
        );
        assert_eq!(says(Some(0)), "0 MiB are free on its disk, a little more than 8 MiB are needed");
    }

    #[test]
    fn a_slow_disk_is_waited_for_by_another_thread() {
        let dir = std::env::temp_dir().join(format!("leasehold-slow-{}", std::process::id()));
        let options = WalOptions { flush_in_caller: true, segment_bytes: 64 << 10, ..WalOptions::default() };
        let (wal, _) = Wal::open(&dir, options).expect("an empty log");
        let here = thread::current().id();
        let flushed_by = |index, slow| {
            wal.inner.shared.slow.store(slow, Ordering::Relaxed);
            let (tell, told) = mpsc::channel();
            let record = Record::Entry { index, payload: Bytes::from_static(b"x") };
            wal.append(vec![record], move |result| {
                tell.send((result.is_ok(), thread::current().id())).unwrap();
            });
            told.recv_timeout(Duration::from_secs(60)).expect("an answer")
        };
        assert_eq!(flushed_by(0, false), (true, here));
        let (written, thread) = flushed_by(1, true);
        assert!(written && thread != here, "the caller itself waited for a slow disk");
        drop(wal);
        std::fs::remove_dir_all(dir).ok();
    }
}
