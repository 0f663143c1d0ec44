//! The disk of a node: room and speed; and the backups that it makes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use leasehold_server::config::Config;
use rustix::fs::statvfs;

use super::{Findings, Level, size};
use leasehold_bench::measure_disk as measure;

/// With less room the next log segments may not fit, and a leader refuses clients.
const ROOM_MIN: u64 = 256 << 20;
/// With less room there is little time left to notice.
const ROOM_WANTED: u64 = 2 << 30;
/// Every acknowledgement waits for a sync: slower ones are felt ...
const SYNC_SLOW_US: f64 = 20_000.0;
/// ... and with these an alert fires (`LeaseholdSlowDisk`).
const SYNC_TOO_SLOW_US: f64 = 100_000.0;

pub(super) fn examine(config: &Config, findings: &mut Findings) {
    let data = existing(&config.data);
    let snapshots = config.data.join("snapshots");
    room("disk-space", &data, 3 * largest_file(&snapshots), findings);
    speed(&data, findings);
    if let Some(backups) = &config.backups {
        match fs::metadata(&backups.dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                findings
                    .ok("backups", format!("{} does not exist yet: a start makes it", backups.dir.display()));
            }
            Err(error) => {
                let found = format!("{}: {error}", backups.dir.display());
                findings.bad(
                    Level::Error,
                    "backups",
                    found,
                    "make it a directory that the node can write to",
                );
            }
            Ok(found) if !found.is_dir() => {
                let found = format!("{} is no directory", backups.dir.display());
                findings.bad(Level::Error, "backups", found, "give --backup-dir another path");
            }
            Ok(_) => {
                room("backups", &backups.dir, 2 * largest_file(&snapshots), findings);
                age(&backups.dir, 3 * backups.every, findings);
            }
        }
    }
}

fn room(check: &'static str, dir: &Path, wanted: u64, findings: &mut Findings) {
    let shown = dir.display();
    let stat = match statvfs(dir) {
        Ok(stat) => stat,
        Err(error) => {
            let advice = "run the doctor as the user that runs the node";
            return findings.bad(Level::Unknown, check, format!("{shown}: {error}"), advice);
        }
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let found = format!("{} are free on the disk of {shown}", size(free));
    match free {
        ..ROOM_MIN => findings.bad(Level::Error, check, found, "free space: a full disk stops a follower"),
        _ if free < ROOM_WANTED.max(wanted) => {
            let advice = format!("free space: {} leave time to notice", size(ROOM_WANTED.max(wanted)));
            findings.bad(Level::Warning, check, found, advice);
        }
        _ => findings.ok(check, found),
    }
}

fn speed(dir: &Path, findings: &mut Findings) {
    let disk = match measure(dir) {
        Ok(disk) => disk,
        Err(error) => {
            let advice = "run the doctor as the user that runs the node";
            return findings.bad(Level::Unknown, "disk-speed", format!("{error:#}"), advice);
        }
    };
    let (p50, p99) = (disk.fdatasync_p50_us, disk.fdatasync_p99_us);
    let found = format!("a sync takes {:.2} ms, the slowest of a hundred {:.2} ms", p50 / 1e3, p99 / 1e3);
    let advice =
        "every acknowledgement waits for it: look for what else writes to that disk, or use a faster one";
    match p99 {
        p99 if p99 > SYNC_TOO_SLOW_US => findings.bad(Level::Error, "disk-speed", found, advice),
        p99 if p99 > SYNC_SLOW_US => findings.bad(Level::Warning, "disk-speed", found, advice),
        _ => findings.ok("disk-speed", found),
    }
}

/// Whether the newest backup is as young as it should be.
fn age(dir: &Path, most: Duration, findings: &mut Findings) {
    let newest = files(dir).filter(|(path, _)| path.extension().is_some_and(|ending| ending == "snapshot"));
    let newest = newest.filter_map(|(_, metadata)| metadata.modified().ok()).max();
    let hours = |age: Duration| format!("{:.1} hours", age.as_secs_f64() / 3600.0);
    let advice = "look in the node's log for why they fail, or start it with these flags";
    match newest.map(|at| SystemTime::now().duration_since(at).unwrap_or_default()) {
        None => {
            findings.bad(Level::Warning, "backups", format!("there is none in {}", dir.display()), advice);
        }
        Some(age) if age > most => {
            findings.bad(Level::Warning, "backups", format!("the newest is {} old", hours(age)), advice);
        }
        Some(age) => findings.ok("backups", format!("the newest is {} old", hours(age))),
    }
}

fn files(dir: &Path) -> impl Iterator<Item = (PathBuf, fs::Metadata)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
}

fn largest_file(dir: &Path) -> u64 {
    files(dir).map(|(_, metadata)| metadata.len()).max().unwrap_or(0)
}

/// The directory, or the nearest one above it that exists.
fn existing(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    path.ancestors().find(|path| path.is_dir()).map_or_else(|| PathBuf::from("/"), Path::to_path_buf)
}
