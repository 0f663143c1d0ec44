//! The dialects of the older systems over a real socket: leases, locks and typed locks.
//!
//! In:    one real server a test. Out: what a client of each dialect sees, byte for byte where the old protocol says so.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that can't go on should say so and stop"
)]
#![allow(unreachable_pub, reason = "the helpers are written like a library")]

#[path = "../common/mod.rs"]
mod common;

mod leases;
mod leases_docs;
mod leases_formats;
mod locks;
mod locks_admin;
mod locks_disconnect;
mod locks_many;
mod locks_python;
mod typed_locks;
mod typed_locks_clean;
