//! `make test-upgrade`: three nodes of release 0.1.0 are upgraded under load, one by one, and taken back.
//!
//! In:    `--old PATH --new PATH`, the binaries of the two releases.
//! Out:   a line for every trial, and a verdict; status 1 if a promise was broken.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it talks to a person")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use leasehold_lab::upgrade::{Releases, all_forward, forward_and_back};

fn binaries() -> anyhow::Result<(PathBuf, PathBuf)> {
    let (mut old, mut new) = (None, None);
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--old" => old = Some(value.into()),
            "--new" => new = Some(value.into()),
            _ => bail!("{name} is unknown: see the head of crates/lab/src/bin/upgrade.rs"),
        }
    }
    Ok((old.context("--old is missing")?, new.context("--new is missing")?))
}

fn run() -> anyhow::Result<()> {
    let (old, new) = binaries()?;
    let releases = Releases { old: &old, new: &new };
    type Run = fn(Releases<'_>) -> anyhow::Result<()>;
    let trials: [(&str, Run); 2] =
        [("all three forward", all_forward), ("two forward and back", forward_and_back)];
    for (name, trial) in trials {
        let begun = Instant::now();
        trial(releases).context(name)?;
        println!(
            "{name}: nothing lost, nothing early, no request failed, tables equal ({:.0} s)",
            begun.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}
