//! All claims, by sequence number, in copy-on-write pages.
//!
//! In:    `apply.rs` inserts, changes and removes. Out: look-ups, and ordered walks for lists and snapshots.
//! Never: moves a claim: its sequence number (order of creation) is its address for life.
//!
//! A page holds the claims whose numbers share all but their last six bits. Freezing the table clones one
//! pointer a page; while a snapshot is being written, the first change of a page copies just that page.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::claim::{Claim, Status};

/// How many of a sequence number's bits are the place in its page.
pub(super) const PAGE_BITS: u32 = 6;
/// Claims in a full page.
pub(super) const PAGE_LEN: usize = 1 << PAGE_BITS;

/// The claims whose sequence numbers share a page number, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Page {
    /// Sorted by slot. Dense while the claims are new; finished ones leave.
    pub(super) claims: Vec<Claim>,
    /// How many of them are in each status, so that lists skip whole pages.
    pub(super) counts: [u8; Status::ALL.len()],
}

impl Page {
    fn find(&self, seq: u64) -> Option<usize> {
        let slot = slot_of(seq);
        // While nothing has left the page, the slot is the place.
        match self.claims.get(usize::from(slot)) {
            Some(claim) if claim.slot == slot => Some(usize::from(slot)),
            _ => self.claims.binary_search_by_key(&slot, |claim| claim.slot).ok(),
        }
    }
}

/// All claims.
#[derive(Debug, Clone)]
pub(super) struct Claims {
    pages: BTreeMap<u64, Arc<Page>>,
    next_seq: u64,
    len: usize,
    counts: [u64; Status::ALL.len()],
}

impl Default for Claims {
    /// Numbers start at 1, so that 0 can stand for "none".
    fn default() -> Self {
        Self { pages: BTreeMap::new(), next_seq: 1, len: 0, counts: [0; Status::ALL.len()] }
    }
}

impl Claims {
    pub(super) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    pub(super) fn set_next_seq(&mut self, next_seq: u64) {
        self.next_seq = next_seq;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many claims are in this status.
    pub(super) fn count(&self, status: Status) -> u64 {
        self.counts[status as usize]
    }

    /// The pages from the one that holds `seq` on, with their numbers.
    pub(super) fn pages_from(&self, seq: u64) -> impl Iterator<Item = (u64, &Page)> {
        self.pages.range(seq >> PAGE_BITS..).map(|(number, page)| (*number, &**page))
    }

    /// Adds a claim under the next sequence number.
    pub(super) fn insert(&mut self, mut claim: Claim) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        claim.slot = slot_of(seq);
        self.put(seq >> PAGE_BITS, claim);
        seq
    }

    /// Adds a claim whose slot is already set, as a snapshot brings it: in ascending order.
    pub(super) fn put(&mut self, page_number: u64, claim: Claim) {
        self.len += 1;
        self.counts[claim.status as usize] += 1;
        let page = self.pages.entry(page_number).or_default();
        let page = Arc::make_mut(page);
        if page.claims.capacity() == 0 {
            page.claims.reserve_exact(PAGE_LEN);
        }
        page.counts[claim.status as usize] += 1;
        page.claims.push(claim);
    }

    pub(super) fn get(&self, seq: u64) -> Option<&Claim> {
        let page = self.pages.get(&(seq >> PAGE_BITS))?;
        page.find(seq).map(|place| &page.claims[place])
    }

    /// The claim with this number, which the caller took from an index.
    pub(super) fn at(&self, seq: u64) -> &Claim {
        self.get(seq).expect("an index names a claim that exists")
    }

    /// Changes a claim, and keeps the counts by status.
    pub(super) fn update(&mut self, seq: u64, change: impl FnOnce(&mut Claim)) {
        let page = self.pages.get_mut(&(seq >> PAGE_BITS)).expect("an index names a page that exists");
        let page = Arc::make_mut(page);
        let place = page.find(seq).expect("an index names a claim that exists");
        let claim = &mut page.claims[place];
        let before = claim.status;
        change(claim);
        let after = claim.status;
        if before != after {
            page.counts[before as usize] -= 1;
            page.counts[after as usize] += 1;
            self.counts[before as usize] -= 1;
            self.counts[after as usize] += 1;
        }
    }

    pub(super) fn remove(&mut self, seq: u64) -> Claim {
        let number = seq >> PAGE_BITS;
        let slot = self.pages.get_mut(&number).expect("an index names a page that exists");
        let page = Arc::make_mut(slot);
        let place = page.find(seq).expect("an index names a claim that exists");
        let claim = page.claims.remove(place);
        page.counts[claim.status as usize] -= 1;
        self.counts[claim.status as usize] -= 1;
        self.len -= 1;
        if page.claims.is_empty() {
            self.pages.remove(&number);
        } else if page.claims.len() <= page.claims.capacity() / 4 {
            // One claim held for months must not keep a page for sixty-four.
            page.claims.shrink_to_fit();
        }
        claim
    }
}

fn slot_of(seq: u64) -> u8 {
    (seq & (PAGE_LEN as u64 - 1)) as u8
}
