//! Simulated disks: what was not synced may be lost, torn or kept in a crash; they fill up, and old bits may flip.
//!
//! In:    the log's and the snapshots' calls; a node's files lie below `/<its number>/`.
//! Out:   bytes, as a disk would give them back. Faults come from the simulation: [`crash`], [`set_full`], [`flip_bit`].
//! Never: keeps what a real disk might have lost, unless the dice say so.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// What a disk writes at once: a torn write keeps or loses whole sectors.
const SECTOR: usize = 512;

#[derive(Debug, Default)]
struct Inode {
    node: u64,
    /// What a reader sees.
    seen: Vec<u8>,
    /// What is on disk for sure.
    safe: Vec<u8>,
    /// What was written since the last sync: where, what, and its place among all writes of all files.
    unsynced: Vec<(usize, Vec<u8>, u64)>,
    /// The writes that are there whole, but for zeros and a file's head: the place of each among all writes of all files,
    /// and where it began.
    whole: Vec<(u64, usize)>,
}

impl Inode {
    /// The newest write that is there whole: its place among all, and where it began.
    fn newest(&self) -> Option<(u64, usize)> {
        self.whole.last().copied()
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    if bytes.len() < at + new.len() {
        bytes.resize(at + new.len(), 0);
    }
    bytes[at..at + new.len()].copy_from_slice(new);
}

type SharedInode = Arc<Mutex<Inode>>;

#[derive(Default)]
struct Disks {
    /// Names as processes see them, and as they are on disk for sure.
    names: BTreeMap<PathBuf, SharedInode>,
    safe_names: BTreeMap<PathBuf, SharedInode>,
    dirs: BTreeSet<PathBuf>,
    full: BTreeSet<u64>,
    /// Nodes that lose power at this moment: their writes may be torn, and no sync comes back.
    dying: BTreeSet<u64>,
    writes: u64,
}

thread_local! {
    static DISKS: RefCell<Disks> = RefCell::default();
}

fn with<T>(look: impl FnOnce(&mut Disks) -> T) -> T {
    DISKS.with(|disks| look(&mut disks.borrow_mut()))
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} is not there", path.display()))
}

fn node_of(path: &Path) -> u64 {
    path.iter().nth(1).and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
}

/// The folder of a node.
pub fn home(node: u64) -> PathBuf {
    PathBuf::from(format!("/{node}"))
}

/// Forgets everything.
pub fn reset() {
    with(|disks| *disks = Disks::default());
}

/// From now on nothing of a node's grows, or it does again.
pub fn set_full(node: u64, full: bool) {
    with(|disks| if full { disks.full.insert(node) } else { disks.full.remove(&node) });
}

/// Whether a node's disk is full.
pub fn is_full(node: u64) -> bool {
    with(|disks| disks.full.contains(&node))
}

/// The space that a node may still use: none, or any amount.
pub fn free_bytes(dir: &Path) -> io::Result<u64> {
    Ok(if is_full(node_of(dir)) { 0 } else { u64::MAX })
}

/// The power of a node goes: what it writes from now on is not synced any more.
pub fn begin_crash(node: u64) {
    with(|disks| disks.dying.insert(node));
}

/// It is gone. Of what was not synced, each sector is there or not, as `draw` says (a number below 100, each time).
/// Returns how many writes were lost or torn.
pub fn crash(node: u64, mut draw: impl FnMut() -> u64) -> u64 {
    with(|disks| {
        disks.dying.remove(&node);
        let before = std::mem::take(&mut disks.names);
        disks.names = before.into_iter().filter(|(path, _)| node_of(path) != node).collect();
        let of_node = disks.safe_names.iter().filter(|(path, _)| node_of(path) == node);
        disks.names.extend(of_node.map(|(path, inode)| (path.clone(), inode.clone())));
        let mut hurt = 0;
        for inode in disks.names.iter().filter(|(path, _)| node_of(path) == node).map(|(_, inode)| inode) {
            hurt += lose(&mut inode.lock(), &mut draw);
        }
        hurt
    })
}

fn lose(inode: &mut Inode, draw: &mut impl FnMut() -> u64) -> u64 {
    let mut hurt = 0;
    for (at, bytes, order) in std::mem::take(&mut inode.unsynced) {
        let mode = draw();
        let mut whole = true;
        for (place, sector) in bytes.chunks(SECTOR).enumerate() {
            // A third of all writes is lost, a third is whole, a third is torn.
            if mode < 33 || (mode < 66 && draw() < 50) {
                whole = false;
                continue;
            }
            put(&mut inode.safe, at + place * SECTOR, sector);
        }
        if !whole {
            hurt += 1;
            inode.whole.retain(|(other, _)| *other != order);
        }
    }
    inode.seen.clone_from(&inode.safe);
    hurt
}

/// A node's disk is replaced by an empty one.
pub fn wipe(node: u64) {
    with(|disks| {
        disks.names.retain(|path, _| node_of(path) != node);
        disks.safe_names.retain(|path, _| node_of(path) != node);
        disks.dirs.retain(|path| node_of(path) != node);
        disks.full.remove(&node);
    });
}

/// A bit that was flipped.
#[derive(Debug)]
pub struct Flipped {
    /// In which file.
    pub path: PathBuf,
    /// Whether the node needs that file: a snapshot older than its newest one is only there because a crash came before
    /// its removal was on disk.
    pub needed: bool,
}

/// Flips a bit of what a node wrote and synced, but for the end of its log from the newest write on that is there whole:
/// that one looks as if it had been torn, and a lost tail can't be told from one that never was. `draw` gives a number
/// below its argument.
pub fn flip_bit(node: u64, mut draw: impl FnMut(u64) -> u64) -> Option<Flipped> {
    with(|disks| {
        let files = disks.names.iter().filter(|(path, _)| node_of(path) == node);
        let ends = |path: &Path, wanted: &str| path.extension().is_some_and(|ending| ending == wanted);
        // Names of segments grow, and so do those of snapshots.
        let logs = files.clone().filter(|(path, _)| ends(path, "log"));
        let last = logs.filter_map(|(path, inode)| Some((inode.lock().newest()?, path))).max();
        let newest_snapshot = files.clone().map(|(path, _)| path).rfind(|path| ends(path, "snapshot"));
        let candidates: Vec<_> = files
            .filter_map(|(path, inode)| {
                let locked = inode.lock();
                let used = match (ends(path, "log"), last) {
                    // Whatever lies behind the newest whole write is torn, or was prepared and never used.
                    (true, None) => 0,
                    (true, Some((_, newest))) if path > newest => 0,
                    (true, Some(((_, at), newest))) if path == newest => at,
                    (true, Some(_)) => {
                        locked.seen.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
                    }
                    (false, _) if ends(path, "snapshot") => locked.seen.len(),
                    (false, _) => 0,
                };
                (used > 0).then(|| (path.clone(), inode.clone(), used))
            })
            .collect();
        if candidates.is_empty() {
            return None;
        }
        let (path, inode, used) = &candidates[draw(candidates.len() as u64) as usize];
        let (at, bit) = (draw(*used as u64) as usize, draw(8));
        let inode = &mut *inode.lock();
        inode.seen[at] ^= 1 << bit;
        inode.safe.clone_from(&inode.seen);
        let needed = !ends(path, "snapshot") || Some(path) == newest_snapshot;
        Some(Flipped { path: path.clone(), needed })
    })
}

/// Whether there is no such file.
pub fn is_gone(path: &Path) -> bool {
    with(|disks| !disks.names.contains_key(path))
}

/// An open file.
#[derive(Debug)]
pub struct File {
    inode: SharedInode,
    at: usize,
}

/// As `std::os::unix::fs::FileExt`, as far as it is used.
pub trait FileExt {
    /// Reads at a place.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes at a place.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

impl FileExt for File {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let inode = self.inode.lock();
        let from = inode.seen.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut inode = self.inode.lock();
        let (full, order) = with(|disks| {
            disks.writes += 1;
            (disks.full.contains(&inode.node), disks.writes)
        });
        let (at, end) = (offset as usize, offset as usize + bytes.len());
        if full && end > inode.seen.len() {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on the simulated disk"));
        }
        put(&mut inode.seen, at, bytes);
        inode.unsynced.push((at, bytes.to_vec(), order));
        if at > 0 && bytes.iter().any(|byte| *byte != 0) {
            inode.whole.push((order, at));
        }
        Ok(())
    }
}

impl File {
    fn of(inode: SharedInode) -> Self {
        Self { inode, at: 0 }
    }

    fn make(path: &Path) -> Self {
        let inode = SharedInode::new(Mutex::new(Inode { node: node_of(path), ..Inode::default() }));
        with(|disks| disks.names.insert(path.into(), inode.clone()));
        Self::of(inode)
    }

    /// A file that is there.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let found = with(|disks| disks.names.get(path).cloned());
        found.map(Self::of).ok_or_else(|| not_found(path))
    }

    /// An empty file.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::make(path.as_ref()))
    }

    /// A file that was not there.
    pub fn create_new(path: impl AsRef<Path>) -> io::Result<Self> {
        match Self::open(&path) {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => Self::create(path),
        }
    }

    /// Everything written so far is on disk.
    pub fn sync_all(&self) -> io::Result<()> {
        let mut inode = self.inode.lock();
        if with(|disks| disks.dying.contains(&inode.node)) {
            return Err(io::Error::other("the power is gone"));
        }
        for (at, bytes, _) in std::mem::take(&mut inode.unsynced) {
            put(&mut inode.safe, at, &bytes);
        }
        Ok(())
    }

    /// The same.
    pub fn sync_data(&self) -> io::Result<()> {
        self.sync_all()
    }

    /// Cuts the file, or adds zeros.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        let mut inode = self.inode.lock();
        inode.seen.resize(len as usize, 0);
        inode.unsynced.retain(|(at, bytes, _)| at + bytes.len() <= len as usize);
        inode.safe.resize(len as usize, 0);
        Ok(())
    }

    /// Another handle of the same file.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self::of(self.inode.clone()))
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let inode = self.inode.lock();
        let rest = inode.seen.get(self.at..).unwrap_or_default();
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        drop(inode);
        self.at += len;
        Ok(len)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all_at(bytes, self.at as u64)?;
        self.at += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// See `machine/files.rs`.
pub fn create_private(path: &Path) -> io::Result<File> {
    File::create(path)
}

/// See `machine/files.rs`.
pub fn open_for_change(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// See `machine/files.rs`.
pub fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(with(|disks| disks.names.keys().filter(|path| path.parent() == Some(dir)).cloned().collect()))
}

/// See `machine/files.rs`.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    with(|disks| {
        if disks.dying.contains(&node_of(dir)) {
            return Err(io::Error::other("the power is gone"));
        }
        disks.safe_names.retain(|path, _| path.parent() != Some(dir));
        let names = disks.names.iter().filter(|(path, _)| path.parent() == Some(dir));
        disks.safe_names.extend(names.map(|(path, inode)| (path.clone(), inode.clone())));
        Ok(())
    })
}

/// See `machine/files.rs`.
pub fn is_dir(path: &Path) -> bool {
    with(|disks| disks.dirs.contains(path))
}

/// See `machine/files.rs`.
pub fn file_len(file: &File) -> io::Result<u64> {
    Ok(file.inode.lock().seen.len() as u64)
}

/// See `machine/files.rs`.
pub fn len(path: &Path) -> io::Result<u64> {
    Ok(File::open(path)?.inode.lock().seen.len() as u64)
}

/// As `std::fs::read`.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    Ok(File::open(path)?.inode.lock().seen.clone())
}

/// As `std::fs::create_dir`; folders are there at once.
pub fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    with(|disks| disks.dirs.insert(path.as_ref().into()));
    Ok(())
}

/// As `std::fs::create_dir_all`.
pub fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    create_dir(path)
}

/// As `std::fs::rename`.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    with(|disks| {
        let inode = disks.names.remove(from.as_ref()).ok_or_else(|| not_found(from.as_ref()))?;
        disks.names.insert(to.as_ref().into(), inode);
        Ok(())
    })
}

/// As `std::fs::remove_file`.
pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    let removed = with(|disks| disks.names.remove(path.as_ref()));
    removed.map(drop).ok_or_else(|| not_found(path.as_ref()))
}

/// In one piece: what waits for a real disk meanwhile waits for nothing here.
pub fn remove_large(path: &Path) -> io::Result<()> {
    remove_file(path)
}

/// A removed file stays whole for whoever has it open.
pub fn open_whole(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// As `std::fs::copy`.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    let bytes = read(from)?;
    let mut file = File::create(to)?;
    file.write_all(&bytes)?;
    Ok(bytes.len() as u64)
}
