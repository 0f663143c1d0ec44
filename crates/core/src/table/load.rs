//! The one rule of who may hold a resource beside whom.
//!
//! In:    modes of claims, in log order. Out: whether the next one fits with all before it, taken together.
//! Never: knows a claim, a queue or a clock. Every grant, refusal, restored snapshot and look for a deadlock asks here.

use crate::command::Mode;

/// What some claims on one resource come to, taken together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Load {
    /// There are none.
    #[default]
    Free,
    /// All of them share it.
    Shared,
    /// All of them take slots: this many together.
    Slots(u16),
    /// Nothing fits beside them.
    Full,
}

impl Load {
    /// Whether nothing fits, in whatever mode.
    pub(super) fn is_full(self) -> bool {
        self == Self::Full
    }

    /// Whether one more claim fits with all of them.
    pub(super) fn takes(self, mode: Mode) -> bool {
        match (self, mode) {
            (Self::Free, _) | (Self::Shared, Mode::Shared) => true,
            (Self::Slots(taken), Mode::Slots { take, of }) => taken.saturating_add(take) <= of,
            _ => false,
        }
    }

    /// The load with one more claim, whether it fits or waits: later claims have to fit with that one, too.
    pub(super) fn with(self, mode: Mode) -> Self {
        match (self, mode) {
            (Self::Free | Self::Shared, Mode::Shared) => Self::Shared,
            (Self::Free, Mode::Slots { take, .. }) => Self::Slots(take),
            (Self::Slots(taken), Mode::Slots { take, .. }) => Self::Slots(taken.saturating_add(take)),
            _ => Self::Full,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sharers_and_slots_go_together() {
        let slots = |take| Mode::Slots { take, of: 5 };
        for (before, next, fits) in [
            (vec![], Mode::Exclusive, true),
            (vec![Mode::Exclusive], Mode::Exclusive, false),
            (vec![Mode::Exclusive], Mode::Shared, false),
            (vec![Mode::Shared, Mode::Shared], Mode::Shared, true),
            (vec![Mode::Shared, Mode::Exclusive], Mode::Shared, false),
            (vec![Mode::Shared], slots(1), false),
            (vec![slots(1)], Mode::Shared, false),
            (vec![slots(2), slots(2)], slots(1), true),
            (vec![slots(2), slots(2)], slots(2), false),
            (vec![slots(3), slots(3)], slots(1), false),
            (vec![slots(1)], Mode::Exclusive, false),
        ] {
            let load = before.iter().fold(Load::Free, |load, mode| load.with(*mode));
            assert_eq!(load.takes(next), fits, "{next:?} behind {before:?}");
        }
    }
}
