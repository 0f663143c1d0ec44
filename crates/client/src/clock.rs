//! The clock that leases are counted on: monotonic, and it goes on while the machine is suspended.
//!
//! In:    nothing but the kernel's CLOCK_BOOTTIME. Out: [`BootInstant`] and `Alarm`, which sleeps until one.
//! Never: looks at the wall clock, and never at the usual monotonic clock: that one stands still in a suspended machine
//!        while the server's goes on.

use std::io;
use std::ops::Add;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A moment, in time since this machine started, suspended or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// This moment.
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        // The kernel counts from its own start: neither part is ever negative.
        Self(Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0)))
    }

    /// How long it is until then; zero when it is over.
    pub fn remaining(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }

    /// Whether it is over.
    pub fn is_past(self) -> bool {
        Self::now() >= self
    }

    /// How long it is from an earlier moment.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// So much earlier.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by))
    }

    /// Seconds since this machine started: every process of the machine reads the same on CLOCK_BOOTTIME.
    pub fn as_secs_f64(self) -> f64 {
        self.0.as_secs_f64()
    }

    /// Nanoseconds, for a place where threads can look without a lock.
    pub(crate) fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

/// One alarm clock of the kernel. It rings also if the machine slept through the moment.
pub(crate) struct Alarm {
    fd: AsyncFd<OwnedFd>,
    set_to: Option<BootInstant>,
}

impl Alarm {
    /// Needs a tokio runtime around it.
    #[allow(
        deprecated,
        reason = "its replacement is unsafe, for owners that change their descriptor; an `OwnedFd` never does"
    )]
    pub(crate) fn new() -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Self { fd: AsyncFd::new(fd)?, set_to: None })
    }

    /// Sets it, or sets it off.
    pub(crate) fn set(&mut self, to: Option<BootInstant>) -> io::Result<()> {
        if self.set_to == to {
            return Ok(());
        }
        // All zeros would switch it off; a moment that is over rings at once.
        let nanos = to.map_or(0, |to| to.as_nanos().max(1));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
        };
        let spec = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::ABSTIME, &spec)?;
        self.set_to = to;
        Ok(())
    }

    /// Returns when it has rung.
    pub(crate) async fn rings(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.fd.readable().await?;
            let mut count = [0u8; 8];
            match rustix::io::read(self.fd.get_ref(), &mut count) {
                Ok(_) => {
                    self.set_to = None;
                    return Ok(());
                }
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
