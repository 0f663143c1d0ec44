//! Signals of `leasehold run`.
//!
//! In:    SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2. Out: their numbers, one by one.
//! Never: listens for one that was ignored when we started: `nohup` means it.

use std::io;

use nix::sys::signal::SigSet;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Those that are passed on.
pub(super) struct Signals {
    listeners: Vec<(u8, Signal)>,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::quit(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
        ];
        let ignored = ignored();
        let mut listeners = Vec::new();
        for kind in kinds {
            let number = kind.as_raw_value().to_le_bytes()[0];
            if ignored & 1 << (number - 1) == 0 {
                listeners.push((number, signal(kind)?));
            }
        }
        Ok(Self { listeners })
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> u8 {
        std::future::poll_fn(|context| {
            for (number, listener) in &mut self.listeners {
                if listener.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*number);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// The name of the next signal that would end this process.
pub(crate) async fn any_signal() -> String {
    match Signals::listen() {
        Ok(mut signals) => format!("signal {}", signals.next().await),
        Err(_) => std::future::pending().await,
    }
}

/// The signals that this process ignores, as the kernel shows them: bit 0 is signal 1.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whoever takes the terminal back from a command is in the background at that moment, and would be stopped.
pub(super) fn keep_the_terminal() {
    let mut signals = SigSet::empty();
    signals.add(nix::sys::signal::Signal::SIGTTOU);
    signals.thread_block().ok();
}
