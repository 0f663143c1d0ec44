//! The keeper: a thread that prepares the next segment and deletes dead ones, away from the append path.
//!
//! In:    the flusher takes the prepared segment and names the dead ones.
//! Out:   `Spare`, from which the flusher takes; fewer files.
//! Never: touches a segment that is in use.
//!
//! On a full disk it keeps trying, deleting first: what a purge frees becomes the next segment. It logs how much is free and
//! how much is needed, and says so again when the free space has changed.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::segment::{self, Segment};
use super::{NoRoom, Room};
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
/// While the disk stays full, a change of its free space is logged at most this often.
const TELL_AGAIN: Duration = Duration::from_secs(10);

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
    /// What was missing, if it failed for lack of space.
    no_room: Option<NoRoom>,
    /// What the log said last about a failed preparation, and when.
    told: Option<(Instant, Option<NoRoom>)>,
    /// The last preparation found no free file descriptor: that says nothing about the disk.
    starved: bool,
    /// Finish and return.
    closed: bool,
}

impl Keeper {
    /// `next` is the number of the segment to prepare first, or that of the spare if there is one.
    pub(super) fn new(dir: &Path, segment_bytes: u64, spare: Option<Segment>, next: u32) -> Self {
        let state = State {
            spare,
            next,
            dead: VecDeque::new(),
            asked: true,
            failing: false,
            no_room: None,
            told: None,
            starved: false,
            closed: false,
        };
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

    /// What the disk had and lacked at the last try, if the next segment did not fit.
    pub(super) fn no_room(&self) -> Option<NoRoom> {
        self.state.lock().no_room
    }

    /// Why [`Keeper::take`] gave nothing.
    pub(super) fn why_none(&self) -> String {
        let state = self.state.lock();
        match state.no_room {
            _ if state.starved => "no file descriptor is free for the next log segment".into(),
            Some(no_room) => format!("no space is left for the next log segment: {no_room}"),
            None if state.failing => "the next log segment could not be prepared".into(),
            None => "the disk takes too long to prepare the next log segment".into(),
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
        let (made, no_room) = MutexGuard::unlocked(state, || {
            let made = segment::prepare(&self.dir, number, self.segment_bytes);
            let no_room = made.as_ref().err().and_then(|error| self.lack(error));
            (made, no_room)
        });
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
        state.no_room = no_room;
        match made {
            Ok(segment) => {
                if failed_before {
                    tracing::info!(segment = number, "the next log segment is ready: there is space again");
                }
                state.told = None;
                state.spare = Some(segment);
            }
            Err(error) => self.tell(state, &error),
        }
        self.ready.notify_one();
        state.spare.is_some()
    }

    /// What is free and what is needed, if an attempt failed for lack of space. The attempt has given back what it took.
    fn lack(&self, error: &io::Error) -> Option<NoRoom> {
        is_full(error)
            .then(|| NoRoom { free_bytes: fs::free_bytes(&self.dir).ok(), needed_bytes: self.segment_bytes })
    }

    /// Logs a failed attempt: the first one, and later ones that found another amount of free space.
    fn tell(&self, state: &mut State, error: &io::Error) {
        let due = |(at, told): (Instant, Option<NoRoom>)| told != state.no_room && at.elapsed() >= TELL_AGAIN;
        if !state.told.is_none_or(due) {
            return;
        }
        state.told = Some((Instant::now(), state.no_room));
        let dir = self.dir.display();
        match state.no_room {
            Some(no_room) => tracing::error!(
                %dir, %error, "can't prepare the next log segment: {no_room}; trying every second"
            ),
            None => tracing::error!(%dir, %error, "can't prepare the next log segment; trying every second"),
        }
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
                tracing::error!(file = %path.display(), %error, "can't delete an old log segment; trying every second");
                return false;
            }
            state.dead.pop_front();
        }
        true
    }
}

/// Whether the disk, or this user's part of it, has no space.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
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
        assert_eq!((keeper.room(), keeper.no_room()), (Room::Low, None), "not for lack of space");
        std::fs::create_dir(&dir).unwrap();
        assert!(keeper.prepare(&mut keeper.state.lock()));
        assert_eq!(keeper.room(), Room::Enough);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
