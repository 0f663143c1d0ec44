//! A cluster of real processes on this machine.
//!
//! In:    the binary, how many nodes. Out: [`Cluster`], whose nodes and links can be made to fail.
//! Never: leaves a process behind: they are killed with the cluster, however it ends.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::http::{NoReply, Reply, request};
use crate::port::Port;
use crate::proxy::{self, Network, Passage};
use crate::small_disk::SmallDisk;

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The cluster's secret.
const SECRET: &str = "the secret of a cluster in the laboratory";

/// Nodes, the proxies in front of their peer ports, and their data.
pub struct Cluster {
    binary: PathBuf,
    dir: PathBuf,
    /// The links between the nodes.
    pub network: Network,
    args: Vec<String>,
    /// Variables of every node's environment; `{id}` in a value is its number.
    envs: Vec<(String, String)>,
    peers: String,
    nodes: BTreeMap<u64, Node>,
    /// A node whose data are on a small disk of its own, and that disk.
    small: Option<(u64, SmallDisk)>,
}

/// What to start.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// The `leasehold` to run.
    pub binary: &'a Path,
    /// How many nodes.
    pub nodes: u64,
    /// Flags of every node; `{id}` in them is its number.
    pub args: &'a [&'a str],
    /// Variables of every node's environment; `{id}` in a value is its number.
    pub envs: &'a [(String, String)],
    /// Whether proxies stand between the nodes. They read who calls, so they can't under certificates.
    pub proxies: bool,
    /// A node that gets a small disk of its own, which can be filled.
    pub small_disk: Option<u64>,
}

struct Node {
    process: Option<Child>,
    paused: bool,
    /// Where clients reach it; the same over restarts.
    client_port: Port,
    /// Where it listens for peers, behind its proxy.
    peer_port: Port,
    /// Its proxy.
    advertised: SocketAddr,
    extra: Vec<String>,
}

impl Cluster {
    /// The same with certificates: the proxies, which read who calls, step aside.
    pub fn start_encrypted(binary: &Path, count: u64, args: &[&str]) -> anyhow::Result<Self> {
        let (envs, small_disk) = (&[], None);
        Self::start_as(&Setup { binary, nodes: count, args, envs, proxies: false, small_disk })
    }

    /// So many nodes, all with these flags (`{id}` in them is a node's number), up and with a leader.
    pub fn start(binary: &Path, count: u64, args: &[&str]) -> anyhow::Result<Self> {
        Self::start_with(binary, count, args, &[])
    }

    /// The same with an environment (`{id}` in its values is a node's number).
    pub fn start_with(
        binary: &Path,
        count: u64,
        args: &[&str],
        envs: &[(String, String)],
    ) -> anyhow::Result<Self> {
        let (proxies, small_disk) = (true, None);
        Self::start_as(&Setup { binary, nodes: count, args, envs, proxies, small_disk })
    }

    /// The same, with everything there is to say.
    pub fn start_as(setup: &Setup<'_>) -> anyhow::Result<Self> {
        let &Setup { binary, nodes: count, args, envs, proxies, small_disk } = setup;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("leasehold-lab-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir)?;
        let args = args.iter().map(ToString::to_string).collect();
        let (network, nodes, peers) = (Network::default(), BTreeMap::new(), String::new());
        let small = small_disk.map(|id| Ok::<_, anyhow::Error>((id, SmallDisk::mount(&dir)?))).transpose()?;
        let mut cluster =
            Self { binary: binary.into(), dir, network, args, envs: envs.to_vec(), peers, nodes, small };
        for id in 1..=count {
            cluster.place(id)?;
            if !proxies {
                let node = cluster.node_mut(id)?;
                node.advertised = node.peer_port.addr;
            }
        }
        let peers = cluster.nodes.iter().map(|(id, node)| format!("{id}={}", node.advertised));
        cluster.peers = peers.collect::<Vec<_>>().join(",");
        for id in 1..=count {
            cluster.spawn(id)?;
        }
        cluster.leader()?;
        Ok(cluster)
    }

    fn place(&mut self, id: u64) -> anyhow::Result<()> {
        let (client_port, peer_port) = (Port::reserve()?, Port::reserve()?);
        let advertised = proxy::start(&self.network, id, peer_port.addr)?;
        let extra = Vec::new();
        let node = Node { process: None, paused: false, client_port, peer_port, advertised, extra };
        self.nodes.insert(id, node);
        Ok(())
    }

    /// Another node, which asks the first one to be let in.
    pub fn join(&mut self, id: u64) -> anyhow::Result<()> {
        self.place(id)?;
        let seed = self.nodes.values().next().context("there is a node")?.advertised.to_string();
        let node = self.node_mut(id)?;
        node.extra = vec!["--join".into(), seed];
        self.spawn(id)
    }

    /// Starts a node (again).
    pub fn spawn(&mut self, id: u64) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(self.log_path(id))?;
        let (peers, args, binary) = (self.peers.clone(), self.args.clone(), self.binary.canonicalize()?);
        let small = self.small.as_ref().filter(|(small, _)| *small == id).map(|(_, disk)| disk);
        let (mut command, data) = match small {
            None => (Command::new(binary), self.data_dir(id)),
            Some(disk) => (disk.command(&binary), disk.inside().join(format!("node-{id}"))),
        };
        let envs: Vec<(String, String)> = self
            .envs
            .iter()
            .map(|(name, value)| (name.clone(), value.replace("{id}", &id.to_string())))
            .collect();
        let node = self.node_mut(id)?;
        ensure!(node.process.is_none(), "node {id} runs already");
        command
            .args(["serve", "--node-id", &id.to_string(), "--listen", &node.client_port.addr.to_string()])
            .args(["--peer-listen", &node.peer_port.addr.to_string()])
            .args(["--peer-advertise", &node.advertised.to_string(), "--data"])
            .arg(data)
            .args(args.iter().map(|arg| arg.replace("{id}", &id.to_string())))
            .args(&node.extra)
            .env("LEASEHOLD_CLUSTER_SECRET", SECRET)
            .envs(envs)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        if node.extra.is_empty() {
            command.args(["--peers", &peers]);
        }
        let mut child = command.spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("stdout is piped")?).read_line(&mut line)?;
        node.process = Some(child);
        ensure!(line.contains("is listening"), "node {id} did not start: see its log: {}", self.log(id));
        Ok(())
    }

    /// Nodes that are started from now on run this binary.
    pub fn use_binary(&mut self, binary: &Path) {
        self.binary = binary.into();
    }

    /// Nodes that are started from now on have these flags instead of the first ones.
    pub fn use_args(&mut self, args: &[&str]) {
        self.args = args.iter().map(ToString::to_string).collect();
    }

    fn node_mut(&mut self, id: u64) -> anyhow::Result<&mut Node> {
        self.nodes.get_mut(&id).with_context(|| format!("there is no node {id}"))
    }

    /// The numbers of all nodes that were ever placed.
    pub fn ids(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    /// Those whose process runs.
    pub fn running(&self) -> Vec<u64> {
        self.nodes
            .iter()
            .filter(|(_, node)| node.process.is_some() && !node.paused)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Where clients reach a node.
    pub fn addr(&self, id: u64) -> SocketAddr {
        self.nodes[&id].client_port.addr
    }

    /// Where its peers reach it.
    pub fn peer_address(&self, id: u64) -> SocketAddr {
        self.nodes[&id].advertised
    }

    /// Its data directory.
    pub fn data_dir(&self, id: u64) -> PathBuf {
        let disk = self.small.as_ref().filter(|(small, _)| *small == id).map(|(_, disk)| disk.root());
        disk.unwrap_or(&self.dir).join(format!("node-{id}"))
    }

    /// The node with the small disk, and that disk.
    pub fn small_disk(&self) -> Option<(u64, &SmallDisk)> {
        self.small.as_ref().map(|(id, disk)| (*id, disk))
    }

    /// Nodes whose process has ended by itself since this was last asked.
    pub fn fallen(&mut self) -> Vec<u64> {
        let mut fallen = Vec::new();
        for (id, node) in &mut self.nodes {
            if node.process.as_mut().is_some_and(|process| !matches!(process.try_wait(), Ok(None))) {
                node.process = None;
                fallen.push(*id);
            }
        }
        fallen
    }

    fn log_path(&self, id: u64) -> PathBuf {
        self.dir.join(format!("node-{id}.log"))
    }

    /// Everything a node has logged.
    pub fn log(&self, id: u64) -> String {
        fs::read_to_string(self.log_path(id)).unwrap_or_default()
    }

    fn signal(&self, id: u64, signal: &str) -> anyhow::Result<()> {
        let pid = self.nodes[&id].process.as_ref().with_context(|| format!("node {id} does not run"))?.id();
        let status = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status()?;
        ensure!(status.success(), "can't send SIG{signal} to node {id}");
        Ok(())
    }

    /// The process of a node.
    pub fn pid(&self, id: u64) -> Option<u32> {
        self.nodes[&id].process.as_ref().map(Child::id)
    }

    /// SIGKILL.
    pub fn kill(&mut self, id: u64) -> anyhow::Result<()> {
        let node = self.node_mut(id)?;
        if let Some(mut process) = node.process.take() {
            process.kill()?;
            process.wait()?;
        }
        node.paused = false;
        Ok(())
    }

    /// SIGTERM, and waits until it is gone.
    pub fn terminate(&mut self, id: u64) -> anyhow::Result<()> {
        self.signal(id, "TERM")?;
        if let Some(mut process) = self.node_mut(id)?.process.take() {
            let start = Instant::now();
            while process.try_wait()?.is_none() {
                ensure!(start.elapsed() < PATIENCE, "node {id} does not stop");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// SIGSTOP.
    pub fn pause(&mut self, id: u64) -> anyhow::Result<()> {
        self.signal(id, "STOP")?;
        self.node_mut(id)?.paused = true;
        Ok(())
    }

    /// SIGCONT.
    pub fn resume(&mut self, id: u64) -> anyhow::Result<()> {
        self.signal(id, "CONT")?;
        self.node_mut(id)?.paused = false;
        Ok(())
    }

    /// Removes the data of a node that does not run.
    pub fn wipe(&mut self, id: u64) -> anyhow::Result<()> {
        ensure!(self.nodes[&id].process.is_none(), "node {id} runs");
        Ok(fs::remove_dir_all(self.data_dir(id))?)
    }

    /// Cuts these nodes off from all others, both ways.
    pub fn isolate(&self, side: &[u64]) {
        for one in side {
            for other in self.ids().iter().filter(|other| !side.contains(other)) {
                self.cut(*one, *other);
                self.cut(*other, *one);
            }
        }
    }

    /// Cuts the passage from one node to another; the way back stays as it is.
    pub fn cut(&self, from: u64, to: u64) {
        self.network.set(from, to, Passage { cut: true, ..Passage::default() });
    }

    /// Delays everything between all nodes, each way.
    pub fn delay_all(&self, delay: Duration) {
        for from in self.ids() {
            for to in self.ids() {
                self.network.set(from, to, Passage { cut: false, delay });
            }
        }
    }

    /// A request to a node.
    pub fn ask(&self, id: u64, method: &str, path: &str, body: &str) -> Result<Reply, NoReply> {
        request(self.addr(id), method, path, body, PATIENCE)
    }

    /// The same for whom an answer is not worth waiting for.
    pub fn ask_briefly(&self, id: u64, method: &str, path: &str, body: &str) -> Result<Reply, NoReply> {
        request(self.addr(id), method, path, body, Duration::from_secs(3))
    }

    /// What a node says of the cluster.
    pub fn status(&self, id: u64) -> Option<Value> {
        let reply = request(self.addr(id), "GET", "/v1/cluster", "", Duration::from_secs(5)).ok()?;
        (reply.status == 200).then(|| reply.json())
    }

    /// The leader that a majority agrees on; waits until there is one that can be used.
    pub fn leader(&self) -> anyhow::Result<u64> {
        self.leader_among(&self.running())
    }

    /// The same, asked of these nodes only.
    pub fn leader_among(&self, nodes: &[u64]) -> anyhow::Result<u64> {
        let start = Instant::now();
        loop {
            for id in nodes {
                if let Some(leader) = self.status(*id).and_then(|status| status["leader"].as_u64())
                    && nodes.contains(&leader)
                    && request(self.addr(leader), "GET", "/readyz", "", Duration::from_secs(5))
                        .is_ok_and(|reply| reply.status == 200)
                {
                    return Ok(leader);
                }
            }
            if start.elapsed() > PATIENCE {
                let logs: Vec<String> =
                    nodes.iter().map(|id| format!("--- {id}\n{}", self.log(*id))).collect();
                bail!("no leader among {nodes:?}\n{}", logs.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until every node that runs votes and is heard by the leader, whatever clients do meanwhile.
    pub fn settle(&self) -> anyhow::Result<()> {
        let start = Instant::now();
        let running = self.running();
        loop {
            let status = self.status(self.leader()?).unwrap_or(Value::Null);
            let nodes: Vec<&Value> = status["nodes"].as_array().into_iter().flatten().collect();
            let votes = |id: &u64| {
                nodes
                    .iter()
                    .any(|node| node["id"] == *id && node["voter"] == true && node["role"] != "unreachable")
            };
            if running.iter().all(votes) {
                return Ok(());
            }
            if start.elapsed() > 3 * PATIENCE {
                let logs: Vec<String> =
                    running.iter().map(|id| format!("--- {id}\n{}", self.log(*id))).collect();
                bail!("the nodes do not all vote: {status:#}\n{}", logs.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until every node that runs is a member, has the leader's log and the same table, says so, and serves: a node that
    /// was cut off calls its leader again within a second or two.
    pub fn converge(&self) -> anyhow::Result<()> {
        let start = Instant::now();
        let running = self.running();
        loop {
            let leader = self.leader()?;
            let reply = request(self.addr(leader), "GET", "/v1/cluster?digest=true", "", PATIENCE);
            let status = reply.map(|reply| reply.json()).unwrap_or(Value::Null);
            let nodes: Vec<&Value> = status["nodes"].as_array().into_iter().flatten().collect();
            let of = |id: u64| nodes.iter().find(|node| node["id"] == id);
            let same = |field: &str| {
                let values = running.iter().map(|id| of(*id).map(|node| node[field].clone()));
                let values: Vec<_> = values.collect();
                values.iter().all(|value| value.is_some() && *value == values[0])
            };
            let vote = running.iter().all(|id| of(*id).is_some_and(|node| node["voter"] == true));
            let serves = |id: &u64| {
                request(self.addr(*id), "GET", "/v1/claims/?limit=1", "", PATIENCE)
                    .is_ok_and(|reply| reply.status == 200)
            };
            if vote && same("digest_at") {
                ensure!(same("digest"), "after the same entry the tables differ: {status:#}");
                if running.iter().all(serves) {
                    return Ok(());
                }
            }
            ensure!(start.elapsed() < PATIENCE, "the nodes do not come together: {status:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in self.nodes.values_mut() {
            if let Some(mut process) = node.process.take() {
                process.kill().ok();
                process.wait().ok();
            }
        }
        if std::env::var_os("LEASEHOLD_KEEP").is_none() {
            fs::remove_dir_all(&self.dir).ok();
        }
    }
}
