//! Other processes: the server or responder started for a run, memory and CPU time from `/proc`.
//!
//! In:    arguments for a child of the running executable.
//! Out:   its address and pid; resident bytes and CPU time of any pid.
//! Never: leaves a child or its data behind when dropped.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use super::probe;

/// How long a child may take to print its address. A server with a long log reads it first.
const ADDRESS_WAIT_MAX: Duration = Duration::from_secs(120);
/// How long a server may take to become ready after that.
const READY_WAIT_MAX: Duration = Duration::from_secs(120);
/// How long a server may take to end after SIGTERM.
const END_WAIT_MAX: Duration = Duration::from_secs(30);
/// Lines of a child's output kept to explain why it ended.
const LAST_LINES_MAX: usize = 10;

/// A child of the running executable that serves HTTP.
pub(crate) struct Served {
    child: Child,
    /// Where it listens.
    pub(crate) addr: SocketAddr,
}

impl Served {
    /// Starts `leasehold <args>` and waits for the line with its address.
    pub(crate) fn start(args: &[&str]) -> Result<Self> {
        let exe = std::env::current_exe().context("finding the running executable")?;
        let mut child = Command::new(exe)
            .args(args)
            // Kept open and never written: a responder ends when it closes, even if we are killed.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting `leasehold {}`", args.join(" ")))?;
        let (sender, lines) = mpsc::channel();
        if let Some(out) = child.stdout.take() {
            forward_lines(out, sender.clone());
        }
        if let Some(err) = child.stderr.take() {
            forward_lines(err, sender);
        }
        match wait_for_address(&lines) {
            Ok(addr) => Ok(Self { child, addr }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error.context(format!("`leasehold {}` did not start", args.join(" "))))
            }
        }
    }

    /// The child's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `GET /readyz` answers 200.
    pub(crate) fn wait_ready(&self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < READY_WAIT_MAX {
            if probe::status_of(self.addr, "/readyz").is_ok_and(|status| status == 200) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("the server on {} was not ready (GET /readyz) within {READY_WAIT_MAX:?}", self.addr)
    }

    /// Ends the child with SIGTERM, waiting for its clean end, or with SIGKILL.
    pub(crate) fn end(mut self, signal: Signal) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).context("signalling the server")?;
        let start = Instant::now();
        while start.elapsed() < END_WAIT_MAX {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("the server did not end within {END_WAIT_MAX:?} of {signal:?}")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Both fail only if the child is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a pipe to its end on a thread, so that a talkative child never blocks on a full pipe.
fn forward_lines(pipe: impl Read + Send + 'static, sender: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            // Nobody listens after the address was found; the pipe is still read.
            let _ = sender.send(line);
        }
    });
}

fn wait_for_address(lines: &Receiver<String>) -> Result<SocketAddr> {
    let start = Instant::now();
    let mut last = VecDeque::new();
    loop {
        match lines.recv_timeout(ADDRESS_WAIT_MAX.saturating_sub(start.elapsed())) {
            Ok(line) => {
                if let Some(addr) = address_in(&line) {
                    return Ok(addr);
                }
                last.push_back(line);
                if last.len() > LAST_LINES_MAX {
                    last.pop_front();
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("no line with http://… within {ADDRESS_WAIT_MAX:?}")
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let said = Vec::from(last).join("\n");
                return Err(anyhow!("it ended before it printed its address; it said:\n{said}"));
            }
        }
    }
}

/// The address in a line that contains `http://127.0.0.1:PORT`.
fn address_in(line: &str) -> Option<SocketAddr> {
    let rest = line.split_once("http://")?.1;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':')).unwrap_or(rest.len());
    rest[..end].trim_end_matches(['.', ':']).parse().ok()
}

/// A fresh directory that is removed when dropped.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    /// Creates one under `parent`.
    pub(crate) fn new(parent: &Path, what: &str) -> Result<Self> {
        let nanos = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.subsec_nanos());
        let path = parent.join(format!("leasehold-bench-{what}-{}-{nanos}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Resident bytes of a process.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}; is --pid right?"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in the status")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().context("an odd VmRSS")?;
    Ok(kib * 1024)
}

/// CPU time of a process so far, all threads.
fn cpu_time(pid: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may contain anything; the numbers start after the last bracket.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// CPU use of generator and server between `start` and `stop`.
pub(crate) struct CpuClock {
    start: Instant,
    wall: Option<Duration>,
    /// Pid, time at the start, time used; the generator first.
    used: [Option<(u32, Duration)>; 2],
    cores: [Option<f64>; 2],
}

impl CpuClock {
    /// Starts counting.
    pub(crate) fn start(server_pid: Option<u32>) -> Self {
        let at_start = |pid: u32| cpu_time(pid).map(|time| (pid, time));
        let used = [at_start(std::process::id()), server_pid.and_then(at_start)];
        Self { start: Instant::now(), wall: None, used, cores: [None, None] }
    }

    /// Stops counting; only the first call counts.
    pub(crate) fn stop(&mut self) {
        if self.wall.is_some() {
            return;
        }
        let wall = self.start.elapsed();
        self.wall = Some(wall);
        self.cores = self.used.map(|used| {
            let (pid, before) = used?;
            Some(cpu_time(pid)?.saturating_sub(before).as_secs_f64() / wall.as_secs_f64())
        });
    }

    /// Cores used by the generator and by the server.
    pub(crate) fn cores(&self) -> (f64, Option<f64>) {
        (self.cores[0].unwrap_or(0.0), self.cores[1])
    }
}

/// Raises the limit of open files as far as needed and allowed. The server's own limit is its own affair.
pub(crate) fn allow_open_files(count: u64) {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_some_and(|current| current < count) {
        let current = now.maximum.map_or(Some(count), |maximum| Some(count.min(maximum)));
        // If it is refused, opening the connections fails with a clear message.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum: now.maximum });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_address_in_a_line() {
        let expected = "127.0.0.1:4080".parse().ok();
        assert_eq!(address_in("http://127.0.0.1:4080"), expected);
        assert_eq!(address_in("INFO listening on http://127.0.0.1:4080/ (1 node)"), expected);
        assert_eq!(address_in("ready: http://127.0.0.1:4080."), expected);
        assert_eq!(address_in("see http://example.org/"), None);
        assert_eq!(address_in("starting"), None);
    }

    #[test]
    fn reads_its_own_memory_and_time() {
        assert!(resident_bytes(std::process::id()).unwrap() > 100_000);
        assert!(cpu_time(std::process::id()).is_some());
    }
}
