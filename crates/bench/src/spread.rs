//! Median and spread of one figure over several rounds.
//!
//! In:    a figure of each round; NaN for a round that failed. Out: the median, the least and the most of the others.
//! Never: an average: one disturbed round must not move the figure.

use crate::output::digits;

/// A median and how far the rounds spread.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    /// The median; NaN without a single round.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    /// Of these values, without those that are no number.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Self { median: f64::midpoint(at(last / 2), at(last.div_ceil(2))), min: at(0), max: at(last) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} to {})", digits(self.median), digits(self.min), digits(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_failed_and_no_rounds() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).median, 2.5);
        let one_failed = Spread::of([4.0, f64::NAN, 1.0]);
        assert_eq!((one_failed.min, one_failed.median, one_failed.max), (1.0, 2.5, 4.0));
        assert!(Spread::of([]).median.is_nan());
    }
}
