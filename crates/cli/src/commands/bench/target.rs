//! The server under measurement: one that runs already, or a fresh child.
//!
//! In:    `--addr`, `--serve`, `--pid`, `--dir`.
//! Out:   an address and, where known, a pid; engines connected to it.
//! Never: measures.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use super::args::Common;
use super::engine::Engine;
use super::process::{Served, TempDir};

/// Whom the requests go to.
pub(crate) struct Target {
    /// Its address.
    pub(crate) addr: SocketAddr,
    /// Its process, where known.
    pub(crate) pid: Option<u32>,
    /// The child, with --serve or for the ceiling. Before `data`, so that it ends before its files go.
    child: Option<Served>,
    /// The child's data.
    data: Option<TempDir>,
}

impl Target {
    /// The server of the command line.
    pub(crate) fn of(common: &Common) -> Result<Self> {
        if common.serve {
            let data = TempDir::new(&common.dir, "data")?;
            let child = start_server(data.path())?;
            return Ok(Self {
                addr: child.addr,
                pid: Some(child.pid()),
                child: Some(child),
                data: Some(data),
            });
        }
        let name = common.addr.trim_start_matches("http://").trim_end_matches('/');
        let addr = name
            .to_socket_addrs()
            .with_context(|| format!("--addr {name} is no HOST:PORT"))?
            .next()
            .with_context(|| format!("--addr {name} has no address"))?;
        Ok(Self { addr, pid: common.pid, child: None, data: None })
    }

    /// A bare responder.
    pub(crate) fn responder() -> Result<Self> {
        let child = Served::start(&["bench", "responder", "--listen", "127.0.0.1:0"])?;
        Ok(Self { addr: child.addr, pid: Some(child.pid()), child: Some(child), data: None })
    }

    /// The Host header.
    pub(crate) fn host(&self) -> String {
        self.addr.to_string()
    }

    /// An engine with `count` connections.
    pub(crate) fn connect(&self, count: usize) -> Result<Engine> {
        Engine::connect(self.addr, count, self.pid)
    }

    /// Whether it can be restarted.
    pub(crate) fn is_child(&self) -> bool {
        self.data.is_some()
    }

    /// Ends the child by `signal`, starts it on the same data, and returns the time from its start
    /// until it was ready.
    pub(crate) fn restart(&mut self, signal: Signal) -> Result<Duration> {
        let (Some(child), Some(data)) = (self.child.take(), self.data.as_ref()) else {
            bail!("only a server started with --serve can be restarted");
        };
        child.end(signal)?;
        let start = Instant::now();
        let child = start_server(data.path())?;
        let took = start.elapsed();
        self.addr = child.addr;
        self.pid = Some(child.pid());
        self.child = Some(child);
        Ok(took)
    }
}

fn start_server(data: &Path) -> Result<Served> {
    let path = data.to_str().context("--dir is not valid UTF-8")?;
    let child = Served::start(&["serve", "--listen", "127.0.0.1:0", "--data", path])?;
    child.wait_ready()?;
    Ok(child)
}
