//! The disk's share of every figure: how long `fdatasync` takes here, now.
//!
//! In:    a directory on the disk the server writes to.
//! Out:   p50 and p99 of `fdatasync` after a 2 KiB append to a pre-zeroed file, as the log does it; the same while
//!        something else goes on.
//! Never: leaves its file behind.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde::Serialize;

use crate::histogram::Histogram;
use crate::process::Scratch;

const SAMPLES: usize = 200;
const APPEND_BYTES: usize = 2048;
/// The pause between two syncs of a [`Watch`]: often enough to see most stalls, seldom enough not to be one.
const WATCH_EVERY: Duration = Duration::from_millis(5);

/// A sync that took at least this long may have been in the way of somebody else's.
const LONG_SYNC: Duration = Duration::from_millis(1);

/// How fast the disk makes a small write durable.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Disk {
    /// Median of `fdatasync`, in microseconds.
    pub fdatasync_p50_us: f64,
    /// 99th percentile of `fdatasync`, in microseconds.
    pub fdatasync_p99_us: f64,
}

/// Measures `fdatasync` in `dir`.
pub fn measure(dir: &Path) -> Result<Disk> {
    let temp = Scratch::new(dir, "disk")?;
    let path = temp.path().join("probe");
    let histogram = sample(&path).with_context(|| format!("measuring fdatasync in {}", dir.display()))?;
    let us = |quantile| histogram.quantile(quantile).as_secs_f64() * 1e6;
    Ok(Disk { fdatasync_p50_us: us(0.5), fdatasync_p99_us: us(0.99) })
}

fn sample(path: &Path) -> io::Result<Histogram> {
    let mut probe = Probe::new(path)?;
    (0..SAMPLES).try_for_each(|_| probe.sync())?;
    Ok(probe.seen.histogram)
}

/// A file that is overwritten and synced, round and round.
struct Probe {
    file: File,
    synced: usize,
    seen: Seen,
}

/// What the disk did.
pub(crate) struct Seen {
    /// How long syncs took.
    pub(crate) histogram: Histogram,
    /// From when until when the long ones did.
    long: Vec<Range<Instant>>,
}

impl Seen {
    /// How much of this time passed while the disk was busy with a long sync.
    pub(crate) fn busy(&self, time: &Range<Instant>) -> Duration {
        let overlap = |long: &Range<Instant>| {
            long.end.min(time.end).saturating_duration_since(long.start.max(time.start))
        };
        self.long.iter().map(overlap).sum()
    }
}

impl Probe {
    fn new(path: &Path) -> io::Result<Self> {
        let mut file = File::create(path)?;
        // Zeroed first, so that the measured syncs carry no change of the file's size or extents.
        file.write_all(&vec![0; SAMPLES * APPEND_BYTES])?;
        file.sync_all()?;
        let seen = Seen { histogram: Histogram::new(), long: Vec::new() };
        Ok(Self { file, synced: 0, seen })
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.synced.is_multiple_of(SAMPLES) {
            self.file.seek(SeekFrom::Start(0))?;
        }
        let start = Instant::now();
        self.file.write_all(&[self.synced as u8 | 1; APPEND_BYTES])?;
        self.file.sync_data()?;
        let end = Instant::now();
        self.seen.histogram.record(end - start);
        if end - start >= LONG_SYNC {
            self.seen.long.push(start..end);
        }
        self.synced += 1;
        Ok(())
    }
}

/// The bare disk while something else goes on. What stalls here stalls every server that syncs.
pub(crate) struct Watch {
    stop: mpsc::Sender<()>,
    watching: JoinHandle<io::Result<Seen>>,
}

impl Watch {
    /// Looks at the disk of `dir` every few milliseconds from now on.
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        let temp = Scratch::new(dir, "watch")?;
        let (stop, stopped) = mpsc::channel();
        let watching = thread::spawn(move || {
            let mut probe = Probe::new(&temp.path().join("probe"))?;
            while stopped.recv_timeout(WATCH_EVERY) == Err(RecvTimeoutError::Timeout) {
                probe.sync()?;
            }
            Ok(probe.seen)
        });
        Ok(Self { stop, watching })
    }

    /// What was seen until now.
    pub(crate) fn stop(self) -> Result<Seen> {
        drop(self.stop);
        let seen = self.watching.join().map_err(|_| anyhow!("the watch of the disk has panicked"))?;
        seen.context("watching the disk")
    }
}

impl std::fmt::Display for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "fdatasync p50 {:.0} us, p99 {:.0} us", self.fdatasync_p50_us, self.fdatasync_p99_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_the_disk_took_is_told_from_the_rest() {
        let start = Instant::now();
        let ms = |from: u64, to: u64| start + Duration::from_millis(from)..start + Duration::from_millis(to);
        let seen = Seen { histogram: Histogram::new(), long: vec![ms(0, 10), ms(15, 40)] };
        for (time, busy) in [(ms(5, 20), 10), (ms(0, 50), 35), (ms(41, 60), 0), (ms(20, 30), 10)] {
            assert_eq!(seen.busy(&time), Duration::from_millis(busy), "{time:?}");
        }
    }
}
