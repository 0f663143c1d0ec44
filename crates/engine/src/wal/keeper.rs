//! The keeper: a thread that prepares the next segment and deletes dead ones, away from the append path.
//!
//! In:    the flusher takes the prepared segment and names the dead ones.
//! Out:   `Spare`, from which the flusher takes; fewer files.
//! Never: touches a segment that is in use.
//!
//! On a full disk it keeps trying, deleting first: what a purge frees becomes the next segment.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Room;
use super::segment::{self, Segment};
use crate::machine::{fs, lacks_descriptors};

/// How long a failed preparation rests before the next try ...
const RETRY: Duration = Duration::from_secs(1);
/// ... where nothing but a file descriptor was missing.
const RETRY_STARVED: Duration = Duration::from_millis(20);
/// How long an append waits for a segment while the last try failed: long enough for a deletion that is
/// under way to make room, short enough for the caller to still give a useful answer.
const WAIT_FAILING: Duration = Duration::from_millis(250);
/// How long an append waits for a segment that is being prepared. A disk this slow is as good as full.
const WAIT_WORKING: Duration = Duration::from_secs(30);

/// Where the keeper and the flusher meet.
pub(super) struct Keeper {
    /// The log directory.
    dir: PathBuf,
    /// Size of a segment.
    segment_bytes: u64,
    /// Work to do and work done.
    state: Mutex<State>,
    /// Tells the keeper that there is work.
    wake: Condvar,
    /// Tells the flusher that a segment is ready or has failed.
    ready: Condvar,
}

struct State {
    /// The prepared segment.
    spare: Option<Segment>,
    /// The number of the segment to prepare when there is no spare.
    next: u32,
    /// Dead segments still to delete, ascending. One that can't be deleted holds up those after it, since a
    /// gap in the numbers would look like a lost segment.
    dead: VecDeque<u32>,
    /// Something was asked for since the keeper last looked.
    asked: bool,
    /// The last preparation failed.
    failing: bool,
    /// The last preparation found no free file descriptor: that says nothing about the disk.
    starved: bool,
    /// Finish and return.
    closed: bool,
}

impl Keeper {
    /// `next` is the number of the segment to prepare first, or that of the spare if there is one.
    pub(super) fn new(dir: &Path, segment_bytes: u64, spare: Option<Segment>, next: u32) -> Self {
        let dead = VecDeque::new();
        let state = State { spare, next, dead, asked: true, failing: false, starved: false, closed: false };
        Self {
            dir: dir.to_owned(),
            segment_bytes,
            state: Mutex::new(state),
            wake: Condvar::new(),
            ready: Condvar::new(),
        }
    }

    /// Whether the next segment is ready, or will be.
    pub(super) fn room(&self) -> Room {
        let state = self.state.lock();
        match &state.spare {
            Some(_) => Room::Enough,
            None if state.failing => Room::Low,
            None => Room::Soon,
        }
    }

    /// One round of the keeper, where it has no thread.
    #[cfg(feature = "sim")]
    pub(super) fn work(&self) {
        let mut state = self.state.lock();
        self.delete_dead(&mut state);
        if state.spare.is_none() {
            self.prepare(&mut state);
        }
    }

    /// Hands out the prepared segment and has the next one prepared. `None` means that the disk is full.
    pub(super) fn take(&self) -> Option<Segment> {
        #[cfg(feature = "sim")]
        {
            self.work();
            self.state.lock().spare.as_ref()?;
        }
        let asked = Instant::now();
        let mut state = self.state.lock();
        while state.spare.is_none() {
            let patience = if state.failing { WAIT_FAILING } else { WAIT_WORKING };
            let deadline = asked + patience;
            if self.ready.wait_until(&mut state, deadline).timed_out() && Instant::now() >= deadline {
                break;
            }
        }
        let spare = state.spare.take()?;
        state.next = spare.number + 1;
        state.asked = true;
        self.wake.notify_one();
        Some(spare)
    }

    /// Has these segments deleted. The record of the purge must be synced.
    pub(super) fn delete(&self, dead: impl IntoIterator<Item = u32>) {
        let mut state = self.state.lock();
        state.dead.extend(dead);
        state.asked = true;
        self.wake.notify_one();
    }

    /// Makes `run` return once it has deleted what is dead.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.asked = true;
        self.wake.notify_one();
    }

    /// The keeper thread.
    pub(super) fn run(&self) {
        let mut state = self.state.lock();
        loop {
            state.asked = false;
            let deleted = self.delete_dead(&mut state);
            if state.closed {
                return;
            }
            let prepared = state.spare.is_some() || self.prepare(&mut state);
            if state.asked {
                continue;
            }
            if deleted && prepared {
                self.wake.wait(&mut state);
            } else {
                let rest = if state.starved { RETRY_STARVED } else { RETRY };
                self.wake.wait_for(&mut state, rest);
            }
        }
    }

    fn prepare(&self, state: &mut MutexGuard<'_, State>) -> bool {
        let number = state.next;
        let made = MutexGuard::unlocked(state, || segment::prepare(&self.dir, number, self.segment_bytes));
        let starved = made.as_ref().is_err_and(lacks_descriptors);
        if starved && !std::mem::replace(&mut state.starved, true) {
            tracing::error!(
                "no file descriptor is free for the next log segment: raise the limit of open files"
            );
        }
        state.starved = starved;
        if starved {
            return false;
        }
        let failed_before = std::mem::replace(&mut state.failing, made.is_err());
        match made {
            Ok(segment) => {
                if failed_before {
                    tracing::info!(segment = number, "the next log segment is ready, there is space again");
                }
                state.spare = Some(segment);
            }
            Err(error) if !failed_before => {
                let dir = self.dir.display();
                tracing::error!(%dir, %error, "can't prepare the next log segment; trying every second");
            }
            Err(_) => {}
        }
        self.ready.notify_one();
        state.spare.is_some()
    }

    /// Oldest first and one by one, so that a crash never leaves a gap in the numbers.
    fn delete_dead(&self, state: &mut MutexGuard<'_, State>) -> bool {
        while let Some(&number) = state.dead.front() {
            let path = segment::path(&self.dir, number);
            let deleted = MutexGuard::unlocked(state, || match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => segment::sync_dir(&self.dir),
            });
            if let Err(error) = deleted {
                tracing::error!(file = %path.display(), %error, "can't delete a log segment");
                return false;
            }
            state.dead.pop_front();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ready_yet_is_not_called_full() {
        let dir = std::env::temp_dir().join(format!("leasehold-keeper-{}", std::process::id()));
        let keeper = Keeper::new(&dir, 4096, None, 1);
        assert_eq!(keeper.room(), Room::Soon);
        // Without its folder no segment can be made, which is as good as a full disk.
        assert!(!keeper.prepare(&mut keeper.state.lock()));
        assert_eq!(keeper.room(), Room::Low);
        std::fs::create_dir(&dir).unwrap();
        assert!(keeper.prepare(&mut keeper.state.lock()));
        assert_eq!(keeper.room(), Room::Enough);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
