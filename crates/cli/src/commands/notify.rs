//! What systemd is told: ready, stopping, still alive.
//!
//! In:    `NOTIFY_SOCKET` and `WATCHDOG_USEC`, if the service manager set them. Out: datagrams.
//! Never: keeps a node from running: without the variables, or with a socket that can't be reached, nothing is said.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use leasehold_engine::Engine;
use tokio::task::JoinHandle;

/// The way to the service manager.
#[derive(Clone)]
pub(crate) struct Notifier {
    to: Option<Arc<(UnixDatagram, SocketAddr)>>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// As the environment says.
    pub(crate) fn from_env() -> Self {
        let name = std::env::var("NOTIFY_SOCKET").ok();
        let to = name
            .as_deref()
            .and_then(address)
            .and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        // A child that inherited the variables is not the one that is watched.
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|us| ours && *us > 0).map(Duration::from_micros);
        Self { to: to.map(Arc::new), watchdog }
    }

    /// Clients can come.
    pub(crate) fn ready(&self, url: &str) {
        self.say(&format!("READY=1\nSTATUS=serving {url}\n"));
    }

    /// No new ones, please.
    pub(crate) fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=answering what was asked\n");
    }

    /// Says twice in the time allowed that the engine's thread still does what it is given.
    pub(crate) fn keep_watchdog(&self, engine: Arc<Engine>) -> Option<JoinHandle<()>> {
        let every = self.watchdog? / 2;
        let notifier = self.clone();
        Some(tokio::spawn(async move {
            loop {
                if tokio::time::timeout(every, engine.answers()).await.is_ok() {
                    notifier.say("WATCHDOG=1\n");
                } else {
                    tracing::error!(
                        "the engine does not answer: the service manager's watchdog is not told that this node is alive"
                    );
                }
                tokio::time::sleep(every).await;
            }
        }))
    }

    fn say(&self, text: &str) {
        if let Some((socket, address)) = self.to.as_deref()
            && let Err(error) = socket.send_to_addr(text.as_bytes(), address)
        {
            tracing::debug!(%error, "the service manager can't be told");
        }
    }
}

/// A path, or a name in the abstract namespace behind an `@`.
fn address(name: &str) -> Option<SocketAddr> {
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name).ok(),
        None => SocketAddr::from_pathname(name).ok(),
    }
}
