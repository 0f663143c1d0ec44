//! Records: what a frame carries, and their bytes.
//!
//! In:    `Record`s from the log store, payloads already encoded.
//! Out:   bytes inside a frame (`frame.rs`), and `Item`s read back from them.
//! Never: looks into a payload, touches a file.
//!
//! Every record is a kind byte, its fixed fields in little endian, and for most a `u32` length with that
//! many payload bytes. Kind 0 ends the list: the rest of the frame is alignment, all zeros.

use bytes::Bytes;

/// One change to the log, as the caller hands it over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The entry at `index`, which must be the next index of the log.
    Entry {
        /// Position in the log.
        index: u64,
        /// The entry, opaque to the log.
        payload: Bytes,
    },
    /// The vote, replacing the one before it.
    Vote(Bytes),
    /// Every entry at this index or after it is gone; past the end it changes nothing.
    TruncateFrom(u64),
    /// Every entry up to and including `index` is gone, since a snapshot covers it.
    PurgeUpto {
        /// The last index that is gone.
        index: u64,
        /// What the caller wants back as `Recovered::purged`, opaque to the log.
        payload: Bytes,
    },
}

impl Record {
    pub(super) fn item(&self) -> Item<'_> {
        match self {
            Self::Entry { index, payload } => Item::Entry { index: *index, payload },
            Self::Vote(payload) => Item::Vote(payload),
            Self::TruncateFrom(from) => Item::TruncateFrom(*from),
            Self::PurgeUpto { index, payload } => Item::PurgeUpto { index: *index, payload },
        }
    }
}

/// A record as it lies in a frame, with what the log itself adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    /// Opens the first frame of every segment: the index the next entry will have, if that is settled.
    Start {
        next: Option<u64>,
    },
    Entry {
        index: u64,
        payload: &'a [u8],
    },
    Vote(&'a [u8]),
    Committed(&'a [u8]),
    TruncateFrom(u64),
    PurgeUpto {
        index: u64,
        payload: &'a [u8],
    },
}

const END: u8 = 0;
const START: u8 = 1;
const ENTRY: u8 = 2;
const VOTE: u8 = 3;
const COMMITTED: u8 = 4;
const TRUNCATE_FROM: u8 = 5;
const PURGE_UPTO: u8 = 6;

impl Item<'_> {
    /// Bytes this record takes in a frame.
    pub(super) fn encoded_len(&self) -> usize {
        match self {
            Self::Start { .. } => 10,
            Self::TruncateFrom(_) => 9,
            Self::Entry { payload, .. } | Self::PurgeUpto { payload, .. } => 13 + payload.len(),
            Self::Vote(payload) | Self::Committed(payload) => 5 + payload.len(),
        }
    }

    /// Appends the record. The caller has checked that the frame stays below `frame::LEN_MAX`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Start { next } => {
                out.extend([START, u8::from(next.is_some())]);
                out.extend(next.unwrap_or(0).to_le_bytes());
            }
            Self::Entry { index, payload } => {
                out.push(ENTRY);
                out.extend(index.to_le_bytes());
                encode_payload(payload, out);
            }
            Self::Vote(payload) => {
                out.push(VOTE);
                encode_payload(payload, out);
            }
            Self::Committed(payload) => {
                out.push(COMMITTED);
                encode_payload(payload, out);
            }
            Self::TruncateFrom(from) => {
                out.push(TRUNCATE_FROM);
                out.extend(from.to_le_bytes());
            }
            Self::PurgeUpto { index, payload } => {
                out.push(PURGE_UPTO);
                out.extend(index.to_le_bytes());
                encode_payload(payload, out);
            }
        }
    }
}

fn encode_payload(payload: &[u8], out: &mut Vec<u8>) {
    out.extend((payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
}

/// Reads the records of one frame body in order, each with the position just after it.
pub(super) struct Items<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Items<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { body, at: 0 }
    }

    /// The next record and where it ends in the body (its payload is always its last part), or `None` at
    /// the end. An error means that the bytes were written by something else than this code.
    pub(super) fn next(&mut self) -> Result<Option<(Item<'a>, usize)>, &'static str> {
        let Some(&kind) = self.body.get(self.at) else { return Ok(None) };
        if kind == END {
            let padding = self.body.get(self.at..).unwrap_or_default();
            return if padding.iter().all(|b| *b == 0) { Ok(None) } else { Err("padding is not zero") };
        }
        self.at += 1;
        let item = self.fields(kind)?;
        Ok(Some((item, self.at)))
    }

    fn fields(&mut self, kind: u8) -> Result<Item<'a>, &'static str> {
        Ok(match kind {
            START => {
                let [known] = self.array()?;
                let next = u64::from_le_bytes(self.array()?);
                Item::Start { next: (known == 1).then_some(next) }
            }
            ENTRY => Item::Entry { index: u64::from_le_bytes(self.array()?), payload: self.payload()? },
            VOTE => Item::Vote(self.payload()?),
            COMMITTED => Item::Committed(self.payload()?),
            TRUNCATE_FROM => Item::TruncateFrom(u64::from_le_bytes(self.array()?)),
            PURGE_UPTO => {
                Item::PurgeUpto { index: u64::from_le_bytes(self.array()?), payload: self.payload()? }
            }
            _ => return Err("unknown kind of record"),
        })
    }

    fn payload(&mut self) -> Result<&'a [u8], &'static str> {
        let len = u32::from_le_bytes(self.array()?) as usize;
        self.take(len)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        self.take(N)?.try_into().map_err(|_| "record is cut short")
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let end = self.at.checked_add(len).ok_or("record is cut short")?;
        let bytes = self.body.get(self.at..end).ok_or("record is cut short")?;
        self.at = end;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_comes_back_as_it_went_in() {
        let items = [
            Item::Start { next: None },
            Item::Start { next: Some(7) },
            Item::Entry { index: 7, payload: b"entry" },
            Item::Entry { index: 8, payload: b"" },
            Item::Vote(b"vote"),
            Item::Committed(b"committed"),
            Item::TruncateFrom(8),
            Item::PurgeUpto { index: 7, payload: b"purged" },
        ];
        let mut body = Vec::new();
        for item in &items {
            let before = body.len();
            item.encode(&mut body);
            assert_eq!(body.len() - before, item.encoded_len());
        }
        body.extend([0; 7]);
        let mut read = Items::new(&body);
        for item in items {
            assert_eq!(read.next().unwrap().unwrap().0, item);
        }
        assert_eq!(read.next(), Ok(None));
    }

    #[test]
    fn foreign_bytes_are_refused() {
        assert!(Items::new(&[9]).next().is_err());
        assert!(Items::new(&[VOTE, 4, 0, 0, 0, 1]).next().is_err());
        assert!(Items::new(&[VOTE, 255, 255, 255, 255, 1]).next().is_err());
        assert!(Items::new(&[END, 1]).next().is_err());
    }
}
