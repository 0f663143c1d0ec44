//! The names of resources, one copy each, in copy-on-write pages.
//!
//! In:    names, from `resource.rs`. Out: the name that stands in a slot.
//! Never: looks a name up; that is `name_index.rs`.
//!
//! A name of its own allocation costs as much again for counters, pointers and rounding; here it costs four bytes.
//! A snapshot shares the pages, since the claims in it know their resources by slot.

use std::sync::Arc;

use super::resource::Slot;

/// Names on a page.
const PAGE_LEN: usize = 64;
/// Pages on a shelf: freezing copies one pointer a shelf.
const SHELF_LEN: usize = 64;
/// A full page reserves room for this many names as long as the new one.
const GROWTH: usize = 8;

#[derive(Debug, Clone)]
struct Page {
    /// All names of the page, one behind the other in order of their slots.
    text: String,
    /// Where each ends. What is not there ends where it begins.
    ends: [u32; PAGE_LEN],
}

impl Default for Page {
    fn default() -> Self {
        Self { text: String::new(), ends: [0; PAGE_LEN] }
    }
}

impl Page {
    fn range(&self, place: usize) -> std::ops::Range<usize> {
        let start = if place == 0 { 0 } else { self.ends[place - 1] };
        start as usize..self.ends[place] as usize
    }

    fn put(&mut self, place: usize, name: &str) {
        if self.text.len() + name.len() > self.text.capacity() {
            self.text.reserve_exact(name.len() * GROWTH);
        }
        self.text.insert_str(self.range(place).start, name);
        self.ends[place..].iter_mut().for_each(|end| *end += name.len() as u32);
    }

    fn clear(&mut self, place: usize) {
        let range = self.range(place);
        self.ends[place..].iter_mut().for_each(|end| *end -= range.len() as u32);
        self.text.drain(range);
        if self.text.len() < self.text.capacity() / 4 {
            self.text.shrink_to_fit();
        }
    }
}

type Shelf = Vec<Arc<Page>>;

/// Names by slot.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    shelves: Vec<Arc<Shelf>>,
}

impl Names {
    /// The name in this slot; empty where there is none.
    pub(super) fn get(&self, slot: Slot) -> &str {
        let (shelf, page, place) = places(slot);
        let page = &self.shelves[shelf][page];
        &page.text[page.range(place)]
    }

    /// Puts a name into an empty slot: one that was used before, or the next.
    pub(super) fn put(&mut self, slot: Slot, name: &str) {
        let (shelf, page, place) = places(slot);
        if shelf == self.shelves.len() {
            self.shelves.push(Arc::new(Vec::with_capacity(SHELF_LEN)));
        }
        let shelf = Arc::make_mut(&mut self.shelves[shelf]);
        if page == shelf.len() {
            shelf.push(Arc::default());
        }
        Arc::make_mut(&mut shelf[page]).put(place, name);
    }

    pub(super) fn clear(&mut self, slot: Slot) {
        let (shelf, page, place) = places(slot);
        Arc::make_mut(&mut Arc::make_mut(&mut self.shelves[shelf])[page]).clear(place);
    }
}

/// Shelf, page and place of a slot.
fn places(slot: Slot) -> (usize, usize, usize) {
    let (page, place) = (slot.index() / PAGE_LEN, slot.index() % PAGE_LEN);
    (page / SHELF_LEN, page % SHELF_LEN, place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_its_own_name_also_after_others_left() {
        let name = |i: usize| "n\u{fc}".repeat(i % 7) + &i.to_string();
        let mut names = Names::default();
        let slots: Vec<Slot> = (0..10_000).map(Slot::new).collect();
        slots.iter().for_each(|slot| names.put(*slot, &name(slot.index())));
        let before = names.clone();
        slots.iter().step_by(3).for_each(|slot| names.clear(*slot));
        slots.iter().step_by(6).for_each(|slot| names.put(*slot, "again"));
        for slot in &slots {
            let i = slot.index();
            let expected = match i % 6 {
                0 => "again".to_string(),
                3 => String::new(),
                _ => name(i),
            };
            assert_eq!(names.get(*slot), expected);
            assert_eq!(before.get(*slot), name(i), "a copy stays as it was");
        }
    }
}
