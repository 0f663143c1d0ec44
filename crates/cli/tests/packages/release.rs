//! The files of a release, and `make install`'s layout.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

use crate::common::TempDir;
use crate::support::{dist, file, pack, python, release, root, run};

fn check() -> Command {
    let mut check = Command::new(root("scripts/check-release"));
    check.arg(release()).current_dir(root(""));
    if dist().is_none() {
        // The binary under test is not linked by zig, and has paths of this machine.
        check.envs([("GLIBC_BASELINE", "99"), ("CARGO_HOME", "/nowhere")]);
    }
    check
}

#[test]
fn a_release_passes_its_own_check_which_can_fail() {
    let said = run(&mut check());
    assert!(said.contains("glibc: starts with 2."), "{said}");

    let too_old = check().env("GLIBC_BASELINE", "2.0").output().unwrap();
    assert!(!too_old.status.success(), "the check accepts every glibc");
    let said = String::from_utf8_lossy(&too_old.stderr).into_owned();
    assert!(said.contains("must start with 2.0: ") && said.contains("GLIBC_2."), "{said}");
}

#[test]
fn the_symbols_file_tells_where_in_the_source_a_stripped_address_is() {
    let (binary, symbols) = (release().join("leasehold"), file(".debug"));
    let link = run(Command::new("readelf").args(["--string-dump=.gnu_debuglink"]).arg(&binary));
    assert!(link.contains(symbols.file_name().unwrap().to_str().unwrap()), "{link}");

    let names = run(Command::new("nm").args(["--defined-only", "--demangle"]).arg(&symbols));
    let main = names.lines().find(|line| line.ends_with(" leasehold::main")).expect("leasehold::main");
    let address = main.split(' ').next().unwrap();
    let place = run(Command::new("addr2line").args([format!("--exe={}", symbols.display()), address.into()]));
    assert!(place.contains("crates/cli/src/main.rs:"), "{place}");
}

#[test]
fn the_tarball_unpacks_into_a_prefix_and_runs_from_there() {
    let dir = TempDir::new();
    let unpack = ["--strip-components=1", "--directory"];
    run(Command::new("tar").arg("-xzf").arg(file(".tar.gz")).args(unpack).arg(dir.path()));
    for path in [
        "share/man/man1/leasehold.1",
        "share/bash-completion/completions/leasehold",
        "share/doc/leasehold/LICENSE-MIT",
        "share/doc/leasehold/leasehold.cdx.json",
        "share/leasehold/kubernetes/statefulset.yaml",
        "share/leasehold/compose/compose.yaml",
        "share/leasehold/prometheus/alerts.yml",
    ] {
        assert!(dir.path().join(path).is_file(), "{path}");
    }
    let unit = fs::read_to_string(dir.path().join("lib/systemd/system/leasehold.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/local/bin/leasehold serve "), "{unit}");
    let binary = dir.path().join("bin/leasehold");
    assert_eq!(fs::metadata(&binary).unwrap().permissions().mode() & 0o777, 0o755);
    let version = run(Command::new(&binary).arg("--version"));
    assert_eq!(version.trim(), format!("leasehold {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_same_sources_give_the_same_files() {
    let (first, second) = (TempDir::new(), TempDir::new());
    let sums = |dir: &TempDir| {
        pack(dir.path());
        fs::read_to_string(dir.path().join("SHA256SUMS")).unwrap()
    };
    let sums_of_first = sums(&first);
    assert_eq!(sums_of_first, sums(&second));
    let named: Vec<String> =
        sums_of_first.lines().map(|line| line.split("  ").nth(1).unwrap().to_string()).collect();
    for ending in ["leasehold", ".debug", ".tar.gz", ".cdx.json", ".deb"] {
        assert!(named.iter().any(|name| name.ends_with(ending)), "{ending}: {named:?}");
    }
}

#[test]
fn the_list_of_parts_is_cyclonedx_and_names_what_is_linked() {
    let path = file(".cdx.json");
    let validate = "import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(str(JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read()) or '') or None)";
    run(python().args(["-c", validate]).arg(&path));

    let list: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let parts: BTreeSet<&str> =
        list["components"].as_array().unwrap().iter().map(|part| part["name"].as_str().unwrap()).collect();
    for linked in ["leasehold-core", "openraft", "ring", "tikv-jemalloc-sys", "tokio", "rust-std"] {
        assert!(parts.contains(linked), "{linked}: {parts:?}");
    }
    for elsewhere in ["proptest", "cbindgen", "leasehold-lab", "syn", "cc"] {
        assert!(!parts.contains(elsewhere), "{elsewhere} is for tests or for the build");
    }
    for part in list["components"].as_array().unwrap() {
        let name = part["name"].as_str().unwrap();
        assert!(part["licenses"][0]["expression"].is_string(), "{name} has no licence");
        let own = name.starts_with("leasehold") || name == "rust-std";
        assert!(own || part["hashes"][0]["content"].as_str().is_some_and(|sum| sum.len() == 64), "{name}");
    }
    let application = &list["metadata"]["component"];
    let sum = run(Command::new("sha256sum").arg(release().join("leasehold")));
    assert_eq!(
        sum.split(' ').next(),
        application["hashes"][0]["content"].as_str(),
        "the list is of this binary"
    );
}
