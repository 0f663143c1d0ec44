//! `make bench-peers`: Leasehold beside what people would pick instead, in one run, at equal durability.
//!
//! In:    the path of the `leasehold` binary, a directory for everybody's data; `QUICK`, `ONLY` and `BENCH_OUT`.
//! Out:   a table on standard output, JSON into the file that `BENCH_OUT` names, curves as an SVG.
//! Never: part of the product: this binary is not installed, and the product's knows nothing of it.
//!
//! The road: `systems.rs` starts everybody, `scenarios.rs` lets them take turns, `load.rs` drives one of them through
//! one round with `clients/` on the loop of `reactor.rs`, `report.rs` and `curve.rs` tell what came of it.

mod clients;
mod curve;
mod load;
mod process;
mod reactor;
mod report;
mod scenarios;
mod systems;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::process::Scratch;
use crate::scenarios::{Bench, Effort};
use crate::systems::Kind;

const KINDS: [Kind; 5] = [Kind::Leasehold, Kind::Etcd, Kind::Redis, Kind::ZooKeeper, Kind::Postgres];
const SYNC_SAMPLES: usize = 200;

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

/// Whether somebody wants this to end.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether to end as soon as possible, by an error: that drops, and with it ends, every process that was started.
fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
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
    let limit = getrlimit(Resource::Nofile);
    // If it is refused, opening connections fails with a message of its own.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let quick = std::env::var("QUICK").is_ok_and(|value| !value.is_empty() && value != "0");
    let started = Instant::now();
    let scratch = Scratch::new(dir)?;
    let (sync_p50_us, sync_p99_us) = sync_time(&scratch)?;
    let mut bench = Bench {
        leasehold: &leasehold,
        scratch: &scratch,
        effort: if quick { QUICK } else { FULL },
        only: std::env::var("ONLY").unwrap_or_default(),
        rows: Vec::new(),
        columns: Vec::new(),
        held: Vec::new(),
        failures: Vec::new(),
    };
    bench.run()?;

    let machine = machine();
    let disk = format!("fdatasync p50 {sync_p50_us:.0} us, p99 {sync_p99_us:.0} us");
    let mut text =
        format!("{machine}; {disk}; {} turns of {:?}\n\n", bench.effort.turns, bench.effort.length);
    for kind in KINDS {
        text += &format!("- {}: {}; {}\n", kind.name(), kind.version(&leasehold), kind.settings());
    }
    text += &format!("\n{}\n{}", report::table(&bench.rows), held_table(&bench.held));
    for failure in &bench.failures {
        text += &format!("\nFAILED: {failure}\n");
    }
    print(&text);
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
            "fdatasync_p50_us": sync_p50_us,
            "fdatasync_p99_us": sync_p99_us,
            "quick": quick,
            "seconds": started.elapsed().as_secs(),
            "systems": versions,
            "rows": report::json(&bench.rows),
            "held_claims": bench.held,
            "failures": bench.failures,
        });
        std::fs::write(&path, serde_json::to_vec_pretty(&found)?)
            .with_context(|| format!("writing {}", Path::new(&path).display()))?;
    }
    say(&format!("took {} s; curves in {}", started.elapsed().as_secs(), picture.display()));
    if !bench.failures.is_empty() {
        bail!("{} rounds failed, see above", bench.failures.len());
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

/// Median and 99th percentile of an `fdatasync` after 2 KiB, on the disk that everybody writes to.
fn sync_time(scratch: &Scratch) -> Result<(f64, f64)> {
    use std::io::{Seek as _, SeekFrom, Write as _};
    let mut file = std::fs::File::create(scratch.sub("disk")?.join("probe"))?;
    file.write_all(&vec![0; SYNC_SAMPLES * 2048])?;
    file.sync_all()?;
    file.seek(SeekFrom::Start(0))?;
    let mut samples = Vec::new();
    for _ in 0..SYNC_SAMPLES {
        let start = Instant::now();
        file.write_all(&[1; 2048])?;
        file.sync_data()?;
        samples.push(start.elapsed().as_secs_f64() * 1e6);
    }
    samples.sort_by(f64::total_cmp);
    Ok((samples[SYNC_SAMPLES / 2], samples[SYNC_SAMPLES * 99 / 100]))
}

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

/// Progress, for whoever watches, with the seconds since the first word.
#[expect(clippy::print_stderr, reason = "this is a program for the terminal")]
fn say(text: &str) {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    eprintln!("{:>4} s  {text}", START.elapsed().as_secs());
}

/// The result.
#[expect(clippy::print_stdout, reason = "this is a program for the terminal")]
fn print(text: &str) {
    println!("{text}");
}
