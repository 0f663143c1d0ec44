//! Files and folders of the machine.
//!
//! In:    paths. Out: std's answers; a few combinations under one name, so that the simulation can answer them too.

pub use std::fs::{File, copy, create_dir, create_dir_all, read, remove_file, rename};
use std::fs::{OpenOptions, metadata, read_dir};
use std::io;
pub use std::os::unix::fs::FileExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// An empty file that only this user may look into, to be written and read.
pub fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// A file that is there, to be written and read.
pub fn open_for_change(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// What lies in a folder.
pub fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

/// Makes created, renamed and removed names durable.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Whether there is such a folder.
pub fn is_dir(path: &Path) -> bool {
    path.is_dir()
}

/// The bytes of a file.
pub fn len(path: &Path) -> io::Result<u64> {
    metadata(path).map(|metadata| metadata.len())
}
