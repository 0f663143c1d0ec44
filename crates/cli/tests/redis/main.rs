//! The port of Redis clients, over real sockets: bytes, rights, real clients, clusters.
//!
//! In:    one real server or cluster a test. Out: what a Redis client sees.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that can't go on should say so and stop"
)]
#![allow(unreachable_pub, reason = "the helpers are written like a library")]

#[path = "../common/authority.rs"]
mod authority;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/trio.rs"]
mod trio;

mod abuse;
mod clients;
mod commands;
mod rights;
mod support;
mod unknown;
