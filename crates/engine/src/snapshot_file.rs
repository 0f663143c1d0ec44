//! Snapshots on disk: one file, written beside the old one and renamed when it is safe.
//!
//! In:    a frozen table and what raft knows about it. Out: the newest complete file, and the table in it.
//! Never: leaves a half-written file under its final name, and never loads one that does not check out.
//!
//! Layout: magic, then frames of `length u32, crc32 u32, bytes`: the raft metadata first, then which parcels have
//! happened (not in format 1), then the table's chunks, then an empty frame. Numbers are little-endian.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
#[cfg(not(feature = "sim"))]
use std::{sync::mpsc, thread};

use leasehold_core::Table;
#[cfg(not(feature = "sim"))]
use leasehold_core::table::Decoded;
use leasehold_core::table::Decoder;
use leasehold_core::table::{Frozen, Restorer};
use serde::de::DeserializeOwned;

use super::entry::Origins;
use super::types::SnapshotMeta;
use crate::machine;
use crate::machine::fs::{self, File};

/// The first bytes of every snapshot file; the last one is the format of this framing.
const MAGIC: &[u8; 8] = b"LHSNAP\0\x02";
/// The first format.
const MAGIC_1: &[u8; 8] = b"LHSNAP\0\x01";
/// No chunk is larger: a page of 64 claims with all the data they may carry, and some.
const CHUNK_LEN_MAX: u32 = 64 << 20;
/// Bytes that are written between two syncs. A sync of 4 MiB keeps the log, and with it every request, waiting for about
/// 2 ms; a larger one for longer.
const SYNC_EVERY: usize = 256 << 10;
/// Chunks that one thread hands to the other at a time.
#[cfg(not(feature = "sim"))]
const PARCEL_LEN: usize = 32;
/// How far the reading thread may be ahead: a few megabytes.
#[cfg(not(feature = "sim"))]
const PARCELS_AHEAD: usize = 8;

/// A complete snapshot on this node's disk.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    /// Where it is.
    pub path: PathBuf,
}

/// Writes a snapshot and removes the older ones.
pub fn write(
    dir: &Path,
    meta: &SnapshotMeta,
    origins: &Origins,
    frozen: &Frozen,
) -> io::Result<SnapshotFile> {
    place(dir, meta, |partial| write_file(partial, meta, origins, frozen))
}

/// A file for a snapshot that is coming from the leader. It is adopted, or removed.
pub fn incoming(dir: &Path) -> io::Result<(PathBuf, File)> {
    let path = dir.join(format!("incoming-{:016x}.partial", machine::random::<u64>()));
    let file = File::create_new(&path)?;
    Ok((path, file))
}

/// Takes a snapshot that came from elsewhere into this folder and removes the older ones.
pub fn adopt(dir: &Path, meta: &SnapshotMeta, from: &Path) -> io::Result<SnapshotFile> {
    if from.parent() == Some(dir) && from.extension().is_some_and(|ending| ending == "snapshot") {
        remove_older(dir, from)?;
        return Ok(SnapshotFile { path: from.into() });
    }
    place(dir, meta, |partial| {
        fs::copy(from, partial)?;
        File::open(partial)?.sync_all()
    })
}

/// Fills a file under a passing name, and gives it its own once it is safe.
fn place(
    dir: &Path,
    meta: &SnapshotMeta,
    fill: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<SnapshotFile> {
    let (term, index) = meta.last_log_id.map_or((0, 0), |id| (id.leader_id.term, id.index));
    let path = dir.join(format!("{term:010}-{index:020}.snapshot"));
    let partial = path.with_extension("partial");
    let result = fill(&partial).and_then(|()| {
        fs::rename(&partial, &path)?;
        fs::sync_dir(dir)?;
        remove_older(dir, &path)
    });
    if result.is_err() {
        fs::remove_file(&partial).ok();
    }
    result.map(|()| SnapshotFile { path })
}

fn write_file(path: &Path, meta: &SnapshotMeta, origins: &Origins, frozen: &Frozen) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(SYNC_EVERY, File::create(path)?);
    let mut unsynced = 0;
    file.write_all(MAGIC)?;
    write_frame(&mut file, &postcard::to_stdvec(meta).map_err(io::Error::other)?)?;
    write_frame(&mut file, &postcard::to_stdvec(origins).map_err(io::Error::other)?)?;
    for chunk in frozen.chunks() {
        write_frame(&mut file, &chunk)?;
        unsynced += chunk.len();
        if unsynced >= SYNC_EVERY {
            unsynced = 0;
            file.flush()?;
            file.get_ref().sync_data()?;
        }
    }
    write_frame(&mut file, &[])?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

fn write_frame(file: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    file.write_all(&(bytes.len() as u32).to_le_bytes())?;
    file.write_all(&crc32fast::hash(bytes).to_le_bytes())?;
    file.write_all(bytes)
}

/// Reads a snapshot whole.
pub fn load(path: &Path) -> io::Result<(SnapshotMeta, Origins, Table)> {
    let mut reader = FrameReader::open(path)?;
    let meta = reader.value()?;
    let origins = if reader.format == 1 { Origins::default() } else { reader.value()? };
    let table = restore(reader)?;
    Ok((meta, origins, table))
}

/// Reads a snapshot to its end, checks and decodes every frame, and keeps none: a node whose table fills half of its memory
/// can verify a backup of it. Returns the bytes of the file.
pub fn verify(path: &Path) -> io::Result<u64> {
    let mut reader = FrameReader::open(path)?;
    let _meta: SnapshotMeta = reader.value()?;
    if reader.format != 1 {
        let _origins: Origins = reader.value()?;
    }
    let mut decoder = Decoder::default();
    loop {
        let offset = reader.offset;
        let chunk = reader.frame()?;
        if chunk.is_empty() {
            return Ok(reader.offset);
        }
        if let Err(error) = decoder.decode(chunk) {
            return Err(corrupt(path, offset, &error.to_string()));
        }
    }
}

/// Chunks and where they stand in the file.
#[cfg(not(feature = "sim"))]
type Parcel = Vec<(u64, Decoded)>;

/// The table from the rest of the file: one thread reads and decodes, the other builds.
#[cfg(not(feature = "sim"))]
fn restore(reader: FrameReader) -> io::Result<Table> {
    let path = reader.path.clone();
    let (hand_over, parcels) = mpsc::sync_channel::<Parcel>(PARCELS_AHEAD);
    thread::scope(|scope| {
        let decoding = scope.spawn(move || decode(reader, &hand_over));
        let mut restorer = Restorer::default();
        for (offset, decoded) in parcels.into_iter().flatten() {
            restorer.take(decoded).map_err(|error| corrupt(&path, offset, &error.to_string()))?;
        }
        let end = decoding.join().map_err(|_| {
            io::Error::other("reading the snapshot panicked: this is a bug, please report it with the log")
        })??;
        restorer.finish().map_err(|error| corrupt(&path, end, &error.to_string()))
    })
}

/// Decodes the rest of the file, and tells where it ends.
#[cfg(not(feature = "sim"))]
fn decode(mut reader: FrameReader, hand_over: &mpsc::SyncSender<Parcel>) -> io::Result<u64> {
    let path = reader.path.clone();
    let mut decoder = Decoder::default();
    loop {
        let mut parcel = Vec::with_capacity(PARCEL_LEN);
        let mut ended = false;
        while !ended && parcel.len() < PARCEL_LEN {
            let offset = reader.offset;
            let chunk = reader.frame()?;
            ended = chunk.is_empty();
            if !ended {
                let decoded = decoder.decode(chunk);
                parcel.push((offset, decoded.map_err(|error| corrupt(&path, offset, &error.to_string()))?));
            }
        }
        // If the other thread has ended, it has found a mistake and reports it.
        if hand_over.send(parcel).is_err() || ended {
            return Ok(reader.offset);
        }
    }
}

/// The same on the only thread there is in the simulation.
#[cfg(feature = "sim")]
fn restore(mut reader: FrameReader) -> io::Result<Table> {
    let path = reader.path.clone();
    let mut restorer = Restorer::default();
    loop {
        let offset = reader.offset;
        let chunk = reader.frame()?;
        if chunk.is_empty() {
            break;
        }
        restorer.push(chunk).map_err(|error| corrupt(&path, offset, &error.to_string()))?;
    }
    restorer.finish().map_err(|error| corrupt(&path, reader.offset, &error.to_string()))
}

/// The newest complete snapshot and what raft knows about it.
pub fn newest(dir: &Path) -> io::Result<Option<(SnapshotMeta, SnapshotFile)>> {
    let Some(path) = files(dir, "snapshot")?.pop() else { return Ok(None) };
    let meta = FrameReader::open(&path)?.value()?;
    Ok(Some((meta, SnapshotFile { path })))
}

/// The bytes of the newest complete snapshot; 0 if there is none.
pub fn newest_len(dir: &Path) -> io::Result<u64> {
    files(dir, "snapshot")?.pop().map_or(Ok(0), |path| fs::len(&path))
}

/// Removes every snapshot that is older than this one. A newer one stays: it came from the leader while this one was
/// being written, and the log behind it may be gone already.
fn remove_older(dir: &Path, path: &Path) -> io::Result<()> {
    for other in files(dir, "snapshot")? {
        if other.as_path() < path {
            fs::remove_large(&other)?;
        }
    }
    Ok(())
}

/// Makes the folder, and removes what a crash left half-written.
pub fn clean(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for partial in files(dir, "partial")? {
        fs::remove_file(partial)?;
    }
    Ok(())
}

/// The files with this ending, sorted by name: term and index are padded, so the newest is last.
fn files(dir: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for path in fs::list(dir)? {
        if path.extension().is_some_and(|found| found == ending) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

struct FrameReader {
    path: PathBuf,
    file: BufReader<File>,
    format: u8,
    offset: u64,
    buffer: Vec<u8>,
}

impl FrameReader {
    fn open(path: &Path) -> io::Result<Self> {
        let mut file = BufReader::with_capacity(64 << 10, File::open(path)?);
        let mut magic = [0; 8];
        file.read_exact(&mut magic).map_err(|_| corrupt(path, 0, "it is shorter than its header"))?;
        if ![MAGIC, MAGIC_1].contains(&&magic) {
            return Err(corrupt(path, 0, "it does not start like a snapshot of this version"));
        }
        Ok(Self { path: path.into(), file, format: magic[7], offset: 8, buffer: Vec::new() })
    }

    fn value<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let (path, offset) = (self.path.clone(), self.offset);
        postcard::from_bytes(self.frame()?).map_err(|error| corrupt(&path, offset, &error.to_string()))
    }

    fn frame(&mut self) -> io::Result<&[u8]> {
        let mut head = [0; 8];
        self.file.read_exact(&mut head).map_err(|_| corrupt(&self.path, self.offset, "it ends too early"))?;
        let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
        let (len, crc) = (word(0), word(4));
        if len > CHUNK_LEN_MAX {
            return Err(corrupt(&self.path, self.offset, "a length is impossible"));
        }
        self.buffer.resize(len as usize, 0);
        let read = self.file.read_exact(&mut self.buffer);
        read.map_err(|_| corrupt(&self.path, self.offset, "it ends too early"))?;
        if crc32fast::hash(&self.buffer) != crc {
            return Err(corrupt(&self.path, self.offset, "a checksum does not match"));
        }
        self.offset += 8 + u64::from(len);
        Ok(&self.buffer)
    }
}

fn corrupt(path: &Path, offset: u64, why: &str) -> io::Error {
    let message = format!(
        "the snapshot {} is damaged at byte {offset}: {why}. Nothing was changed. Use another backup. In a cluster, a \
         node can also start with an empty data directory and copy the others",
        path.display()
    );
    io::Error::new(io::ErrorKind::InvalidData, message)
}
