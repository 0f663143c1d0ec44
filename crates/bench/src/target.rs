//! The server that is measured: one that runs already, a fresh child, or a node of a fresh cluster.
//!
//! In:    `--addr`, `--key`, `--serve`, `--pid`, `--dir`.
//! Out:   its address and, where known, its process.
//! Never: measures.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use leasehold_client::Options;
use rustix::process::Signal;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::args::Common;
use crate::http::{Http, Request};
use crate::process::{Process, Scratch, free_addresses};
use crate::reactor::block_on;

/// How long a server may take to become ready.
const READY_WAIT_MAX: Duration = Duration::from_secs(120);
/// A server that needs longer for one request between two runs is not ready.
const ASK_WAIT_MAX: Duration = Duration::from_secs(2);

/// Where requests go.
#[derive(Clone)]
pub struct Address {
    /// The socket to connect to.
    pub socket: SocketAddr,
    /// The value of `Host`.
    pub authority: String,
    /// How the connection is made secure, for `https`.
    pub tls: Option<Tls>,
}

/// How connections are made secure.
#[derive(Clone)]
pub struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

impl Address {
    /// Plain HTTP.
    pub fn plain(socket: SocketAddr) -> Self {
        Self { socket, authority: socket.to_string(), tls: None }
    }

    /// `HOST:PORT`, `http://HOST:PORT` or `https://HOST:PORT`. Certificates are those of every client: `LEASEHOLD_CACERT`
    /// and the like.
    fn parse(text: &str) -> Result<Self> {
        let (is_https, rest) = match text.split_once("://") {
            None => (false, text),
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => bail!("--addr {text} must begin with http:// or https://, or be HOST:PORT"),
        };
        let authority = rest.trim_end_matches('/');
        let mut sockets =
            authority.to_socket_addrs().with_context(|| format!("--addr {authority} is no HOST:PORT"))?;
        let socket = sockets.next().with_context(|| format!("--addr {authority} has no address"))?;
        let tls = if is_https {
            let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
            let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
                .with_context(|| format!("no certificate can be for a host of the name {host}"))?;
            Some(Tls { config: Arc::new(Options::from_env()?.tls.client_config()?), name })
        } else {
            None
        };
        Ok(Self { socket, authority: authority.to_owned(), tls })
    }
}

/// The server that the requests go to.
pub(crate) struct Target {
    pub(crate) address: Address,
    /// Its process, where known.
    pub(crate) pid: Option<u32>,
    /// The access key that it asks for, if any.
    pub(crate) key: Option<String>,
    /// The child, with --serve or for the ceiling. Before `data`, so that it ends before its files go.
    child: Option<Process>,
    /// The program and the directory of a child that can be restarted.
    data: Option<(PathBuf, Scratch)>,
}

impl Target {
    /// The server of the command line.
    pub(crate) fn of(common: &Common) -> Result<Self> {
        if common.serve {
            return Self::serve(&own_binary()?, &common.dir);
        }
        let address = Address::parse(&common.addr)?;
        Ok(Self { address, pid: common.pid, key: common.key.clone(), child: None, data: None })
    }

    /// A fresh server of this binary, with its data under `dir`.
    pub(crate) fn serve(binary: &Path, dir: &Path) -> Result<Self> {
        let data = Scratch::new(dir, "data")?;
        let (child, address) = start_server(binary, data.path())?;
        Ok(Self::child(child, address, Some((binary.to_owned(), data))))
    }

    /// A bare responder, whose output goes to `dir`.
    pub(crate) fn responder(dir: &Path) -> Result<Self> {
        let scratch = Scratch::new(dir, "responder")?;
        let mut command = Command::new(own_binary()?);
        command.args(["bench", "responder", "--listen", "127.0.0.1:0"]);
        let mut child = Process::start(&mut command, scratch.path())?;
        let address = Address::plain(child.address()?);
        Ok(Self::child(child, address, None))
    }

    fn child(child: Process, address: Address, data: Option<(PathBuf, Scratch)>) -> Self {
        Self { address, pid: Some(child.pid()), key: None, child: Some(child), data }
    }

    /// Its process, for its processor time.
    pub(crate) fn pids(&self) -> &[u32] {
        self.pid.as_slice()
    }

    /// Whether it can be restarted.
    pub(crate) fn is_child(&self) -> bool {
        self.data.is_some()
    }

    /// Ends the child by `signal`, starts it on the same data, and returns the time from its start until it was ready.
    pub(crate) fn restart(&mut self, signal: Signal) -> Result<Duration> {
        let (Some(mut child), Some((binary, data))) = (self.child.take(), self.data.as_ref()) else {
            bail!("only a server started with --serve can be restarted");
        };
        child.end(signal)?;
        let start = Instant::now();
        let (child, address) = start_server(binary, data.path())?;
        let took = start.elapsed();
        (self.pid, self.child, self.address) = (Some(child.pid()), Some(child), address);
        Ok(took)
    }

    /// Status and body of `GET path`, on a connection of its own: not while anything is measured.
    pub(crate) fn get(&self, path: &str) -> Result<(u16, Vec<u8>)> {
        get(&self.address, self.key.as_deref(), path)
    }
}

/// Three nodes on this machine.
pub(crate) struct Cluster {
    /// By their ids, from 1.
    nodes: Vec<(Process, Address)>,
    /// Their data, removed after they have ended.
    _data: Scratch,
}

impl Cluster {
    /// Starts three nodes with their data under `dir`, and waits until all are ready.
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        let data = Scratch::new(dir, "cluster")?;
        let ports = free_addresses(3)?;
        let peers: Vec<String> = ports.iter().zip(1..).map(|(port, id)| format!("{id}={port}")).collect();
        let peers = peers.join(",");
        let secret = format!("of-a-bench-{}-{:?}", std::process::id(), Instant::now());
        let start = |id: u32| -> Result<(Process, Address)> {
            let dir = data.sub(&id.to_string())?;
            let mut command = Command::new(own_binary()?);
            command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(dir.join("data"));
            command.args(["--node-id", &id.to_string(), "--peers", &peers]);
            command.env("LEASEHOLD_CLUSTER_SECRET", &secret);
            let mut child = Process::start(&mut command, &dir)?;
            let address = Address::plain(child.address()?);
            Ok((child, address))
        };
        let nodes = (1..=3).map(start).collect::<Result<Vec<_>>>()?;
        nodes.iter().try_for_each(|(_, address)| wait_ready(address))?;
        Ok(Self { nodes, _data: data })
    }

    /// The leader, and one of the others.
    pub(crate) fn leader_and_follower(&self) -> Result<(Target, Target)> {
        let (_, body) = get(&self.nodes[0].1, None, "/v1/cluster")?;
        let status: serde_json::Value = serde_json::from_slice(&body)?;
        let leader = status["leader"].as_u64().context("the cluster has no leader")? as usize;
        let target = |id: usize| -> Result<Target> {
            let (child, address) = self.nodes.get(id - 1).context("the leader is none of the three nodes")?;
            let (address, pid) = (address.clone(), Some(child.pid()));
            Ok(Target { address, pid, key: None, child: None, data: None })
        };
        Ok((target(leader)?, target(leader % 3 + 1)?))
    }
}

fn own_binary() -> Result<PathBuf> {
    std::env::current_exe().context("finding the running executable")
}

fn start_server(binary: &Path, dir: &Path) -> Result<(Process, Address)> {
    let mut command = Command::new(binary);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(dir.join("data"));
    let mut child = Process::start(&mut command, dir)?;
    let address = Address::plain(child.address().with_context(|| format!("starting {}", binary.display()))?);
    wait_ready(&address)?;
    Ok((child, address))
}

/// Waits until `GET /readyz` answers 200.
fn wait_ready(address: &Address) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < READY_WAIT_MAX {
        if get(address, None, "/readyz").is_ok_and(|(status, _)| status == 200) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("the server on {} was not ready (GET /readyz) within {READY_WAIT_MAX:?}", address.socket)
}

fn get(address: &Address, key: Option<&str>, path: &str) -> Result<(u16, Vec<u8>)> {
    block_on(ASK_WAIT_MAX, async |seat| {
        let mut http = Http::connect(address, key, seat)?;
        let status = http.ask(&Request::get(path, "")).await?;
        Ok((status, http.body().to_vec()))
    })
}
