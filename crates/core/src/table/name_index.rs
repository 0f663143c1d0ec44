//! Resource name -> slot, in order of names, so that a prefix is a range.
//!
//! In:    names, and the slots where they stand. Out: slots.
//! Never: keeps a name but a few: the names are in `names.rs`, and eight bytes of each are here, which mostly decide.
//!
//! Names stand in runs of up to a few hundred. All names of a run begin alike; the eight bytes that follow are the
//! key of a name. A search compares the first names of runs, then keys, and looks a name itself up only where two keys
//! are equal.

use std::cmp::Ordering;

use super::names::Names;
use super::resource::Slot;

/// The most names in one run, so that one change moves a few kilobytes.
const RUN_LEN: usize = 512;
/// A full run reserves room for this many more, so that little memory lies unused.
const GROWTH: usize = 32;

/// All names, in order. Runs are never empty.
#[derive(Debug, Default)]
pub(super) struct NameIndex {
    runs: Vec<Run>,
    /// The run that took the last name.
    last: usize,
    /// Whether it was the same as, or the next after, the one before: names come in ascending order, and the next one
    /// usually belongs there too.
    ascending: bool,
}

/// Where a name that is not there would stand, as long as nothing changes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    run: usize,
    place: usize,
}

#[derive(Debug)]
struct Run {
    /// Not larger than the first name in it, and larger than every name in the run before.
    from: Box<str>,
    /// What all its names begin with.
    shared: Box<[u8]>,
    entries: Vec<Entry>,
}

/// Twelve bytes: the key in halves, so that it needs no alignment that would cost four more.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: [u32; 2],
    slot: Slot,
}

impl Run {
    fn of_one(from: &str, name: &str, slot: Slot) -> Self {
        Self {
            from: from.into(),
            shared: name.as_bytes().into(),
            entries: vec![Entry { key: key_of(&[]), slot }],
        }
    }

    /// The place of a name, or where it would stand.
    fn search(&self, name: &str, names: &Names) -> Result<usize, usize> {
        let Some(rest) = name.as_bytes().strip_prefix(&*self.shared) else {
            // It begins unlike all of them, so it stands before or after all of them.
            return Err(if name.as_bytes() < &*self.shared { 0 } else { self.entries.len() });
        };
        let key = key_of(rest);
        self.entries.binary_search_by(|entry| match entry.key.cmp(&key) {
            Ordering::Equal => names.get(entry.slot).cmp(name),
            unequal => unequal,
        })
    }

    /// Works the keys out anew, for names that share just this.
    fn share(&mut self, shared: &[u8], names: &Names) {
        self.shared = shared.into();
        for entry in &mut self.entries {
            entry.key = key_of(&names.get(entry.slot).as_bytes()[shared.len()..]);
        }
    }

    /// The same for what its names share now: in order, that is what the first and the last do.
    fn share_most(&mut self, names: &Names) {
        if let (Some(first), Some(last)) = (self.entries.first(), self.entries.last()) {
            let (first, last) = (names.get(first.slot).as_bytes(), names.get(last.slot).as_bytes());
            let len = shared_len(first, last);
            self.share(&first[..len], names);
        }
    }
}

impl NameIndex {
    /// The slot of a name, or where it belongs.
    pub(super) fn seek(&self, name: &str, names: &Names) -> Result<Slot, Spot> {
        let at = self.run_of(name);
        let Some(run) = self.runs.get(at) else { return Err(Spot { run: 0, place: 0 }) };
        match run.search(name, names) {
            Ok(place) => Ok(run.entries[place].slot),
            Err(place) => Err(Spot { run: at, place }),
        }
    }

    /// Adds a name where [`NameIndex::seek`] said that it belongs.
    pub(super) fn insert(&mut self, spot: Spot, name: &str, slot: Slot, names: &Names) {
        if self.runs.is_empty() {
            return self.runs.push(Run::of_one("", name, slot));
        }
        let Spot { run: mut at, mut place } = spot;
        if self.belongs_behind(at, name) {
            at += 1;
            place = self.runs[at].search(name, names).unwrap_or_else(|place| place);
        }
        if self.runs[at].entries.len() == RUN_LEN {
            if place == RUN_LEN {
                // Larger than a full run: it stays full, and the next begins.
                self.note(at + 1);
                return self.runs.insert(at + 1, Run::of_one(name, name, slot));
            }
            let cut = self.split(at, names);
            if place > cut || (place == cut && self.belongs_behind(at, name)) {
                at += 1;
                place -= cut;
            }
        }
        self.note(at);
        let run = &mut self.runs[at];
        let shared_len = shared_len(&run.shared, name.as_bytes());
        if shared_len < run.shared.len() {
            run.share(&name.as_bytes()[..shared_len], names);
        }
        if run.entries.len() == run.entries.capacity() {
            run.entries.reserve_exact(GROWTH);
        }
        let key = key_of(&name.as_bytes()[shared_len..]);
        run.entries.insert(place, Entry { key, slot });
        if *name < *run.from {
            run.from = name.into();
        }
    }

    fn note(&mut self, run: usize) {
        self.ascending = run == self.last || run == self.last + 1;
        self.last = run;
    }

    /// Whether a name that is larger than all in this run begins like those of the next: with them it leaves both as
    /// they are, while here it would be the only one of its kind.
    fn belongs_behind(&self, at: usize, name: &str) -> bool {
        let begins_like =
            |at: usize| self.runs.get(at).is_some_and(|run| name.as_bytes().starts_with(&run.shared));
        !begins_like(at) && begins_like(at + 1) && self.runs[at].shared.as_ref() < name.as_bytes()
    }

    /// Makes two runs of one: about in the middle, where neighbours have least in common, so that those that begin
    /// alike stay together and their keys tell them apart. Tells how many are in the first.
    fn split(&mut self, at: usize, names: &Names) -> usize {
        let left = &mut self.runs[at];
        let name = |place: usize| names.get(left.entries[place].slot).as_bytes();
        let shared = |place: &usize| shared_len(name(place - 1), name(*place));
        let (quarter, middle) = (RUN_LEN / 4, RUN_LEN / 2);
        let places = quarter..=RUN_LEN - quarter;
        let cut = places.min_by_key(|place| (shared(place), place.abs_diff(middle))).unwrap_or(middle);
        let entries = left.entries.split_off(cut);
        left.entries.shrink_to(cut + GROWTH);
        left.share_most(names);
        let from = names.get(entries[0].slot).into();
        let mut right = Run { from, shared: Box::default(), entries };
        right.entries.shrink_to(RUN_LEN - cut + GROWTH);
        right.share_most(names);
        self.runs.insert(at + 1, right);
        cut
    }

    /// Takes a name out, which still stands in its slot.
    pub(super) fn remove(&mut self, name: &str, names: &Names) {
        let at = self.run_of(name);
        let Some(run) = self.runs.get_mut(at) else { return };
        let Ok(place) = run.search(name, names) else { return };
        run.entries.remove(place);
        let len = run.entries.len();
        if len == 0 {
            self.runs.remove(at);
        } else if len < RUN_LEN / 4 {
            self.join(at.saturating_sub(1), at, names);
            self.join(at, at + 1, names);
        }
    }

    /// Makes one run of two neighbours if it has room to spare afterwards.
    fn join(&mut self, left: usize, right: usize, names: &Names) {
        let len = |at: usize| self.runs.get(at).map_or(RUN_LEN, |run| run.entries.len());
        if left != right && len(left) + len(right) <= RUN_LEN / 2 {
            let tail = self.runs.remove(right).entries;
            let run = &mut self.runs[left];
            run.entries.reserve_exact(tail.len());
            run.entries.extend(tail);
            run.share_most(names);
        }
    }

    /// The slots from this name on, in order of names.
    pub(super) fn from<'a>(&'a self, name: &str, names: &Names) -> impl Iterator<Item = Slot> + 'a {
        let at = self.run_of(name);
        let place = self.runs.get(at).map_or(0, |run| run.search(name, names).unwrap_or_else(|place| place));
        let rest = self.runs.get(at..).unwrap_or_default();
        rest.iter().flat_map(|run| &run.entries).skip(place).map(|entry| entry.slot)
    }

    /// The run in which a name stands or would stand.
    fn run_of(&self, name: &str) -> usize {
        let from = |at: usize| self.runs.get(at).map(|run| &*run.from);
        if self.ascending
            && from(self.last).is_some_and(|from| from <= name)
            && from(self.last + 1).is_none_or(|next| name < next)
        {
            return self.last;
        }
        self.runs.partition_point(|run| *run.from <= *name).saturating_sub(1)
    }
}

fn shared_len(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// The first eight bytes, filled up with zeros: never larger than the key of a larger name.
fn key_of(rest: &[u8]) -> [u32; 2] {
    let mut bytes = [0; 8];
    let len = rest.len().min(8);
    bytes[..len].copy_from_slice(&rest[..len]);
    let key = u64::from_be_bytes(bytes);
    [(key >> 32) as u32, key as u32]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The same as a map of the standard library, for names that share much, little, and all but what keys hold.
    #[test]
    fn names_stay_in_order() {
        let alike = |i: usize| format!("bench/hold/{i:016x}");
        let apart = |i: usize| format!("tenant-{:03}/{:x}", i % 100, i.wrapping_mul(0x9e37_79b9) & 0xff_ffff);
        let nested = |i: usize| "a".repeat(i % 90) + "\0\u{fc}" + &(i / 90).to_string();
        let shapes: [&dyn Fn(usize) -> String; 3] = [&alike, &apart, &nested];
        for shape in shapes {
            for stride in [1, 7, 2_999] {
                story(shape, stride);
            }
        }
    }

    fn story(shape: &dyn Fn(usize) -> String, stride: usize) {
        let (mut index, mut names, mut model) = (NameIndex::default(), Names::default(), BTreeMap::new());
        for i in 0..3_000 {
            let (slot, name) = (Slot::new(i as u32), shape(i * stride % 3_000));
            if model.contains_key(&name) {
                names.put(slot, "");
                continue;
            }
            let spot = index.seek(&name, &names).unwrap_err();
            names.put(slot, &name);
            index.insert(spot, &name, slot, &names);
            model.insert(name, slot);
        }
        compare(&index, &names, &model);
        let all: Vec<String> = model.keys().cloned().collect();
        for (i, name) in all.iter().enumerate().filter(|(i, _)| i % 16 != 3) {
            index.remove(name, &names);
            names.clear(model.remove(name).unwrap());
            if i % 100 == 0 {
                compare(&index, &names, &model);
            }
        }
        compare(&index, &names, &model);
    }

    fn compare(index: &NameIndex, names: &Names, model: &BTreeMap<String, Slot>) {
        assert!(index.from("", names).eq(model.values().copied()));
        for (name, slot) in model {
            assert_eq!(index.seek(name, names).ok(), Some(*slot));
        }
        for name in model.keys().step_by(37) {
            let behind = format!("{name}\0");
            assert_eq!(index.seek(&behind, names).ok(), model.get(&behind).copied());
            assert!(index.from(&behind, names).eq(model.range(behind..).map(|(_, slot)| *slot)));
        }
    }

    #[test]
    fn names_that_begin_alike_stay_together() {
        let (mut index, mut names) = (NameIndex::default(), Names::default());
        for i in 0..20_000u32 {
            let tenant = i.wrapping_mul(0x9e37_79b9) >> 16;
            let name = format!("tenant-{:03}/resource-{:014x}", tenant % 50, i.wrapping_mul(0x85eb_ca6b));
            if let Err(spot) = index.seek(&name, &names) {
                names.put(Slot::new(i), &name);
                index.insert(spot, &name, Slot::new(i), &names);
            } else {
                names.put(Slot::new(i), "");
            }
        }
        let apart = |run: &&Run| run.shared.len() >= "tenant-000/".len();
        let count = |runs: &mut dyn Iterator<Item = &Run>| runs.map(|run| run.entries.len()).sum::<usize>();
        let (all, good) = (count(&mut index.runs.iter()), count(&mut index.runs.iter().filter(apart)));
        assert!(good * 4 > all * 3, "{good} of {all} names stand among their own");
    }

    #[test]
    fn a_name_takes_twelve_bytes() {
        assert_eq!(size_of::<Entry>(), 12);
    }
}
