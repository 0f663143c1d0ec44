//! `leasehold keychain`: claims for a parent process, over its pipe.
//!
//! In:    JSON lines on stdin. Out: JSON lines on stdout.
//! Never: outlives its parent with a claim in hand: at the end of the pipe, at the death of the parent and at a signal it
//!        aborts them all.

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use anyhow::Context;
use leasehold_client::LockManager;
use leasehold_client::keychain::{self, Leave, MAX_HOLD_DEFAULT};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::io::{BufReader, stdin, stdout};
use tokio::signal::unix::{SignalKind, signal};

use super::connect::{ConnectArgs, block_on};
use super::exit_code::SIGNALLED;
use super::seconds::Seconds;

/// Hold claims for another program, which speaks JSON lines (see docs/client.md)
#[derive(clap::Args)]
pub(crate) struct KeychainArgs {
    /// Seconds that claims stay active without renewal, unless they say otherwise
    #[arg(long, default_value = "30", value_name = "SECONDS")]
    ttl: Seconds,
    /// Seconds that claims wait for their turn, unless they say otherwise [default: for ever]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<Seconds>,
    /// Seconds that a claim may be held, unless it says otherwise [default: 86400, a day]
    #[arg(long, value_name = "SECONDS")]
    max_hold: Option<Seconds>,
    /// Process whose death ends the keychain, for a program that does not want it as its own child [default: the parent process]
    #[arg(long, value_name = "PID")]
    parent: Option<i32>,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) fn run(args: &KeychainArgs) -> anyhow::Result<ExitCode> {
    block_on(async {
        let mut options = args.connect.options()?;
        options.ttl = args.ttl.0;
        options.timeout = args.timeout.map(|timeout| timeout.0);
        let manager = LockManager::new(options)?;
        let max_hold = args.max_hold.map_or(MAX_HOLD_DEFAULT, |most| most.0);
        let serving = keychain::serve(manager.clone(), max_hold, BufReader::new(stdin()), stdout());
        let mut signals = Ended::listen(args.parent)?;
        let code = tokio::select! {
            leave = serving => match leave {
                Leave::Shutdown => return Ok(ExitCode::SUCCESS),
                Leave::Closed => ExitCode::SUCCESS,
            },
            code = signals.next() => code,
        };
        tokio::select! {
            () = manager.abort() => {}
            // Whoever insists does not wait for the server: the second signal ends every claim's machine.
            code = signals.signal() => {
                manager.abort().await;
                return Ok(code);
            }
        }
        Ok(code)
    })
}

/// A signal, or the death of the parent: its pipe may live on in a child of its own.
struct Ended {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    parent: Option<AsyncFd<OwnedFd>>,
}

impl Ended {
    fn listen(parent: Option<i32>) -> anyhow::Result<Self> {
        let parent = parent.map_or_else(|| Ok(watch_parent()), |pid| watch(pid).map(Some))?;
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            parent,
        })
    }

    async fn next(&mut self) -> ExitCode {
        let parent = self.parent.take();
        let died = async {
            match parent {
                Some(parent) => drop(parent.readable().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            code = self.signal() => code,
            () = died => ExitCode::SUCCESS,
        }
    }

    async fn signal(&mut self) -> ExitCode {
        let kind = tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.hangup.recv() => SignalKind::hangup(),
        };
        ExitCode::from(SIGNALLED + kind.as_raw_value().to_le_bytes()[0])
    }
}

/// The parent as the system knows it. On a kernel without such descriptors the pipe has to do.
fn watch_parent() -> Option<AsyncFd<OwnedFd>> {
    watch_process(getppid()?).ok()
}

/// A process that was named. One that is not there any more can't own a keychain.
fn watch(pid: i32) -> anyhow::Result<AsyncFd<OwnedFd>> {
    let process = Some(pid)
        .filter(|pid| *pid > 0)
        .and_then(Pid::from_raw)
        .context("--parent must be the number of a process")?;
    watch_process(process).with_context(|| format!("process {pid} can't be watched"))
}

/// A descriptor that turns readable when the process is dead.
#[expect(
    deprecated,
    reason = "its replacement is unsafe, for owners that change their descriptor; an `OwnedFd` never does"
)]
fn watch_process(process: Pid) -> std::io::Result<AsyncFd<OwnedFd>> {
    let descriptor = pidfd_open(process, PidfdFlags::NONBLOCK)?;
    AsyncFd::with_interest(descriptor, tokio::io::Interest::READABLE)
}
