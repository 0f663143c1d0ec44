//! Instants of a simulated node's own clock, which may run fast or slow.
//!
//! In:    the clock of `runtime.rs`. Out: [`Instant`], with what the engine and openraft use of `std::time::Instant`.

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

use openraft::async_runtime::Instant as AsInstant;

use super::runtime::local_us;

/// An instant of one node's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(u64);

/// Microseconds of a length.
pub(super) fn us(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(us(length)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, length: Duration) {
        *self = *self + length;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(us(length)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, other: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(other.0))
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, length: Duration) {
        *self = *self - length;
    }
}

impl AsInstant for Instant {
    fn now() -> Self {
        Self(local_us())
    }
}

/// As `std::time::Instant`, as far as it is used.
impl Instant {
    /// This node's clock.
    pub fn now() -> Self {
        Self(local_us())
    }

    /// Microseconds of that clock.
    pub(super) fn local_us(self) -> u64 {
        self.0
    }

    /// What passed since.
    pub fn elapsed(&self) -> Duration {
        Self::now() - *self
    }

    /// What passed from then to now, if that was before.
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        *self - earlier
    }

    /// A later instant, if it can be counted.
    pub fn checked_add(&self, length: Duration) -> Option<Self> {
        self.0.checked_add(us(length)).map(Self)
    }
}
