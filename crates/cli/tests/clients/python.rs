//! The Python package of clients/python passes its own tests, against the binary that was just built.

use std::path::Path;
use std::process::Command;

const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python");

/// Runs one of the pinned tools in the package's folder; it must succeed. Returns what it prints.
fn run(tool: &str, args: &[&str]) -> String {
    let root = Path::new(PACKAGE).parent().unwrap().parent().unwrap();
    let installed = Command::new(root.join("scripts/install-test-tools")).arg("python").status();
    assert!(installed.is_ok_and(|status| status.success()), "the tools for Python can't be installed");
    let output = Command::new(root.join("target/python-tools/bin/python"))
        .args(["-m", tool])
        .args(args)
        .current_dir(PACKAGE)
        .env("PYTHONPATH", ".")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("LEASEHOLD_BIN", env!("CARGO_BIN_EXE_leasehold"))
        .env_remove("LEASEHOLD_ADDR")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    eprintln!("{text}");
    assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
    text
}

/// One test, so that the tools are installed once.
#[test]
fn the_python_package_passes_its_tests_and_checks() {
    run("ruff", &["check", "--no-cache", "."]);
    run("ruff", &["format", "--no-cache", "--check", "."]);
    run("mypy", &["--cache-dir=/dev/null"]);
    let text = run("pytest", &["-q", "-p", "no:cacheprovider", "tests"]);
    assert!(text.contains(" passed") && !text.contains("skipped"), "it left tests out");
}
