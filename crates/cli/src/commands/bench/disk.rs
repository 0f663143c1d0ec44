//! The disk's share of every figure: how long `fdatasync` takes here, now.
//!
//! In:    a directory on the disk the server writes to.
//! Out:   p50 and p99 of `fdatasync` after a 2 KiB append to a pre-zeroed file, as the log does it.
//! Never: leaves its file behind.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use super::histogram::Histogram;
use super::process::TempDir;

const SAMPLES: usize = 200;
const APPEND_BYTES: usize = 2048;

/// How fast the disk makes a small write durable.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Disk {
    /// Median of `fdatasync`, in microseconds.
    pub(crate) fdatasync_p50_us: f64,
    /// 99th percentile of `fdatasync`, in microseconds.
    pub(crate) fdatasync_p99_us: f64,
}

/// Measures `fdatasync` in `dir`.
pub(crate) fn measure(dir: &Path) -> Result<Disk> {
    let temp = TempDir::new(dir, "disk")?;
    let path = temp.path().join("probe");
    let histogram = sample(&path).with_context(|| format!("measuring fdatasync in {}", dir.display()))?;
    let us = |quantile| histogram.quantile(quantile).as_secs_f64() * 1e6;
    Ok(Disk { fdatasync_p50_us: us(0.5), fdatasync_p99_us: us(0.99) })
}

fn sample(path: &Path) -> std::io::Result<Histogram> {
    let mut file = File::create(path)?;
    // Zeroed first, so that the measured syncs carry no change of the file's size or extents.
    file.write_all(&vec![0; SAMPLES * APPEND_BYTES])?;
    file.sync_all()?;
    file.seek(SeekFrom::Start(0))?;
    let mut histogram = Histogram::new();
    for number in 0..SAMPLES {
        let start = Instant::now();
        file.write_all(&[number as u8 | 1; APPEND_BYTES])?;
        file.sync_data()?;
        histogram.record(start.elapsed());
    }
    Ok(histogram)
}

impl std::fmt::Display for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "fdatasync p50 {:.0} us, p99 {:.0} us", self.fdatasync_p50_us, self.fdatasync_p99_us)
    }
}
