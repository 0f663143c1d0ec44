//! `leasehold serve`: runs a node until it is told to stop.
//!
//! In:    flags, then `LEASEHOLD_*`, then the TOML file, then defaults. Out: a running service; logs on stderr, and
//!        on stdout a line for each of its URLs once it can be used.
//! Never: exits 0 unless everything that was asked has been answered.

use std::io::{IsTerminal, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use leasehold_engine::publish::Listener;
use leasehold_engine::{Engine, EngineConfig};
use leasehold_server::access::settings::AccessOptions;
use leasehold_server::api::locks::{withdraw_of_silent_nodes, withdraw_orphans};
use leasehold_server::app::Guards;
use leasehold_server::audit::AuditOptions;
use leasehold_server::config::{ClusterOptions, Config, Options};
use leasehold_server::http::tls::TlsOptions;
use leasehold_server::observe::Observer;
use leasehold_server::serve::Server;
use leasehold_server::serve::seats::HEALTH_PLACES;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tracing_subscriber::EnvFilter;

use super::notify::Notifier;

/// Settings of a node. Each can also stand in the TOML file, under the same name without the dashes in front.
#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    /// TOML file with the same settings
    #[arg(long, env = "LEASEHOLD_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on (repeat, or separate with commas); the first is the one that peers and clients are told
    /// [default: 127.0.0.1:4080]
    #[arg(long, env = "LEASEHOLD_LISTEN", value_delimiter = ',', value_name = "ADDRESS")]
    listen: Option<Vec<SocketAddr>>,
    /// Data directory [default: ./leasehold-data]
    #[arg(long, env = "LEASEHOLD_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// Allow an address that other machines can reach, without access control
    #[arg(long, env = "LEASEHOLD_INSECURE", num_args = 0..=1, default_missing_value = "true")]
    insecure: Option<bool>,
    /// Proxy whose X-Forwarded-For, -Proto and -Host are believed (repeat, or separate with commas)
    #[arg(long, env = "LEASEHOLD_TRUSTED_PROXIES", value_delimiter = ',', value_name = "IP")]
    trusted_proxies: Option<Vec<IpAddr>>,
    /// Administration of locks: 'yes' (open), 'no', or a file of user:password lines [default: yes on a loopback
    /// address, no on any other]
    #[arg(long, env = "LEASEHOLD_ADMIN_USERPASS_FILE", value_name = "yes|no|FILE")]
    admin_userpass_file: Option<String>,
    /// Seconds that a claim promoted out of the queue may leave its ttl unstarted [default: 0, the rhythm of its client decides]
    #[arg(long, env = "LEASEHOLD_PICKUP_GRACE", value_name = "SECONDS")]
    pickup_grace: Option<f64>,
    /// Finished claims that stay readable [default: 100000]
    #[arg(long, env = "LEASEHOLD_FINISHED_MAX", value_name = "N")]
    finished_max: Option<u64>,
    /// Waiting claims on one resource [default: 100000]
    #[arg(long, env = "LEASEHOLD_QUEUE_LEN_MAX", value_name = "N")]
    queue_len_max: Option<u64>,
    /// Held and waiting claims of one owner [default: 10000000]
    #[arg(long, env = "LEASEHOLD_CLAIMS_PER_OWNER_MAX", value_name = "N")]
    claims_per_owner_max: Option<u64>,
    /// Held and waiting claims of one namespace: names up to the last slash [default: 10000000]
    #[arg(long, env = "LEASEHOLD_CLAIMS_PER_NAMESPACE_MAX", value_name = "N")]
    claims_per_namespace_max: Option<u64>,
    /// Held and waiting claims in all [default: 10000000]
    #[arg(long, env = "LEASEHOLD_CLAIMS_MAX", value_name = "N")]
    claims_max: Option<u64>,
    /// Bytes of one owner's held and waiting claims, beyond 256 of each [default: 64 MiB]
    #[arg(long, env = "LEASEHOLD_BYTES_PER_OWNER_MAX", value_name = "BYTES")]
    bytes_per_owner_max: Option<u64>,
    /// Bytes of one namespace's held and waiting claims, beyond 256 of each [default: 256 MiB]
    #[arg(long, env = "LEASEHOLD_BYTES_PER_NAMESPACE_MAX", value_name = "BYTES")]
    bytes_per_namespace_max: Option<u64>,
    /// Bytes of all held and waiting claims, beyond 256 of each [default: 512 MiB]
    #[arg(long, env = "LEASEHOLD_BYTES_MAX", value_name = "BYTES")]
    bytes_max: Option<u64>,
    /// Bytes of finished claims, beyond 256 of each; the oldest lose their data first [default: 64 MiB]
    #[arg(long, env = "LEASEHOLD_FINISHED_BYTES_MAX", value_name = "BYTES")]
    finished_bytes_max: Option<u64>,
    /// Mebibytes of memory with which this node takes no more claims [default: three quarters of the machine's, or
    /// of its control group's]
    #[arg(long, env = "LEASEHOLD_MEMORY_MAX_MIB", value_name = "MIB")]
    memory_max_mib: Option<u64>,
    /// Connections at a time [default: 16000]
    #[arg(long, env = "LEASEHOLD_CONNECTIONS_MAX", value_name = "N")]
    connections_max: Option<usize>,
    /// Mebibytes of log after which a snapshot is taken [default: 32]
    #[arg(long, env = "LEASEHOLD_SNAPSHOT_LOG_MIB", value_name = "MIB")]
    snapshot_log_mib: Option<u64>,
    /// Seconds that a client may take to send headers, or keep an idle connection [default: 60]
    #[arg(long, env = "LEASEHOLD_HEADER_TIMEOUT", value_name = "SECONDS")]
    header_timeout: Option<f64>,
    /// Seconds that a client may take to send a body [default: 30]
    #[arg(long, env = "LEASEHOLD_BODY_TIMEOUT", value_name = "SECONDS")]
    body_timeout: Option<f64>,
    /// Seconds that a client may take no byte of an answer [default: 30]
    #[arg(long, env = "LEASEHOLD_WRITE_TIMEOUT", value_name = "SECONDS")]
    write_timeout: Option<f64>,
    /// Bytes of request bodies that are received at a time, of all clients together [default: 67108864]
    #[arg(long, env = "LEASEHOLD_BODY_BYTES_MAX", value_name = "BYTES")]
    body_bytes_max: Option<usize>,
    /// What one user or address may take of connections, open requests, event streams and body bytes: a fraction
    /// [default: 0.25; clients on this machine that are known by their address alone: 1]
    #[arg(long, env = "LEASEHOLD_CLIENT_SHARE", value_name = "FRACTION")]
    client_share: Option<f64>,
    /// Name by which clients reach a service on a loopback address without access control, besides those of this
    /// machine; '*': any name (repeat, or separate with commas)
    #[arg(long, env = "LEASEHOLD_ALLOWED_HOSTS", value_delimiter = ',', value_name = "HOST")]
    allowed_hosts: Option<Vec<String>>,
    /// Origin of a web page that may change something, besides the dashboard (repeat, or separate with commas)
    #[arg(long, env = "LEASEHOLD_ALLOWED_ORIGINS", value_delimiter = ',', value_name = "ORIGIN")]
    allowed_origins: Option<Vec<String>>,
    /// Requests that one identity (or, without access control, one address) may send a second; 0: any number
    /// [default: 5000 with access control, else any number]
    #[arg(long, env = "LEASEHOLD_REQUESTS_PER_SECOND", value_name = "N")]
    requests_per_second: Option<f64>,
    /// Requests that stand open at a time, waiting for their turn [default: 16000]
    #[arg(long, env = "LEASEHOLD_LONG_POLLS_MAX", value_name = "N")]
    long_polls_max: Option<usize>,
    /// Turn access control on, with this file of access keys (see `leasehold access key`)
    #[arg(long, env = "LEASEHOLD_ACCESS_KEYS", value_name = "FILE")]
    access_keys: Option<PathBuf>,
    /// PEM file with the certificate of this node: serve HTTPS
    #[arg(long, env = "LEASEHOLD_TLS_CERTIFICATE", value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// PEM file with the private key of that certificate
    #[arg(long, env = "LEASEHOLD_TLS_KEY", value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// PEM file with the authorities whose client certificates are accepted
    #[arg(long, env = "LEASEHOLD_TLS_CLIENT_CA", value_name = "FILE", requires = "tls_certificate")]
    tls_client_ca: Option<PathBuf>,
    /// Where to write who got what, one JSON line each: a file, or 'stderr'
    #[arg(long, env = "LEASEHOLD_AUDIT", value_name = "FILE|stderr")]
    audit: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Settings of a node that has peers. In the TOML file they stand under `[cluster]`.
#[derive(clap::Args)]
#[command(next_help_heading = "Cluster")]
struct ClusterArgs {
    /// This node's number in its cluster
    #[arg(long, env = "LEASEHOLD_NODE_ID", value_name = "N")]
    node_id: Option<u64>,
    /// The first members of a new cluster, this one included
    #[arg(long, env = "LEASEHOLD_PEERS", value_delimiter = ',', value_name = "N=HOST:PORT")]
    peers: Option<Vec<String>>,
    /// A member of a running cluster, to be let in there
    #[arg(long, env = "LEASEHOLD_JOIN", value_name = "HOST:PORT")]
    join: Option<String>,
    /// Address to listen on for peers [default: this node's in --peers]
    #[arg(long, env = "LEASEHOLD_PEER_LISTEN", value_name = "ADDRESS")]
    peer_listen: Option<SocketAddr>,
    /// Where peers reach this node [default: this node's in --peers, or --peer-listen]
    #[arg(long, env = "LEASEHOLD_PEER_ADVERTISE", value_name = "HOST:PORT")]
    peer_advertise: Option<String>,
    /// What all nodes of the cluster know and nobody else
    #[arg(long, env = "LEASEHOLD_CLUSTER_SECRET", value_name = "TEXT", hide_env_values = true)]
    cluster_secret: Option<String>,
    /// File with the cluster secret: other users of the machine can't see it there
    #[arg(long, env = "LEASEHOLD_CLUSTER_SECRET_FILE", value_name = "FILE")]
    cluster_secret_file: Option<PathBuf>,
    /// This node's certificate for TLS between nodes (PEM)
    #[arg(long, env = "LEASEHOLD_PEER_TLS_CERT", value_name = "FILE")]
    peer_tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, env = "LEASEHOLD_PEER_TLS_KEY", value_name = "FILE")]
    peer_tls_key: Option<PathBuf>,
    /// The authority that signed the certificates of all nodes (PEM)
    #[arg(long, env = "LEASEHOLD_PEER_TLS_CA", value_name = "FILE")]
    peer_tls_ca: Option<PathBuf>,
    /// Milliseconds between two heartbeats; an election begins five to six of them after a leader died. At least three round
    /// trips of the slowest link [default: 128]
    #[arg(long, env = "LEASEHOLD_HEARTBEAT_MS", value_name = "MS")]
    heartbeat_ms: Option<u64>,
}

impl ClusterArgs {
    fn into_options(self) -> ClusterOptions {
        ClusterOptions {
            node_id: self.node_id,
            peers: self.peers,
            join: self.join,
            peer_listen: self.peer_listen,
            peer_advertise: self.peer_advertise,
            secret: self.cluster_secret,
            secret_file: self.cluster_secret_file,
            tls_cert: self.peer_tls_cert,
            tls_key: self.peer_tls_key,
            tls_ca: self.peer_tls_ca,
            heartbeat_ms: self.heartbeat_ms,
        }
    }
}

impl ServeArgs {
    fn into_options(self) -> Options {
        let tls = self.tls_certificate.zip(self.tls_key);
        Options {
            listen: self.listen,
            data: self.data,
            insecure: self.insecure,
            trusted_proxies: self.trusted_proxies,
            admin_userpass_file: self.admin_userpass_file,
            pickup_grace: self.pickup_grace,
            finished_max: self.finished_max,
            queue_len_max: self.queue_len_max,
            claims_per_owner_max: self.claims_per_owner_max,
            claims_per_namespace_max: self.claims_per_namespace_max,
            claims_max: self.claims_max,
            bytes_per_owner_max: self.bytes_per_owner_max,
            bytes_per_namespace_max: self.bytes_per_namespace_max,
            bytes_max: self.bytes_max,
            finished_bytes_max: self.finished_bytes_max,
            memory_max_mib: self.memory_max_mib,
            connections_max: self.connections_max,
            snapshot_log_mib: self.snapshot_log_mib,
            header_timeout: self.header_timeout,
            body_timeout: self.body_timeout,
            write_timeout: self.write_timeout,
            body_bytes_max: self.body_bytes_max,
            client_share: self.client_share,
            allowed_hosts: self.allowed_hosts,
            allowed_origins: self.allowed_origins,
            requests_per_second: self.requests_per_second,
            long_polls_max: self.long_polls_max,
            access: self
                .access_keys
                .map(|keys| AccessOptions { keys: Some(keys), ..AccessOptions::default() }),
            tls: tls.map(|(certificate, key)| TlsOptions { certificate, key, client_ca: self.tls_client_ca }),
            audit: self.audit.map(AuditOptions::new),
            cluster: Some(self.cluster.into_options()),
        }
    }
}

/// Descriptors that connections never get: some forty segments of a large log, snapshots, four connections to each of four
/// peers and as many of theirs, the audit, identity providers; and as many again.
const DESCRIPTORS_KEPT: u64 = 224;

/// Where the settings come from: read at the start, and again on SIGHUP.
struct Sources {
    file: Option<PathBuf>,
    flags: Options,
}

impl Sources {
    fn read(&self) -> anyhow::Result<Config> {
        let file = match &self.file {
            None => Options::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
                Options::from_toml(&text).map_err(|error| anyhow!("{}: {error}", path.display()))?
            }
        };
        Ok(self.flags.clone().or(file).validate()?)
    }
}

pub(crate) fn run(args: ServeArgs) -> anyhow::Result<()> {
    start_logging();
    let sources = Sources { file: args.config.clone(), flags: args.into_options() };
    let mut config = sources.read()?;
    fit_descriptors(&mut config);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(config, sources))
}

/// Bounds the number of connections by what the process may open. Each is a descriptor, and the log, snapshots and peers
/// need some, too: a node that has none left for its log must stop.
fn fit_descriptors(config: &mut Config) {
    let wanted = config.connections_max as u64 + HEALTH_PLACES as u64 + DESCRIPTORS_KEPT;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let mut current = limit.current.unwrap_or(u64::MAX);
    if current < most {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum });
        current = if raised.is_ok() { most } else { current };
    }
    if current >= wanted {
        let connections = config.connections_max;
        tracing::debug!(descriptors = current, connections, "there are descriptors for all connections");
        return;
    }
    // Where there are few, at least half of them are kept.
    let kept = (DESCRIPTORS_KEPT + HEALTH_PLACES as u64).min(current / 2);
    let connections = usize::try_from(current - kept).unwrap_or(usize::MAX).clamp(1, config.connections_max);
    tracing::warn!(
        descriptors = current,
        kept,
        connections,
        wanted = config.connections_max,
        "fewer connections than --connections-max: raise the limit of open files (`ulimit -Hn`, LimitNOFILE)"
    );
    config.connections_max = connections;
}

/// `RUST_LOG` chooses what is logged; openraft is quiet unless something is wrong.
fn start_logging() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,openraft=error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}

async fn serve(config: Config, sources: Sources) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let hangup = signal(SignalKind::hangup())?;
    let guards = Arc::new(Guards::new(&config).map_err(|why| anyhow!(why))?);
    let observer = Arc::new(Observer::default());
    let audit = guards.audit.iter().map(|audit| audit.clone() as Arc<dyn Listener>);
    let engine_config = EngineConfig {
        data_dir: config.data.clone(),
        settings: config.settings.clone(),
        budgets: config.budgets,
        memory_max_bytes: config.memory_max_bytes,
        snapshot_log_bytes: config.snapshot_log_bytes,
        listeners: observer.listeners().into_iter().chain(audit).collect(),
        cluster: config.cluster.clone(),
    };
    let started = std::time::Instant::now();
    let engine = Engine::start(engine_config).await?;
    if let Some(audit) = &guards.audit {
        audit.go_live(&engine);
    }
    // Who waited in a blocking request of the last process is gone with its connection.
    let orphans = match config.cluster {
        None => {
            withdraw_orphans(engine.clone()).await;
            None
        }
        // A node with peers may have to wait for a leader first, and answers meanwhile.
        Some(_) => {
            let (ours, others) = (engine.clone(), engine.clone());
            Some(tokio::spawn(async move {
                tokio::join!(withdraw_orphans(ours), withdraw_of_silent_nodes(others));
            }))
        }
    };
    let server = Server::bind(engine.clone(), config.clone(), guards.clone(), observer)?;
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let urls: Vec<String> =
        server.local_addrs()?.iter().map(|address| format!("{scheme}://{address}")).collect();
    let url = &urls[0];
    engine.set_url(url);
    warn_of_plain_text(&config);
    tokio::spawn(reload_on_hangup(hangup, guards.clone(), sources));
    tracing::info!(%url, others = ?&urls[1..], data = %config.data.display(), took = ?started.elapsed(), "leasehold is ready");
    announce(&urls);
    let notifier = Notifier::from_env();
    notifier.ready(url);
    let watchdog = notifier.keep_watchdog(engine.clone());
    let failed = std::cell::OnceCell::new();
    // As a task: the main thread need not wake up whenever it looks.
    let watched = engine.clone();
    let mut watch = tokio::spawn(async move { watched.failed().await });
    server
        .run(async {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("stopping: SIGTERM"),
                _ = interrupt.recv() => tracing::info!("stopping: SIGINT"),
                Ok(why) = &mut watch => {
                    tracing::error!(%why, "stopping: the log can't be relied on any more");
                    failed.set(why).ok();
                }
            }
            notifier.stopping();
        })
        .await;
    orphans.inspect(JoinHandle::abort);
    watchdog.inspect(JoinHandle::abort);
    watch.abort();
    engine.stop().await;
    if let Some(audit) = &guards.audit {
        audit.flush();
    }
    match failed.into_inner() {
        None => Ok(()),
        Some(why) => Err(anyhow!("the node stopped, since its log failed: {why}")),
    }
}

/// Credentials that travel in the clear are everybody's.
fn warn_of_plain_text(config: &Config) {
    let reachable = config.listen.iter().any(|address| !address.ip().is_loopback());
    if reachable && config.access.is_some() && config.tls.is_none() {
        tracing::warn!(
            "credentials travel in the clear: give --tls-certificate and --tls-key, or let only a proxy with TLS in"
        );
    }
}

/// A broken file changes nothing, and says so loudly.
async fn reload_on_hangup(mut hangup: Signal, guards: Arc<Guards>, sources: Sources) {
    while hangup.recv().await.is_some() {
        let read = sources.read().map_err(|error| format!("{error:#}"));
        match read.and_then(|config| guards.reload(&config)) {
            Ok(()) => tracing::info!("SIGHUP: access control and certificate were read anew"),
            Err(why) => tracing::error!(%why, "SIGHUP: NOTHING WAS CHANGED, the old rules stay in force"),
        }
    }
}

/// Scripts and tests wait for the first of these lines. Nobody may be left to read the others.
fn announce(urls: &[String]) {
    let lines: String = urls.iter().map(|url| format!("leasehold is listening on {url}\n")).collect();
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush()).ok();
}
