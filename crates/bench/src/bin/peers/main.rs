//! `make bench-peers`: Leasehold beside what people would pick instead, in one run, at equal durability.
//!
//! In:    the path of the `leasehold` binary, a directory for everybody's data; `QUICK`, `ONLY` and `BENCH_OUT`.
//! Out:   a table on standard output, JSON into the file that `BENCH_OUT` names, curves as an SVG.
//! Never: part of the product: this binary is not installed, and the product's knows nothing of it.
//!
//! The road: `systems.rs` starts everybody, `scenarios.rs` and `holding.rs` let them take turns, `rounds.rs` drives one of
//! them through one round with `clients/` on the reactor of the library, `report.rs` and `curve.rs` tell what came of it.

mod clients;
mod curve;
mod holding;
mod report;
mod rounds;
mod scenarios;
mod systems;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use leasehold_bench::measure_disk;
use leasehold_bench::output::{print, progress};
use leasehold_bench::process::{Scratch, allow_open_files};
use leasehold_bench::reactor::INTERRUPTED;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::scenarios::{Bench, Effort};
use crate::systems::Kind;

const KINDS: [Kind; 5] = [Kind::Leasehold, Kind::Etcd, Kind::Redis, Kind::ZooKeeper, Kind::Postgres];

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(leasehold), Some(dir), Some(picture)) = (arguments.next(), arguments.next(), arguments.next())
    else {
        bail!(
            "usage: leasehold-peers LEASEHOLD-BINARY DATA-DIRECTORY PICTURE.svg; `make bench-peers` knows them"
        );
    };
    watch_for_interrupt()?;
    compare(&leasehold, &dir, &picture)
}

/// From here on Ctrl-C and SIGTERM are remembered, and nothing else happens at once.
fn watch_for_interrupt() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut interrupt, mut terminate) = {
        let _guard = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        });
        INTERRUPTED.store(true, Ordering::Relaxed);
    });
    Ok(())
}

fn compare(leasehold: &Path, dir: &Path, picture: &Path) -> Result<()> {
    let leasehold = leasehold.canonicalize().with_context(|| format!("no binary {}", leasehold.display()))?;
    allow_open_files();
    let quick = std::env::var("QUICK").is_ok_and(|value| !value.is_empty() && value != "0");
    let started = Instant::now();
    let scratch = Scratch::new(dir, "peers")?;
    // What a build or an installation has just written would otherwise be written during the first rounds.
    std::process::Command::new("sync").status().context("running `sync`")?;
    let disk = measure_disk(dir)?;
    let mut bench = Bench {
        leasehold: &leasehold,
        scratch: &scratch,
        effort: if quick { QUICK } else { FULL },
        only: std::env::var("ONLY").unwrap_or_default(),
        rows: Vec::new(),
        columns: Vec::new(),
        held: Vec::new(),
        repeats: Vec::new(),
        left_out: Vec::new(),
        failures: Vec::new(),
    };
    bench.run()?;

    let machine = machine();
    let mut text =
        format!("{machine}; {disk}; {} turns of {:?}\n\n", bench.effort.turns, bench.effort.length);
    for kind in KINDS {
        text += &format!("- {}: {}; {}\n", kind.name(), kind.version(&leasehold), kind.settings());
    }
    text += &format!("\n{}\n{}", report::table(&bench.rows), held_table(&bench.held));
    for (what, list) in
        [("Run again", &bench.repeats), ("Left out", &bench.left_out), ("FAILED", &bench.failures)]
    {
        list.iter().for_each(|line| text += &format!("\n{what}: {line}\n"));
    }
    print(&(text + "\n"));
    if let Some(parent) = picture.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(picture, curve::svg(&bench.columns))
        .with_context(|| format!("writing {}", picture.display()))?;
    if let Some(path) = std::env::var_os("BENCH_OUT").filter(|path| !path.is_empty()) {
        let versions: Vec<_> = KINDS
            .iter()
            .map(|kind| json!({"system": kind.name(), "version": kind.version(&leasehold), "settings": kind.settings()}))
            .collect();
        let found = json!({
            "machine": machine,
            "fdatasync_p50_us": disk.fdatasync_p50_us,
            "fdatasync_p99_us": disk.fdatasync_p99_us,
            "quick": quick,
            "seconds": started.elapsed().as_secs(),
            "systems": versions,
            "rows": report::json(&bench.rows),
            "held_claims": bench.held,
            "repeats": bench.repeats,
            "left_out": bench.left_out,
            "failures": bench.failures,
        });
        std::fs::write(&path, serde_json::to_vec_pretty(&found)?)
            .with_context(|| format!("writing {}", Path::new(&path).display()))?;
    }
    say(&format!("took {} s; curves in {}", started.elapsed().as_secs(), picture.display()));
    if !bench.failures.is_empty() {
        bail!("{} rounds of Leasehold failed, see above", bench.failures.len());
    }
    Ok(())
}

/// About eleven minutes on two cores: more turns even out more than longer ones do.
const FULL: Effort = Effort {
    turns: 9,
    warmup: Duration::from_millis(300),
    length: Duration::from_millis(800),
    held: &[10_000, 100_000, 1_000_000],
};
/// About 3 minutes.
const QUICK: Effort = Effort {
    turns: 2,
    warmup: Duration::from_millis(200),
    length: Duration::from_millis(800),
    held: &[10_000, 100_000],
};

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    format!("{cores} cores shared by servers and client, load average {load} at the end")
}

fn held_table(held: &[serde_json::Value]) -> String {
    let mut out = String::from(
        "| held claims | resident bytes each | renewals/s | renewal p99 ms | restart ms | after a kill ms | worst request while filling ms |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for row in held {
        let number = |name: &str| row[name].as_f64().map_or("?".to_owned(), |value| format!("{value:.1}"));
        out += &format!("| {} |", row["claims"]);
        for name in [
            "resident_bytes_per_claim",
            "renewals_per_second",
            "renewal_p99_ms",
            "restart_ms",
            "restart_after_kill_ms",
            "worst_probe_while_filling_ms",
        ] {
            out += &format!(" {} |", number(name));
        }
        out.push('\n');
    }
    out
}

/// Progress, with the seconds since the first line.
fn say(text: &str) {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    progress(&format!("{:>4} s  {text}", START.elapsed().as_secs()));
}
