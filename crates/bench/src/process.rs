//! Processes of a run: started, watched through `/proc`, and ended with it.
//!
//! In:    a command line, a directory for its output. Out: a `Process`, where it listens, memory and processor time.
//! Never: leaves a process or a directory behind when dropped.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// How long a process may take to print its address. A server with a long log reads it first.
const ADDRESS_WAIT_MAX: Duration = Duration::from_secs(120);
/// How long a process may take to end when asked; a server with a million claims may write a snapshot.
const END_WAIT_MAX: Duration = Duration::from_secs(30);
/// The last lines of a process that explain why it ended.
const LAST_LINES: usize = 15;

/// A process that ends with its owner.
pub struct Process {
    child: Child,
    /// The file with its output.
    log: PathBuf,
}

impl Process {
    /// Starts `command`; its output goes to a file in `dir`.
    pub fn start(command: &mut Command, dir: &Path) -> Result<Self> {
        let log = dir.join("output.log");
        let out = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            // Kept open and never written: the bare responder ends when it closes, even if this process is killed.
            .stdin(Stdio::piped())
            .stderr(out.try_clone()?)
            .stdout(out)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Self { child, log })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of what it printed.
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }

    /// Waits for the line with its address.
    pub(crate) fn address(&mut self) -> Result<SocketAddr> {
        let start = Instant::now();
        loop {
            let runs = self.runs();
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            if let Some(addr) = said.lines().find_map(address_in) {
                return Ok(addr);
            }
            ensure!(runs, "it ended before it printed its address; it said:\n{}", self.last_words());
            ensure!(start.elapsed() < ADDRESS_WAIT_MAX, "no line with http://… within {ADDRESS_WAIT_MAX:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends it `signal` and waits for its end.
    pub(crate) fn end(&mut self, signal: Signal) -> Result<()> {
        if self.runs() {
            kill_process(Pid::from_child(&self.child), signal).context("signalling a process")?;
        }
        let start = Instant::now();
        while self.runs() {
            if start.elapsed() > END_WAIT_MAX {
                bail!("a process did not end within {END_WAIT_MAX:?} of {signal:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGINT: PostgreSQL's "fast" end, which does not wait for its clients; the others take it as SIGTERM.
        let _ = self.end(Signal::INT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in a line that contains `http://127.0.0.1:PORT`.
fn address_in(line: &str) -> Option<SocketAddr> {
    let rest = line.split_once("http://")?.1;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':')).unwrap_or(rest.len());
    rest[..end].trim_end_matches(['.', ':']).parse().ok()
}

/// Different ports of the loopback interface that nobody listens on now. If somebody takes one before its server does, the
/// server says so.
pub fn free_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    // All are kept until the last one is known: a port that was given back could be given out again.
    let held = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?)).collect()
}

/// Processor time so far in nanoseconds, by process.
pub type CpuTimes = BTreeMap<u32, u64>;

/// Processor time of these processes and of their children so far: PostgreSQL has one process a connection.
pub fn cpu_times(pids: &[u32]) -> CpuTimes {
    if pids.is_empty() {
        return CpuTimes::new();
    }
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| Some((pid, cpu_ns_of(pid, pids)?)))
        .collect()
}

/// What was used between two looks. A process that has ended in between belongs to an earlier round and is left out.
pub fn cpu_between(before: &CpuTimes, after: &CpuTimes) -> Duration {
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
    // Hundredths of a second are too coarse for hundreds of processes that do little each. `schedstat` is exact, but tells
    // of the first thread only.
    if fields.get(17) == Some(&"1") {
        let exact = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok();
        if let Some(ns) = exact.and_then(|text| text.split(' ').next()?.parse().ok()) {
            return Some(ns);
        }
    }
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// Resident bytes of a process.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}; is --pid right?"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in the status")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().context("an odd VmRSS")?;
    Ok(kib * 1024)
}

/// Raises the limit of open files as far as allowed. The server's own limit is its own affair.
pub fn allow_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // If it is refused, opening connections fails with a clear message.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// A directory that is removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A fresh one below `parent`.
    pub fn new(parent: &Path, what: &str) -> Result<Self> {
        let nanos = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.subsec_nanos());
        let path = parent.join(format!("leasehold-bench-{what}-{}-{nanos}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path.canonicalize()?))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A directory below it, made if need be.
    pub fn sub(&self, name: &str) -> Result<PathBuf> {
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
    fn finds_the_address_in_a_line() {
        let expected = "127.0.0.1:4080".parse().ok();
        assert_eq!(address_in("INFO listening on http://127.0.0.1:4080/ (1 node)"), expected);
        assert_eq!(address_in("ready: http://127.0.0.1:4080."), expected);
        assert_eq!(address_in("see http://example.org/"), None);
        assert_eq!(address_in("starting"), None);
    }

    #[test]
    fn a_process_that_ends_early_tells_why() {
        let dir = Scratch::new(&std::env::temp_dir(), "test").unwrap();
        let mut process =
            Process::start(Command::new("sh").args(["-c", "echo no room; exit 1"]), dir.path()).unwrap();
        let error = process.address().unwrap_err().to_string();
        assert!(error.contains("no room"), "{error}");
    }

    #[test]
    fn reads_its_own_memory_and_time() {
        assert!(resident_bytes(std::process::id()).unwrap() > 100_000);
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
        let of_all = cpu_between(&CpuTimes::new(), &CpuTimes::from([(pid, used), (pid + 1, 1)]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_ne!(used, 0);
        assert_eq!(of_all, Duration::from_nanos(used + 1));
    }
}
