//! A cluster that was hurt works again: real processes, real connections, one fault at a time.
//!
//! In:    clusters of the laboratory. Out: every node answers, and what it said was true.
//! Never: asserts a duration. Connections that a cut has hit stay silent for ever here, where TCP would go on trying
//!        for half a minute: a node that waits for one fails its test.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

mod disks;
mod forwarding;
mod idle;
mod leaders;
mod links;
mod reads;
mod staleness;
mod support;
mod tokens;
mod waiting;
