//! `leasehold-client` as others get it: packaged, unpacked elsewhere, and used by a program that knows nothing of this workspace.
//!
//! In:    `cargo package`, a real server. Out: whether the packaged crate builds in a stranger's program, and whether its
//!        examples, and the programs in its README and in docs/rust.md, do what they say.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use crate::common::{Server, TempDir, eventually, run};
use crate::{COMMAND, ROOT, target, without_cargo};

const EXAMPLES: [&str; 4] = ["blocking", "cron_job", "leader_election", "queue_worker"];

fn cargo(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO"));
    let output = without_cargo(&mut command).current_dir(dir).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {args:?}\n{text}\n{}", String::from_utf8_lossy(&output.stdout));
    output
}

/// Makes the package and unpacks it. Its files are outside of this workspace, and so is whatever uses them.
fn unpacked(dir: &Path) -> PathBuf {
    let target = target();
    let target = target.to_str().unwrap();
    // Not verified here: the program below builds it, with the examples.
    cargo(
        Path::new(ROOT),
        &[
            "package",
            "--quiet",
            "--locked",
            "--allow-dirty",
            "--no-verify",
            "-p",
            "leasehold-client",
            "--target-dir",
            target,
        ],
    );
    let version = env!("CARGO_PKG_VERSION");
    let package = format!("{target}/package/leasehold-client-{version}.crate");
    run("tar", &["-xzf", &package, "-C", dir.to_str().unwrap()]);
    dir.join(format!("leasehold-client-{version}"))
}

/// The programs in the Rust blocks of a page.
fn programs(page: &str, mark: &str) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let fence = format!("```{mark}\n");
    text.split(&fence).skip(1).map(|block| block.split("```").next().unwrap().to_string()).collect()
}

/// A stranger's program: its own tokio features, its own profile, and the packaged crate.
fn outside(dir: &Path, package: &Path) -> PathBuf {
    let program = dir.join("stranger");
    fs::create_dir_all(program.join("src/bin")).unwrap();
    let mut manifest = format!(
        r#"
        [package]
        name = "stranger"
        version = "0.0.0"
        edition = "2021"
        [workspace]
        [dependencies]
        leasehold-client = {{ path = "{}" }}
        serde = {{ version = "1", features = ["derive"] }}
        tokio = {{ version = "1", default-features = false, features = ["rt", "macros", "time"] }}
        # As in this workspace, so that what both build in the same way is built once.
        [profile.dev]
        debug = "line-tables-only"
        [profile.dev.package.ring]
        opt-level = 3
        "#,
        package.display()
    );
    for name in EXAMPLES {
        let path = package.join(format!("examples/{name}.rs"));
        manifest += &format!("[[bin]]\nname = \"outside_{name}\"\npath = \"{}\"\n", path.display());
    }
    fs::write(program.join("Cargo.toml"), manifest).unwrap();
    // The versions that this workspace has: nothing is downloaded for it.
    fs::copy(Path::new(ROOT).join("Cargo.lock"), program.join("Cargo.lock")).unwrap();
    fs::write(program.join("src/bin/outside_stranger.rs"), include_str!("stranger.rs")).unwrap();
    let readme = programs(package.join("README.md").to_str().unwrap(), "no_run");
    let page = programs(&format!("{ROOT}/docs/rust.md"), "rust");
    assert!(readme.len() == 2 && page.len() == 2, "the pages have their programs");
    for (number, text) in readme.iter().chain(&page).enumerate() {
        fs::write(program.join(format!("src/bin/outside_page_{number}.rs")), text).unwrap();
    }
    program
}

/// Builds the program. Returns where its commands are.
fn build(program: &Path) -> PathBuf {
    let target = target();
    cargo(program, &["build", "--quiet", "--offline", "--target-dir", target.to_str().unwrap()]);
    target.join("debug")
}

struct Commands {
    bin: PathBuf,
    url: String,
}

impl Commands {
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(format!("outside_{name}")));
        command.env("LEASEHOLD_ADDR", &self.url).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    /// Runs it to its end; it must succeed.
    fn run(&self, name: &str) -> String {
        let output = self.command(name).stderr(Stdio::piped()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{name}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    fn start(&self, name: &str, arg: &str) -> Running {
        let mut child = self.command(name).arg(arg).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Running { child, stdin, stdout }
    }
}

/// A command that talks over its standard handles. Killed when dropped.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn says(&mut self, line: &str) {
        assert_eq!(self.line(), line);
    }

    /// Says this with a number behind it.
    fn says_number(&mut self, words: &str) -> u64 {
        let line = self.line();
        let number = line.strip_prefix(words).and_then(|rest| rest.parse().ok());
        number.unwrap_or_else(|| panic!("'{line}' is not '{words}' and a number"))
    }

    fn line(&mut self) -> String {
        let mut said = String::new();
        self.stdout.read_line(&mut said).unwrap();
        said.trim_end().to_string()
    }

    fn ends(mut self) -> String {
        drop(self.stdin.take());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        rest
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// One test, so that everything is built once.
#[test]
fn the_packaged_client_its_examples_and_its_documentation_run_in_a_strangers_program() {
    let dir = TempDir::new();
    let server = {
        let _unchanged = COMMAND.lock().unwrap();
        Server::start()
    };
    let package = unpacked(dir.path());
    holds_what_belongs_into_it(&package);
    let bin = build(&outside(dir.path(), &package));
    let commands = Commands { bin, url: format!("http://{}", server.addr) };
    the_stranger(&commands);
    for page in ["page_0", "page_2"] {
        assert!(commands.run(page).contains("write with the token Some("), "{page}");
    }
    assert!(commands.run("page_1").contains("the report, with the token Some("));
    assert!(commands.run("page_3").contains("catalog"));
    leader_election(&commands, &server);
    cron_job(&commands, &server);
    assert_eq!(commands.run("queue_worker").matches("is done, with the fencing token").count(), 8);
    let text = commands.run("blocking");
    assert_eq!(text.matches("holds it").count(), 3, "{text}");
    assert!(text.contains("another thread: 'example/blocking' was not free within"), "{text}");
    let left = server.get("/v1/claims/?status=active").json();
    assert_eq!(left, serde_json::json!([]), "every example has released what it held");
}

fn holds_what_belongs_into_it(package: &Path) {
    for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "src/lib.rs", "examples/leader_election.rs"] {
        let text = fs::read_to_string(package.join(file)).unwrap();
        assert!(text.len() > 200, "{file} is a file of its own, not a link");
    }
    assert!(!package.join("tests").exists(), "its tests need this workspace");
    let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
    assert!(!manifest.contains("path = \"../"), "nothing outside of the package is needed");
    assert!(
        !manifest.contains("version = \"="),
        "an exact version would be a trap for whoever shares the crate"
    );
    assert!(manifest.contains("rust-version = \"1.85\""));
}

/// Another runtime, no runtime, data of the program's own type, and errors that are no panics.
fn the_stranger(commands: &Commands) {
    let text = commands.run("stranger");
    for line in [
        "current thread: held",
        "many threads: held",
        "no runtime: held",
        "without a runtime: a LockManager needs a tokio runtime around it; use leasehold_client::blocking without one",
        "data: {\"attempt\":3,\"host\":\"alpha\"}",
        "tasks: 4 in turn",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

fn leader_election(commands: &Commands, server: &Server) {
    let mut first = commands.start("leader_election", "one");
    let one = first.says_number("one leads, term ");
    let mut second = commands.start("leader_election", "two");
    let waits = || server.get("/v1/claims/?resource=example/leader&status=waiting").json()[0].is_object();
    eventually("the second stands for election", waits);
    let leader = server.get("/v1/claims/?resource=example/leader&status=active").json();
    assert_eq!(leader[0]["user_data"], "one", "everybody can see who leads");
    first.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    first.says("one has stepped down");
    let two = second.says_number("two leads, term ");
    // A leader whose claim is revoked stops leading, and leads again when it is elected again.
    let leader = server.get("/v1/claims/?resource=example/leader&status=active").json();
    let url = leader[0]["url"].as_str().unwrap();
    server.patch(&url[url.find("/v1/").unwrap()..], r#"{"status": "revoked"}"#);
    second.says("two does not lead any more: the server says that it is over: revoked");
    let again = second.says_number("two leads, term ");
    assert!(one < two && two < again, "terms only grow: {one}, {two}, {again}");
    assert!(second.ends().contains("two has stepped down"));
}

fn cron_job(commands: &Commands, server: &Server) {
    let mut first = commands.start("cron_job", "nightly");
    first.says_number("nightly: runs here, with the fencing token ");
    assert!(first.ends().is_empty());
    let elsewhere = server.claim("cron/weekly", 600.0);
    let mut second = commands.start("cron_job", "weekly");
    second.says("weekly: another machine runs it");
    second.ends();
    server.patch(&elsewhere, r#"{"status": "released"}"#);
    // Nobody knows whether it is held: that is no success.
    let output = Command::new(commands.bin.join("outside_cron_job"))
        .env("LEASEHOLD_ADDR", "http://127.0.0.1:1")
        .output();
    assert_eq!(output.unwrap().status.code(), Some(1));
}
