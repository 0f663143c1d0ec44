//! The data directory: one node's, one process at a time, one format.
//!
//! In:    a path from the configuration.
//! Out:   a `DataDir` that holds the lock for as long as it lives; the log and snapshots go inside.
//! Never: touches data of another format version, or of a running process.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What `FORMAT` says in a directory this binary can read.
const FORMAT: &str = "leasehold data format 1\n";

/// A locked data directory.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Holds the lock; the system releases it when the process ends, however it ends.
    _lock: File,
}

/// Why the data directory can't be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum DataDirError {
    /// The operating system refused something.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// Another process uses it.
    InUse {
        /// The directory.
        path: PathBuf,
        /// The other process, if it has written down its id.
        pid: Option<u32>,
    },
    /// It belongs to another node.
    OtherNode {
        /// The directory.
        path: PathBuf,
        /// The node it belongs to.
        found: String,
        /// The node that was to be started.
        wanted: u64,
    },
    /// It holds data of another format, or files of something else.
    Format {
        /// The directory.
        path: PathBuf,
        /// What `FORMAT` says; `None` if there is data but no such file.
        found: Option<String>,
    },
}

impl fmt::Display for DataDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "can't use {}: {source}", path.display()),
            Self::InUse { path, pid: Some(pid) } => {
                write!(
                    f,
                    "the data directory {} is in use by process {pid}: stop that process, or give this node \
                     another one (--data)",
                    path.display()
                )
            }
            Self::InUse { path, pid: None } => {
                write!(
                    f,
                    "the data directory {} is in use by another process: stop that process, or give this node \
                     another one (--data)",
                    path.display()
                )
            }
            Self::OtherNode { path, found, wanted } => write!(
                f,
                "the data directory {} belongs to node {found}, and this is node {wanted}; nothing was changed. Give \
                 each node a data directory of its own.",
                path.display()
            ),
            Self::Format { path, found: Some(found) } => write!(
                f,
                "the data directory {} has the format \"{found}\", and this binary reads \"{}\" only; \
                 nothing was changed. Start the version of Leasehold that wrote it.",
                path.display(),
                FORMAT.trim()
            ),
            Self::Format { path, found: None } => write!(
                f,
                "{} holds a log but no FORMAT file, so it is not a whole data directory; nothing was changed. \
                 Restore it from a backup, or empty it and let the node join again.",
                path.display()
            ),
        }
    }
}

impl std::error::Error for DataDirError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl DataDir {
    /// Creates the directory if need be, locks it and checks its format.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, DataDirError> {
        let path = path.into();
        // Only the service's own user may look: the data of claims can be confidential.
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(io_error(&path))?;
        let lock = lock(&path)?;
        check_format(&path)?;
        Ok(Self { path, _lock: lock })
    }

    /// Whose data this is: from the first start on it stays this node's.
    pub fn node_id(&self, wanted: Option<u64>) -> Result<u64, DataDirError> {
        let path = self.path.join("NODE");
        match fs::read_to_string(&path) {
            Ok(found) => match found.trim().parse() {
                Ok(id) if wanted.is_none_or(|wanted| wanted == id) => Ok(id),
                _ => Err(DataDirError::OtherNode {
                    path: self.path.clone(),
                    found: found.trim().into(),
                    wanted: wanted.unwrap_or(super::ALONE),
                }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let id = wanted.unwrap_or(super::ALONE);
                let mut file = File::create(&path).map_err(io_error(&path))?;
                let written = writeln!(file, "{id}").and_then(|()| file.sync_all());
                written.and_then(|()| File::open(&self.path)?.sync_all()).map_err(io_error(&path))?;
                Ok(id)
            }
            Err(error) => Err(io_error(&path)(error)),
        }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the log goes.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DataDirError {
    let path = path.to_owned();
    move |source| DataDirError::Io { path, source }
}

/// Takes the lock and leaves our process id in the file, for the message a second process shows.
fn lock(dir: &Path) -> Result<File, DataDirError> {
    let path = dir.join("LOCK");
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let mut file = open.map_err(io_error(&path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(DataDirError::InUse { path: dir.to_owned(), pid });
        }
        Err(TryLockError::Error(source)) => return Err(DataDirError::Io { path, source }),
    }
    // On a full disk the id may not fit. The lock holds all the same, so that is no reason not to start.
    let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
    Ok(file)
}

fn check_format(dir: &Path) -> Result<(), DataDirError> {
    let path = dir.join("FORMAT");
    match fs::read_to_string(&path) {
        Ok(found) if found == FORMAT => Ok(()),
        Ok(found) => {
            let found = Some(found.trim().to_owned());
            Err(DataDirError::Format { path: dir.to_owned(), found })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if dir.join("log").exists() {
                return Err(DataDirError::Format { path: dir.to_owned(), found: None });
            }
            write_format(dir).map_err(io_error(&path))
        }
        Err(source) => Err(DataDirError::Io { path, source }),
    }
}

/// The file appears whole or not at all, and before any data does.
fn write_format(dir: &Path) -> io::Result<()> {
    let temporary = dir.join("FORMAT.tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(FORMAT.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, dir.join("FORMAT"))?;
    File::open(dir)?.sync_all()?;
    let parent = fs::canonicalize(dir)?.parent().map(Path::to_owned);
    parent.map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn empty(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("leasehold-data-dir-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn it_is_created_private_and_opens_again() {
        let path = empty("again");
        let dir = DataDir::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_to_string(path.join("FORMAT")).unwrap(), FORMAT);
        fs::create_dir(dir.log()).unwrap();
        drop(dir);
        DataDir::open(&path).unwrap();
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_second_open_is_refused_and_names_the_holder() {
        let path = empty("second");
        let _held = DataDir::open(&path).unwrap();
        let message = DataDir::open(&path).unwrap_err().to_string();
        assert!(message.contains(path.to_str().unwrap()), "{message}");
        assert!(message.contains(&format!("process {}", std::process::id())), "{message}");
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn another_format_is_refused() {
        let path = empty("format");
        drop(DataDir::open(&path).unwrap());
        fs::write(path.join("FORMAT"), "leasehold data format 2\n").unwrap();
        let message = DataDir::open(&path).unwrap_err().to_string();
        assert!(message.contains("format 2") && message.contains("format 1"), "{message}");
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_log_without_a_format_is_refused() {
        let path = empty("unmarked");
        fs::create_dir_all(path.join("log")).unwrap();
        assert!(matches!(DataDir::open(&path), Err(DataDirError::Format { found: None, .. })));
        assert!(!path.join("FORMAT").exists());
        fs::remove_dir_all(path).unwrap();
    }
}
