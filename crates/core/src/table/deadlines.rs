//! Who ends when: the deadlines of all live claims, in order.
//!
//! In:    `steps.rs` adds and removes. Out: the earliest.
//! Never: costs much more than its bytes: fourteen a claim, in runs that lie together, where a tree of the standard
//!        library takes forty.
//!
//! A renewal usually removes a deadline somewhere and adds one at the end: runs at the end fill up whole, and runs that
//! have become short join their neighbours.

use super::packed::Packed;

/// The most deadlines in one run, so that one change moves a few kilobytes.
const RUN_LEN: usize = 512;
/// A full run reserves room for this many more, so that little memory lies unused.
const GROWTH: usize = 32;

/// An instant and the claim that ends then; two that end at one instant do so in order of creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    /// Four digits, so that a deadline needs no alignment that would cost two bytes more.
    deadline: [u16; 4],
    seq: Packed,
}

impl Due {
    fn new(deadline_us: u64, seq: u64) -> Self {
        let digit = |place: u32| (deadline_us >> (16 * place)) as u16;
        Self { deadline: [digit(3), digit(2), digit(1), digit(0)], seq: Packed::new(seq) }
    }

    fn parts(self) -> (u64, u64) {
        let deadline_us = self.deadline.into_iter().fold(0, |sum, digit| sum << 16 | u64::from(digit));
        (deadline_us, self.seq.get())
    }
}

/// Deadlines, in order. Runs are never empty.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    runs: Vec<Run>,
}

#[derive(Debug)]
struct Run {
    /// Not later than the first in it, and later than all in the run before; kept here for the search.
    from: Due,
    dues: Vec<Due>,
}

impl Deadlines {
    /// The earliest deadline and whose it is.
    pub(super) fn first(&self) -> Option<(u64, u64)> {
        self.runs.first().map(|run| run.dues[0].parts())
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.runs.iter().flat_map(|run| &run.dues).map(|due| due.parts())
    }

    pub(super) fn insert(&mut self, deadline_us: u64, seq: u64) {
        let due = Due::new(deadline_us, seq);
        if self.runs.is_empty() {
            return self.runs.push(Run { from: due, dues: vec![due] });
        }
        let mut at = self.run_of(due);
        let mut place = self.runs[at].dues.partition_point(|other| *other < due);
        if self.runs[at].dues.len() == RUN_LEN {
            if place == RUN_LEN {
                // Later than a full run: it stays full, and the next begins.
                return self.runs.insert(at + 1, Run { from: due, dues: vec![due] });
            }
            let left = &mut self.runs[at].dues;
            let right = left.split_off(RUN_LEN / 2);
            left.shrink_to(RUN_LEN / 2 + GROWTH);
            self.runs.insert(at + 1, Run { from: right[0], dues: right });
            if place > RUN_LEN / 2 {
                at += 1;
                place -= RUN_LEN / 2;
            }
        }
        let run = &mut self.runs[at];
        if run.dues.len() == run.dues.capacity() {
            run.dues.reserve_exact(GROWTH);
        }
        run.dues.insert(place, due);
        run.from = run.from.min(due);
    }

    pub(super) fn remove(&mut self, deadline_us: u64, seq: u64) {
        let due = Due::new(deadline_us, seq);
        if self.runs.is_empty() {
            return;
        }
        let at = self.run_of(due);
        let dues = &mut self.runs[at].dues;
        let Ok(place) = dues.binary_search(&due) else { return };
        dues.remove(place);
        let len = dues.len();
        if len == 0 {
            self.runs.remove(at);
        } else if len < RUN_LEN / 4 {
            self.join(at.saturating_sub(1), at);
            self.join(at, at + 1);
        }
    }

    /// Makes one run of two neighbours if it has room to spare afterwards.
    fn join(&mut self, left: usize, right: usize) {
        let len = |at: usize| self.runs.get(at).map_or(RUN_LEN, |run| run.dues.len());
        if left != right && len(left) + len(right) <= RUN_LEN / 2 {
            let tail = self.runs.remove(right).dues;
            self.runs[left].dues.reserve_exact(tail.len());
            self.runs[left].dues.extend(tail);
        }
    }

    /// The run in which a deadline stands or would stand.
    fn run_of(&self, due: Due) -> usize {
        self.runs.partition_point(|run| run.from <= due).saturating_sub(1)
    }
}

impl FromIterator<(u64, u64)> for Deadlines {
    /// In one go: sorted first, every run full.
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(deadlines: I) -> Self {
        let mut dues: Vec<Due> =
            deadlines.into_iter().map(|(deadline_us, seq)| Due::new(deadline_us, seq)).collect();
        dues.sort_unstable();
        let runs = dues.chunks(RUN_LEN).map(|run| Run { from: run[0], dues: run.to_vec() });
        Self { runs: runs.collect() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The same as a set of the standard library, under every order of arrival and departure.
    #[test]
    fn deadlines_stay_in_order() {
        for stride in [1, 7, 4_999, 5_003, 9_999] {
            let (mut deadlines, mut model) = (Deadlines::default(), BTreeSet::new());
            for i in 0..10_000u64 {
                let due = ((i * stride) % 10_000 / 3 * 100_000, i);
                deadlines.insert(due.0, due.1);
                model.insert(due);
            }
            assert!(deadlines.iter().eq(model.iter().copied()), "after inserting by {stride}");
            assert_eq!(deadlines.iter().collect::<Deadlines>().iter().count(), 10_000);
            let all: Vec<(u64, u64)> = model.iter().copied().collect();
            for (i, due) in (0u64..).zip(all.iter().cycle().step_by(3).take(all.len())) {
                if i % 5 != 0 {
                    deadlines.remove(due.0, due.1);
                    model.remove(due);
                }
                assert_eq!(deadlines.first(), model.first().copied());
            }
            assert!(deadlines.iter().eq(model.iter().copied()), "after removing by {stride}");
            assert!(deadlines.runs.iter().all(|run| !run.dues.is_empty() && run.from <= run.dues[0]));
        }
    }

    #[test]
    fn what_is_not_there_is_not_removed() {
        let mut deadlines = Deadlines::default();
        deadlines.remove(1, 1);
        deadlines.insert(5, 1);
        deadlines.remove(5, 2);
        deadlines.remove(4, 1);
        assert_eq!(deadlines.first(), Some((5, 1)));
    }

    #[test]
    fn a_deadline_takes_fourteen_bytes() {
        assert_eq!(size_of::<Due>(), 14);
    }
}
