//! `leasehold run` and the commands around it, as real processes against a real service.
//!
//! `basics.rs` has what all of it is for, `honest.rs` what it says and returns when something is wrong, `unheard.rs` a stderr
//! that nobody reads, `waiting.rs` what it shows while it waits, `looking.rs` and `watching.rs` the other
//! commands, `modes.rs` shared claims, slots, sets and nested runs, `abuse.rs` many at a time.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]
#![allow(unreachable_pub, reason = "the helpers are written like a library")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/proxy.rs"]
mod proxy;
#[path = "../common/trio.rs"]
mod trio;

mod abuse;
mod basics;
mod honest;
mod looking;
mod modes;
mod support;
mod unheard;
mod waiting;
mod watching;
