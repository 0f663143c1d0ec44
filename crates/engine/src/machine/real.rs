//! Time, tasks and chance of the machine.
//!
//! In:    the engine's calls. Out: tokio's, std's and the system's answers, as they are.

use std::fs;
use std::future::Future;
use std::io;
use std::path::Path;
use std::thread;
pub use std::time::Instant;
use std::time::{SystemTime, UNIX_EPOCH};

pub use rand::random;
use tokio::sync::oneshot;
pub use tokio::task::JoinHandle;
use tokio::time::Sleep;
use tokio::time::Timeout;
pub use tokio::time::{sleep, timeout};

/// What openraft runs on.
pub type Runtime = openraft_rt_tokio::TokioRuntime;

/// Starts a task.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(future)
}

/// Waits for an instant.
pub fn sleep_until(at: Instant) -> Sleep {
    tokio::time::sleep_until(at.into())
}

/// Waits for a future until an instant.
pub fn timeout_at<F: Future>(deadline: Instant, future: F) -> Timeout<F> {
    tokio::time::timeout_at(deadline.into(), future)
}

/// Does work that waits for the disk where nobody else waits for it.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}

/// Does work on a thread that yields to every other.
pub async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    thread::Builder::new().name("snapshot".into()).spawn(move || {
        // On Linux this is the niceness of the calling thread alone. Where it can't be set, it is only less polite.
        rustix::process::setpriority_process(None, 19).ok();
        done.send(work()).ok();
    })?;
    result.await.map_err(io::Error::other)
}

/// The bytes of this process that are in memory.
pub fn resident_bytes() -> Option<u64> {
    let pages = fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse::<u64>().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// The memory of this machine, or of the control group that this process is in, if that has less.
pub fn memory_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = machine.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().strip_suffix(" kB")?;
    let machine = kib.trim().parse::<u64>().ok()? << 10;
    Some(machine.min(control_group_bytes().unwrap_or(u64::MAX)))
}

/// The least that the control group of this process, or one around it, allows.
fn control_group_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let root = Path::new("/sys/fs/cgroup");
    let around = root.join(own);
    let limits = around.ancestors().filter(|path| path.starts_with(root)).map(|path| path.join("memory.max"));
    let limits = limits.chain([root.join("memory/memory.limit_in_bytes")]);
    limits.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

/// Microseconds since 1970 by the wall clock; 0 where it stands before that.
pub fn wall_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
