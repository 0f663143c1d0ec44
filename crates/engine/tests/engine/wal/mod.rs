//! The log on real files: what it promises, and what it does with files a crash or a bad disk left behind.
//!
//! `basics` covers normal life, `damage` broken files, `threads` many callers, `model` random lives against
//! a naive log, `full_disk` a small disk of its own.

mod basics;
mod damage;
mod full_disk;
mod model;
mod threads;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use bytes::Bytes;
use leasehold_engine::wal::{Record, Recovered, Wal, WalError, WalOptions};

/// A directory of its own, removed when the test is over.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("leasehold-wal-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    fn segment(&self, number: u32) -> PathBuf {
        self.log().join(format!("{number:08}.log"))
    }

    /// Segment numbers there are.
    fn segments(&self) -> Vec<u32> {
        let names = fs::read_dir(self.log()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut numbers: Vec<u32> =
            names.filter_map(|name| name.strip_suffix(".log").map(|stem| stem.parse().unwrap())).collect();
        numbers.sort_unstable();
        numbers
    }

    fn open(&self) -> (Wal, Recovered) {
        try_open(&self.log()).unwrap()
    }

    /// Every file and its bytes.
    fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let paths = fs::read_dir(self.log()).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        files.sort();
        files
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const SEGMENT_BYTES: u64 = 4096;

fn options() -> WalOptions {
    WalOptions { segment_bytes: SEGMENT_BYTES, low_room_bytes: 512, ..WalOptions::default() }
}

fn try_open(dir: &Path) -> Result<(Wal, Recovered), WalError> {
    Wal::open(dir, options())
}

fn entry(index: u64, payload: impl Into<Vec<u8>>) -> Record {
    Record::Entry { index, payload: Bytes::from(payload.into()) }
}

fn vote(text: &str) -> Record {
    Record::Vote(bytes(text))
}

fn purge(index: u64) -> Record {
    Record::PurgeUpto { index, payload: bytes(&format!("purged {index}")) }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Appends and waits for the answer.
fn append(wal: &Wal, records: Vec<Record>) -> io::Result<()> {
    let (tell, told) = mpsc::channel();
    wal.append(records, move |result| tell.send(result).unwrap());
    told.recv().unwrap()
}

/// All entries that can be read.
fn read_all(wal: &Wal) -> Vec<(u64, Bytes)> {
    wal.read(0..u64::MAX).unwrap()
}

/// Waits for something another thread does, without guessing how long it takes.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed().as_secs() < 20, "still not so: {what}");
        std::thread::yield_now();
    }
}
