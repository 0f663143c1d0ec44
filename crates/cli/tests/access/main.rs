//! Who may hold what: every way to say who one is, every way to lie about it, over real sockets.
//!
//! In:    real servers, a real identity provider on loopback (`provider.rs`), nginx in front, certificates from a test
//!        authority. Out: what a caller sees, and what it must never see.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

#[path = "../common/authority.rs"]
mod authority;
#[path = "../common/mod.rs"]
mod common;

mod audit;
mod cluster;
mod dialects;
mod keys;
mod leases;
mod limits;
mod pages;
mod provider;
mod proxy;
mod support;
mod tls;
mod tokens;
