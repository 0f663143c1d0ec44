//! What the tests of `leasehold run` and its kin share.
//!
//! In:    the binary that cargo built. Out: commands, their exit codes, and whether processes live.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::common::{Server, eventually};

pub fn leasehold(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(args).env("LEASEHOLD_ADDR", url).env_remove("LEASEHOLD_KEY").stdin(Stdio::null());
    command
}

pub fn url(server: &Server) -> String {
    format!("http://{}", server.addr)
}

pub fn run(server: &Server, args: &[&str]) -> Output {
    leasehold(&url(server), &[&["run"], args].concat()).output().unwrap()
}

pub fn code_of(child: &mut Child) -> Option<i32> {
    let mut status = None;
    eventually("it ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code()
}

pub fn kill(signal: &str, pid: u32) {
    assert!(Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status().unwrap().success());
}

/// The number that a file holds, once it does.
pub fn number_in(path: &Path) -> u32 {
    let read = || std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))?.trim().parse().ok();
    eventually("the command writes its pid", || read().is_some());
    read().unwrap()
}

/// A process that is dead and not yet reaped does nothing any more.
pub fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

/// A command whose child and grandchild ignore SIGTERM, in the background and all.
pub const STUBBORN: &str = "trap '' TERM; (trap '' TERM; echo $$ > \"$D/sub\"; sh -c 'echo $$ > \"$D/grand\"; while :; do sleep 1; done') & echo $$ > \"$D/child\"; while :; do sleep 1; done";
