//! The certificate that clients see, and when it expires.
//!
//! In:    the file. Out: a warning when the node starts, when the file changes, and once a day.
//! Never: stops anything: clients refuse an expired certificate by themselves, and say so.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::access::certificate::file_expires;
use crate::message::time::rfc3339;
use crate::pem::fingerprint;

/// How often the file and the date are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Time to renew it without haste.
const WARN_BEFORE: u64 = 14 * DAY;
const DAY: u64 = 86_400;

/// Warns of it for as long as the node runs.
pub(super) fn watch(path: PathBuf) {
    tokio::spawn(async move {
        let mut told = None;
        loop {
            let now = now();
            let seen = (fingerprint(&path), now / DAY);
            if told.as_ref() != Some(&seen) {
                told = Some(seen);
                if let Some((_, problem)) = problem_at(&path, now) {
                    tracing::warn!("{problem}: renew it; the node takes the new file by itself");
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
}

/// Says so if the certificate has expired.
pub(super) fn expired(path: &Path) -> Option<String> {
    problem_at(path, now()).filter(|(is_over, _)| *is_over).map(|(_, problem)| problem)
}

/// Whether it has expired, and that or how soon it does, in words.
fn problem_at(path: &Path, now: u64) -> Option<(bool, String)> {
    let until = file_expires(path).ok()?;
    let (path, date) = (path.display(), rfc3339(until * 1_000_000)[..10].to_string());
    match until.checked_sub(now) {
        None => Some((true, format!("the certificate {path} expired on {date}, and clients refuse it"))),
        Some(left) if left < WARN_BEFORE => {
            Some((false, format!("the certificate {path} expires on {date}, in {} days", left / DAY)))
        }
        Some(_) => None,
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}
