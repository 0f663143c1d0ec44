//! Frames: the unit that is written and synced as a whole.
//!
//! In:    record bytes (`record.rs`) collected by the flusher.
//! Out:   header and body, checked by one crc, ready for one write; and the same read back.
//! Never: touches a file.
//!
//! ```text
//! offset  0        4          8          12               16          24
//!         crc u32  marker u32 length u32 record count u32 sequence u64 body, padded to 8 bytes
//! ```
//! The crc covers everything after itself, padding included, so no byte of a frame can change unseen. The
//! marker is drawn at random for each segment: whatever a client puts into a payload, it can't look like a
//! frame when recovery searches the bytes after a torn one.

/// Bytes before the body.
pub(super) const HEADER_LEN: usize = 24;
/// Frames start at multiples of this.
pub(super) const ALIGN: usize = 8;
/// The longest frame. Positions inside a segment are kept as `u32`, and no sane entry comes near this.
pub(super) const LEN_MAX: usize = 1 << 30;

/// A frame found intact.
pub(super) struct Frame<'a> {
    /// One more than that of the frame before it.
    pub(super) sequence: u64,
    /// How many records the body holds.
    pub(super) records: u32,
    /// The records, `HEADER_LEN` bytes into the frame.
    pub(super) body: &'a [u8],
}

impl Frame<'_> {
    /// Bytes from this frame to where the next one starts.
    pub(super) fn len(&self) -> usize {
        HEADER_LEN + self.body.len()
    }
}

/// Empties the buffer and leaves room for the header; the caller appends records, then seals.
pub(super) fn begin(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.resize(HEADER_LEN, 0);
}

/// Pads the body and fills in the header.
pub(super) fn seal(buffer: &mut Vec<u8>, marker: u32, sequence: u64, records: u32) {
    buffer.resize(buffer.len().next_multiple_of(ALIGN), 0);
    let body_len = (buffer.len() - HEADER_LEN) as u32;
    buffer[4..8].copy_from_slice(&marker.to_le_bytes());
    buffer[8..12].copy_from_slice(&body_len.to_le_bytes());
    buffer[12..16].copy_from_slice(&records.to_le_bytes());
    buffer[16..24].copy_from_slice(&sequence.to_le_bytes());
    let crc = crc32fast::hash(&buffer[4..]);
    buffer[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Reads the frame at the start of `bytes`, or says what is wrong with it.
pub(super) fn parse(bytes: &[u8], marker: u32) -> Result<Frame<'_>, &'static str> {
    let header = bytes.get(..HEADER_LEN).ok_or("the frame header is cut short")?;
    if u32_at(header, 4) != marker {
        return Err("there is no frame header");
    }
    let end = HEADER_LEN + u32_at(header, 8) as usize;
    if !end.is_multiple_of(ALIGN) {
        return Err("the frame length is impossible");
    }
    let frame = bytes.get(..end).ok_or("the frame is cut short")?;
    if crc32fast::hash(&frame[4..]) != u32_at(header, 0) {
        return Err("the frame checksum is wrong");
    }
    let sequence = u64::from(u32_at(header, 16)) | u64::from(u32_at(header, 20)) << 32;
    Ok(Frame { sequence, records: u32_at(header, 12), body: &frame[HEADER_LEN..] })
}

/// Whether an intact frame with at least this sequence number starts anywhere in `bytes`.
pub(super) fn any_after(bytes: &[u8], marker: u32, sequence: u64) -> bool {
    (0..bytes.len())
        .step_by(ALIGN)
        .any(|at| parse(&bytes[at..], marker).is_ok_and(|frame| frame.sequence >= sequence))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed() -> Vec<u8> {
        let mut buffer = Vec::new();
        begin(&mut buffer);
        buffer.extend(b"hello");
        seal(&mut buffer, 77, 9, 1);
        buffer
    }

    #[test]
    fn a_sealed_frame_parses() {
        let bytes = sealed();
        let frame = parse(&bytes, 77).ok().unwrap();
        assert_eq!((frame.sequence, frame.records, frame.body, frame.len()), (9, 1, &b"hello\0\0\0"[..], 32));
    }

    #[test]
    fn no_flipped_bit_goes_unseen() {
        for at in 0..32 {
            for bit in 0..8 {
                let mut bytes = sealed();
                bytes[at] ^= 1 << bit;
                assert!(parse(&bytes, 77).is_err(), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn later_frames_are_found_only_with_the_marker_and_a_fitting_sequence() {
        let mut bytes = vec![1; 64];
        bytes.extend(sealed());
        assert!(any_after(&bytes, 77, 9));
        assert!(!any_after(&bytes, 77, 10));
        assert!(!any_after(&bytes, 78, 1));
    }
}
