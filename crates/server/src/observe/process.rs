//! What the system knows of this process: memory, processor time, open files.
//!
//! In:    `/proc/self`. Out: Prometheus' usual `process_*` metrics.
//! Never: fails: what can't be read is left out.

use std::fmt::Write;
use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};

pub(crate) fn write(out: &mut String) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command's name may have anything in it; fields are counted behind its bracket.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok());
    let ticks = clock_ticks_per_second() as f64;
    let mut gauge = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        }
    };
    let cpu = field(14).zip(field(15)).map(|(user, system)| (user + system) as f64 / ticks);
    gauge("process_cpu_seconds_total", "counter", "Processor time used, user and system.", cpu);
    let resident = field(24).map(|pages| pages as f64 * page_size() as f64);
    gauge("process_resident_memory_bytes", "gauge", "Memory in use.", resident);
    let open = fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
    gauge("process_open_fds", "gauge", "Open file descriptors.", open);
    gauge(
        "process_start_time_seconds",
        "gauge",
        "When the process started, unix time.",
        started(field(22), ticks),
    );
}

fn started(ticks_after_boot: Option<u64>, ticks: f64) -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let boot = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse::<f64>().ok()?;
    Some(boot + ticks_after_boot? as f64 / ticks)
}
