//! What the tests of the C library need: the installed files, C programs built against them, a real server.
//!
//! The server's binary belongs to another package, whose path cargo tells nobody: `make install` builds and installs
//! everything into a folder of the target directory once a run, and the tests use what is installed there.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_lab::port::Port;

/// Where the tests install, below their `DESTDIR`.
const PREFIX: &str = "/opt/leasehold";
/// How long anything may take before a test gives up on it: machines are shared and slow at times.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder that stands for `/`: everything is installed there when this returns.
fn destdir() -> &'static Path {
    static DESTDIR: OnceLock<PathBuf> = OnceLock::new();
    DESTDIR.get_or_init(|| {
        run(Command::new(workspace().join("scripts/install-test-tools")));
        let temp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let destdir = temp.join("dss-installed");
        fs::remove_dir_all(&destdir).ok();
        let mut make = Command::new("make");
        make.current_dir(workspace()).args(["--no-print-directory", "install", "PROFILE=dev"]);
        make.arg(format!("PREFIX={PREFIX}")).arg(format!("DESTDIR={}", destdir.display()));
        make.arg(format!("CARGO={}", env!("CARGO"))).env("CARGO_TARGET_DIR", temp.parent().unwrap());
        // What cargo sets for its tests would make the build inside think that everything changed.
        make.env_remove("CARGO_MANIFEST_DIR").env_remove("MAKEFLAGS").env_remove("LD_LIBRARY_PATH");
        run(make);
        destdir
    })
}

/// A path below the prefix.
pub(crate) fn installed(path: &str) -> PathBuf {
    destdir().join(PREFIX.trim_start_matches('/')).join(path)
}

/// Runs a command that must succeed, and gives what it wrote to stdout.
pub(crate) fn run(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    succeeded(&command, &output)
}

fn succeeded(command: &Command, output: &Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{stdout}{stderr}", output.status);
    stdout.into_owned()
}

fn pkg_config(args: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(args).arg("leasehold_dss");
    command.env("PKG_CONFIG_PATH", installed("lib/pkgconfig")).env("PKG_CONFIG_SYSROOT_DIR", destdir());
    run(command).split_whitespace().map(String::from).collect()
}

/// How a program finds the library.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Shared,
    Static,
}

/// Builds a C program against the installed files, as a user would.
pub(crate) fn compile(source: &Path, name: &str, link: Link) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dss-{name}"));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-O1", "-pthread"]);
    cc.args(pkg_config(&["--cflags"])).arg("-o").arg(&program).arg(source);
    match link {
        Link::Shared => {
            cc.args(pkg_config(&["--libs"])).arg(format!("-Wl,-rpath,{}", installed("lib").display()))
        }
        Link::Static => {
            let args = pkg_config(&["--libs", "--static"]);
            cc.args(args.into_iter().map(|arg| arg.replace("-lleasehold_dss", "-l:libleasehold_dss.a")))
        }
    };
    run(cc);
    program
}

/// The C source of this name.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

/// The program under valgrind, which fails on any error and any leak.
pub(crate) fn valgrind(program: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.args([
        "-q",
        "--error-exitcode=99",
        "--leak-check=full",
        "--show-leak-kinds=definite,indirect,possible",
    ]);
    command.args(["--errors-for-leak-kinds=definite,indirect,possible", "--child-silent-after-fork=no"]);
    command.arg(format!("--suppressions={}", source("ring.supp").display()));
    command.arg("--fair-sched=yes").arg(program);
    command
}

/// A folder or file name of its own below the system's folder for such.
pub(crate) fn temp_path(what: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("leasehold-dss-{what}-{}-{number}", std::process::id()))
}

/// A `leasehold serve` process, killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: Port,
    data: PathBuf,
    flags: Vec<String>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(flags: &[String]) -> Self {
        let (data, port) = (temp_path("data"), Port::reserve().unwrap());
        Self { child: serve(&data, &port, flags), port, data, flags: flags.to_vec() }
    }

    /// One that speaks TLS, with this certificate.
    pub(crate) fn start_secure(certificate: &Certificate) -> Self {
        let flag = |name: &str, path: PathBuf| [name.to_string(), path.display().to_string()];
        Self::start_with(
            &[flag("--tls-certificate", certificate.pem()), flag("--tls-key", certificate.path("key"))]
                .concat(),
        )
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", if self.flags.is_empty() { "http" } else { "https" }, self.port.addr)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().unwrap();
    }

    /// The same again, on the same data and the same port.
    pub(crate) fn start_again(&mut self) {
        self.child = serve(&self.data, &self.port, &self.flags);
    }
}

fn serve(data: &Path, port: &Port, flags: &[String]) -> Child {
    let mut child = Command::new(installed("bin/leasehold"))
        .args(["serve", "--listen", &port.addr.to_string(), "--data"])
        .arg(data)
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("://"), "the server does not start: it said {line:?}");
    child
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        fs::remove_dir_all(&self.data).ok();
    }
}

/// A certificate that is its own authority, and its key.
pub(crate) struct Certificate(PathBuf);

impl Certificate {
    /// For these names, made so long ago or from now, for two days.
    pub(crate) fn new(names: &str, when: &str) -> Self {
        let certificate = Self(temp_path("certificate"));
        fs::create_dir_all(&certificate.0).unwrap();
        // It leaves a semaphore behind, named by its process: an older process may have had the same number.
        let faketime = "rm -f /dev/shm/sem.faketime_sem_$$ /dev/shm/faketime_shm_$$ && exec faketime \"$@\"";
        let mut openssl = Command::new("sh");
        openssl.args([
            "-c", faketime, "faketime", "-f", when, "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
        ]);
        openssl.args(["ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=node"]);
        openssl.args(["-addext", "basicConstraints=critical,CA:FALSE", "-addext"]);
        openssl.arg(format!("subjectAltName={names}"));
        openssl.arg("-keyout").arg(certificate.path("key")).arg("-out").arg(certificate.pem());
        run(openssl);
        certificate
    }

    pub(crate) fn pem(&self) -> PathBuf {
        self.path("pem")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Waits for a program that must succeed in time; its stdout.
pub(crate) fn finish(mut child: Child, what: &str) -> String {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().ok();
            panic!("{what} did not come to an end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{stdout}{stderr}", output.status);
    stdout.into_owned()
}

/// Starts a program whose output is kept.
pub(crate) fn spawn(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
