//! Opening a log: reads every segment, checks every byte, and repairs what a crash may leave behind.
//!
//! In:    the log directory.
//! Out:   the `LogState` the frames add up to, and where the flusher goes on.
//! Never: changes anything before everything has been checked, or repairs anything a crash can't explain.
//!
//! A frame is written only after the one before it is synced. So a crash can damage the very last frame and
//! nothing else: that is a torn tail, never acknowledged to anyone, and is cut off. Damage anywhere else
//! means that acknowledged entries are gone or changed, and the node must not start.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::WalError;
use super::segment::{self, Header, Segment};
use super::state::LogState;
use super::{Torn, frame};
use crate::machine::fs::{self, FileExt};

/// What the directory holds after recovery.
pub(super) struct Found {
    /// The sum of all frames.
    pub(super) state: LogState,
    /// The segments that hold frames, in order; the last one is where the log goes on.
    pub(super) segments: Vec<Segment>,
    /// Where the next frame goes in the last segment.
    pub(super) tail: u64,
    /// The sequence number of the next frame.
    pub(super) sequence: u64,
    /// An unused segment after the last one.
    pub(super) spare: Option<Segment>,
    /// The cut, if there was one.
    pub(super) torn: Option<Torn>,
}

/// One segment file, read whole.
struct Image {
    number: u32,
    path: PathBuf,
    header: Header,
    bytes: Vec<u8>,
}

impl Image {
    fn read(dir: &Path, number: u32) -> Result<Self, WalError> {
        let path = segment::path(dir, number);
        let bytes = fs::read(&path).map_err(WalError::io("read", &path))?;
        Ok(Self { number, path, header: segment::read_header(&bytes), bytes })
    }

    /// No frame was ever written here: zeros after the header.
    fn is_blank(&self) -> bool {
        self.bytes.iter().skip(segment::HEADER_LEN).all(|b| *b == 0)
    }

    fn marker(&self) -> Result<u32, WalError> {
        match self.header {
            Header::Good { number, marker } if number == self.number => Ok(marker),
            Header::Good { number, .. } => {
                Err(WalError::corrupt(&self.path, 0, format!("this is segment {number} under another name")))
            }
            Header::Version(found) => Err(WalError::Version { file: self.path.clone(), found }),
            Header::Bad => Err(WalError::corrupt(&self.path, 0, "the segment header is damaged")),
        }
    }

    fn open(&self, segment_bytes: u64) -> Result<Segment, WalError> {
        let open = fs::open_for_change(&self.path);
        let file = Arc::new(open.map_err(WalError::io("open", &self.path))?);
        let capacity = segment_bytes.max(self.bytes.len() as u64);
        Ok(Segment { number: self.number, marker: self.marker()?, file, capacity })
    }
}

/// Checks the whole log, then repairs its end. `None` for a directory without segments.
pub(super) fn recover(dir: &Path, segment_bytes: u64) -> Result<Option<Found>, WalError> {
    let listing = Listing::read(dir)?;
    let Some((&first, _)) = listing.numbers.split_first() else {
        listing.remove_leftovers(dir, &[])?;
        return Ok(None);
    };
    let (last, blanks) = split_blank_tail(dir, &listing.numbers)?;
    let mut walk = Walk::default();
    let mut segments = Vec::new();
    for number in first..last {
        let image = Image::read(dir, number)?;
        walk.whole(&image)?;
        segments.push(image.open(segment_bytes)?);
    }
    let image = Image::read(dir, last)?;
    let torn = walk.ending(&image)?;
    walk.check_beginning(dir, first)?;
    let active = image.open(segment_bytes)?;

    // Everything is checked; only now may the disk change.
    let (spare, unusable) = choose_spare(&blanks, segment_bytes)?;
    listing.remove_leftovers(dir, &unusable)?;
    repair(&active, &image, torn.is_some(), &walk)?;
    segments.push(active);
    let Walk { state, sequence, end, .. } = walk;
    Ok(Some(Found { state, segments, tail: end as u64, sequence: sequence.unwrap_or(1), spare, torn }))
}

/// The file names in the log directory.
struct Listing {
    /// Segment numbers, ascending and without gaps.
    numbers: Vec<u32>,
    /// Files of an interrupted preparation.
    temporaries: Vec<PathBuf>,
}

impl Listing {
    fn read(dir: &Path) -> Result<Self, WalError> {
        let mut listing = Self { numbers: Vec::new(), temporaries: Vec::new() };
        for path in fs::list(dir).map_err(WalError::io("list", dir))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(number) = segment::number_of(&name) {
                listing.numbers.push(number);
            } else if segment::is_temporary(&name) {
                listing.temporaries.push(path);
            }
        }
        listing.numbers.sort_unstable();
        for pair in listing.numbers.windows(2) {
            if pair[1] - pair[0] != 1 {
                return Err(WalError::Missing { file: segment::path(dir, pair[0] + 1) });
            }
        }
        Ok(listing)
    }

    fn remove_leftovers(&self, dir: &Path, unusable: &[PathBuf]) -> Result<(), WalError> {
        for path in self.temporaries.iter().chain(unusable) {
            fs::remove_file(path).map_err(WalError::io("remove", path))?;
        }
        segment::sync_dir(dir).map_err(WalError::io("sync", dir))
    }
}

/// Finds the segment in which the log ends: the last one with anything written in it, else the first one.
/// Those after it were prepared and never used; a crash may have left them in any shape.
fn split_blank_tail(dir: &Path, numbers: &[u32]) -> Result<(u32, Vec<Image>), WalError> {
    let mut blanks = Vec::new();
    for &number in numbers.iter().skip(1).rev() {
        let image = Image::read(dir, number)?;
        if let Header::Version(_) = image.header {
            image.marker()?;
        }
        if !image.is_blank() {
            blanks.reverse();
            return Ok((number, blanks));
        }
        blanks.push(image);
    }
    blanks.reverse();
    Ok((numbers.first().copied().unwrap_or(1), blanks))
}

/// Keeps the blank segment right after the log if it is whole; the others must go.
fn choose_spare(blanks: &[Image], segment_bytes: u64) -> Result<(Option<Segment>, Vec<PathBuf>), WalError> {
    let usable =
        blanks.first().filter(|image| image.marker().is_ok() && image.bytes.len() as u64 >= segment_bytes);
    let spare = usable.map(|image| image.open(segment_bytes)).transpose()?;
    // The last one first: a crash in between must not leave a gap in the numbers.
    let kept = usize::from(spare.is_some());
    Ok((spare, blanks.iter().skip(kept).rev().map(|image| image.path.clone()).collect()))
}

/// The walk over all frames of all segments.
#[derive(Default)]
struct Walk {
    state: LogState,
    /// The sequence number the next frame must have, known after the first frame.
    sequence: Option<u64>,
    /// Where the frames of the segment walked last end.
    end: usize,
    /// Where the last frame of that segment starts.
    last: usize,
    /// The segment before this one and where its frames end.
    before: Option<(PathBuf, usize)>,
}

impl Walk {
    /// Walks a segment that others follow: nothing in it may be damaged.
    fn whole(&mut self, image: &Image) -> Result<(), WalError> {
        let marker = image.marker()?;
        let stopped = self.frames(image, marker)?;
        if self.end == segment::HEADER_LEN || image.bytes[self.end..].iter().any(|b| *b != 0) {
            return Err(WalError::corrupt(&image.path, self.end, stopped));
        }
        self.before = Some((image.path.clone(), self.end));
        Ok(())
    }

    /// Walks the segment in which the log ends, where the last frame may be torn.
    fn ending(&mut self, image: &Image) -> Result<Option<Torn>, WalError> {
        let marker = image.marker()?;
        let stopped = self.frames(image, marker)?;
        let rest = &image.bytes[self.end..];
        if frame::any_after(rest, marker, self.sequence.unwrap_or(0)) {
            return Err(WalError::corrupt(&image.path, self.end, stopped));
        }
        let bytes = rest.iter().rposition(|b| *b != 0).map(|last| last as u64 + 1);
        Ok(bytes.map(|bytes| Torn { file: image.path.clone(), offset: self.end as u64, bytes }))
    }

    /// Segments are deleted from the beginning, but only when purged: anything else missing there is a loss.
    fn check_beginning(&self, dir: &Path, first: u32) -> Result<(), WalError> {
        let path = segment::path(dir, first);
        if first > 1 && self.sequence.is_none() {
            let what = "its opening frame is damaged, and the segments before it are gone";
            return Err(WalError::corrupt(&path, segment::HEADER_LEN, what));
        }
        if self.state.first_absent().is_some() {
            return Err(WalError::Missing { file: segment::path(dir, first - 1) });
        }
        Ok(())
    }

    /// Applies frame after frame and says why it stopped.
    fn frames(&mut self, image: &Image, marker: u32) -> Result<&'static str, WalError> {
        self.end = segment::HEADER_LEN;
        self.last = self.end;
        loop {
            let frame = match frame::parse(&image.bytes[self.end..], marker) {
                Ok(frame) => frame,
                Err(stopped) => return Ok(stopped),
            };
            let due = self.sequence.unwrap_or(if image.number == 1 { 1 } else { frame.sequence });
            if frame.sequence != due {
                return Err(self.out_of_sequence(image, due, frame.sequence));
            }
            let corrupt = |what: String| WalError::corrupt(&image.path, self.end, what);
            let body_at = self.end + frame::HEADER_LEN;
            let records = self.state.apply(image.number, body_at, frame.body).map_err(corrupt)?;
            if records != frame.records {
                return Err(corrupt(format!("the frame holds {records} records, not {}", frame.records)));
            }
            self.sequence = Some(due + 1);
            self.last = self.end;
            self.end += frame.len();
        }
    }

    /// A segment that opens with a later frame than is due means that the one before it lost its last ones.
    fn out_of_sequence(&self, image: &Image, due: u64, found: u64) -> WalError {
        match &self.before {
            Some((path, end)) if self.end == segment::HEADER_LEN => {
                let what = format!("frame {due} is due here, but the next segment opens with frame {found}");
                WalError::corrupt(path, *end, what)
            }
            _ => WalError::corrupt(&image.path, self.end, format!("frame {found} stands where {due} is due")),
        }
    }
}

/// Cuts the torn tail, gives a file that was shortened its zeros back, and writes the last frame again.
///
/// That frame may have been read from the system's cache without being on disk: the process was killed
/// before its sync, or the sync failed. From now on others rely on it, so it must be synced, and only
/// written again are its pages sure to be.
fn repair(active: &Segment, image: &Image, torn: bool, walk: &Walk) -> Result<(), WalError> {
    let len = image.bytes.len() as u64;
    let zeros_from = if torn { walk.end as u64 } else { len };
    segment::write_zeros(&active.file, zeros_from, active.capacity)
        .and_then(|()| active.file.write_all_at(&image.bytes[walk.last..walk.end], walk.last as u64))
        .and_then(|()| active.file.sync_all())
        .map_err(WalError::io("repair", &image.path))
}
