//! The clients (Rust, Python, Perl, the keychain) against a real service, with faults in between.
//!
//! In:    a real server, mostly behind a proxy that loses what it is told to lose. Out: what the client's user is told.

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
#[path = "../common/proxy.rs"]
mod proxy;

mod addresses;
mod faults;
mod https;
mod keychain;
mod modes;
mod perl;
mod python;
mod rows;
mod told;
