//! Real nodes that crash, fill their disks, lose each other, are upgraded and get noise for input: nothing acknowledged is lost.
//!
//! In:    real processes, alone and as clusters of the laboratory. Out: what clients were told, and what is there afterwards.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that can't go on should say so and stop"
)]
#![allow(unreachable_pub, reason = "the helpers are written like a library")]

#[path = "../common/mod.rs"]
mod common;

mod admin;
mod basics;
mod chaos;
mod crash;
mod fuzz;
mod time;
mod upgrade;
