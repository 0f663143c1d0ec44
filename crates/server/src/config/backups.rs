//! When and where a node saves its table by itself.
//!
//! In:    `--backup-every`, `--backup-dir`, `--backup-keep`. Out: [`Backups`], or nothing where none is asked for.

use std::path::PathBuf;
use std::time::Duration;

use super::ConfigError;

/// Backups kept unless said otherwise: a day of hourly ones.
const KEEP_DEFAULT: usize = 24;
/// More often than this, and a node would do little else.
const EVERY_MIN: Duration = Duration::from_secs(1);
const EVERY_MAX: Duration = Duration::from_secs(31 * 86_400);

/// When and where a node saves its table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backups {
    /// How often.
    pub every: Duration,
    /// Where.
    pub dir: PathBuf,
    /// How many stay.
    pub keep: usize,
}

impl Backups {
    pub(super) fn new(
        every: Option<&str>,
        dir: Option<PathBuf>,
        keep: Option<usize>,
    ) -> Result<Option<Self>, ConfigError> {
        let wrong = |setting, problem: &str| Err(ConfigError { setting, problem: problem.into() });
        let (every, dir) = match (every, dir, keep) {
            (Some(every), Some(dir), _) => (every, dir),
            (None, None, None) => return Ok(None),
            (None, ..) => return wrong("backup-every", "give the time between two backups, such as 1h"),
            (_, None, _) => return wrong("backup-dir", "give the directory for the backups"),
        };
        match (time(every), keep.unwrap_or(KEEP_DEFAULT)) {
            (None, _) => wrong("backup-every", "must be a time from 1s to 31d, such as 90, 30m, 1h or 1d"),
            (_, 0) => wrong("backup-keep", "must be at least 1"),
            (Some(every), keep) => Ok(Some(Self { every, dir, keep })),
        }
    }
}

/// `90`, `1.5s`, `30m`, `1h`, `1d`.
fn time(text: &str) -> Option<Duration> {
    let unit = match text.chars().last()? {
        's' => 1.0,
        'm' => 60.0,
        'h' => 3600.0,
        'd' => 86_400.0,
        _ => 0.0,
    };
    let (number, unit) = if unit == 0.0 { (text, 1.0) } else { (&text[..text.len() - 1], unit) };
    let seconds = number.parse::<f64>().ok()? * unit;
    let time = Duration::try_from_secs_f64(seconds).ok()?;
    (EVERY_MIN..=EVERY_MAX).contains(&time).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_nonsense_is_named() {
        for (text, seconds) in [("90", 90), ("1.5m", 90), ("1h", 3600), ("2d", 172_800)] {
            assert_eq!(time(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "h", "-1h", "0", "inf", "40d", "1w", "0.5s", "é"] {
            assert_eq!(time(bad), None, "{bad}");
        }
        let dir = || Some(PathBuf::from("b"));
        let setting = |every, dir, keep| Backups::new(every, dir, keep).unwrap_err().setting;
        assert_eq!(setting(Some("1h"), None, None), "backup-dir");
        assert_eq!(setting(None, dir(), None), "backup-every");
        assert_eq!(setting(None, None, Some(3)), "backup-every");
        assert_eq!(setting(Some("soon"), dir(), None), "backup-every");
        assert_eq!(setting(Some("1h"), dir(), Some(0)), "backup-keep");
        let backups = Backups::new(Some("1h"), dir(), None).unwrap().unwrap();
        assert_eq!((backups.every.as_secs(), backups.keep), (3600, 24));
        assert_eq!(Backups::new(None, None, None), Ok(None));
    }
}
