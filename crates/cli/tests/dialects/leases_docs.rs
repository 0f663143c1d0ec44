//! The examples of `docs/leases.md`, run as they stand there against a real server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use crate::common::{Server, TempDir, eventually};

/// The scripts of the page in a folder of their own, and its other examples in order.
struct Page {
    dir: TempDir,
    examples: Vec<String>,
}

impl Page {
    fn read() -> Self {
        let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/leases.md")).unwrap();
        let dir = TempDir::new();
        let mut examples = Vec::new();
        for block in text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
            match block.strip_prefix("#!/bin/sh\n# ") {
                None => examples.push(block.to_string()),
                Some(rest) => {
                    let path = dir.path().join(rest.split(':').next().unwrap());
                    fs::write(&path, block).unwrap();
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
                }
            }
        }
        Self { dir, examples }
    }

    /// A shell in which the page's scripts are commands and its variable is set.
    fn shell(&self, server: &str, script: &str) -> Command {
        let path = format!("{}:{}", self.dir.path().display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(self.dir.path()).env("PATH", path).env("LEASEHOLD", server);
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        shell
    }

    fn run(&self, server: &Server, script: &str) -> Output {
        self.shell(&format!("http://{}", server.addr), script).output().unwrap()
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const ONCE: &str = r#"once-globally "$LEASEHOLD/v1/cron/leases/job" "#;

#[test]
fn every_example_runs() {
    let (server, page) = (Server::start(), Page::read());
    let outputs: Vec<Output> = page.examples.iter().map(|example| page.run(&server, example)).collect();
    for (example, output) in page.examples.iter().zip(&outputs) {
        assert!(output.status.success(), "{example}\n{output:?}");
    }
    let said: String = outputs.iter().map(stdout).collect();
    for part in [
        "201 Created",
        "202 Accepted",
        "204 No Content",
        "is free; db1 held it last",
        "leading with token ",
        "the report",
        "stored a row from db1\nstored a row from db2\n",
        "db1 does no harm\nthe master is at postgres://db2/main",
        "here 202\nthere 409\n",
    ] {
        assert!(said.contains(part), "{part:?} is missing:\n{said}");
    }
}

#[test]
fn of_two_cron_runs_at_once_exactly_one_runs_the_job() {
    let (server, page) = (Server::start(), Page::read());
    let script = format!("{ONCE} 60 sh -c 'echo ran >>runs'");
    let url = format!("http://{}", server.addr);
    let runs = [0, 1].map(|_| page.shell(&url, &script).spawn().unwrap());
    for run in runs {
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(page.file("runs"), "ran\n");
    // A machine whose clock is late comes when the job is done already.
    assert!(page.run(&server, &script).status.success());
    assert_eq!(page.file("runs"), "ran\n");
}

#[test]
fn a_cron_run_that_fails_lets_another_try() {
    let (server, page) = (Server::start(), Page::read());
    let failed = page.run(&server, &format!("{ONCE} 60 sh -c 'echo failed >>runs; exit 3'"));
    assert_eq!(failed.status.code(), Some(3), "{failed:?}");
    assert!(page.run(&server, &format!("{ONCE} 60 sh -c 'echo worked >>runs'")).status.success());
    assert_eq!(page.file("runs"), "failed\nworked\n");
}

#[test]
fn without_an_answer_nothing_is_run() {
    let page = Page::read();
    let mut server = Server::start();
    let url = format!("http://{}", server.addr);
    server.kill();
    let output = page.shell(&url, &format!("{ONCE} 60 touch runs")).output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no lease"), "{output:?}");
    assert!(!page.dir.path().join("runs").exists());
}

#[test]
fn who_loses_the_lease_is_stopped() {
    for command in [format!("{ONCE} 30"), r#"while-leading "$LEASEHOLD/v1/cron/leases/job" 15"#.into()] {
        let (server, page) = (Server::start(), Page::read());
        let script = format!("{command} sh -c 'echo started >>runs; exec sleep 600'");
        let run = page.shell(&format!("http://{}", server.addr), &script).spawn().unwrap();
        eventually("the job starts", || page.file("runs") == "started\n");
        let claims = server.get("/v1/claims/?resource=cron/leases/job&status=active").json();
        let url = claims[0]["url"].as_str().unwrap().split("leasehold.localhost").nth(1).unwrap().to_string();
        assert_eq!(server.patch(&url, r#"{"status": "revoked"}"#).status, 204);
        let output = run.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("the lease is lost"), "{output:?}");
    }
}

#[test]
fn leadership_passes_on_when_the_leader_ends() {
    let (server, page) = (Server::start(), Page::read());
    let lead = |name: &str, end: &str| {
        let script = format!(
            r#"while-leading "$LEASEHOLD/v1/web/leases/leader" 60 sh -c 'echo "{name} $LEASEHOLD_TOKEN" >>leaders; {end}'"#
        );
        page.shell(&format!("http://{}", server.addr), &script).spawn().unwrap()
    };
    let first = lead("first", "while [ ! -e stop ]; do sleep 0.1; done");
    eventually("the first one leads", || page.file("leaders").starts_with("first"));
    let second = lead("second", "exit 4");
    fs::write(page.dir.path().join("stop"), "").unwrap();
    assert!(first.wait_with_output().unwrap().status.success());
    assert_eq!(second.wait_with_output().unwrap().status.code(), Some(4));
    assert_eq!(page.file("leaders"), "first 1\nsecond 2\n");
}
