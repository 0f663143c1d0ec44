//! The Python package of clients/python passes its own tests, against the binary that was just built.

use std::path::Path;
use std::process::Command;
use std::sync::Once;

const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python");

/// Runs one of the pinned tools in the package's folder; it must succeed. Returns what it prints.
fn run(tool: &str, args: &[&str]) -> String {
    let root = Path::new(PACKAGE).parent().unwrap().parent().unwrap();
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let installed = Command::new(root.join("scripts/install-test-tools")).arg("python").status();
        assert!(installed.is_ok_and(|status| status.success()), "the tools for Python can't be installed");
    });
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

/// These files take half of the time; the two halves run side by side.
const SLOW: [&str; 3] = ["tests/test_threads.py", "tests/test_loss.py", "tests/test_fork.py"];

fn passes(args: &[&str]) {
    let text = run("pytest", &[&["-q", "-p", "no:cacheprovider"], args].concat());
    assert!(text.contains(" passed") && !text.contains("skipped"), "it left tests out");
}

#[test]
fn the_python_package_passes_its_tests_and_checks() {
    run("ruff", &["check", "--no-cache", "."]);
    run("ruff", &["format", "--no-cache", "--check", "."]);
    run("mypy", &["--cache-dir=/dev/null"]);
    let ignored = SLOW.map(|file| format!("--ignore={file}"));
    passes(&[&ignored.each_ref().map(String::as_str)[..], &["tests"]].concat());
}

#[test]
fn the_python_package_passes_its_tests_of_threads_forks_and_losses() {
    passes(&SLOW);
}
