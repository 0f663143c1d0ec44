//! The claims on one resource that are admitted other than as its only holder: sharers, holders of slots, reservations.
//!
//! In:    `resource.rs`, one change at a time. Out: who they are, what they come to, and which slots are free.
//! Never: part of a snapshot: `restore.rs` makes it again from the claims.

use std::collections::VecDeque;

use super::load::Load;
use crate::command::Mode;

/// Admitted claims of one resource, and the claims that want slots of it.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// In order of arrival.
    holders: VecDeque<u64>,
    /// Claims that are admitted here and wait elsewhere, in order of arrival.
    reserved: VecDeque<u64>,
    /// What both come to.
    load: Load,
    /// The token that all sharers have, from the first grant on until none is left; 0 if there is none.
    phase_token: u64,
    /// How many slots there are, while `slot_claims` live claims have or want some.
    capacity: u16,
    slot_claims: u32,
    /// A bit for each slot that is held.
    used: Vec<u64>,
}

impl Crowd {
    pub(super) fn holders(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.holders.iter().copied()
    }

    pub(super) fn reserved(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.reserved.iter().copied()
    }

    /// How many claims hold or reserve.
    pub(super) fn admitted(&self) -> usize {
        self.holders.len() + self.reserved.len()
    }

    pub(super) fn holders_len(&self) -> u64 {
        self.holders.len() as u64
    }

    pub(super) fn reserved_len(&self) -> u64 {
        self.reserved.len() as u64
    }

    /// The place of a claim among those that reserve, from 0.
    pub(super) fn place_reserved(&self, seq: u64) -> Option<u64> {
        self.reserved.binary_search(&seq).ok().map(|place| place as u64)
    }

    pub(super) fn load(&self) -> Load {
        self.load
    }

    pub(super) fn is_empty(&self) -> bool {
        self.admitted() == 0 && self.slot_claims == 0
    }

    pub(super) fn hold(&mut self, seq: u64, mode: Mode) {
        if !remove(&mut self.reserved, seq) {
            self.load = self.load.with(mode);
        }
        insert(&mut self.holders, seq);
    }

    pub(super) fn reserve(&mut self, seq: u64, mode: Mode) {
        self.load = self.load.with(mode);
        insert(&mut self.reserved, seq);
    }

    pub(super) fn unreserve(&mut self, seq: u64, mode: Mode) {
        if remove(&mut self.reserved, seq) {
            self.lighten(mode);
        }
    }

    pub(super) fn let_go(&mut self, seq: u64, mode: Mode) {
        if remove(&mut self.holders, seq) {
            self.lighten(mode);
        }
        if self.holders.is_empty() {
            self.phase_token = 0;
        }
    }

    /// Takes one admitted claim out of the load.
    fn lighten(&mut self, mode: Mode) {
        self.load = match (self.load, mode) {
            _ if self.admitted() == 0 => Load::Free,
            (Load::Slots(taken), Mode::Slots { take, .. }) => Load::Slots(taken.saturating_sub(take)),
            (load, _) => load,
        };
    }

    // ---- tokens

    /// The token of the sharers that hold at the moment.
    pub(super) fn phase_token(&self) -> Option<u64> {
        (self.phase_token > 0).then_some(self.phase_token)
    }

    pub(super) fn set_phase_token(&mut self, token: u64) {
        self.phase_token = token;
    }

    // ---- slots

    pub(super) fn capacity(&self) -> Option<u16> {
        (self.slot_claims > 0).then_some(self.capacity)
    }

    pub(super) fn add_slot_claim(&mut self, of: u16) {
        self.capacity = of;
        self.slot_claims += 1;
    }

    pub(super) fn remove_slot_claim(&mut self, slots: &[u16]) {
        self.slot_claims -= 1;
        for slot in slots {
            let (word, bit) = place_of(*slot);
            if let Some(word) = self.used.get_mut(word) {
                *word &= !bit;
            }
        }
        if self.slot_claims == 0 {
            self.used = Vec::new();
        }
    }

    /// The lowest free slots. There are enough of them: what is admitted is never more than the capacity.
    pub(super) fn take_slots(&mut self, count: u16) -> Box<[u16]> {
        self.used.resize(self.capacity.div_ceil(64) as usize, 0);
        let free = |(place, word): (usize, &u64)| (!*word != 0).then_some(place);
        let mut taken = Vec::with_capacity(count as usize);
        while taken.len() < count as usize
            && let Some(place) = self.used.iter().enumerate().find_map(free)
        {
            let bit = self.used[place].trailing_ones();
            self.used[place] |= 1 << bit;
            taken.push((place as u32 * 64 + bit + 1) as u16);
        }
        taken.into()
    }

    /// Marks a slot as held; `false` if it was, or if there is no such slot.
    pub(super) fn use_slot(&mut self, number: u16) -> bool {
        if number == 0 || number > self.capacity {
            return false;
        }
        let (word, bit) = place_of(number);
        if self.used.len() <= word {
            self.used.resize(word + 1, 0);
        }
        let free = self.used[word] & bit == 0;
        self.used[word] |= bit;
        free
    }
}

fn place_of(number: u16) -> (usize, u64) {
    let place = number.saturating_sub(1);
    ((place / 64) as usize, 1u64 << (place % 64))
}

/// Nearly always at the end: claims come in order.
fn insert(seqs: &mut VecDeque<u64>, seq: u64) {
    let place = seqs.partition_point(|other| *other < seq);
    seqs.insert(place, seq);
}

fn remove(seqs: &mut VecDeque<u64>, seq: u64) -> bool {
    let place = seqs.binary_search(&seq);
    if let Ok(place) = place {
        seqs.remove(place);
    }
    place.is_ok()
}
