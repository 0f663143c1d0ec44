//! What the standard library does not offer: random bytes, the host's name, threads that take no signals, and state that
//! belongs to one process.
//!
//! In:    nothing but the system. Out: safe functions.
//! Never: shares state between a process and the child that it forked.

#![allow(unsafe_code, reason = "system calls, and pointers that only one process follows")]

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::Errno;

/// Random bits from the system: a forked child never draws its parent's.
pub(crate) fn random() -> u128 {
    let mut bytes = [0_u8; 16];
    // SAFETY: the buffer is 16 bytes long.
    let drawn = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if drawn == 16 {
        return u128::from_le_bytes(bytes);
    }
    // A system without random numbers: unique is enough here.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = u128::from(COUNT.fetch_add(1, Ordering::Relaxed));
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    (nanos << 56) ^ (u128::from(std::process::id()) << 24) ^ count
}

/// The name of this host.
pub fn hostname() -> Result<String, Errno> {
    let mut bytes = [0_u8; 256];
    // SAFETY: the last byte is not given away and stays 0.
    let result = unsafe { libc::gethostname(bytes.as_mut_ptr().cast(), bytes.len() - 1) };
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
    if result != 0 || len == 0 {
        return Err(Errno(libc::EINVAL));
    }
    String::from_utf8(bytes[..len].to_vec()).map_err(|_| Errno(libc::EINVAL))
}

/// Does something while this thread takes no signals; a thread that it starts never takes any. The program's signals
/// stay the program's.
pub(crate) fn without_signals<T>(action: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets live until the end of this function; `before` is used only if it was written.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let result = action();
    if blocked {
        // SAFETY: the call that blocked them wrote `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    result
}

/// What belongs to one process. A forked child gets its own and leaves its parent's alone: a lock in there may have been
/// held by a thread that does not exist in the child, for ever.
pub(crate) struct PerProcess<T> {
    newest: AtomicPtr<Node<T>>,
}

struct Node<T> {
    pid: u32,
    value: Arc<T>,
    /// The parent's, and its parent's; never followed again.
    _older: *mut Node<T>,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { newest: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// This process's value. In a forked child `inherited` sees the parent's, once.
    pub(crate) fn get(&self, make: impl FnOnce() -> T, inherited: impl FnOnce(&T)) -> Arc<T> {
        let pid = std::process::id();
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: nodes are freed by `drop` alone, which has the only reference to `self`.
        let known = unsafe { newest.as_ref() };
        if let Some(node) = known.filter(|node| node.pid == pid) {
            return node.value.clone();
        }
        let node = Box::into_raw(Box::new(Node { pid, value: Arc::new(make()), _older: newest }));
        match self.newest.compare_exchange(newest, node, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                if let Some(node) = known {
                    inherited(&node.value);
                }
                // SAFETY: as above.
                unsafe { (*node).value.clone() }
            }
            Err(theirs) => {
                // Another thread of this process was first.
                // SAFETY: nobody else has seen this node; theirs is as above.
                unsafe {
                    drop(Box::from_raw(node));
                    (*theirs).value.clone()
                }
            }
        }
    }

    /// This process's value, if it has one.
    pub(crate) fn current(&self) -> Option<Arc<T>> {
        // SAFETY: as above.
        let node = unsafe { self.newest.load(Ordering::Acquire).as_ref() };
        node.filter(|node| node.pid == std::process::id()).map(|node| node.value.clone())
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let newest = *self.newest.get_mut();
        // SAFETY: this is the only reference left.
        let own = unsafe { newest.as_ref() }.is_some_and(|node| node.pid == std::process::id());
        if own {
            // SAFETY: made by `Box::into_raw`, and freed nowhere else.
            let node = unsafe { Box::from_raw(newest) };
            abandon(node._older);
        } else {
            abandon(newest);
        }
    }
}

/// Keeps what a parent process left where it is: a thread that is gone may have been changing it. It stays known, so
/// that nobody takes it for a leak.
fn abandon<T>(node: *mut Node<T>) {
    static INHERITED: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
    struct Kept {
        _node: *mut (),
        _next: *mut (),
    }
    if !node.is_null() {
        let next = INHERITED.load(Ordering::Acquire);
        let kept = Box::into_raw(Box::new(Kept { _node: node.cast(), _next: next }));
        INHERITED.store(kept.cast(), Ordering::Release);
    }
}

// SAFETY: the pointers lead to nodes whose values are shared between threads only as `Arc<T>`.
unsafe impl<T: Send + Sync> Send for PerProcess<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bits_differ_and_a_host_has_a_name() {
        assert_ne!(random(), random());
        assert!(!hostname().unwrap().is_empty());
    }

    #[test]
    fn threads_of_one_process_share_one_value() {
        let shared = PerProcess::new();
        let values: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|i| scope.spawn(move || i))
                .map(|thread| thread.join().unwrap())
                .map(|i| shared.get(move || i, |_| panic!("nothing was inherited")))
                .collect();
            threads
        });
        assert!(values.iter().all(|value| Arc::ptr_eq(value, &values[0])));
        assert!(shared.current().is_some());
    }
}
