//! Seconds on the command line.
//!
//! In:    `30`, `0.5`, also `1.5s`, `10m`, `2h`. Out: [`Seconds`].
//! Never: negative, endless, or nothing where something is needed.

use std::str::FromStr;
use std::time::Duration;

/// A time as given by a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seconds(pub(crate) Duration);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = match text.char_indices().last() {
            Some((at, 's')) => (&text[..at], 1.0),
            Some((at, 'm')) => (&text[..at], 60.0),
            Some((at, 'h')) => (&text[..at], 3600.0),
            _ => (text, 1.0),
        };
        let seconds = number.parse::<f64>().ok().filter(|seconds| seconds.is_finite());
        let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds * unit).ok());
        duration
            .map(Self)
            .ok_or_else(|| "must be a number of seconds, like 30 or 0.5, or a time like 10m or 2h".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_read() {
        let read = |text: &str| text.parse::<Seconds>().map(|seconds| seconds.0.as_millis());
        assert_eq!(read("30"), Ok(30_000));
        assert_eq!(read("0.5s"), Ok(500));
        assert_eq!(read("2m"), Ok(120_000));
        assert_eq!(read("1h"), Ok(3_600_000));
        for bad in ["", "s", "-1", "inf", "nan", "1d", "ten"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
