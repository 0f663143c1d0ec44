//! Rates: how many requests one identity may send.
//!
//! In:    a name and an instant. Out: yes, or how long to wait.
//! Never: grows without bound: a name that has its whole burst back is forgotten.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Names remembered before the quiet ones are looked for.
const NAMES_MAX: usize = 10_000;

/// A rate for each name.
#[derive(Debug)]
pub struct Rates {
    per_second: f64,
    burst: f64,
    buckets: Mutex<HashMap<Arc<str>, Bucket>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Rates {
    /// Each name may send `per_second` requests a second, and `burst` at once after a pause.
    pub fn new(per_second: f64, burst: f64) -> Self {
        Self { per_second, burst: burst.max(1.0), buckets: Mutex::default() }
    }

    /// Counts a request, or tells how long to wait for the next.
    pub fn admit(&self, name: &Arc<str>, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock();
        if let Some(bucket) = buckets.get_mut(&**name) {
            return self.take(bucket, now);
        }
        if buckets.len() >= NAMES_MAX {
            buckets.retain(|_, bucket| self.left(bucket, now) < self.burst);
            if buckets.len() >= NAMES_MAX {
                // More busy names than can be counted: forget all of them rather than grow.
                buckets.clear();
            }
        }
        let mut bucket = Bucket { left: self.burst, at: now };
        let admitted = self.take(&mut bucket, now);
        buckets.insert(name.clone(), bucket);
        admitted
    }

    /// A request that was admitted does not count after all.
    pub fn give_back(&self, name: &str) {
        if let Some(bucket) = self.buckets.lock().get_mut(name) {
            bucket.left = (bucket.left + 1.0).min(self.burst);
        }
    }

    fn left(&self, bucket: &Bucket, now: Instant) -> f64 {
        let gained = now.saturating_duration_since(bucket.at).as_secs_f64() * self.per_second;
        (bucket.left + gained).min(self.burst)
    }

    fn take(&self, bucket: &mut Bucket, now: Instant) -> Result<(), Duration> {
        let left = self.left(bucket, now);
        *bucket = Bucket { left, at: now };
        if left >= 1.0 {
            bucket.left = left - 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - left) / self.per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let rates = Rates::new(2.0, 3.0);
        let (start, anna, bert): (_, Arc<str>, Arc<str>) = (Instant::now(), "anna".into(), "bert".into());
        assert!((0..3).all(|_| rates.admit(&anna, start).is_ok()));
        assert_eq!(rates.admit(&anna, start), Err(Duration::from_millis(500)));
        assert!(rates.admit(&bert, start).is_ok());
        let later = start + Duration::from_millis(500);
        assert!(rates.admit(&anna, later).is_ok() && rates.admit(&anna, later).is_err());
    }

    #[test]
    fn many_names_do_not_grow_it_without_bound() {
        let rates = Rates::new(1.0, 2.0);
        let start = Instant::now();
        for i in 0..3 * NAMES_MAX {
            rates.admit(&i.to_string().into(), start).ok();
        }
        assert!(rates.buckets.lock().len() <= NAMES_MAX);
    }
}
