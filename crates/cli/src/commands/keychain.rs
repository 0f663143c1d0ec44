//! `leasehold keychain`: claims for a parent process, over its pipe.
//!
//! In:    JSON lines on stdin. Out: JSON lines on stdout.
//! Never: outlives its parent with a claim in hand: at the end of the pipe, at the death of the parent and at a signal it
//!        aborts them all.

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use anyhow::Context;
use leasehold_client::internals::keychain::{Keychain, Leave, Settings};
use leasehold_client::{LockManager, OnLost};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};
use tokio::io::unix::AsyncFd;
use tokio::io::{BufReader, stdin, stdout};
use tokio::signal::unix::{SignalKind, signal};

use super::connect::{ConnectArgs, block_on};
use super::exit_code::SIGNALLED;
use super::seconds::Seconds;

/// Hold claims for another program, over a pipe with one JSON object a line (see docs/keychain.md)
#[derive(clap::Args)]
pub(crate) struct KeychainArgs {
    /// Seconds that claims stay active without renewal, unless they say otherwise
    #[arg(long, default_value = "30", value_name = "SECONDS")]
    ttl: Seconds,
    /// Seconds that claims wait for their turn, unless they say otherwise [default: for ever]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<Seconds>,
    /// Seconds that a claim may be held, unless it says otherwise [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = above_zero)]
    max_hold: Option<Seconds>,
    /// What happens to the parent process when a claim is lost, unless the claim says otherwise: `terminate` sends it SIGTERM
    #[arg(long, value_name = "WHAT", default_value = "report")]
    on_lost: OnLostFlag,
    /// Tell the parent of each renewal, and until when the claim holds then
    #[arg(long)]
    tell_renewals: bool,
    /// Version of the server's API: the first part of every path
    #[arg(long, value_name = "VERSION", default_value = "v1")]
    api_version: String,
    /// Process that owns the keychain, if it is not the parent process: its death ends the keychain, and `terminate` is for it
    #[arg(long, value_name = "PID")]
    parent: Option<i32>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum OnLostFlag {
    Report,
    Terminate,
}

fn above_zero(text: &str) -> Result<Seconds, String> {
    let seconds: Seconds = text.parse()?;
    if seconds.0.is_zero() {
        return Err("must be above 0; leave it out to hold without a limit".into());
    }
    Ok(seconds)
}

pub(crate) fn run(args: &KeychainArgs) -> anyhow::Result<ExitCode> {
    block_on(async {
        let mut options = args.connect.options()?;
        options.ttl = args.ttl.0;
        options.timeout = args.timeout.map(|timeout| timeout.0);
        options.api_version.clone_from(&args.api_version);
        // The workers are the parent's: it says which session a claim belongs to.
        options.sessions = false;
        let manager = LockManager::new(options)?;
        let mut signals = Ended::listen(args.parent)?;
        let keychain = Keychain::new(manager, settings(args, &signals)?, stdout());
        let code = tokio::select! {
            leave = keychain.serve(BufReader::new(stdin())) => match leave {
                Leave::Shutdown(id) => {
                    keychain.close(&id).await;
                    return Ok(ExitCode::SUCCESS);
                }
                Leave::Closed => ExitCode::SUCCESS,
            },
            code = signals.next() => code,
        };
        tokio::select! {
            () = keychain.abort() => {}
            // A second signal does not wait for the server: it ends every claim's machine.
            code = signals.signal() => {
                keychain.abort().await;
                return Ok(code);
            }
        }
        Ok(code)
    })
}

fn settings(args: &KeychainArgs, ended: &Ended) -> anyhow::Result<Settings> {
    let parent = ended.parent.as_ref().map(|parent| parent.get_ref().try_clone()).transpose()?;
    Ok(Settings {
        max_hold: args.max_hold.map(|most| most.0),
        on_lost: match args.on_lost {
            OnLostFlag::Report => OnLost::Report,
            OnLostFlag::Terminate => OnLost::Terminate,
        },
        tell_renewals: args.tell_renewals,
        terminate: Box::new(move || {
            // Through its descriptor: a process number may be another's by now.
            if let Some(parent) = &parent {
                pidfd_send_signal(parent, Signal::TERM).ok();
            }
        }),
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
