//! The service as its operator meets it: documents, events, HTTP, addresses, metrics, the API description.
//!
//! In:    the real binary and the files of the repository. Out: that each does what it says.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that can't go on should say so and stop"
)]
#![allow(unreachable_pub, reason = "the helpers are written like a library")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/trio.rs"]
mod trio;

mod docs;
mod events;
mod http;
mod listen;
mod metrics;
mod openapi;
mod pictures;
mod road;
