//! Backups that a node makes by itself.
//!
//! In:    `--backup-every`, `--backup-dir`, `--backup-keep`. Out: one file each time, and numbers for the metrics.
//! Never: gives a file its name before it was synced and read back; deletes an older one before that; or saves a table that may
//!        be out of date: a node that is cut off makes no backup, and the age of its last good one grows.
//!
//! Each node with these flags saves its own table. Give them to every node, or to the ones whose disks are saved.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_engine::Engine;
use leasehold_engine::clock::wall_us;

use crate::config::Backups;
use crate::message::time::rfc3339;
use crate::observe::backups::Counts;

/// How soon a backup that failed is tried again, if it would not be due before.
const TRY_AGAIN: Duration = Duration::from_secs(30);
/// How often a node that just started looks whether it can be used.
const READY_LOOK_EVERY: Duration = Duration::from_millis(200);

/// Makes the directory, so that a node whose backups have no place does not start.
pub fn prepare(backups: &Backups) -> Result<(), String> {
    let failed = |error: io::Error| format!("backup-dir: {}: {error}", backups.dir.display());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&backups.dir).map_err(failed)?;
    let probe = backups.dir.join(format!(".writable-{}", std::process::id()));
    fs::write(&probe, b"").and_then(|()| fs::remove_file(&probe)).map_err(failed)
}

/// Makes backups, for ever.
pub async fn keep(engine: Arc<Engine>, backups: Backups, counts: Arc<Counts>) {
    counts.every_s.store(backups.every.as_secs().max(1), Ordering::Relaxed);
    let node = engine.node_id();
    let last = newest(&backups.dir, node).unwrap_or(UNIX_EPOCH);
    counts.last_good_s.store(unix_seconds(last), Ordering::Relaxed);
    let age = SystemTime::now().duration_since(last).unwrap_or_default();
    tokio::time::sleep(backups.every.saturating_sub(age)).await;
    while engine.ready().is_err() {
        tokio::time::sleep(READY_LOOK_EVERY).await;
    }
    let mut told = false;
    loop {
        let pause = match make(&engine, &backups).await {
            Ok((path, bytes)) => {
                counts.last_good_s.store(unix_seconds(SystemTime::now()), Ordering::Relaxed);
                counts.last_bytes.store(bytes, Ordering::Relaxed);
                counts.done.fetch_add(1, Ordering::Relaxed);
                tracing::info!(bytes, "a backup was made and verified: {}", path.display());
                told = false;
                backups.every
            }
            Err(why) => {
                counts.failed.fetch_add(1, Ordering::Relaxed);
                let pause = TRY_AGAIN.min(backups.every);
                if !std::mem::replace(&mut told, true) {
                    tracing::error!("a backup failed, and is tried every {pause:?}: {why}");
                }
                pause
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// One backup: written under a passing name, synced, read back, and only then named.
async fn make(engine: &Engine, backups: &Backups) -> Result<(PathBuf, u64), String> {
    let node = engine.node_id();
    // The table must have everything that was acknowledged anywhere until now.
    engine.barrier().await.map_err(|error| error.to_string())?;
    let text = |error: io::Error| format!("{}: {error}", backups.dir.display());
    for left in files(&backups.dir, node, "partial").map_err(text)? {
        fs::remove_file(left).map_err(text)?;
    }
    // Names sort by time, and file systems without colons can have them.
    let time = rfc3339(wall_us()).replace(':', "-");
    let path = backups.dir.join(format!("{}{time}.snapshot", prefix(node)));
    let partial = path.with_extension("partial");
    let made = engine.backup_to(&partial).await;
    let placed = made.and_then(|bytes| {
        fs::rename(&partial, &path)?;
        fs::File::open(&backups.dir)?.sync_all()?;
        Ok(bytes)
    });
    if placed.is_err() {
        fs::remove_file(&partial).ok();
    }
    let bytes = placed.map_err(text)?;
    let mut all = files(&backups.dir, node, "snapshot").map_err(text)?;
    all.truncate(all.len().saturating_sub(backups.keep));
    all.into_iter().try_for_each(fs::remove_file).map_err(text)?;
    Ok((path, bytes))
}

/// Other nodes may save to the same directory.
fn prefix(node: u64) -> String {
    format!("node-{node}-")
}

/// This node's files with this ending, the oldest first.
fn files(dir: &Path, node: u64, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let ours = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(&prefix(node)));
        if ours && path.extension().is_some_and(|found| found == ending) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// When this node's newest backup was made, perhaps by an earlier process.
fn newest(dir: &Path, node: u64) -> Option<SystemTime> {
    fs::metadata(files(dir, node, "snapshot").ok()?.pop()?).and_then(|metadata| metadata.modified()).ok()
}

fn unix_seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
