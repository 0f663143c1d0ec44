//! The seam to the machine: what the service needs of the one it runs on, which is time, tasks, chance, files and connections.
//!
//! In:    the engine's calls. Out: the operating system's and tokio's answers (`real.rs`, `files.rs`, `sockets.rs`); in a build of the
//!        simulation (`crates/lab`, feature `sim`) those of `simulated/`, where a seed decides.
//! Never: adds behaviour of its own: in the service it re-exports std and tokio, except for `StopOnDrop`.

#[cfg(not(feature = "sim"))]
mod files;
#[cfg(not(feature = "sim"))]
mod real;
#[cfg(feature = "sim")]
pub mod simulated;
#[cfg(not(feature = "sim"))]
mod sockets;

/// Files and folders.
pub mod fs {
    #[cfg(not(feature = "sim"))]
    pub use super::files::*;
    #[cfg(feature = "sim")]
    pub use super::simulated::files::*;
}

/// Connections.
pub mod net {
    #[cfg(feature = "sim")]
    pub use super::simulated::net::{TcpListener, TcpStream, bind, listen, lookup_host, tune};
    #[cfg(not(feature = "sim"))]
    pub use super::sockets::*;
}

#[cfg(not(feature = "sim"))]
pub use real::*;
#[cfg(feature = "sim")]
pub use simulated::runtime::{
    Instant, JoinHandle, Runtime, blocking, in_background, memory_bytes, random, resident_bytes, sleep,
    sleep_until, spawn, timeout, timeout_at, wall_us,
};

/// Whether a file could not be opened because this process, or the machine, has too many open already. That passes.
pub fn lacks_descriptors(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let lacking = [Errno::MFILE.raw_os_error(), Errno::NFILE.raw_os_error()];
    error.raw_os_error().is_some_and(|number| lacking.contains(&number))
}

/// A task that can be ended.
pub trait Abort {
    /// Ends it.
    fn abort(&self);
}

impl<T> Abort for tokio::task::JoinHandle<T> {
    fn abort(&self) {
        Self::abort(self);
    }
}

/// A task that ends when nobody wants its result any more.
pub struct StopOnDrop<H: Abort>(pub H);

impl<H: Abort> Drop for StopOnDrop<H> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
