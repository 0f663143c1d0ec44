//! The server under measurement: one that runs already, a fresh child, or a node of a fresh cluster.
//!
//! In:    `--addr`, `--key`, `--serve`, `--pid`, `--dir`.
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
    /// The access key that it asks for, if any.
    key: Option<String>,
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
                key: None,
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
        Ok(Self { addr, pid: common.pid, key: common.key.clone(), child: None, data: None })
    }

    /// A bare responder.
    pub(crate) fn responder() -> Result<Self> {
        let child = Served::start(&["bench", "responder", "--listen", "127.0.0.1:0"])?;
        Ok(Self { addr: child.addr, pid: Some(child.pid()), key: None, child: Some(child), data: None })
    }

    /// The value of the Host header; where there is a key, with its line behind it: every request has both.
    pub(crate) fn host(&self) -> String {
        match &self.key {
            Some(key) => format!("{}\r\nAuthorization: Bearer {key}", self.addr),
            None => self.addr.to_string(),
        }
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

/// Three nodes on this machine.
pub(crate) struct Cluster {
    /// By their ids, from 1.
    nodes: Vec<Served>,
    /// Their data, removed after they have ended.
    _data: TempDir,
}

impl Cluster {
    /// Starts three nodes with their data under `dir`, and waits until all are ready.
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        let data = TempDir::new(dir, "cluster")?;
        let ports = (0..3).map(|_| free_port()).collect::<Result<Vec<_>>>()?;
        let peers: Vec<String> =
            ports.iter().zip(1..).map(|(port, id)| format!("{id}=127.0.0.1:{port}")).collect();
        let peers = peers.join(",");
        let secret = format!("of-a-bench-{}-{:?}", std::process::id(), Instant::now());
        let nodes = (1..=3)
            .map(|id: u32| {
                let path = data.path().join(id.to_string());
                let path = path.to_str().context("--dir is not valid UTF-8")?;
                Served::start(&[
                    "serve",
                    "--listen",
                    "127.0.0.1:0",
                    "--data",
                    path,
                    "--node-id",
                    &id.to_string(),
                    "--peers",
                    &peers,
                    "--cluster-secret",
                    &secret,
                ])
            })
            .collect::<Result<Vec<_>>>()?;
        nodes.iter().try_for_each(Served::wait_ready)?;
        Ok(Self { nodes, _data: data })
    }

    /// The leader, and one of the others.
    pub(crate) fn leader_and_follower(&self) -> Result<(Target, Target)> {
        let (_, body) = super::probe::get(self.nodes[0].addr, "/v1/cluster")?;
        let status: serde_json::Value = serde_json::from_slice(&body)?;
        let leader = status["leader"].as_u64().context("the cluster has no leader")? as usize;
        let target = |node: &Served| Target {
            addr: node.addr,
            pid: Some(node.pid()),
            key: None,
            child: None,
            data: None,
        };
        let node = |id: usize| self.nodes.get(id - 1).context("the leader is none of the three nodes");
        Ok((target(node(leader)?), target(node(leader % 3 + 1)?)))
    }
}

/// A port that nobody listens on now. Somebody may take it before its node does; then that says so.
fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn start_server(data: &Path) -> Result<Served> {
    let path = data.to_str().context("--dir is not valid UTF-8")?;
    let child = Served::start(&["serve", "--listen", "127.0.0.1:0", "--data", path])?;
    child.wait_ready()?;
    Ok(child)
}
