//! Sessions: which worker a claim belongs to, as the server is told. It refuses a claim that would wait for its own worker.
//!
//! In:    workers of this process, and the session that the process was started in. Out: a path for each worker.
//! Never: the same path for two workers.

use std::sync::OnceLock;

use crate::request::Worker;

/// The variable in which a process finds the session that it was started in.
pub const VARIABLE: &str = "LEASEHOLD_SESSION";
/// Longest session that a server takes, in bytes.
pub(crate) const LEN_MAX: usize = 512;

/// The sessions of this process.
#[derive(Debug, Clone)]
pub(crate) struct Sessions {
    /// What they all begin with.
    base: String,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        static PROCESS: OnceLock<u32> = OnceLock::new();
        // The number of the process too: a forked child has the same random number.
        let own = format!("{}-{:08x}", std::process::id(), PROCESS.get_or_init(rand::random));
        Self { base: from_env().map_or(own.clone(), |outer| format!("{outer}/{own}")) }
    }

    /// A worker's session. None if so many levels are nested that it would be too long.
    pub(crate) fn of(&self, worker: &Worker) -> Option<String> {
        Some(format!("{}-{}", self.base, worker.label())).filter(|session| is_valid(session))
    }
}

/// The session that this process was started in.
pub fn from_env() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|session| is_valid(session))
}

/// Whether it is a path: names with slashes between them.
pub(crate) fn is_valid(session: &str) -> bool {
    session.len() <= LEN_MAX
        && session.split('/').all(|part| !part.is_empty() && !part.contains(char::is_control))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_has_a_session_of_its_own() {
        let sessions = Sessions { base: "outer/7-0000002a".into() };
        let of = |worker: &Worker| sessions.of(worker).unwrap();
        let here = of(&Worker::current());
        let there = std::thread::spawn(Worker::current).join().unwrap();
        assert!(here.starts_with("outer/7-0000002a-") && here != of(&there), "{here}");
        assert_eq!(of(&Worker::named("a/b")), "outer/7-0000002a-a%2Fb");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let task = runtime.block_on(async { tokio::spawn(async { Worker::current() }).await.unwrap() });
        assert!(of(&task).starts_with("outer/7-0000002a-task"), "{}", of(&task));
        assert_eq!(sessions.of(&Worker::named("a".repeat(LEN_MAX))), None);
    }

    #[test]
    fn a_session_is_a_path() {
        assert!(is_valid("a") && is_valid("a/b/c"));
        assert!(!is_valid("") && !is_valid("a//b") && !is_valid("/a") && !is_valid("a\n"));
    }
}
