//! The wheel is all it takes: installed into an empty environment, it serves and takes a lock.
//!
//! In:    clients/python, built by maturin with the profile of the tests. Out: whether `pip install` of the result brings the
//!        command, the service and the package, with nothing of this workspace in sight.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::TempDir;
use crate::{COMMAND, ROOT, target, without_cargo};

/// Runs a command that must succeed, without anything that could lead it to another `leasehold`. Returns what it prints.
fn run(command: &mut Command) -> String {
    for name in ["LEASEHOLD_BIN", "LEASEHOLD_ADDR", "PYTHONPATH"] {
        command.env_remove(name);
    }
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The wheel, of a build that is not optimised: `make wheel` makes the one for users.
fn wheel(dir: &Path) -> PathBuf {
    run(Command::new(format!("{ROOT}/scripts/install-test-tools")).arg("python"));
    let mut maturin = Command::new(format!("{ROOT}/target/python-tools/bin/maturin"));
    // Stored as it is: to compress a hundred megabytes takes longer than everything else here.
    maturin.args(["build", "--profile", "dev", "--auditwheel", "skip", "--compression-method", "stored"]);
    maturin.arg("--out").arg(dir).current_dir(format!("{ROOT}/clients/python"));
    let _linking = COMMAND.lock().unwrap();
    run(without_cargo(&mut maturin).env("CARGO", env!("CARGO")).env("CARGO_TARGET_DIR", target()));
    let wheels: Vec<_> = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(wheels.len(), 1, "{wheels:?}");
    wheels[0].clone()
}

const TAKES_A_LOCK: &str = r#"
import importlib.metadata, os, pathlib, subprocess, sys, tempfile
from leasehold import LockManager
from leasehold._binary import binary

# The command that came with the package, though another one is first on the PATH.
own = pathlib.Path(sys.prefix, "bin", "leasehold")
assert pathlib.Path(binary()) == own, binary()
version = subprocess.run([own, "--version"], capture_output=True, text=True, check=True).stdout
assert version.split() == ["leasehold", importlib.metadata.version("leasehold")], version

with tempfile.TemporaryDirectory() as data:
    command = [binary(), "serve", "--listen", "127.0.0.1:0", "--data", data]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            url = "http://" + server.stdout.readline().split("http://")[1].strip()
            with LockManager(url) as locks, locks.claim("r") as claim:
                assert os.readlink(f"/proc/{locks.keychain_pid}/exe") == str(own)
                assert os.readlink(f"/proc/{server.pid}/exe") == str(own)
                print("held, token", claim.token)
        finally:
            server.kill()

os.environ["LEASEHOLD_BIN"] = "/somewhere/else"
assert binary() == "/somewhere/else"
"#;

#[test]
fn the_wheel_installs_into_an_empty_environment_serves_and_takes_a_lock() {
    let dir = TempDir::new();
    let wheel = wheel(&dir.path().join("wheel"));
    let (environment, elsewhere) = (dir.path().join("environment"), dir.path().join("elsewhere"));
    run(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&environment));
    let pip = format!("{ROOT}/target/python-tools/bin/python");
    let mut install = Command::new(pip);
    install.args(["-m", "pip", "--python"]).arg(&environment);
    run(install.args(["install", "--quiet", "--no-index", "--no-deps"]).arg(&wheel));
    // A `leasehold` that does not work, first on the PATH.
    std::fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink("/bin/false", elsewhere.join("leasehold")).unwrap();
    let mut python = Command::new(environment.join("bin/python"));
    python.args(["-I", "-c", TAKES_A_LOCK]).env("PATH", &elsewhere).current_dir(dir.path());
    assert_eq!(run(&mut python), "held, token 1\n");
}
