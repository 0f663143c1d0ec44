//! What the log holds, kept in memory: the latest vote and marks, and where every live entry lies.
//!
//! In:    the records of every frame, at recovery and again right after the flusher has synced one. Both go
//!        through `LogState::apply`, so a running node never believes more than a restart would find.
//! Out:   positions for `reader.rs`, the opening records for a new segment, which segments are dead.
//! Never: touches a file.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;

use super::record::{Item, Items};
use super::segment;

/// Where the log begins and ends; enough to judge whether a record may follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// The index the next entry must have; `None` while the log has never had an entry or a purge.
    pub(super) next: Option<u64>,
    /// The last purged index.
    pub(super) purged: Option<u64>,
}

impl Cursor {
    /// Moves past one record. `Ok(false)` means that the record changes nothing and need not be written.
    pub(super) fn step(&mut self, item: &Item<'_>) -> Result<bool, String> {
        match *item {
            Item::Entry { index, .. } => {
                if let Some(next) = self.next.filter(|next| *next != index) {
                    return Err(format!("entry {index} follows where entry {next} is due"));
                }
                self.next = Some(index.checked_add(1).ok_or("the entry index is too large")?);
                Ok(true)
            }
            Item::TruncateFrom(from) => {
                if let Some(purged) = self.purged.filter(|purged| from <= *purged) {
                    return Err(format!(
                        "the log is cut from entry {from} on, but entries up to {purged} are gone already"
                    ));
                }
                let changes = self.next.is_some_and(|next| from < next);
                self.next = if changes { Some(from) } else { self.next };
                Ok(changes)
            }
            Item::PurgeUpto { index, .. } => {
                let after = index.checked_add(1).ok_or("the purge index is too large")?;
                let changes = self.purged.is_none_or(|purged| purged < index);
                self.purged = self.purged.max(Some(index));
                self.next = self.next.max(Some(after));
                Ok(changes)
            }
            Item::Start { .. } | Item::Vote(_) | Item::Committed(_) => Ok(true),
        }
    }
}

/// Where the payload of one entry lies. Kept small: there is one for every live entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// The segment's number.
    pub(super) segment: u32,
    /// Position of the payload in the file.
    pub(super) offset: u32,
    /// Length of the payload.
    pub(super) len: u32,
    /// Checksum of the payload, so that a read needs not fetch the whole frame to be checked.
    pub(super) crc: u32,
}

/// The log as its records have made it.
#[derive(Debug, Default)]
pub(super) struct LogState {
    /// Begin and end of the log.
    pub(super) cursor: Cursor,
    /// The latest vote.
    pub(super) vote: Option<Bytes>,
    /// The latest committed mark.
    pub(super) committed: Option<Bytes>,
    /// What came with the latest purge.
    pub(super) purged: Option<Bytes>,
    /// Payload bytes of all live entries.
    pub(super) live_bytes: u64,
    /// The segment of the latest frame; never deleted.
    pub(super) segment: u32,
    /// Entries below this index are not in the files there are, so they must have been purged.
    absent_below: u64,
    /// The index of the first slot.
    first: u64,
    /// One for every live entry.
    slots: VecDeque<Slot>,
}

impl LogState {
    /// The records that open a new segment, so that it can be read without those before it.
    pub(super) fn preamble(&self) -> impl Iterator<Item = Item<'_>> {
        let start = Item::Start { next: self.cursor.next };
        let purged = self.cursor.purged.zip(self.purged.as_deref());
        let purged = purged.map(|(index, payload)| Item::PurgeUpto { index, payload });
        let vote = self.vote.as_deref().map(Item::Vote);
        let committed = self.committed.as_deref().map(Item::Committed);
        [Some(start), purged, vote, committed].into_iter().flatten()
    }

    /// Takes over all records of a frame whose body starts at byte `offset` of a segment.
    pub(super) fn apply(&mut self, segment: u32, offset: usize, body: &[u8]) -> Result<u32, String> {
        let mut items = Items::new(body);
        let mut count = 0;
        while let Some((item, end)) = items.next()? {
            let first_in_segment = offset == segment::HEADER_LEN + super::frame::HEADER_LEN && count == 0;
            if first_in_segment != matches!(item, Item::Start { .. }) {
                return Err("the opening record of a segment is not where it belongs".into());
            }
            self.apply_item(item, segment, offset + end)?;
            count += 1;
        }
        self.segment = segment;
        Ok(count)
    }

    fn apply_item(&mut self, item: Item<'_>, segment: u32, end: usize) -> Result<(), String> {
        self.cursor.step(&item)?;
        match item {
            Item::Start { next } => return self.start(next),
            Item::Entry { index, payload } => {
                let end = u32::try_from(end).map_err(|_| "the segment is too large")?;
                self.push(index, segment, end, payload);
            }
            Item::Vote(payload) => self.vote = Some(Bytes::copy_from_slice(payload)),
            Item::Committed(payload) => self.committed = Some(Bytes::copy_from_slice(payload)),
            Item::TruncateFrom(from) => self.drop_from(from),
            Item::PurgeUpto { index, payload } => {
                if self.cursor.purged == Some(index) {
                    self.purged = Some(Bytes::copy_from_slice(payload));
                }
                self.drop_upto(index);
            }
        }
        Ok(())
    }

    /// The first segment there is says where the log goes on; every later one must agree.
    fn start(&mut self, next: Option<u64>) -> Result<(), String> {
        if self.segment == 0 {
            self.cursor.next = next;
            self.absent_below = next.unwrap_or(0);
        } else if self.cursor.next != next {
            let entry = |next: Option<u64>| next.map_or("no entry".into(), |next| format!("entry {next}"));
            return Err(format!(
                "the segment goes on with {}, where {} is due",
                entry(next),
                entry(self.cursor.next)
            ));
        }
        Ok(())
    }

    fn push(&mut self, index: u64, segment: u32, end: u32, payload: &[u8]) {
        if self.slots.is_empty() {
            self.first = index;
        }
        let len = payload.len() as u32;
        self.live_bytes += u64::from(len);
        self.slots.push_back(Slot { segment, offset: end - len, len, crc: crc32fast::hash(payload) });
    }

    fn drop_from(&mut self, from: u64) {
        self.absent_below = self.absent_below.min(from);
        let keep = from.saturating_sub(self.first).min(self.slots.len() as u64) as usize;
        self.live_bytes -= self.slots.drain(keep..).map(|slot| u64::from(slot.len)).sum::<u64>();
    }

    fn drop_upto(&mut self, index: u64) {
        let gone = (index + 1).saturating_sub(self.first).min(self.slots.len() as u64);
        self.live_bytes -= self.slots.drain(..gone as usize).map(|slot| u64::from(slot.len)).sum::<u64>();
        self.first += gone;
    }

    /// The live entries. An empty range stands at the next index.
    pub(super) fn live(&self) -> Range<u64> {
        match self.slots.len() as u64 {
            0 => self.cursor.next.map_or(0..0, |next| next..next),
            len => self.first..self.first + len,
        }
    }

    /// The place of a live entry.
    pub(super) fn slot(&self, index: u64) -> Option<Slot> {
        let at = index.checked_sub(self.first)?;
        self.slots.get(usize::try_from(at).ok()?).copied()
    }

    /// The first segment that must stay. Those before it hold nothing but purged or truncated entries, and
    /// the record of that purge is synced. Without a purge that reaches the live entries nothing may go:
    /// recovery could not tell deleted segments from lost ones.
    pub(super) fn first_needed_segment(&self) -> u32 {
        if self.cursor.purged.and_then(|purged| purged.checked_add(1)) != Some(self.live().start) {
            return 0;
        }
        self.slots.front().map_or(self.segment, |slot| slot.segment)
    }

    /// After recovery: the first entry that is neither in the files nor purged, if there is one.
    pub(super) fn first_absent(&self) -> Option<u64> {
        let due = self.cursor.purged.map_or(0, |purged| purged + 1);
        (due < self.absent_below).then_some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64) -> Item<'static> {
        Item::Entry { index, payload: b"xyz" }
    }

    fn state(items: &[Item<'_>]) -> LogState {
        let mut state = LogState { segment: 1, ..LogState::default() };
        for item in items {
            state.apply_item(*item, 1, 100).unwrap();
        }
        state
    }

    #[test]
    fn the_first_entry_may_have_any_index_and_then_there_are_no_gaps() {
        let mut cursor = Cursor::default();
        assert_eq!(cursor.step(&entry(5)), Ok(true));
        assert!(cursor.step(&entry(7)).is_err());
        assert!(cursor.step(&entry(5)).is_err());
        assert_eq!(cursor.step(&entry(6)), Ok(true));
    }

    #[test]
    fn truncating_past_the_end_and_purging_again_change_nothing() {
        let mut cursor = Cursor { next: Some(4), purged: Some(1) };
        let before = cursor;
        assert_eq!(cursor.step(&Item::TruncateFrom(4)), Ok(false));
        assert_eq!(cursor.step(&Item::PurgeUpto { index: 1, payload: b"" }), Ok(false));
        assert_eq!(cursor, before);
        assert!(cursor.step(&Item::TruncateFrom(1)).is_err());
    }

    #[test]
    fn truncate_and_purge_drop_slots_and_bytes() {
        let purge = Item::PurgeUpto { index: 1, payload: b"p" };
        let state = state(&[entry(0), entry(1), entry(2), entry(3), Item::TruncateFrom(3), purge]);
        assert_eq!((state.live(), state.live_bytes), (2..3, 3));
        assert!(state.slot(1).is_none() && state.slot(2).is_some() && state.slot(3).is_none());
    }

    #[test]
    fn a_purge_past_the_end_empties_the_log_and_moves_it() {
        let mut state = state(&[entry(0), Item::PurgeUpto { index: 9, payload: b"p" }]);
        assert_eq!((state.live(), state.live_bytes), (10..10, 0));
        state.apply_item(entry(10), 1, 100).unwrap();
        assert_eq!(state.live(), 10..11);
    }

    #[test]
    fn segments_go_only_when_a_purge_covers_what_they_held() {
        let mut state = state(&[entry(0), entry(1)]);
        state.segment = 2;
        assert_eq!(state.first_needed_segment(), 0);
        state.apply_item(Item::TruncateFrom(0), 2, 100).unwrap();
        assert_eq!(state.first_needed_segment(), 0);
        state.apply_item(Item::PurgeUpto { index: 4, payload: b"p" }, 2, 100).unwrap();
        assert_eq!(state.first_needed_segment(), 2);
    }
}
