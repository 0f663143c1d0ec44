//! The release that all tests here look at, and how they run programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

pub(crate) fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap().join(path)
}

/// Runs a program that must succeed, and returns what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let output: Output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}: see scripts/install-test-tools"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Packs the binary under test as `make dist` packs the release build, with quick compression.
pub(crate) fn pack(out: &Path) {
    let mut pack = Command::new(root("scripts/package"));
    run(pack
        .arg(env!("CARGO_BIN_EXE_leasehold"))
        .arg(out)
        .envs([("DEB_COMPRESSION", "none"), ("GZIP_LEVEL", "1")]));
}

/// What `make dist` has made, if that is to be tested.
pub(crate) fn dist() -> Option<PathBuf> {
    std::env::var_os("LEASEHOLD_DIST").map(PathBuf::from)
}

/// A folder as `make dist` leaves it, made once for all tests.
pub(crate) fn release() -> &'static Path {
    static RELEASE: OnceLock<PathBuf> = OnceLock::new();
    RELEASE.get_or_init(|| {
        if let Some(dist) = dist() {
            return dist;
        }
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("release");
        pack(&dir);
        dir
    })
}

/// The file of a release with this ending.
pub(crate) fn file(ending: &str) -> PathBuf {
    let files = fs::read_dir(release()).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = files.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    assert_eq!(found.len(), 1, "{ending}: {found:?}");
    found.remove(0)
}

/// Python with the pinned packages of deploy/requirements-test.txt.
pub(crate) fn python() -> Command {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        run(Command::new(root("scripts/install-test-tools")).arg("python"));
    });
    Command::new(root("target/deploy-tools/bin/python"))
}

/// All documents of some YAML files.
pub(crate) fn yaml(files: &[PathBuf]) -> Vec<Value> {
    let read = "import json, sys, yaml
print(json.dumps([part for path in sys.argv[1:] for part in yaml.safe_load_all(open(path))]))";
    serde_json::from_str(&run(python().args(["-c", read]).args(files))).unwrap()
}
