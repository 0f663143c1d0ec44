//! Instants and spans of time as people read them.
//!
//! In:    microseconds. Out: `2026-01-02 03:04:05 UTC`, `3 minutes 20 seconds`.
//! Never: read by programs; those get unix seconds.

use jiff::Timestamp;

/// `2026-01-02 03:04:05 UTC`.
pub(super) fn utc(wall_us: u64) -> String {
    format!("{} UTC", utc_cell(wall_us))
}

/// The same for a column that says UTC in its heading.
pub(super) fn utc_cell(wall_us: u64) -> String {
    let seconds = i64::try_from(wall_us / 1_000_000).unwrap_or(i64::MAX);
    let timestamp = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    format!("{timestamp:.0}").replace('T', " ").replace('Z', "")
}

/// The two largest units of a span; what lasts less than a second is that.
pub(super) fn span(us: u64) -> String {
    let seconds = us / 1_000_000;
    let units = [("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)];
    let Some(largest) = units.iter().position(|(_, length)| seconds >= *length) else {
        return "less than a second".into();
    };
    let mut left = seconds;
    let mut words = Vec::new();
    for (unit, length) in &units[largest..units.len().min(largest + 2)] {
        match left / length {
            0 => {}
            1 => words.push(format!("1 {unit}")),
            count => words.push(format!("{count} {unit}s")),
        }
        left %= length;
    }
    words.join(" ")
}

/// A past instant, also as a distance from now.
pub(super) fn ago(wall_us: u64, now_wall_us: u64) -> String {
    format!("{} ({})", utc(wall_us), distance(wall_us, now_wall_us))
}

/// The distance of a past instant alone.
pub(super) fn distance(wall_us: u64, now_wall_us: u64) -> String {
    match now_wall_us.saturating_sub(wall_us) {
        0..1_000_000 => "just now".into(),
        distance_us => format!("{} ago", span(distance_us)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_in_utc() {
        assert_eq!(utc(1_700_000_000_999_999), "2023-11-14 22:13:20 UTC");
        assert_eq!(utc(u64::MAX), utc(u64::MAX - 1));
    }

    #[test]
    fn spans_have_two_units() {
        let cases = [
            (0, "less than a second"),
            (1, "1 second"),
            (59, "59 seconds"),
            (60, "1 minute"),
            (200, "3 minutes 20 seconds"),
            (3_600, "1 hour"),
            (3_661, "1 hour 1 minute"),
            (90_061, "1 day 1 hour"),
            (864_000, "10 days"),
        ];
        for (seconds, text) in cases {
            assert_eq!(span(seconds * 1_000_000), text);
        }
    }

    #[test]
    fn distances_are_shown() {
        assert_eq!(ago(0, 500_000), "1970-01-01 00:00:00 UTC (just now)");
        assert_eq!(ago(0, 61_000_000), "1970-01-01 00:00:00 UTC (1 minute 1 second ago)");
        // A wall clock that was set back makes nothing happen in the future.
        assert_eq!(ago(5_000_000, 0), "1970-01-01 00:00:05 UTC (just now)");
    }
}
