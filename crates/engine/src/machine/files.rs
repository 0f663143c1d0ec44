//! Files and folders of the machine.
//!
//! In:    paths. Out: std's answers; a few combinations under one name, so that the simulation can answer them too.

pub use std::fs::{File, copy, create_dir, create_dir_all, read, remove_file, rename};
use std::fs::{OpenOptions, metadata, read_dir};
use std::io;
pub use std::os::unix::fs::FileExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A disk is done with this much in a millisecond or less.
const REMOVED_AT_ONCE: u64 = 1 << 20;

/// An empty file that only this user may look into, to be written and read.
pub fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// A file that is there, to be written and read.
pub fn open_for_change(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// A file that stays whole while it is read, even if it is removed ([`remove_large`]) meanwhile.
pub fn open_whole(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    file.lock_shared()?;
    // Or it was being removed, and this waited for the end of that.
    if file.metadata()?.len() > 0 { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Removes a large file piece by piece. A file system that gives its disk back what it frees (ext4 with `discard`) would
/// otherwise do so with all of it at once, and every sync waits for that: of 60 MB, some 16 ms.
pub fn remove_large(path: &Path) -> io::Result<()> {
    let file = open_for_change(path);
    remove_file(path)?;
    // What someone reads goes with its last reader. And what can't be cut down goes in one piece: it has no name any more.
    if let Ok(file) = file
        && file.try_lock().is_ok()
    {
        let mut len = file.metadata().map_or(0, |metadata| metadata.len());
        while len > 0 && file.set_len(len.saturating_sub(REMOVED_AT_ONCE)).is_ok() {
            len = len.saturating_sub(REMOVED_AT_ONCE);
        }
    }
    Ok(())
}

/// What lies in a folder.
pub fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

/// Makes created, renamed and removed names durable.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The space that this process may still use on the disk of a folder.
pub fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whether there is such a folder.
pub fn is_dir(path: &Path) -> bool {
    path.is_dir()
}

/// The bytes of a file that is open.
pub fn file_len(file: &File) -> io::Result<u64> {
    file.metadata().map(|metadata| metadata.len())
}

/// The bytes of a file.
pub fn len(path: &Path) -> io::Result<u64> {
    metadata(path).map(|metadata| metadata.len())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_large_file_goes_piece_by_piece_unless_someone_reads_it() {
        let path = std::env::temp_dir().join(format!("leasehold-large-{}", std::process::id()));
        let content = vec![7; 3 << 20];

        std::fs::write(&path, &content).unwrap();
        let onlooker = File::open(&path).unwrap();
        remove_large(&path).unwrap();
        assert!(!path.exists());
        assert_eq!(
            onlooker.metadata().unwrap().len(),
            0,
            "it was given back before the last look at it ended"
        );

        std::fs::write(&path, &content).unwrap();
        let mut reader = open_whole(&path).unwrap();
        remove_large(&path).unwrap();
        assert!(!path.exists());
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert!(read == content, "the reader found {} bytes", read.len());
    }
}
