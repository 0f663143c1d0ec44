//! The engine on real files: its log, its storage, the files of older releases, and bytes that nobody wrote on purpose.
//!
//! One program for all of it, since linking the engine takes longer than most of these tests.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

mod fuzz_bytes;
mod near;
mod released;
mod storage_suite;
mod version_3;
mod wal;
