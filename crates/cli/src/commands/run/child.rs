//! The command of `leasehold run`: a process group of its own.
//!
//! In:    a command line. Out: its exit code.
//! Never: leaves one of the group behind when it is told to stop it.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use leasehold_client::BootInstant;
use leasehold_client::Claim;
use leasehold_client::internals::session;
use rustix::process::{Pid, Signal, getpgrp, kill_process_group, test_kill_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use serde_json::{Value, json};

use super::super::exec;
use super::super::exit_code::SIGNALLED;
use super::panics;

/// How long what was killed may take to be gone.
const DEAD_WITHIN: Duration = Duration::from_secs(2);

/// A running command.
pub(super) struct Child {
    child: tokio::process::Child,
    group: Pid,
    has_terminal: bool,
    /// It has ended, or was stopped: what it left in the background is not ours to stop.
    is_over: bool,
}

impl Child {
    /// Starts it. The kernel kills it if this process dies without a word.
    pub(super) fn start(command: &[OsString], claim: &Claim) -> io::Result<Self> {
        exec::look_up(&command[0])?;
        let mut starter = tokio::process::Command::new(std::env::current_exe()?);
        for (name, value) in variables(claim) {
            // What is not there must not be found from an outer `run`.
            match value {
                Some(value) => starter.env(name, value),
                None => starter.env_remove(name),
            };
        }
        if let Some(session) = claim.session() {
            starter.env(session::VARIABLE, session);
        }
        let child = starter
            .arg(exec::NAME)
            .arg(std::process::id().to_string())
            .arg("--")
            .args(command)
            .process_group(0)
            .spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = group.ok_or_else(|| io::Error::other("it ended before it could be watched"))?;
        panics::guard(Some(group));
        let has_terminal = give_terminal_to(group);
        Ok(Self { child, group, has_terminal, is_over: false })
    }

    /// Its exit code, once it has one.
    pub(super) async fn exited(&mut self) -> io::Result<u8> {
        let status = self.child.wait().await?;
        self.set_over();
        Ok(code(status))
    }

    pub(super) fn pass_on(&self, signal: u8) {
        if let Some(signal) = Signal::from_named_raw(i32::from(signal)) {
            kill_process_group(self.group, signal).ok();
        }
    }

    /// Stops the command and the rest of its process group, within the grace.
    pub(super) async fn stop(&mut self, grace: Duration) {
        kill_process_group(self.group, Signal::TERM).ok();
        // What is stopped can't hear SIGTERM.
        kill_process_group(self.group, Signal::CONT).ok();
        if !self.gone_by(BootInstant::now() + grace).await {
            kill_process_group(self.group, Signal::KILL).ok();
            self.gone_by(BootInstant::now() + DEAD_WITHIN).await;
        }
        self.set_over();
    }

    fn set_over(&mut self) {
        self.is_over = true;
        panics::guard(None);
    }

    async fn gone_by(&mut self, when: BootInstant) -> bool {
        let mut is_reaped = false;
        loop {
            if is_reaped {
                // Another process reaps the grandchildren; this one can only look.
                if test_kill_process_group(self.group).is_err() {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(2).min(when.remaining())).await;
            } else {
                is_reaped = tokio::time::timeout(when.remaining(), self.child.wait()).await.is_ok();
            }
            if when.is_past() {
                return test_kill_process_group(self.group).is_err();
            }
        }
    }

    /// The terminal is the caller's again.
    pub(super) fn give_terminal_back(&mut self) {
        if std::mem::take(&mut self.has_terminal) {
            tcsetpgrp(io::stdin(), getpgrp()).ok();
        }
    }
}

/// Whatever went wrong here, the command does not outlive it.
impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_over {
            kill_process_group(self.group, Signal::KILL).ok();
            self.set_over();
        }
        self.give_terminal_back();
    }
}

/// What the command is told of the claim.
fn variables(claim: &Claim) -> [(&'static str, Option<String>); 6] {
    let items = claim.items();
    let is_set = items.len() > 1;
    let slots: Vec<String> = claim.slots().iter().map(ToString::to_string).collect();
    let tokens = || items.iter().map(|item| (item.resource.clone(), json!(item.token)));
    [
        ("LEASEHOLD_RESOURCE", Some(claim.resource().into())),
        ("LEASEHOLD_CLAIM", Some(claim.id().into())),
        ("LEASEHOLD_TOKEN", claim.token().map(|token| token.to_string())),
        ("LEASEHOLD_SLOTS", (!slots.is_empty()).then(|| slots.join(","))),
        ("LEASEHOLD_TOKENS", is_set.then(|| Value::Object(tokens().collect()).to_string())),
        ("LEASEHOLD_ITEMS", is_set.then(|| json!(items).to_string())),
    ]
}

/// A command that reads from the terminal has to be in its foreground, as it would be without us.
fn give_terminal_to(group: Pid) -> bool {
    let stdin = io::stdin();
    stdin.is_terminal()
        && tcgetpgrp(&stdin).is_ok_and(|foreground| foreground == getpgrp())
        && tcsetpgrp(&stdin, group).is_ok()
}

fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code.to_le_bytes()[0],
        (None, Some(signal)) => SIGNALLED + signal.to_le_bytes()[0],
        (None, None) => super::OWN_FAILURE,
    }
}
