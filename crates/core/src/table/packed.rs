//! Whole numbers in six bytes: a million claims have a few of them each.
//!
//! In:    sequence numbers, versions and tokens. Out: the same again.
//! Never: holds what counts microseconds: those need seven bytes and more.

use std::fmt;

/// No sequence number, version or token reaches this: at a million a second that takes nine years, and at the rate
/// of a busy service centuries. A snapshot that claims otherwise is refused.
pub(super) const PACKED_END: u64 = 1 << 48;

/// A number below [`PACKED_END`], aligned to two bytes. Ordered as the number is.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Packed([u16; 3]);

impl Packed {
    pub(super) fn new(number: u64) -> Self {
        debug_assert!(number < PACKED_END, "{number} does not fit");
        Self([(number >> 32) as u16, (number >> 16) as u16, number as u16])
    }

    pub(super) fn get(self) -> u64 {
        let [high, middle, low] = self.0.map(u64::from);
        high << 32 | middle << 16 | low
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_keep_their_order() {
        let numbers = [0, 1, 0xffff, 0x1_0000, 0xffff_ffff, 0x1_0000_0000, PACKED_END - 1];
        let packed = numbers.map(Packed::new);
        assert_eq!(packed.map(Packed::get), numbers);
        assert!(packed.is_sorted());
        assert_eq!(size_of::<Packed>(), 6);
    }
}
