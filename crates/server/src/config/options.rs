//! What an operator may set, before it is checked.
//!
//! In:    flags, `LEASEHOLD_*` variables and a TOML file. Out: [`Options`], the three of them merged.
//! Never: checks a value: `Options::validate` in `config.rs` does.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

use super::{ClusterOptions, LogFormat};
use crate::access::settings::AccessOptions;
use crate::audit::AuditOptions;
use crate::http::tls::TlsOptions;

/// What an operator may set; `None` means the default. Also the shape of the TOML file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// Addresses to listen on.
    #[serde(default, deserialize_with = "one_or_more")]
    pub listen: Option<Vec<SocketAddr>>,
    /// Where clients reach this node, as `leasehold cluster status` shows it.
    pub advertise_url: Option<String>,
    /// Addresses to listen on for Redis clients; none by default.
    #[serde(default, deserialize_with = "one_or_more")]
    pub redis_listen: Option<Vec<SocketAddr>>,
    /// Data directory.
    pub data: Option<PathBuf>,
    /// Allow an address that others can reach without access control.
    pub insecure: Option<bool>,
    /// Addresses of proxies whose `X-Forwarded-*` headers are believed.
    pub trusted_proxies: Option<Vec<IpAddr>>,
    /// Administration of locks: `yes`, `no`, or a file of `user:password` lines.
    pub admin_userpass_file: Option<String>,
    /// Seconds that a promoted claim may leave its ttl unstarted.
    pub pickup_grace: Option<f64>,
    /// Finished claims that stay readable.
    pub finished_max: Option<u64>,
    /// Waiting claims on one resource.
    pub queue_len_max: Option<u64>,
    /// Held and waiting claims of one owner.
    pub claims_per_owner_max: Option<u64>,
    /// Held and waiting claims of one namespace.
    pub claims_per_namespace_max: Option<u64>,
    /// Held and waiting claims in all.
    pub claims_max: Option<u64>,
    /// Bytes of one owner's held and waiting claims.
    pub bytes_per_owner_max: Option<u64>,
    /// Bytes of one namespace's held and waiting claims.
    pub bytes_per_namespace_max: Option<u64>,
    /// Bytes of all held and waiting claims.
    pub bytes_max: Option<u64>,
    /// Bytes of finished claims.
    pub finished_bytes_max: Option<u64>,
    /// Mebibytes of memory with which the node takes nothing that makes the table larger.
    pub memory_max_mib: Option<u64>,
    /// Connections at a time.
    pub connections_max: Option<usize>,
    /// Mebibytes of log after which a snapshot is taken.
    pub snapshot_log_mib: Option<u64>,
    /// Seconds that a client may take to send a request's headers, or keep an idle connection.
    pub header_timeout: Option<f64>,
    /// Seconds that a client may take to send a request's body.
    pub body_timeout: Option<f64>,
    /// Seconds that a client may take nothing of an answer.
    pub write_timeout: Option<f64>,
    /// Bytes of bodies that are received at a time.
    pub body_bytes_max: Option<usize>,
    /// What one user or address may take of connections, open requests, streams and body bytes: a fraction.
    pub client_share: Option<f64>,
    /// Further values of `Host` that mean this service, where there is no access control; `*`: any.
    pub allowed_hosts: Option<Vec<String>>,
    /// Origins of other web pages that may change something.
    pub allowed_origins: Option<Vec<String>>,
    /// The other nodes.
    pub cluster: Option<ClusterOptions>,
    /// Requests that one identity may send a second.
    pub requests_per_second: Option<f64>,
    /// Requests that may wait for their turn at a time.
    pub long_polls_max: Option<usize>,
    /// Who may do what. Its presence turns access control on.
    pub access: Option<AccessOptions>,
    /// Certificate and key of the public port.
    pub tls: Option<TlsOptions>,
    /// Where to write who got what.
    pub audit: Option<AuditOptions>,
    /// How log lines look.
    pub log_format: Option<LogFormat>,
    /// How often the table is saved, such as `1h`.
    pub backup_every: Option<String>,
    /// Where these backups go.
    pub backup_dir: Option<PathBuf>,
    /// How many of them stay.
    pub backup_keep: Option<usize>,
    /// The collector of traces.
    pub otlp: Option<String>,
}

impl Options {
    /// Reads a TOML file's text.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// These options, and those of `other` where these are silent.
    pub fn or(self, other: Self) -> Self {
        Self {
            listen: self.listen.or(other.listen),
            advertise_url: self.advertise_url.or(other.advertise_url),
            redis_listen: self.redis_listen.or(other.redis_listen),
            data: self.data.or(other.data),
            insecure: self.insecure.or(other.insecure),
            trusted_proxies: self.trusted_proxies.or(other.trusted_proxies),
            admin_userpass_file: self.admin_userpass_file.or(other.admin_userpass_file),
            pickup_grace: self.pickup_grace.or(other.pickup_grace),
            finished_max: self.finished_max.or(other.finished_max),
            queue_len_max: self.queue_len_max.or(other.queue_len_max),
            claims_per_owner_max: self.claims_per_owner_max.or(other.claims_per_owner_max),
            claims_per_namespace_max: self.claims_per_namespace_max.or(other.claims_per_namespace_max),
            claims_max: self.claims_max.or(other.claims_max),
            bytes_per_owner_max: self.bytes_per_owner_max.or(other.bytes_per_owner_max),
            bytes_per_namespace_max: self.bytes_per_namespace_max.or(other.bytes_per_namespace_max),
            bytes_max: self.bytes_max.or(other.bytes_max),
            finished_bytes_max: self.finished_bytes_max.or(other.finished_bytes_max),
            memory_max_mib: self.memory_max_mib.or(other.memory_max_mib),
            connections_max: self.connections_max.or(other.connections_max),
            snapshot_log_mib: self.snapshot_log_mib.or(other.snapshot_log_mib),
            header_timeout: self.header_timeout.or(other.header_timeout),
            body_timeout: self.body_timeout.or(other.body_timeout),
            write_timeout: self.write_timeout.or(other.write_timeout),
            body_bytes_max: self.body_bytes_max.or(other.body_bytes_max),
            client_share: self.client_share.or(other.client_share),
            allowed_hosts: self.allowed_hosts.or(other.allowed_hosts),
            allowed_origins: self.allowed_origins.or(other.allowed_origins),
            cluster: match (self.cluster, other.cluster) {
                (Some(one), Some(other)) => Some(one.or(other)),
                (one, other) => one.or(other),
            },
            requests_per_second: self.requests_per_second.or(other.requests_per_second),
            long_polls_max: self.long_polls_max.or(other.long_polls_max),
            access: merged_access(self.access, other.access),
            tls: self.tls.or(other.tls),
            audit: self.audit.or(other.audit),
            log_format: self.log_format.or(other.log_format),
            backup_every: self.backup_every.or(other.backup_every),
            backup_dir: self.backup_dir.or(other.backup_dir),
            backup_keep: self.backup_keep.or(other.backup_keep),
            otlp: self.otlp.or(other.otlp),
        }
    }
}

/// One address, or a list of them.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<SocketAddr>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "an address such as \"127.0.0.1:4080\", or a list of addresses")]
    enum Given {
        One(SocketAddr),
        Several(Vec<SocketAddr>),
    }
    Ok(Some(match Given::deserialize(deserializer)? {
        Given::One(address) => vec![address],
        Given::Several(addresses) => addresses,
    }))
}

/// The flags' file of keys goes before the file's; everything else stands in the file alone.
fn merged_access(flags: Option<AccessOptions>, file: Option<AccessOptions>) -> Option<AccessOptions> {
    match (flags, file) {
        (Some(flags), Some(file)) => Some(AccessOptions { keys: flags.keys.or(file.keys), ..file }),
        (flags, file) => flags.or(file),
    }
}
