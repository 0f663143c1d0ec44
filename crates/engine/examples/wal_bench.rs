//! How much an append costs over a bare fdatasync on the same disk.
//!
//! `cargo run --release -p leasehold-server --example wal_bench [DIRECTORY]`
//!
//! Both write 2 KiB at a time, one after the other, into files that are zeros already; rounds alternate so
//! that a busy machine harms both alike. `burst` keeps 64 appends in flight, which share frames.
#![allow(clippy::print_stdout, clippy::unwrap_used)] // a tool for developers

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold_engine::wal::{Record, Wal, WalOptions};

const PAYLOAD: usize = 2048;
const ROUND: u64 = 1000;
const ROUNDS: u64 = 10;

fn main() {
    let base = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let dir = base.join(format!("leasehold-wal-bench-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let (wal, _) = Wal::open(&dir.join("log"), WalOptions::default()).unwrap();
    let raw_file = zeroed(&dir.join("raw"), 8 << 20);
    let (mut raw, mut wal_times, mut next) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        raw_round(&raw_file, &mut raw);
        wal_round(&wal, &mut next, &mut wal_times);
    }
    report("bare write + fdatasync, 2 KiB", &mut raw);
    report("append -> done, 2 KiB", &mut wal_times);
    let mut burst = Vec::new();
    let started = Instant::now();
    burst_round(&wal, &mut next, &mut burst);
    let rate = burst.len() as f64 / started.elapsed().as_secs_f64();
    report(&format!("burst, 64 in flight, {rate:.0}/s"), &mut burst);
    drop(wal);
    let started = Instant::now();
    let (wal, recovered) = Wal::open(&dir.join("log"), WalOptions::default()).unwrap();
    println!("reopening {} MiB: {:.0?}", wal.log_bytes() >> 20, started.elapsed());
    let started = Instant::now();
    let count = wal.read(recovered.entries).unwrap().len();
    println!("reading {count} entries back: {:.0?}", started.elapsed());
    drop(wal);
    fs::remove_dir_all(dir).unwrap();
}

fn zeroed(path: &Path, len: usize) -> File {
    fs::write(path, vec![0; len]).unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.sync_all().unwrap();
    file
}

fn raw_round(file: &File, times: &mut Vec<Duration>) {
    let buffer = vec![7; PAYLOAD];
    for turn in 0..ROUND {
        let started = Instant::now();
        file.write_all_at(&buffer, turn * PAYLOAD as u64).unwrap();
        file.sync_data().unwrap();
        times.push(started.elapsed());
    }
}

fn record(next: &mut u64) -> Vec<Record> {
    let index = *next;
    *next += 1;
    vec![Record::Entry { index, payload: Bytes::from(vec![7; PAYLOAD]) }]
}

fn wal_round(wal: &Wal, next: &mut u64, times: &mut Vec<Duration>) {
    let (tell, told) = mpsc::channel();
    for _ in 0..ROUND {
        let records = record(next);
        let tell = tell.clone();
        let started = Instant::now();
        wal.append(records, move |result| {
            result.unwrap();
            tell.send(started.elapsed()).unwrap();
        });
        times.push(told.recv().unwrap());
    }
}

fn burst_round(wal: &Wal, next: &mut u64, times: &mut Vec<Duration>) {
    let (tell, told) = mpsc::channel();
    let mut in_flight = 0;
    for _ in 0..20_000 {
        while in_flight >= 64 {
            times.push(told.recv().unwrap());
            in_flight -= 1;
        }
        let records = record(next);
        let (tell, started) = (tell.clone(), Instant::now());
        in_flight += 1;
        wal.append(records, move |_| tell.send(started.elapsed()).unwrap());
    }
    times.extend(told.iter().take(in_flight));
}

fn report(name: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |part: f64| times[(times.len() as f64 * part) as usize];
    println!("{name:40} p50 {:>7.1?}  p99 {:>7.1?}  p99.9 {:>7.1?}", at(0.5), at(0.99), at(0.999));
}
