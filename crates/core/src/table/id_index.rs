//! Claim id -> sequence number: look-ups only.
//!
//! In:    ids, and a function that tells the id of a sequence number. Out: sequence numbers.
//! Never: iterates (its order is not part of the log), and never rehashes everything at once: it is cut into
//!        parts that grow one by one, so that no command pays for a million others.

use hashbrown::HashTable;

use crate::name::ClaimId;

/// To grow, a part looks all of its claims up: with a million claims, 250 of them, a fraction of a millisecond.
const PARTS: usize = 4096;

/// Sequence numbers by claim id. The ids themselves are in the claims.
#[derive(Debug)]
pub(super) struct IdIndex {
    parts: Box<[HashTable<u64>]>,
}

impl Default for IdIndex {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| HashTable::new()).collect() }
    }
}

impl IdIndex {
    /// The number of the claim with this id, where `id_of` tells the id of a number.
    pub(super) fn find(&self, id: ClaimId, id_of: impl Fn(u64) -> ClaimId) -> Option<u64> {
        let hash = id.bucket();
        self.parts[part_of(hash)].find(hash, |seq| id_of(*seq) == id).copied()
    }

    pub(super) fn insert(&mut self, id: ClaimId, seq: u64, id_of: impl Fn(u64) -> ClaimId) {
        let hash = id.bucket();
        self.parts[part_of(hash)].insert_unique(hash, seq, |seq| id_of(*seq).bucket());
    }

    /// Makes room for so many claims in all.
    pub(super) fn reserve(&mut self, count: usize) {
        // They spread at random: a little more than their share leaves few parts to grow.
        let share = count / PARTS;
        for part in &mut self.parts[..] {
            part.reserve(share + share / 8, |_| unreachable!("an empty part moves nothing"));
        }
    }

    pub(super) fn remove(&mut self, id: ClaimId, seq: u64) {
        let hash = id.bucket();
        if let Ok(entry) = self.parts[part_of(hash)].find_entry(hash, |candidate| *candidate == seq) {
            entry.remove();
        }
    }
}

/// Bits that the hash table itself uses last: it takes its buckets from the low end and its tags from the top.
fn part_of(hash: u64) -> usize {
    (hash >> 40) as usize % PARTS
}
