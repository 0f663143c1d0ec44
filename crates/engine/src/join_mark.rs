//! The mark of a node that joins its cluster: a file in its data directory.
//!
//! In:    a node without data that begins to ask, and the moment it is a voter. Out: whether this node has to go on asking.
//! Never: is left to memory: a node that was added and then restarted has data, and looks just like one that an operator has
//!        removed. The first must go on until it is a voter; the second must stay removed.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::machine::fs::{self, File};

const TEXT: &[u8] = b"This node is on its way into its cluster. The file goes when the node votes.\n";

pub(super) fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("JOINING")
}

/// Whether this node has begun to ask, and was no voter yet.
pub(super) fn is_marked(data_dir: &Path) -> bool {
    fs::len(&path(data_dir)).is_ok()
}

/// Sets the mark, before this node asks for the first time.
pub(super) fn mark(data_dir: &Path) -> io::Result<()> {
    let mut file = File::create(path(data_dir))?;
    file.write_all(TEXT)?;
    file.sync_all()?;
    fs::sync_dir(data_dir)
}

/// Removes the mark: this node is a voter.
pub(super) fn unmark(data_dir: &Path) -> io::Result<()> {
    if is_marked(data_dir) {
        fs::remove_file(path(data_dir))?;
        fs::sync_dir(data_dir)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_stays_until_the_node_votes() {
        let dir = std::env::temp_dir().join(format!("leasehold-joining-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        assert!(!is_marked(&dir));
        mark(&dir).unwrap();
        mark(&dir).unwrap();
        assert!(is_marked(&dir));
        unmark(&dir).unwrap();
        unmark(&dir).unwrap();
        assert!(!is_marked(&dir));
        std::fs::remove_dir_all(&dir).ok();
    }
}
