//! What an administrator gets from a release: the binary and its symbols, the tarball, the list of parts, the Debian
//! package, the systemd unit, the image, and manifests that start a cluster.
//!
//! In:    the binary under test, packed by the same scripts as a release. `make test-long` packs the release build.
//! Out:   checks of the files, by the programs that users use them with.
//! Never: needs a network, or touches what the machine has installed.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]
#![allow(unreachable_pub, reason = "the helpers are written like a library")]

#[path = "../common/mod.rs"]
mod common;
mod compose;
mod debian;
mod image;
mod kubernetes;
mod pods;
mod release;
mod support;
