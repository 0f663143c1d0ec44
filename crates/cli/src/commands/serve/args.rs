//! The flags of `leasehold serve`, which `leasehold doctor server` takes too.
//!
//! In:    the command line and `LEASEHOLD_*`. Out: [`Options`], to be merged with the file.
//! Never: checks a value beyond its form: `leasehold_server::config` does.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use leasehold_server::access::settings::AccessOptions;
use leasehold_server::audit::AuditOptions;
use leasehold_server::config::{ClusterOptions, LogFormat, Options};
use leasehold_server::http::tls::TlsOptions;

/// An address with its port: the message of the standard library does not say what it wants.
fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "must be an IP address and a port, like 127.0.0.1:4080 or [::1]:4080")
}

/// Settings of a node. Each can also stand in the TOML file, under the same name without the dashes in front.
#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    /// TOML file with the same settings
    #[arg(long, env = "LEASEHOLD_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address to listen on (repeat, or separate with commas) [default: 127.0.0.1:4080]
    #[arg(long, env = "LEASEHOLD_LISTEN", value_delimiter = ',', value_name = "ADDRESS", value_parser = address)]
    listen: Option<Vec<SocketAddr>>,
    /// Where clients reach this node, as `leasehold cluster status` shows it [default: the first address of --listen; if
    /// that is 0.0.0.0 or ::, the host of --peer-advertise]
    #[arg(long, env = "LEASEHOLD_ADVERTISE_URL", value_name = "URL")]
    advertise_url: Option<String>,
    /// Address to listen on for Redis clients (repeat, or separate with commas) [default: none]
    #[arg(long, env = "LEASEHOLD_REDIS_LISTEN", value_delimiter = ',', value_name = "ADDRESS", value_parser = address)]
    redis_listen: Option<Vec<SocketAddr>>,
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
    /// Seconds that a claim granted from the queue waits for its client before its ttl starts [default: 0, which
    /// follows how often the client asks]
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
    /// Mebibytes of memory at which this node stops taking claims [default: three quarters of the machine's, or
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
    /// Seconds after which a client that reads nothing of its answer is cut off [default: 30]
    #[arg(long, env = "LEASEHOLD_WRITE_TIMEOUT", value_name = "SECONDS")]
    write_timeout: Option<f64>,
    /// Bytes of request bodies that are received at a time, of all clients together [default: 64 MiB]
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
    /// Requests that may wait for their turn at a time [default: 16000]
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
    /// Where to write the audit, one JSON line for each change: a file, or 'stderr'
    #[arg(long, env = "LEASEHOLD_AUDIT", value_name = "FILE|stderr")]
    audit: Option<String>,
    /// How log lines look [default: text]
    #[arg(long, env = "LEASEHOLD_LOG_FORMAT", value_name = "text|json")]
    log_format: Option<LogFormat>,
    /// Save the table to --backup-dir this often: 30m, 1h, 90 (seconds). Each node with this flag saves its own
    #[arg(long, env = "LEASEHOLD_BACKUP_EVERY", value_name = "TIME")]
    backup_every: Option<String>,
    /// Directory for these backups
    #[arg(long, env = "LEASEHOLD_BACKUP_DIR", value_name = "DIR")]
    backup_dir: Option<PathBuf>,
    /// Number of backups to keep; older ones are deleted [default: 24]
    #[arg(long, env = "LEASEHOLD_BACKUP_KEEP", value_name = "N")]
    backup_keep: Option<usize>,
    /// Send a trace of each request to this OpenTelemetry collector (OTLP over HTTP), such as http://127.0.0.1:4318
    #[arg(long, env = "LEASEHOLD_OTLP", value_name = "URL")]
    otlp: Option<String>,
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
    /// Peer address of a member of a running cluster, to join it
    #[arg(long, env = "LEASEHOLD_JOIN", value_name = "HOST:PORT")]
    join: Option<String>,
    /// Address to listen on for peers [default: this node's in --peers]
    #[arg(long, env = "LEASEHOLD_PEER_LISTEN", value_name = "ADDRESS", value_parser = address)]
    peer_listen: Option<SocketAddr>,
    /// Address at which peers reach this node [default: this node's in --peers, or --peer-listen]
    #[arg(long, env = "LEASEHOLD_PEER_ADVERTISE", value_name = "HOST:PORT")]
    peer_advertise: Option<String>,
    /// Secret that all nodes of the cluster share
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
    pub(crate) fn into_options(self) -> Options {
        let tls = self.tls_certificate.zip(self.tls_key);
        Options {
            listen: self.listen,
            advertise_url: self.advertise_url,
            redis_listen: self.redis_listen,
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
            log_format: self.log_format,
            backup_every: self.backup_every,
            backup_dir: self.backup_dir,
            backup_keep: self.backup_keep,
            otlp: self.otlp,
            cluster: Some(self.cluster.into_options()),
        }
    }
}
