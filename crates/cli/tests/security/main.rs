//! Attacks over real sockets on a real service. A penetration test found each of them; none works any more.
//!
//! In:    real servers, callers without rights, with weak ones, and rivals. Out: what each of them gets.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/trio.rs"]
mod trio;

mod http2;
mod memory;
mod pages;
mod places;
mod wire;
