//! The systems: how each is started, alone or as three, and which node leads.
//!
//! In:    directories on one disk. Out: a running `System`, answering, on ports of its own.
//! Never: tunes: every setting that is not a path, a port or a number of connections is the default, except
//!        what makes Redis and ZooKeeper as durable as the others.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use leasehold_bench::process::{Process, Scratch, free_addresses};
use leasehold_bench::reactor::{Seat, block_on, ensure_wanted};

use crate::clients::{Client, Etcd, KEY, Leasehold, Way, ZooKeeper};
use crate::rounds::new_name;

/// A virtual machine for Java on a busy computer takes its time.
const START_WAIT_MAX: Duration = Duration::from_secs(90);
/// One question whether it answers; a node that is still starting may take a connection and say nothing.
const ASK_WAIT_MAX: Duration = Duration::from_secs(10);
/// With a logger: without one ZooKeeper says nothing, whatever happens to it.
const ZOOKEEPER_JARS: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar";

/// Which system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ours.
    Leasehold,
    /// Ours without everything but HTTP.
    Ceiling,
    /// etcd.
    Etcd,
    /// Redis.
    Redis,
    /// Redis with a replica.
    RedisReplicated,
    /// ZooKeeper.
    ZooKeeper,
    /// PostgreSQL.
    Postgres,
}

impl Kind {
    /// What files and messages call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Leasehold => "leasehold",
            Self::Ceiling => "responder",
            Self::Etcd => "etcd",
            Self::Redis => "redis",
            Self::RedisReplicated => "redis-replicated",
            Self::ZooKeeper => "zookeeper",
            Self::Postgres => "postgresql",
        }
    }

    /// Whether it is this project's own.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Leasehold | Self::Ceiling)
    }

    /// Whose way it is.
    pub(crate) fn of(way: Way) -> Self {
        match way {
            Way::Leasehold | Way::LeaseholdResp => Self::Leasehold,
            Way::Ceiling => Self::Ceiling,
            Way::EtcdTxn | Way::EtcdLock | Way::EtcdLease => Self::Etcd,
            Way::RedisSet | Way::RedisLock => Self::Redis,
            Way::RedisReplicated => Self::RedisReplicated,
            Way::ZooKeeperNode | Way::ZooKeeperLock => Self::ZooKeeper,
            Way::PostgresRow | Way::PostgresAdvisory => Self::Postgres,
        }
    }

    /// A way that shows that it answers.
    pub(crate) fn simple_way(self) -> Way {
        match self {
            Self::Leasehold => Way::Leasehold,
            Self::Ceiling => Way::Ceiling,
            Self::Etcd => Way::EtcdTxn,
            Self::Redis => Way::RedisSet,
            Self::RedisReplicated => Way::RedisReplicated,
            Self::ZooKeeper => Way::ZooKeeperNode,
            Self::Postgres => Way::PostgresRow,
        }
    }

    /// What differs from its defaults.
    pub(crate) fn settings(self) -> &'static str {
        match self {
            Self::Leasehold => {
                "access control, idempotency keys and metrics on; no limit of requests a second"
            }
            Self::Ceiling => "no log, no table: `leasehold bench responder`",
            Self::Etcd => "defaults",
            Self::Redis | Self::RedisReplicated => {
                "appendonly yes, appendfsync always, no RDB snapshots, also on the replica"
            }
            Self::ZooKeeper => "forceSync as by default, no limit of connections, no admin server",
            Self::Postgres => "fsync and synchronous_commit as by default, max_connections 600",
        }
    }

    /// Its version, in its own words.
    pub(crate) fn version(self, leasehold: &Path) -> String {
        if self == Self::ZooKeeper {
            // The number stands in the name of the jar beside the one that is used.
            let jars = std::fs::read_dir("/usr/share/java").into_iter().flatten().flatten();
            let mut names = jars.filter_map(|entry| entry.file_name().into_string().ok());
            let named = names.find_map(|name| {
                Some(name.strip_prefix("zookeeper-")?.strip_suffix(".jar")?.to_owned())
                    .filter(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
            });
            return format!("ZooKeeper {}", named.unwrap_or_default());
        }
        let program = match self {
            Self::Leasehold | Self::Ceiling => leasehold.to_owned(),
            Self::Postgres => postgres_program("postgres").unwrap_or_default(),
            Self::Redis | Self::RedisReplicated => PathBuf::from("redis-server"),
            _ => PathBuf::from("etcd"),
        };
        let output = Command::new(program).arg("--version").output();
        let text =
            output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into());
        text.lines().next().unwrap_or_default().split(" sha=").next().unwrap_or_default().to_owned()
    }
}

/// A running system.
pub(crate) struct System {
    /// Which.
    pub(crate) kind: Kind,
    /// The node that clients speak to: the leader, where there is one.
    pub(crate) addr: SocketAddr,
    /// The addresses of all nodes for clients.
    nodes: Vec<SocketAddr>,
    /// Leasehold's addresses for Redis clients.
    redis: Vec<SocketAddr>,
    processes: Vec<Process>,
}

impl System {
    /// Starts `nodes` nodes and waits until they answer.
    pub(crate) fn start(kind: Kind, nodes: usize, leasehold: &Path, scratch: &Scratch) -> Result<Self> {
        let ports = free_addresses(4 * nodes)?;
        let (clients, redis) = (ports[..nodes].to_vec(), ports[nodes..2 * nodes].to_vec());
        let peers: Vec<_> = ports[2 * nodes..].chunks(2).map(|two| (two[0], two[1])).collect();
        let access = access_control(leasehold, scratch)?;
        let plan =
            Plan { nodes, clients: &clients, redis: &redis, peers: &peers, leasehold, access: &access };
        let mut processes = Vec::new();
        for node in 0..nodes {
            // Ports are new at each start, and nodes with the data of an earlier one would look for each other at the old ones.
            let dir = scratch.sub(&format!("{}-{nodes}-{}-{}", kind.name(), node + 1, clients[0].port()))?;
            processes.push(Process::start(&mut plan.command(kind, node, &dir)?, &dir)?);
        }
        let mut system = Self { kind, addr: clients[0], nodes: clients, redis, processes };
        system.wait_until_ready().with_context(|| format!("{} did not start", kind.name()))?;
        Ok(system)
    }

    /// Waits until it has a leader that locks and unlocks something, and speaks to that leader from then on.
    pub(crate) fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let error = match self.ready() {
                Ok(leader) => {
                    self.addr = leader;
                    return Ok(());
                }
                Err(error) => error,
            };
            if let Some(obituary) = self.obituary() {
                return Err(error.context(obituary));
            }
            if start.elapsed() > START_WAIT_MAX {
                let words = self.processes[0].last_words();
                return Err(error.context(format!("not ready after {START_WAIT_MAX:?}; it said:\n{words}")));
            }
            ensure_wanted()?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// What a process of it said last, if one has ended.
    pub(crate) fn obituary(&mut self) -> Option<String> {
        let dead = self.processes.iter_mut().position(|process| !process.runs())?;
        Some(format!("its process {} has ended; it said:\n{}", dead + 1, self.processes[dead].last_words()))
    }

    /// Where clients of this way connect.
    pub(crate) fn addr_of(&self, way: Way) -> SocketAddr {
        let leader = self.nodes.iter().position(|node| *node == self.addr).unwrap_or_default();
        if way == Way::LeaseholdResp { self.redis[leader] } else { self.addr }
    }

    /// Its processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::pid).collect()
    }

    /// The leader's address, once it has locked and unlocked something.
    fn ready(&self) -> Result<SocketAddr> {
        let nodes = &self.nodes;
        let leader = if nodes.len() == 1 { nodes[0] } else { leader(self.kind, nodes)? };
        block_on(ASK_WAIT_MAX, async |seat| {
            let mut client = Client::connect(self.kind.simple_way(), leader, seat).await?;
            client.acquire(&new_name(), false).await?;
            client.release().await
        })?;
        Ok(leader)
    }
}

fn leader(kind: Kind, nodes: &[SocketAddr]) -> Result<SocketAddr> {
    for addr in nodes {
        let leads = match kind {
            // The others are told to follow the first.
            Kind::RedisReplicated => true,
            Kind::Etcd => {
                block_on(ASK_WAIT_MAX, async |seat| Etcd::connect(*addr, seat, false).await?.leads().await)?
            }
            Kind::ZooKeeper => {
                let mut stream = TcpStream::connect(addr)?;
                stream.set_read_timeout(Some(ASK_WAIT_MAX))?;
                stream.write_all(b"srvr")?;
                let mut text = String::new();
                stream.read_to_string(&mut text)?;
                // Also proves that the node takes sessions.
                let session = async |seat: Seat<'_>| ZooKeeper::connect(*addr, seat).await.map(drop);
                text.contains("Mode: leader") && block_on(ASK_WAIT_MAX, session).is_ok()
            }
            _ => {
                let status = block_on(ASK_WAIT_MAX, async |seat| {
                    Leasehold::connect(*addr, seat)?.get("/v1/cluster").await
                })?;
                let status: serde_json::Value = serde_json::from_str(&status)?;
                let id = status["leader"].as_u64().context("no leader yet")?;
                nodes.get(id as usize - 1) == Some(addr)
            }
        };
        if leads {
            return Ok(*addr);
        }
    }
    bail!("no leader yet")
}

/// Addresses of the nodes of one system.
struct Plan<'a> {
    nodes: usize,
    clients: &'a [SocketAddr],
    /// For Redis clients, where that is another one.
    redis: &'a [SocketAddr],
    /// Two each: ZooKeeper needs one for elections.
    peers: &'a [(SocketAddr, SocketAddr)],
    leasehold: &'a Path,
    /// Leasehold's configuration: who may do what.
    access: &'a Path,
}

impl Plan<'_> {
    fn command(&self, kind: Kind, node: usize, dir: &Path) -> Result<Command> {
        let client = self.clients[node];
        let (host, port) = (client.ip().to_string(), client.port().to_string());
        let data = dir.join("data");
        let mut command = Command::new("etcd");
        match kind {
            Kind::Leasehold => {
                command = Command::new(self.leasehold);
                command.args(["serve", "--listen", &client.to_string(), "--data"]).arg(&data);
                command.args(["--redis-listen", &self.redis[node].to_string()]);
                command.args(["--requests-per-second", "0", "--config"]).arg(self.access);
                if self.nodes > 1 {
                    let peers: Vec<String> = self
                        .peers
                        .iter()
                        .enumerate()
                        .map(|(at, peer)| format!("{}={}", at + 1, peer.0))
                        .collect();
                    command.args(["--node-id", &(node + 1).to_string(), "--peers", &peers.join(",")]);
                    command.env("LEASEHOLD_CLUSTER_SECRET", "a secret that only this benchmark knows");
                }
            }
            Kind::Ceiling => {
                command = Command::new(self.leasehold);
                command.args(["bench", "responder", "--listen", &client.to_string()]);
            }
            Kind::Etcd => {
                let cluster: Vec<String> = self
                    .peers
                    .iter()
                    .enumerate()
                    .map(|(at, peer)| format!("n{}=http://{}", at + 1, peer.0))
                    .collect();
                let (client, peer) = (format!("http://{client}"), format!("http://{}", self.peers[node].0));
                command
                    .args(["--name", &format!("n{}", node + 1), "--log-level", "error", "--data-dir"])
                    .arg(&data);
                command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
                command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
                command.args(["--initial-cluster", &cluster.join(",")]);
            }
            Kind::Redis | Kind::RedisReplicated => {
                command = Command::new("redis-server");
                command.args(["--bind", &host, "--port", &port, "--save", "", "--appendonly", "yes"]);
                command.args(["--appendfsync", "always", "--dir"]).arg(dir);
                if node > 0 {
                    command.args(["--replicaof", &host, &self.clients[0].port().to_string()]);
                }
            }
            Kind::ZooKeeper => {
                command = Command::new("java");
                command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
                command.args(["-cp", ZOOKEEPER_JARS, "org.apache.zookeeper.server.quorum.QuorumPeerMain"]);
                command.arg(self.zookeeper_configuration(node, dir, &data)?);
            }
            Kind::Postgres => {
                command = postgres(dir, &data)?;
                command.args(["-h", &host, "-p", &port, "-k", "", "-c", "max_connections=600"]);
            }
        }
        Ok(command)
    }

    fn zookeeper_configuration(&self, node: usize, dir: &Path, data: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(data)?;
        let mut text = format!(
            "tickTime=2000\ninitLimit=10\nsyncLimit=5\nmaxClientCnxns=0\nadmin.enableServer=false\n\
             4lw.commands.whitelist=srvr\ndataDir={}\nclientPortAddress=127.0.0.1\nclientPort={}\n",
            data.display(),
            self.clients[node].port()
        );
        if self.nodes > 1 {
            std::fs::write(data.join("myid"), (node + 1).to_string())?;
            for (at, (peer, election)) in self.peers.iter().enumerate() {
                writeln!(text, "server.{}=127.0.0.1:{}:{}", at + 1, peer.port(), election.port())?;
            }
        }
        let path = dir.join("zoo.cfg");
        std::fs::write(&path, text)?;
        Ok(path)
    }
}

/// One key and one rule for all nodes, made once; the key is what the clients show.
fn access_control(leasehold: &Path, scratch: &Scratch) -> Result<PathBuf> {
    let dir = scratch.sub("access")?;
    let (keys, config) = (dir.join("keys.toml"), dir.join("leasehold.toml"));
    if KEY.get().is_none() {
        let mut make = Command::new(leasehold);
        let made = make.args(["access", "key", "make", "--user", "bench", "--keys"]).arg(&keys).output()?;
        ensure!(made.status.success(), "no access key: {}", String::from_utf8_lossy(&made.stderr));
        KEY.get_or_init(|| String::from_utf8_lossy(&made.stdout).trim().to_owned());
        let rule = "[[access.rule]]\nusers = [\"bench\"]\nresources = [\"*\"]\nverbs = [\"*\"]\n";
        std::fs::write(&config, format!("[access]\nkeys = {keys:?}\n\n{rule}"))?;
    }
    Ok(config)
}

/// A fresh data directory of PostgreSQL's and the command to serve it. It refuses to run as root, so root hands it
/// to the user that the package made.
fn postgres(dir: &Path, data: &Path) -> Result<Command> {
    let user = if rustix::process::geteuid().is_root() { Some(user_ids("postgres")?) } else { None };
    let command = |program: &str| -> Result<Command> {
        let mut command = Command::new(postgres_program(program)?);
        command.arg("-D").arg(data);
        if let Some((uid, gid)) = user {
            command.uid(uid).gid(gid);
        }
        Ok(command)
    };
    if let Some((uid, gid)) = user {
        chown(dir, Some(uid), Some(gid))?;
    }
    let output = command("initdb")?.args(["-U", "postgres", "-A", "trust", "--no-instructions"]).output()?;
    if !output.status.success() {
        bail!("initdb failed in {}: {}", dir.display(), String::from_utf8_lossy(&output.stderr));
    }
    command("postgres")
}

/// Debian keeps PostgreSQL's programs out of PATH, one directory a version; the newest is taken.
fn postgres_program(name: &str) -> Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").context("PostgreSQL is not installed")?;
    let newest = versions
        .flatten()
        .filter(|entry| entry.path().join("bin/initdb").exists())
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .max()
        .context("no PostgreSQL server in /usr/lib/postgresql")?;
    Ok(PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin/{name}")))
}

fn user_ids(name: &str) -> Result<(u32, u32)> {
    let users = std::fs::read_to_string("/etc/passwd")?;
    let line = users.lines().find(|line| line.split(':').next() == Some(name));
    let fields: Vec<&str> = line.with_context(|| format!("there is no user {name}"))?.split(':').collect();
    Ok((fields[2].parse()?, fields[3].parse()?))
}
