//! The claims API over a real socket, promise by promise.
//!
//! In:    one real server a test. Out: what a client of `/v1/claims/` sees, with good input and bad, below and above its budgets.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that can't go on should say so and stop"
)]
#![allow(unreachable_pub, reason = "the helpers are written like a library")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../access/support.rs"]
#[allow(dead_code, reason = "the tests of access control use more of it")]
mod support;

mod bad_input;
mod beyond;
mod budgets;
mod endings;
mod get;
mod list;
mod model;
mod patch;
mod post;
mod rhythm;
mod sets;
mod smoke;
mod time;
