//! The Python package of clients/python passes its own tests, against the binary that was just built.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that can't go on should say so and stop"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A Python that has pytest: the system's, or one of our own beside the build.
fn python() -> PathBuf {
    let has_pytest = |python: &Path| {
        Command::new(python).args(["-c", "import pytest"]).output().is_ok_and(|out| out.status.success())
    };
    let system = PathBuf::from("python3");
    if has_pytest(&system) {
        return system;
    }
    let venv = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pytest-venv");
    let own = venv.join("bin/python");
    if !has_pytest(&own) {
        let made = Command::new("python3").args(["-m", "venv"]).arg(&venv).status();
        assert!(made.is_ok_and(|status| status.success()), "python3 with its venv module is needed");
        let pip = Command::new(&own).args(["-m", "pip", "install", "--quiet", "pytest==9.2.0"]).status();
        assert!(pip.is_ok_and(|status| status.success()), "pytest could not be installed");
    }
    own
}

#[test]
fn the_python_package_passes_its_tests() {
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python");
    let output = Command::new(python())
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"])
        .current_dir(package)
        .env("PYTHONPATH", ".")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("LEASEHOLD_BIN", env!("CARGO_BIN_EXE_leasehold"))
        .env_remove("LEASEHOLD_ADDR")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    eprintln!("{text}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(" passed"), "it ran no test");
}
