//! The audit's thread: writes lines, and puts full files aside.
//!
//! In:    lines from the queue. Out: two files, for grants and for refusals, and their older parts `.1`, `.2`, ...; or stderr.
//! Never: gives up: what can't be written is said on stderr, and the next line tries again.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

use super::Line;
use super::refusals::Refusals;

/// How far from its end a file is read to find its last entry.
const TAIL_LEN: u64 = 4 << 20;

/// How often refusals are summed up.
const SUM_EVERY: Duration = Duration::from_secs(60);

/// What the thread works with.
pub(super) struct Pen {
    pub(super) grants: Writer,
    pub(super) refused: Writer,
    pub(super) refusals: Arc<Mutex<Refusals>>,
}

/// Lines that are written together.
#[derive(Default)]
struct Batch {
    grants: String,
    refused: String,
    flushes: Vec<SyncSender<()>>,
}

impl Batch {
    fn add(&mut self, line: Line) {
        match line {
            Line::Text(text) => self.grants += &text,
            Line::Refused(text) => self.refused += &text,
            Line::Flush(done) => self.flushes.push(done),
        }
    }
}

impl Pen {
    pub(super) fn run(mut self, queue: &Receiver<Line>) {
        let mut due = Instant::now() + SUM_EVERY;
        loop {
            let mut batch = Batch::default();
            match queue.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(first) => {
                    std::iter::once(first)
                        .chain(queue.try_iter().take(1000))
                        .for_each(|line| batch.add(line));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let is_due = Instant::now() >= due;
            if is_due || !batch.flushes.is_empty() {
                batch.refused.extend(self.refusals.lock().summed_up());
            }
            if is_due {
                due = Instant::now() + SUM_EVERY;
            }
            self.grants.write(&batch.grants);
            self.refused.write(&batch.refused);
            for done in batch.flushes {
                done.send(()).ok();
            }
        }
    }
}

pub(super) struct Writer {
    path: Option<PathBuf>,
    file: Option<File>,
    len: u64,
    len_max: u64,
    keep: usize,
}

impl Writer {
    pub(super) fn open(path: Option<PathBuf>, len_max: u64, keep: usize) -> io::Result<Self> {
        let mut writer = Self { path, file: None, len: 0, len_max: len_max.max(1 << 10), keep };
        writer.reopen()?;
        Ok(writer)
    }

    fn reopen(&mut self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut file = OpenOptions::new().create(true).append(true).read(true).mode(0o640).open(path)?;
        self.len = file.metadata()?.len();
        // A line that a crash cut off stays one line.
        if self.len > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                self.len += 1;
            }
        }
        self.file = Some(file);
        Ok(())
    }

    fn write(&mut self, batch: &str) {
        if batch.is_empty() {
            return;
        }
        if self.path.is_none() {
            io::stderr().write_all(batch.as_bytes()).ok();
            return;
        }
        let full = self.len > 0 && self.len + batch.len() as u64 > self.len_max;
        let rotated = if full { self.rotate() } else { Ok(()) };
        let file = self.file.as_mut().ok_or_else(|| io::Error::other("it is not open"));
        let written = rotated.and(file.and_then(|file| file.write_all(batch.as_bytes())));
        match written {
            Ok(()) => self.len += batch.len() as u64,
            Err(error) => {
                tracing::error!(%error, "the audit can't be written: its lines follow here");
                io::stderr().write_all(batch.as_bytes()).ok();
                self.reopen().ok();
            }
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        let Some(path) = self.path.clone() else { return Ok(()) };
        self.file = None;
        for number in (1..self.keep).rev() {
            let older = aside(&path, number);
            if older.exists() {
                std::fs::rename(&older, aside(&path, number + 1))?;
            }
        }
        match self.keep {
            0 => std::fs::remove_file(&path)?,
            _ => std::fs::rename(&path, aside(&path, 1))?,
        }
        self.reopen()
    }
}

fn aside(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(format!(".{number}"));
    name.into()
}

/// The last log entry that a file has lines of, or else the newest file put aside has.
pub(super) fn last_index(path: &Path) -> io::Result<Option<u64>> {
    for path in [path.to_path_buf(), aside(path, 1)] {
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(TAIL_LEN)))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        let lines = tail.split(|byte| *byte == b'\n').rev();
        let index = |line: &[u8]| serde_json::from_slice::<Value>(line).ok()?.get("index")?.as_u64();
        if let Some(index) = lines.into_iter().find_map(index) {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_put_aside_and_the_last_entry_is_found_again() {
        let dir = std::env::temp_dir().join(format!("leasehold-audit-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("audit.jsonl");
        let mut writer = Writer::open(Some(path.clone()), 1 << 10, 2).unwrap();
        for index in 0..100 {
            writer.write(&format!("{{\"index\":{index},\"pad\":\"{}\"}}\n", "x".repeat(100)));
        }
        assert!(aside(&path, 1).exists() && aside(&path, 2).exists() && !aside(&path, 3).exists());
        assert_eq!(last_index(&path).unwrap(), Some(99));
        writer.write("{\"what\":\"refused\"}\n{\"ind");
        drop(writer);
        assert_eq!(last_index(&path).unwrap(), Some(99));
        Writer::open(Some(path.clone()), 1 << 10, 2).unwrap().write("{\"index\":100}\n");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with("{\"ind\n{\"index\":100}\n"), "{text}");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(last_index(&path).unwrap().map(|index| index < 99), Some(true));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
