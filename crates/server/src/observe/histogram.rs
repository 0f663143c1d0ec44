//! A histogram of durations: fixed buckets, one atomic each.
//!
//! In:    durations, from any thread. Out: Prometheus buckets, sum and count.
//! Never: allocates, locks or forgets.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds in microseconds, 100 us to an hour: disks and hand-overs at one end, held locks at the other.
pub const BOUNDS_US: [u64; 18] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
    15_000_000,
    60_000_000,
    300_000_000,
    900_000_000,
    3_600_000_000,
];

/// Counts of durations by bucket.
#[derive(Debug, Default)]
pub struct Histogram {
    /// One more than bounds: the last is for everything longer.
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    /// Counts a duration.
    pub fn observe_us(&self, us: u64) {
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Writes it as Prometheus text.
    pub fn write(&self, out: &mut String, name: &str, help: &str) {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} histogram\n");
        self.write_series(out, name, "");
    }

    /// Writes it as one of several series of a histogram; `label` is like `mode="shared"`, or empty.
    pub fn write_series(&self, out: &mut String, name: &str, label: &str) {
        let (comma, braced) = match label {
            "" => ("", String::new()),
            label => (",", format!("{{{label}}}")),
        };
        let mut total = 0;
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS_US) {
            total += bucket.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{{label}{comma}le=\"{}\"}} {total}", bound as f64 / 1e6);
        }
        total += self.buckets[BOUNDS_US.len()].load(Ordering::Relaxed);
        let sum = self.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_bucket{{{label}{comma}le=\"+Inf\"}} {total}");
        let _ = write!(out, "{name}_sum{braced} {sum}\n{name}_count{braced} {total}\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_buckets_add_up() {
        let histogram = Histogram::default();
        [0, 100, 101, 4_000_000_000].into_iter().for_each(|us| histogram.observe_us(us));
        let mut out = String::new();
        histogram.write(&mut out, "x_seconds", "X.");
        for line in
            ["{le=\"0.0001\"} 2", "{le=\"0.00025\"} 3", "{le=\"3600\"} 3", "{le=\"+Inf\"} 4", "_count 4"]
        {
            assert!(out.contains(line), "{line}\n{out}");
        }
    }
}
