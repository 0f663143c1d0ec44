//! Latency histogram: fixed memory, under 1 % error, a few nanoseconds per value.
//!
//! In:    latencies in nanoseconds, from `stats.rs`.
//! Out:   quantiles, maximum and counts, for `output.rs`.
//! Never: allocates after creation, drops a value (what is too large lands in the last bucket; `max` is exact).

use std::time::Duration;

/// Bits of precision inside one power of two: 128 steps keep the error below 1/128.
const STEP_BITS: u32 = 7;
const STEPS: usize = 1 << STEP_BITS;
/// Powers of two above the exact range. 2^40 ns is 18 minutes, longer than any request may take here.
const POWERS: usize = 40 - STEP_BITS as usize;

/// Counts of values by logarithmic bucket.
#[derive(Clone)]
pub struct Histogram {
    /// Counts, the first `2 * STEPS` of them exact, then `STEPS` per power of two.
    buckets: Vec<u64>,
    /// How many values were recorded.
    count: u64,
    /// The largest value, exact, since a single stall is what a reader looks for.
    max_ns: u64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Self {
        Self { buckets: vec![0; (POWERS + 1) * STEPS], count: 0, max_ns: 0 }
    }

    /// Counts one latency.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(ns)] += 1;
        self.count += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many values were recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The largest value recorded.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// The smallest value that at least `quantile` (0..=1) of all values do not exceed.
    pub fn quantile(&self, quantile: f64) -> Duration {
        let rank = ((self.count as f64 * quantile).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, &count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(upper_edge(index).min(self.max_ns));
            }
        }
        self.max()
    }

    /// How many values are above `limit`, to within one bucket.
    pub fn count_over(&self, limit: Duration) -> u64 {
        let ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.buckets.iter().skip(bucket_of(ns) + 1).sum()
    }
}

/// The bucket a value falls into.
fn bucket_of(ns: u64) -> usize {
    let power = (64 - ns.leading_zeros()).saturating_sub(STEP_BITS + 1);
    let index = power as usize * STEPS + (ns >> power) as usize;
    index.min((POWERS + 1) * STEPS - 1)
}

/// The largest value that falls into a bucket, so that a quantile never flatters.
fn upper_edge(index: usize) -> u64 {
    if index < 2 * STEPS {
        return index as u64;
    }
    let power = index / STEPS - 1;
    let step = (index % STEPS + STEPS) as u64;
    ((step + 1) << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_at_or_below_its_edge_and_within_one_percent() {
        let mut value: u64 = 1;
        while value < 1 << 39 {
            for ns in [value - 1, value, value + value / 3] {
                let edge = upper_edge(bucket_of(ns));
                assert!(edge >= ns, "{ns} is above its edge {edge}");
                assert!(edge - ns <= ns / 100, "{ns} is too far from its edge {edge}");
            }
            value *= 2;
        }
    }

    #[test]
    fn buckets_never_go_back() {
        let mut last = 0;
        for ns in 0..100_000 {
            assert!(bucket_of(ns) == last || bucket_of(ns) == last + 1);
            last = bucket_of(ns);
        }
    }

    #[test]
    fn quantiles_of_a_known_set() {
        let mut histogram = Histogram::new();
        for us in 1..=1000 {
            histogram.record(Duration::from_micros(us));
        }
        let near = |quantile, us: u64| {
            let got = histogram.quantile(quantile).as_micros() as u64;
            assert!(got.abs_diff(us) <= us / 100 + 1, "quantile {quantile}: {got} us, not {us}");
        };
        near(0.5, 500);
        near(0.99, 990);
        near(1.0, 1000);
        assert_eq!(histogram.max(), Duration::from_millis(1));
        assert_eq!(histogram.count_over(Duration::from_secs(1)), 0);
        assert!(histogram.count_over(Duration::from_micros(900)).abs_diff(100) <= 8);
    }

    #[test]
    fn empty_and_enormous_values_do_not_panic() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.quantile(0.99), Duration::ZERO);
        histogram.record(Duration::MAX);
        assert_eq!(histogram.count(), 1);
    }
}
