//! What an operator sees and uses: logs, the doctor, backups, rights for scraping, traces, runbooks.
//!
//! In:    real nodes, alone and as clusters of the laboratory; a collector of traces on loopback. Out: what they say.

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
#[path = "../access/support.rs"]
#[allow(dead_code, reason = "the tests of access control use more of it")]
mod support;

mod backups;
mod check;
mod collector;
mod doctor;
mod logs;
mod rights;
mod runbooks;
mod traces;
