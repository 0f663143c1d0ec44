//! Time, tasks and chance of the machine.
//!
//! In:    the engine's calls. Out: tokio's, std's and the system's answers, as they are.

use std::future::Future;
use std::io;
use std::thread;
pub use std::time::Instant;
use std::time::{SystemTime, UNIX_EPOCH};

pub use rand::random;
use tokio::sync::oneshot;
pub use tokio::task::JoinHandle;
use tokio::time::Sleep;
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

/// Microseconds since 1970 by the wall clock; 0 where it stands before that.
pub fn wall_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
