//! `run` does not depend on being heard: whatever stderr is, a lost claim stops the command.

use std::io::Write;
use std::process::Stdio;

use crate::common::{Server, TempDir, eventually};
use crate::support::{STUBBORN, code_of, leasehold, lives, number_in, url};

/// A claim is revoked while stderr is this. The command and its grandchild ignore SIGTERM; none of them may be left.
fn lost_while_stderr_is(stderr: Stdio) {
    let server = Server::start();
    let dir = TempDir::new();
    let args = ["run", "--ttl", "3", "--grace", "0.2", "r", "--", "sh", "-c", STUBBORN];
    let mut child = leasehold(&url(&server), &args).env("D", dir.path()).stderr(stderr).spawn().unwrap();
    let pids = ["child", "grand"].map(|name| number_in(&dir.path().join(name)));
    let claim = server.list("resource=r&status=active")[0]["url"].as_str().unwrap().to_string();
    assert!(leasehold(&url(&server), &["revoke", &claim, "--reason", "test"]).status().unwrap().success());
    assert_eq!(code_of(&mut child), Some(76));
    for pid in pids {
        eventually("the whole group is gone", || !lives(pid));
    }
}

#[test]
fn a_full_disk_behind_stderr_keeps_nothing_running() {
    lost_while_stderr_is(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into());
}

#[test]
fn a_closed_pipe_behind_stderr_keeps_nothing_running() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    lost_while_stderr_is(writer.into());
}

#[test]
fn a_full_pipe_that_nobody_reads_keeps_nothing_running() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    // It blocks when the pipe is full, for as long as this program lives.
    std::thread::spawn(move || while filler.write_all(&[b'.'; 4096]).is_ok() {});
    lost_while_stderr_is(writer.into());
    drop(reader);
}
