//! What others install: the Rust crate and the Python wheel, built here and used where nothing of this workspace is in sight.
//!
//! A test program of its own: cargo may link the command anew for the wheel, which no other test should meet.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]
#![allow(unreachable_pub, reason = "the helpers are written like a library")]

#[path = "../common/mod.rs"]
mod common;

mod rust_crate;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Held while the command is linked anew, and while it is started.
static COMMAND: Mutex<()> = Mutex::new(());

/// Where cargo has built these tests, and some of what the builds inside of them need.
fn target() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_leasehold")).ancestors().nth(2).unwrap().to_path_buf()
}

/// Takes away what cargo sets for its tests: it would make a build inside of a test think that everything changed.
fn without_cargo(command: &mut Command) -> &mut Command {
    command.env_remove("CARGO_MANIFEST_DIR").env_remove("MAKEFLAGS").env_remove("LD_LIBRARY_PATH")
}
