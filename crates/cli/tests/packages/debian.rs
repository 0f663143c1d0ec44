//! The Debian package, the unit, what systemd is told.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{PATIENCE, TempDir};
use crate::support::{file, root, run};

/// `dpkg` on a root folder of its own: the system's packages are not touched, and no rights are needed.
fn dpkg(root: &Path, args: &[&str]) -> String {
    let mut dpkg = Command::new("dpkg");
    dpkg.arg(format!("--root={}", root.display()))
        .args(["--force-not-root", "--force-script-chrootless", "--force-depends"])
        .arg(format!("--log={}", root.join("dpkg.log").display()))
        .args(args)
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap()));
    run(&mut dpkg)
}

#[test]
fn the_debian_package_installs_runs_and_goes_again() {
    let dir = TempDir::new();
    let package = file(".deb");
    let package = package.to_str().unwrap();
    let listed = run(Command::new("dpkg-deb").args(["--contents", package]));
    for file in [
        "./usr/bin/leasehold",
        "./lib/systemd/system/leasehold.service",
        "./etc/leasehold/leasehold.toml",
        "./usr/share/doc/leasehold/README.md",
        "./usr/share/doc/leasehold/copyright",
        "./usr/share/leasehold/prometheus/alerts.yml",
        "./usr/share/man/man1/leasehold.1.gz",
        "./usr/share/bash-completion/completions/leasehold",
    ] {
        assert!(listed.lines().any(|line| line.ends_with(file)), "{file} is missing in\n{listed}");
    }
    assert!(listed.lines().all(|line| line.contains(" root/root ")), "{listed}");
    let field = |name| run(Command::new("dpkg-deb").args(["--field", package, name])).trim().to_string();
    assert_eq!(
        (field("Package").as_str(), field("Version").as_str()),
        ("leasehold", env!("CARGO_PKG_VERSION"))
    );
    assert!(field("Depends").starts_with("libc6 (>= 2."), "{}", field("Depends"));

    let target = dir.path().join("root");
    for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"] {
        fs::create_dir_all(target.join(folder)).unwrap();
    }
    fs::write(target.join("var/lib/dpkg/status"), "").unwrap();
    dpkg(&target, &["--install", package]);
    assert!(dpkg(&target, &["--status", "leasehold"]).contains("Status: install ok installed"));
    assert_eq!(dpkg(&target, &["--verify", "leasehold"]), "");

    // What was installed serves, with the settings that were installed.
    let data = target.join("var/lib/leasehold");
    let mut server = Command::new(target.join("usr/bin/leasehold"))
        .args(["serve", "--listen", "127.0.0.1:0", "--config"])
        .arg(target.join("etc/leasehold/leasehold.toml"))
        .arg("--data")
        .arg(&data)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(line.starts_with("leasehold is listening on http://127.0.0.1:"), "{line}");

    dpkg(&target, &["--purge", "leasehold"]);
    for gone in ["usr/bin/leasehold", "lib/systemd/system/leasehold.service", "etc/leasehold"] {
        assert!(!target.join(gone).exists(), "{gone}");
    }
    assert!(data.join("log").exists(), "data is never removed");
}

#[test]
fn the_unit_is_sound_and_hardened() {
    let dir = TempDir::new();
    let unit = dir.path().join("leasehold.service");
    let text_of_unit = fs::read_to_string(root("deploy/systemd/leasehold.service")).unwrap();
    for setting in ["Type=notify\n", "WatchdogSec=", "DynamicUser=yes", "Restart=on-failure"] {
        assert!(text_of_unit.contains(setting), "{setting}");
    }
    // The program must exist for the check.
    fs::write(&unit, text_of_unit.replace("/usr/bin/leasehold", env!("CARGO_BIN_EXE_leasehold"))).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let verified = verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&unit).output().unwrap();
    let complaints = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(verified.status.success(), "{complaints}");
    assert!(!complaints.contains("leasehold.service"), "{complaints}");
    // Exposure from 0 (none) to 10: most services of a distribution have 9.
    run(Command::new("systemd-analyze").args(["security", "--offline=yes", "--threshold=20"]).arg(&unit));
}

#[test]
fn systemd_is_told_when_it_is_ready_alive_and_stopping() {
    let dir = TempDir::new();
    let socket = dir.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(dir.path().join("data"))
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "100000")
        .env_remove("WATCHDOG_PID")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let heard = || {
        let mut buffer = [0; 1024];
        let len = manager.recv(&mut buffer).expect("the service manager hears nothing");
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    let first = heard();
    assert!(first.starts_with("READY=1\nSTATUS=serving http://127.0.0.1:"), "{first}");
    for _ in 0..3 {
        assert_eq!(heard(), "WATCHDOG=1\n");
    }
    run(Command::new("kill").args(["-TERM", &server.id().to_string()]));
    let last = std::iter::repeat_with(heard).find(|said| said != "WATCHDOG=1\n").unwrap();
    assert!(last.starts_with("STOPPING=1\n"), "{last}");
    assert!(server.wait().unwrap().success());
}

#[test]
fn make_install_puts_everything_where_it_belongs() {
    // The rule itself runs in the tests of the C library, which needs what it installs; here: what it names exists.
    let makefile = fs::read_to_string(root("Makefile")).unwrap();
    let named = makefile
        .split_whitespace()
        .filter(|word| word.starts_with("deploy/") || word.starts_with("scripts/"));
    let named: Vec<&str> = named.collect();
    assert!(named.len() >= 5, "{named:?}");
    for file in named {
        assert!(root(file).exists(), "{file}");
    }
}
