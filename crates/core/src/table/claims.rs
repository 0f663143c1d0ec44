//! All claims, by sequence number, in copy-on-write pages.
//!
//! In:    `steps.rs` inserts, changes and removes. Out: look-ups, and ordered walks for lists and snapshots.
//! Never: moves a claim: its sequence number (order of creation) is its address for life.
//!
//! A page holds the claims whose numbers share all but their last six bits, and a shelf 64 pages. Freezing the table
//! clones one pointer a shelf; while a snapshot is being written, the first change of a page copies just that page
//! and the pointers of its shelf.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::claim::Status;
use super::record::Record;

/// How many of a sequence number's bits are the place in its page.
pub(super) const PAGE_BITS: u32 = 6;
/// Claims in a full page.
pub(super) const PAGE_LEN: usize = 1 << PAGE_BITS;
/// How many of a page number's bits are the place on its shelf.
const SHELF_BITS: u32 = 6;
/// Pages on a full shelf.
const SHELF_LEN: usize = 1 << SHELF_BITS;

/// The claims whose sequence numbers share a page number, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Page {
    /// Sorted by slot. Dense while the claims are new; finished ones leave.
    pub(super) claims: Vec<Record>,
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

/// Pages with neighbouring numbers.
#[derive(Debug, Clone)]
struct Shelf {
    pages: Box<[Option<Arc<Page>>]>,
    /// How many pages there are.
    len: usize,
}

impl Default for Shelf {
    fn default() -> Self {
        Self { pages: vec![None; SHELF_LEN].into(), len: 0 }
    }
}

/// All claims.
#[derive(Debug, Clone)]
pub(super) struct Claims {
    shelves: BTreeMap<u64, Arc<Shelf>>,
    next_seq: u64,
    len: usize,
    counts: [u64; Status::ALL.len()],
}

impl Default for Claims {
    /// Numbers start at 1, so that 0 can stand for "none".
    fn default() -> Self {
        Self { shelves: BTreeMap::new(), next_seq: 1, len: 0, counts: [0; Status::ALL.len()] }
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
        let first = seq >> PAGE_BITS;
        self.shelves.range(first >> SHELF_BITS..).flat_map(move |(shelf_number, shelf)| {
            let start = shelf_number << SHELF_BITS;
            let passed = first.saturating_sub(start) as usize;
            let pages = (start..).zip(&shelf.pages).skip(passed);
            pages.filter_map(|(number, page)| Some((number, &**page.as_ref()?)))
        })
    }

    /// Adds a claim under the next sequence number.
    pub(super) fn insert(&mut self, mut claim: Record) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        claim.slot = slot_of(seq);
        self.len += 1;
        self.counts[claim.status as usize] += 1;
        let page = Arc::make_mut(self.page_slot(seq >> PAGE_BITS).get_or_insert_default());
        if page.claims.len() == page.claims.capacity() {
            page.claims.reserve_exact(PAGE_LEN.saturating_sub(page.claims.len()));
        }
        page.counts[claim.status as usize] += 1;
        page.claims.push(claim);
        seq
    }

    /// Adds a whole page as a snapshot brings it: its slots are set, and there is no such page yet.
    pub(super) fn put_page(&mut self, number: u64, claims: Vec<Record>) {
        let mut page = Page { claims, ..Page::default() };
        self.len += page.claims.len();
        for claim in &page.claims {
            page.counts[claim.status as usize] += 1;
            self.counts[claim.status as usize] += 1;
        }
        *self.page_slot(number) = Some(Arc::new(page));
    }

    /// Where a page that is about to be filled stands.
    fn page_slot(&mut self, number: u64) -> &mut Option<Arc<Page>> {
        let shelf = Arc::make_mut(self.shelves.entry(number >> SHELF_BITS).or_default());
        let page = &mut shelf.pages[place_on_shelf(number)];
        if page.is_none() {
            shelf.len += 1;
        }
        page
    }

    pub(super) fn get(&self, seq: u64) -> Option<&Record> {
        let number = seq >> PAGE_BITS;
        let page = self.shelves.get(&(number >> SHELF_BITS))?.pages[place_on_shelf(number)].as_ref()?;
        page.find(seq).map(|place| &page.claims[place])
    }

    /// The claim with this number, which the caller took from an index.
    pub(super) fn at(&self, seq: u64) -> &Record {
        self.get(seq).expect("an index names a claim that exists")
    }

    /// Changes a claim, and keeps the counts by status.
    pub(super) fn update(&mut self, seq: u64, change: impl FnOnce(&mut Record)) -> &Record {
        let number = seq >> PAGE_BITS;
        let shelf =
            self.shelves.get_mut(&(number >> SHELF_BITS)).expect("an index names a shelf that exists");
        let page = Arc::make_mut(shelf).pages[place_on_shelf(number)].as_mut();
        let page = Arc::make_mut(page.expect("an index names a page that exists"));
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
        claim
    }

    pub(super) fn remove(&mut self, seq: u64) -> Record {
        let number = seq >> PAGE_BITS;
        let shelf_number = number >> SHELF_BITS;
        let shelf = self.shelves.get_mut(&shelf_number).expect("an index names a shelf that exists");
        let shelf = Arc::make_mut(shelf);
        let slot = &mut shelf.pages[place_on_shelf(number)];
        let page = Arc::make_mut(slot.as_mut().expect("an index names a page that exists"));
        let place = page.find(seq).expect("an index names a claim that exists");
        let claim = page.claims.remove(place);
        page.counts[claim.status as usize] -= 1;
        self.counts[claim.status as usize] -= 1;
        self.len -= 1;
        if page.claims.is_empty() {
            *slot = None;
            shelf.len -= 1;
        } else if page.claims.len() <= page.claims.capacity() / 4 {
            // One claim held for months must not keep a page for sixty-four.
            page.claims.shrink_to_fit();
        }
        if shelf.len == 0 {
            self.shelves.remove(&shelf_number);
        }
        claim
    }
}

fn place_on_shelf(page_number: u64) -> usize {
    (page_number & (SHELF_LEN as u64 - 1)) as usize
}

fn slot_of(seq: u64) -> u8 {
    (seq & (PAGE_LEN as u64 - 1)) as u8
}
