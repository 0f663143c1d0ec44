//! The Perl distribution of clients/perl passes its own tests and checks, against the binary that was just built, and installs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Server, TempDir};

fn distribution() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/perl")
}

/// Runs a command of the tests and returns what it printed.
fn output_of(command: &mut Command) -> String {
    let output = command
        .env("LEASEHOLD_BIN", env!("CARGO_BIN_EXE_leasehold"))
        .env_remove("LEASEHOLD_ADDR")
        .env_remove("PERL5OPT")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    eprintln!("{text}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn the_perl_distribution_passes_its_tests_and_checks() {
    let text = output_of(Command::new("prove").args(["-l", "-j4", "t", "xt"]).current_dir(distribution()));
    assert!(text.contains("Result: PASS"), "it ran no test");
}

#[test]
fn the_perl_distribution_installs() {
    let dir = TempDir::new();
    let script = r#"
        cp -r "$0" dist && cd dist && perl Makefile.PL && make -s && make -s install DESTDIR="$1/root" INSTALL_BASE= &&
        lib=$(dirname "$(find "$1/root" -name Leasehold.pm)") && cd / &&
        perl -I"$lib" -MLeasehold -MLeasehold::ResourceLock -e 'print "installed $INC{q(Leasehold.pm)} $Leasehold::VERSION\n"'
    "#;
    let text = output_of(
        Command::new("sh").args(["-ec", script]).arg(distribution()).arg(dir.path()).current_dir(dir.path()),
    );
    let installed = format!("installed {}/root/", dir.path().display());
    assert!(text.contains(&installed), "{text}");
    assert!(!text.contains("Warning"), "{text}");
}

#[test]
fn the_program_of_the_perl_page_runs() {
    let page = include_str!("../../../../docs/perl.md");
    let program = page.split("```perl\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let server = Server::start();
    let output = Command::new("perl")
        .arg("-I")
        .arg(distribution().join("lib"))
        .args(["-e", program])
        .env("LEASEHOLD_BIN", env!("CARGO_BIN_EXE_leasehold"))
        .env("LEASEHOLD_ADDR", format!("http://{}", server.addr))
        .env_remove("PERL5OPT")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "write with the token 1\n", "{output:?}");
    assert_eq!(server.list("resource=db/main")[0]["status"], "released");
}
