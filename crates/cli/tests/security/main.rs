//! Attacks, played over real sockets against real processes: each one worked once.
//!
//! In:    strangers, users with few rights, rivals. Out: what they can't do any more.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../access/provider.rs"]
#[allow(dead_code, reason = "the tests of access control use more of it")]
mod provider;
#[path = "../access/support.rs"]
#[allow(dead_code, reason = "the tests of access control use more of it")]
mod support;
#[path = "../common/trio.rs"]
mod trio;

mod audit;
mod client_side;
mod guarded_trio;
mod http2;
mod memory;
mod pages;
mod peer_port;
mod places;
mod rights;
mod secrets;
mod sets;
mod wire;
mod withdrawal;
