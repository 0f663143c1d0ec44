//! Instants as people read them.
//!
//! In:    microseconds since 1970. Out: RFC 3339 in UTC with microseconds, and back.
//! Never: used for anything but display and filters.

use jiff::Timestamp;
use jiff::tz::Offset;

use super::digits;

fn timestamp(wall_us: u64) -> Timestamp {
    let micros = i64::try_from(wall_us).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX)
}

/// `2026-01-02T03:04:05.678901Z`.
pub fn rfc3339(wall_us: u64) -> String {
    let mut text = Vec::with_capacity(27);
    write_rfc3339(&mut text, wall_us);
    String::from_utf8(text).expect("digits are text")
}

/// The same at the end of a buffer, without a detour through a formatter.
pub fn write_rfc3339(out: &mut Vec<u8>, wall_us: u64) {
    let time = Offset::UTC.to_datetime(timestamp(wall_us));
    // Instants begin in 1970: no part of them is negative.
    let year = u64::from(time.year().unsigned_abs());
    digits::put_padded::<4>(out, year);
    for (mark, part) in [
        (b'-', time.month()),
        (b'-', time.day()),
        (b'T', time.hour()),
        (b':', time.minute()),
        (b':', time.second()),
    ] {
        out.push(mark);
        digits::put_padded::<2>(out, u64::from(part.unsigned_abs()));
    }
    out.push(b'.');
    digits::put_padded::<6>(out, wall_us % 1_000_000);
    out.push(b'Z');
}

/// RFC 3339, or seconds since 1970, to microseconds; before 1970 they are below zero.
pub fn parse_instant(text: &str) -> Option<i64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return (-1e12..=1e12).contains(&seconds).then(|| (seconds * 1e6).round() as i64);
    }
    text.parse::<Timestamp>().ok().map(Timestamp::as_microsecond)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_always_six_digits() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(rfc3339(1_700_000_000_500_000), "2023-11-14T22:13:20.500000Z");
        assert_eq!(rfc3339(1_709_208_000_000_001), "2024-02-29T12:00:00.000001Z");
        let mut out = Vec::new();
        write_rfc3339(&mut out, 1_700_000_000_000_001);
        assert_eq!(out, b"2023-11-14T22:13:20.000001Z");
    }

    #[test]
    fn instants_are_read_in_both_forms() {
        assert_eq!(parse_instant("2023-11-14T22:13:20.5Z"), Some(1_700_000_000_500_000));
        assert_eq!(parse_instant("2023-11-15T00:13:20.5+02:00"), Some(1_700_000_000_500_000));
        assert_eq!(parse_instant("1700000000.5"), Some(1_700_000_000_500_000));
        assert_eq!(parse_instant("-1"), Some(-1_000_000), "bounds of filters may be negative");
        for bad in ["", "yesterday", "NaN", "2023-11-14"] {
            assert_eq!(parse_instant(bad), None, "{bad}");
        }
    }
}
