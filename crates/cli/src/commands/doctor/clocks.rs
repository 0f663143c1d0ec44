//! How fast clocks run. Ttls count on the leader's, and clients count on their own: a clock that runs wrong ends leases early or
//! late. What time a clock shows does not matter.

use std::time::Duration;

use leasehold_engine::checkup::ClockRate;
use rustix::time::{ClockId, clock_gettime};

use super::{Findings, Level};

/// How long this machine's clocks are compared.
const LENGTH: Duration = Duration::from_millis(500);
/// NTP corrects a clock by this much at the most.
const CORRECTION_MAX: f64 = 500e-6;
/// A clock that is further off runs wrong, whatever corrects it.
pub(super) const RATE_ERROR_MAX: f64 = 1e-3;

/// The corrected clock of this machine against its crystal.
pub(super) fn own(findings: &mut Findings) {
    let read = |clock| {
        let now = clock_gettime(clock);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let both = || (read(ClockId::Monotonic), read(ClockId::MonotonicRaw));
    let before = both();
    std::thread::sleep(LENGTH);
    let after = both();
    let off = (after.0 - before.0) / (after.1 - before.1) - 1.0;
    // Adding zero to -0 leaves no sign.
    let found = format!("this machine's clock is corrected by {} millionths", (off * 1e6).round() + 0.0);
    // Two readings of two clocks are some microseconds apart.
    match off.abs() > CORRECTION_MAX + 100e-6 {
        true => {
            let advice =
                "more than NTP corrects: look at `chronyc tracking`, or at the machine's clock source";
            findings.bad(Level::Warning, "clock", found, advice);
        }
        false => findings.ok("clock", found),
    }
}

/// The leader's clock against this machine's.
pub(super) fn leader(leader: u64, measured: Result<ClockRate, String>, findings: &mut Findings) {
    match measured {
        Err(why) => {
            let found = format!("the clock of the leader, node {leader}, could not be read: {why}");
            findings.bad(Level::Unknown, "clock", found, "ask again when a majority of the nodes is up");
        }
        Ok(ClockRate { rate, error }) => {
            let found = format!(
                "the clock of the leader, node {leader}, runs {:.2} % {} than this one (give or take {:.2} %)",
                (rate - 1.0).abs() * 100.0,
                if rate >= 1.0 { "faster" } else { "slower" },
                error * 100.0
            );
            match (rate - 1.0).abs() - error > RATE_ERROR_MAX {
                true => {
                    let advice = "one of the two machines counts wrong: look at the clock source of both";
                    findings.bad(Level::Error, "clock", found, advice);
                }
                false => findings.ok("clock", found),
            }
        }
    }
}
