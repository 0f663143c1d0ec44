//! Segments: the files of the log, each filled with zeros before its first use.
//!
//! In:    a number, from the keeper (`keeper.rs`) or from the first start.
//! Out:   a file of full size under its final name, or none at all.
//! Never: written in place by anyone but the flusher (`flusher.rs`) once it has its name.
//!
//! Writing zeros first means that an append changes no file size and no block map: `fdatasync` then only
//! writes data, which costs half as much, and an append can't run out of disk space.
//!
//! Header, 32 bytes, the same in every format version:
//! `magic [8] | version u32 | marker u32 | number u32 | zero [8] | crc u32 of all before it`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::machine::fs::{self, File, FileExt};

/// The format this binary writes, and the only one it reads so far.
pub(super) const VERSION: u32 = 1;
/// Bytes before the first frame.
pub(super) const HEADER_LEN: usize = 32;

const MAGIC: &[u8; 8] = b"LHOLDLOG";
static ZEROS: [u8; 256 * 1024] = [0; 256 * 1024];

/// An open segment file.
#[derive(Clone)]
pub(super) struct Segment {
    /// Position among the segments, from 1.
    pub(super) number: u32,
    /// What every frame in it carries, see `frame.rs`.
    pub(super) marker: u32,
    /// Shared with the readers.
    pub(super) file: Arc<File>,
    /// Bytes of the file that are on disk, zeros included.
    pub(super) capacity: u64,
}

/// What the header of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// Written by this format version.
    Good { number: u32, marker: u32 },
    /// Intact, but of another format version.
    Version(u32),
    /// Cut short or damaged.
    Bad,
}

pub(super) fn path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number:08}.log"))
}

/// The number in a segment's file name, `None` for any other file.
pub(super) fn number_of(name: &str) -> Option<u32> {
    let number = name.strip_suffix(".log")?.parse().ok()?;
    (format!("{number:08}.log") == name).then_some(number)
}

/// A leftover of a crash while preparing.
pub(super) fn is_temporary(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|stem| number_of(stem).is_some())
}

pub(super) fn read_header(bytes: &[u8]) -> Header {
    let Some(header) = bytes.get(..HEADER_LEN) else { return Header::Bad };
    let word = |at: usize| header[at..at + 4].iter().rev().fold(0_u32, |word, b| word << 8 | u32::from(*b));
    if &header[..8] != MAGIC || word(28) != crc32fast::hash(&header[..28]) {
        return Header::Bad;
    }
    match word(8) {
        VERSION => Header::Good { marker: word(12), number: word(16) },
        version => Header::Version(version),
    }
}

fn header_bytes(number: u32, marker: u32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&marker.to_le_bytes());
    header[16..20].copy_from_slice(&number.to_le_bytes());
    let crc = crc32fast::hash(&header[..28]);
    header[28..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Makes a segment ready: zeros, header, sync, and only then its name. After a crash or an error there is
/// either the whole segment or a temporary file that the next start removes.
pub(super) fn prepare(dir: &Path, number: u32, capacity: u64) -> io::Result<Segment> {
    let target = path(dir, number);
    let temporary = target.with_extension("log.tmp");
    let made = fill_temporary(&temporary, number, capacity).and_then(|segment| {
        fs::rename(&temporary, &target)?;
        sync_dir(dir)?;
        Ok(segment)
    });
    if made.is_err() {
        // The half-written file would keep the disk full; if it can't go now, the next try overwrites it.
        let _ = fs::remove_file(&temporary);
    }
    made
}

fn fill_temporary(temporary: &Path, number: u32, capacity: u64) -> io::Result<Segment> {
    let file = fs::create_private(temporary)?;
    let marker = random_marker();
    write_zeros(&file, 0, capacity)?;
    file.write_all_at(&header_bytes(number, marker), 0)?;
    file.sync_all()?;
    Ok(Segment { number, marker, file: Arc::new(file), capacity })
}

/// Writes zeros over a part of the file, in pieces small enough not to hold up the flusher's own syncs.
pub(super) fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let len = (to - at).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..len as usize], at)?;
        at += len;
        if at.is_multiple_of(1 << 20) {
            file.sync_data()?;
        }
    }
    Ok(())
}

/// Makes created, renamed and removed names durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::sync_dir(dir)
}

/// Not zero, so that zeros never look like a frame.
fn random_marker() -> u32 {
    crate::machine::random::<u32>() | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flipped_bit_in_a_header_goes_unseen() {
        let good = header_bytes(3, 5);
        assert_eq!(read_header(&good), Header::Good { number: 3, marker: 5 });
        for at in 0..HEADER_LEN {
            for bit in 0..8 {
                let mut bytes = good;
                bytes[at] ^= 1 << bit;
                assert_eq!(read_header(&bytes), Header::Bad, "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn only_exact_names_are_segments() {
        assert_eq!(number_of("00000012.log"), Some(12));
        assert_eq!(number_of("4294967295.log"), Some(u32::MAX));
        assert_eq!(number_of("12.log"), None);
        assert_eq!(number_of("00000012.log.tmp"), None);
        assert!(is_temporary("00000012.log.tmp"));
    }
}
