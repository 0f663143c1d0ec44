//! Why a log could not be opened, in words an operator can act on.
//!
//! In:    findings of `recover.rs`.
//! Out:   `WalError`, shown once by whoever starts the node.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::segment::VERSION;

/// The log was not opened, and nothing in it was changed (except after `Io`, which may come late).
#[derive(Debug)]
#[non_exhaustive]
pub enum WalError {
    /// The operating system refused something.
    Io {
        /// What was being done, as in "can't {doing} {path}".
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// Bytes that were once synced are not what was written.
    Corrupt {
        /// The segment file.
        file: PathBuf,
        /// Where the first bad byte range starts.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// A segment file in the middle, or the first one, is not there.
    Missing {
        /// The file that should be there.
        file: PathBuf,
    },
    /// The segment was written by another version of Leasehold.
    Version {
        /// The segment file.
        file: PathBuf,
        /// The format version it names.
        found: u32,
    },
}

const ADVICE: &str = "Nothing was changed. Restore this node's data directory from a backup, or empty it and let the \
     node join again from the other nodes; never edit the log.";

impl WalError {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }

    pub(super) fn corrupt(file: &Path, offset: usize, what: impl Into<String>) -> Self {
        Self::Corrupt { file: file.to_owned(), offset: offset as u64, what: what.into() }
    }
}

impl fmt::Display for WalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { doing, path, source } => write!(f, "can't {doing} {}: {source}", path.display()),
            Self::Corrupt { file, offset, what } => {
                write!(f, "the log is damaged in {} at byte {offset}: {what}. {ADVICE}", file.display())
            }
            Self::Missing { file } => {
                write!(f, "the log is damaged: {} is missing. {ADVICE}", file.display())
            }
            Self::Version { file, found } => write!(
                f,
                "{} has log format version {found}, and this binary reads version {VERSION} only. Nothing was \
                 changed. Start the version of Leasehold that wrote it.",
                file.display()
            ),
        }
    }
}

impl std::error::Error for WalError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
