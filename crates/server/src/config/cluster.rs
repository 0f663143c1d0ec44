//! The settings of a node that has peers.
//!
//! In:    flags, variables, or `[cluster]` of the TOML file. Out: [`ClusterConfig`], or nothing for a node that is alone.
//! Never: starts a node with peers and without a secret: everybody who reaches the peer port could take the cluster over.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ConfigError;
use leasehold_engine::{ClusterConfig, DEFAULT_HEARTBEAT, PeerTls, Secret};

/// What an operator may set; `None` means the default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ClusterOptions {
    /// This node's number.
    pub node_id: Option<u64>,
    /// The first members of a new cluster, this one included: `N=HOST:PORT`.
    pub peers: Option<Vec<String>>,
    /// A member of a running cluster.
    pub join: Option<String>,
    /// Address to listen on for peers.
    pub peer_listen: Option<SocketAddr>,
    /// Address at which peers reach this node.
    pub peer_advertise: Option<String>,
    /// The cluster secret.
    pub secret: Option<String>,
    /// A file with it.
    pub secret_file: Option<PathBuf>,
    /// This node's certificate for TLS between nodes.
    pub tls_cert: Option<PathBuf>,
    /// Its key.
    pub tls_key: Option<PathBuf>,
    /// The authority that signed those of all nodes.
    pub tls_ca: Option<PathBuf>,
    /// Milliseconds between two heartbeats.
    pub heartbeat_ms: Option<u64>,
}

fn wrong<T>(setting: &'static str, problem: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError { setting, problem: problem.into() })
}

impl ClusterOptions {
    /// These options, and those of `other` where these are silent.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            node_id: self.node_id.or(other.node_id),
            peers: self.peers.or(other.peers),
            join: self.join.or(other.join),
            peer_listen: self.peer_listen.or(other.peer_listen),
            peer_advertise: self.peer_advertise.or(other.peer_advertise),
            secret: self.secret.or(other.secret),
            secret_file: self.secret_file.or(other.secret_file),
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            tls_ca: self.tls_ca.or(other.tls_ca),
            heartbeat_ms: self.heartbeat_ms.or(other.heartbeat_ms),
        }
    }

    /// Checks everything and fills in the defaults; `None` if nothing was set at all.
    pub(super) fn validate(self) -> Result<Option<ClusterConfig>, ConfigError> {
        if self == Self::default() {
            return Ok(None);
        }
        let Some(node) = self.node_id.filter(|id| *id > 0) else {
            return wrong(
                "node-id",
                "a node of a cluster needs a number, from 1: give --node-id (peers or a cluster secret are set, so this is one)",
            );
        };
        let peers = members(self.peers.as_deref().unwrap_or_default())?;
        let own = peers.get(&node).cloned();
        if !peers.is_empty() && own.is_none() {
            return wrong("peers", format!("node {node}, this one, is not among them: add {node}=HOST:PORT"));
        }
        let listen = self.listen_address(own.as_deref())?;
        let advertise = match (self.peer_advertise.clone(), own) {
            (Some(advertise), _) | (None, Some(advertise)) => advertise,
            (None, None) if !listen.ip().is_unspecified() && listen.port() != 0 => listen.to_string(),
            (None, None) => {
                return wrong(
                    "peer-advertise",
                    format!("peers can't reach {listen}: give an address at which they can"),
                );
            }
        };
        let tls = self.peer_tls()?;
        let secret = self.cluster_secret(tls.is_some())?;
        let heartbeat = self.heartbeat_ms.map_or(DEFAULT_HEARTBEAT, Duration::from_millis);
        if !(Duration::from_millis(10)..=Duration::from_secs(10)).contains(&heartbeat) {
            return wrong("heartbeat-ms", "must be from 10 to 10000 milliseconds");
        }
        Ok(Some(ClusterConfig { node, listen, advertise, peers, join: self.join, secret, tls, heartbeat }))
    }

    /// Where to listen for peers. `own`: this node's address among the first members.
    fn listen_address(&self, own: Option<&str>) -> Result<SocketAddr, ConfigError> {
        match (self.peer_listen, own.map(str::parse)) {
            (Some(listen), _) | (None, Some(Ok(listen))) => Ok(listen),
            (None, Some(Err(_))) => {
                let own = own.unwrap_or_default();
                let why = format!(
                    "'{own}' in --peers is a name: give the address to listen on, such as 0.0.0.0:4090"
                );
                wrong("peer-listen", why)
            }
            (None, None) => wrong(
                "peer-listen",
                "give the address to listen on for peers, such as 127.0.0.1:4090, and the cluster to belong to, with \
                 --peers or --join",
            ),
        }
    }

    fn peer_tls(&self) -> Result<Option<PeerTls>, ConfigError> {
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (None, None, None) => Ok(None),
            (Some(cert), Some(key), Some(ca)) => {
                PeerTls::load(cert, key, ca).map(Some).or_else(|why| wrong("tls-cert", why))
            }
            _ => wrong("tls-cert", "TLS between nodes needs all three: certificate, key and authority"),
        }
    }

    fn cluster_secret(&self, mutual_tls: bool) -> Result<Secret, ConfigError> {
        let text = match (&self.secret, &self.secret_file) {
            (Some(_), Some(_)) => return wrong("secret", "set secret or secret-file, not both"),
            (Some(secret), None) => secret.clone(),
            (None, Some(path)) => match std::fs::read_to_string(path) {
                Ok(text) => text,
                Err(error) => return wrong("secret-file", format!("{}: {error}", path.display())),
            },
            // With certificates on both ends nobody else gets as far as the handshake.
            (None, None) if mutual_tls => "mutual TLS says who may come in".into(),
            (None, None) => {
                return wrong(
                    "secret",
                    "everybody who reaches the peer port could take the cluster over: set --cluster-secret-file (make one \
                     with `openssl rand -hex 32`)",
                );
            }
        };
        let text = zeroize::Zeroizing::new(text);
        Secret::new(&text).or_else(|problem| wrong("secret", problem))
    }
}

fn members(peers: &[String]) -> Result<BTreeMap<u64, String>, ConfigError> {
    let mut members = BTreeMap::new();
    for peer in peers {
        let parsed =
            peer.split_once('=').and_then(|(id, address)| Some((id.trim().parse().ok()?, address.trim())));
        match parsed {
            Some((id, address)) if id > 0 && address.contains(':') => {
                if members.insert(id, address.to_string()).is_some() {
                    return wrong("peers", format!("node {id} is listed twice"));
                }
            }
            _ => {
                return wrong(
                    "peers",
                    format!("{peer:?} is not of the form N=HOST:PORT, such as 2=10.0.0.2:4090"),
                );
            }
        }
    }
    Ok(members)
}
