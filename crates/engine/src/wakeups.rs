//! When the engine's thread wakes up for periodic work: for all of it together.
//!
//! In:    pauses that need not be exact. Out: instants on one grid, which tasks share.
//! Never: moves a pause that is shorter than [`EXACT_BELOW`], or any by more than half of [`GRID`]. Deadlines of claims are
//!        waited for elsewhere, exactly.

use std::cell::Cell;
use std::time::Duration;

use crate::machine::{self, Instant};

/// Periodic work is done at multiples of this. It is a multiple of 64 ms, since tokio's timer wakes up twice for any other
/// instant that is further away than that.
const GRID: Duration = Duration::from_millis(128);
/// Shorter pauses stay as they are.
const EXACT_BELOW: Duration = Duration::from_millis(100);

thread_local! {
    /// When the timer of this thread began to count; `None` on all threads but the engine's, and in the simulation.
    static TIMER_BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The calling thread's timer counts its milliseconds from this instant.
#[cfg(not(feature = "sim"))]
pub(super) fn timer_began(at: Instant) {
    TIMER_BEGAN.set(Some(at));
}

/// Sleeps for about this long, until other tasks of the engine's thread wake up as well.
pub(super) async fn sleep_about(time: Duration) {
    let at = Instant::now() + time;
    let at = match TIMER_BEGAN.get() {
        Some(began) if time >= EXACT_BELOW => nearest_on_grid(began, at),
        _ => at,
    };
    machine::sleep_until(at).await;
}

fn nearest_on_grid(began: Instant, at: Instant) -> Instant {
    let steps = (at.saturating_duration_since(began) + GRID / 2).as_micros() / GRID.as_micros();
    began + GRID.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_ends_on_the_nearest_point_of_the_grid() {
        let began = Instant::now();
        let ms = Duration::from_millis;
        for (asked, ends) in
            [(0, 0), (63, 0), (64, 128), (128, 128), (253, 256), (378, 384), (86_400_000, 86_400_000)]
        {
            assert_eq!(nearest_on_grid(began, began + ms(asked)), began + ms(ends), "{asked} ms");
        }
    }
}
