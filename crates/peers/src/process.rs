//! Processes of a run: started, watched through `/proc`, and ended with it.
//!
//! In:    a command line, a directory for its output. Out: a `Process` and its processor time.
//! Never: leaves a process behind when dropped.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

/// How long a process may take to end when asked; then it is killed.
const END_WAIT_MAX: Duration = Duration::from_secs(10);

/// A process that ends with its owner.
pub(crate) struct Process {
    child: Child,
    /// What it printed.
    pub(crate) log: PathBuf,
}

impl Process {
    /// Starts `command`, its output going to a file in `dir`.
    pub(crate) fn start(command: &mut Command, dir: &Path) -> Result<Self> {
        let log = dir.join("output.log");
        let out = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            // Kept open and never written: the bare responder ends when it closes.
            .stdin(Stdio::piped())
            .stderr(out.try_clone()?)
            .stdout(out)
            .spawn()
            .with_context(|| {
                format!("starting {name}; scripts/install-bench-peers installs what is missing")
            })?;
        Ok(Self { child, log })
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of what it printed.
    pub(crate) fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGINT: PostgreSQL's "fast" end, which does not wait for its clients; the others take it as SIGTERM.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let start = Instant::now();
        while self.runs() && start.elapsed() < END_WAIT_MAX {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port of the loopback interface that nobody listens on.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Processor time of these processes and their children so far, in nanoseconds, one by one: PostgreSQL has one process a
/// connection.
pub(crate) fn cpu_times(pids: &[u32]) -> BTreeMap<u32, u64> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| Some((pid, cpu_ns_of(pid, pids)?)))
        .collect()
}

/// What was used between two looks. Whoever has ended in between is left out: it belongs to an earlier round.
pub(crate) fn cpu_between(before: &BTreeMap<u32, u64>, after: &BTreeMap<u32, u64>) -> Duration {
    let used = |(pid, now): (&u32, &u64)| now.saturating_sub(before.get(pid).copied().unwrap_or(0));
    Duration::from_nanos(after.iter().map(used).sum())
}

/// Processor time of this process so far: exact, where `/proc` counts in hundredths of a second.
pub(crate) fn own_cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec as u32)
}

fn cpu_ns_of(pid: u32, wanted: &[u32]) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may contain anything; the numbers start after the last bracket.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let parent: u32 = fields.get(1)?.parse().ok()?;
    if !wanted.contains(&pid) && !wanted.contains(&parent) {
        return None;
    }
    // Hundredths of a second are too coarse for hundreds of processes that do little each, and `schedstat` is exact. But it
    // tells of the first thread only.
    if fields.get(17) == Some(&"1") {
        let exact = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok();
        if let Some(ns) = exact.and_then(|text| text.split(' ').next()?.parse().ok()) {
            return Some(ns);
        }
    }
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// A directory that goes when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// A fresh one below `parent`.
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        let path = parent.join(format!("bench-peers-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path.canonicalize()?))
    }

    /// A directory below it, made if need be.
    pub(crate) fn sub(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_processor_time_grows_with_work() {
        let (before, start) = (own_cpu_time(), Instant::now());
        while own_cpu_time() == before && start.elapsed() < END_WAIT_MAX {}
        assert!(own_cpu_time() > before);
    }

    #[test]
    fn the_time_of_a_process_with_one_thread_is_exact() {
        let mut child = Command::new("sh").args(["-c", "read line"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let start = Instant::now();
        // Starting a shell takes far less than a hundredth of a second, and more than nothing.
        let used = loop {
            let used = cpu_times(&[pid]).get(&pid).copied().unwrap_or(0);
            if used > 0 || start.elapsed() > END_WAIT_MAX {
                break used;
            }
        };
        let of_all = cpu_between(&BTreeMap::new(), &BTreeMap::from([(pid, used), (pid + 1, 1)]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_ne!(used, 0);
        assert_eq!(of_all, Duration::from_nanos(used + 1));
    }
}
