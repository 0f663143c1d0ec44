//! `libleasehold_dss` as C programs meet it: installed by make, found by pkg-config, built by cc, run against a real server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on should say so and stop")]

mod hammer;
mod harness;
mod lost;
mod manual;
mod several;
mod suite;
