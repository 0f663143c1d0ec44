//! Making a connection to a peer, and the key to the door.
//!
//! In:    an address and a [`Lane`]. Out: a stream on which both ends know each other.
//! Never: waits for ever, or leaves it to TCP to find out after many minutes that the other end is gone.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::BufReader;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::lobby::Lobby;
use super::old_nodes::OldNodes;
use super::secret::Secret;
use super::wire::Stream;
use super::{Lane, handshake};
use crate::machine;
use crate::machine::net::{self, TcpStream, lookup_host};
use crate::table_version::TableVersions;
use crate::types::NodeId;

/// How long it may take until both ends know each other.
pub(super) const HANDSHAKE_MAX: Duration = Duration::from_secs(2);
/// How long an address may take to accept a connection. TCP asks again after a second, and then after longer and longer
/// pauses: to call again is quicker.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// A connection whose bytes nobody has acknowledged for this long is given up.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(2);
/// The same for snapshots, which a slow disk may take its time to write.
const SNAPSHOT_UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(20);
/// How long a connection may be silent before the kernel asks whether the other end is there, and how often it asks then.
const ALIVE_EVERY: Duration = Duration::from_secs(2);

/// Certificates for connections between nodes: each end shows one, each end checks the other's.
#[derive(Clone)]
pub struct PeerTls {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

impl fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerTls(..)")
    }
}

impl PeerTls {
    /// Reads this node's certificate and key, and the authority that signed those of all nodes.
    pub fn load(cert: &Path, key: &Path, ca: &Path) -> Result<Self, String> {
        let named = |path: &Path, error: &dyn fmt::Display| format!("{}: {error}", path.display());
        let certs = |path: &Path| -> Result<Vec<CertificateDer<'static>>, String> {
            let found = CertificateDer::pem_file_iter(path).map_err(|error| named(path, &error))?;
            let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| named(path, &error))?;
            if found.is_empty() {
                return Err(named(path, &"there is no certificate in it"));
            }
            Ok(found)
        };
        let mut roots = RootCertStore::empty();
        for authority in certs(ca)? {
            roots.add(authority).map_err(|error| named(ca, &error))?;
        }
        let roots = Arc::new(roots);
        let chain = certs(cert)?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| named(key, &error))?;
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain.clone(), private.clone_key())
            .map_err(|error| named(cert, &error))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build();
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_client_cert_verifier(verifier.map_err(|error| named(ca, &error))?)
            .with_single_cert(chain, private)
            .map_err(|error| named(cert, &error))?;
        Ok(Self {
            connector: TlsConnector::from(Arc::new(client)),
            acceptor: TlsAcceptor::from(Arc::new(server)),
        })
    }
}

/// How this node introduces itself, and checks others.
#[derive(Debug)]
pub(crate) struct Door {
    pub(super) node: NodeId,
    pub(super) secret: Secret,
    pub(super) tls: Option<PeerTls>,
    pub(super) versions: Arc<TableVersions>,
    pub(super) lobby: Arc<Lobby>,
    /// Nodes that speak version 1 of the handshake alone.
    old_nodes: OldNodes,
}

impl Door {
    pub(crate) fn new(
        node: NodeId,
        secret: Secret,
        tls: Option<PeerTls>,
        versions: Arc<TableVersions>,
    ) -> Self {
        let (lobby, old_nodes) = Default::default();
        Self { node, secret, tls, versions, lobby, old_nodes }
    }

    /// Node `id` is at this address.
    pub(super) fn know(&self, id: NodeId, address: &str) {
        self.old_nodes.know(id, address);
        if let Ok(address) = address.parse::<SocketAddr>() {
            self.lobby.know(address.ip());
        }
    }

    #[cfg(test)]
    pub(super) fn note_version(&self, node: NodeId, version: u16) {
        self.old_nodes.proved(node, version);
    }

    /// Whether this node may prove itself to a caller that has proved nothing, as version 1 wants it: only if the caller
    /// says that it is a node which this node has called itself and found to speak nothing newer.
    pub(super) async fn answers_version_1(&self, caller: NodeId) -> bool {
        if let Some(address) = self.old_nodes.to_probe(caller) {
            self.call(&address, Some(caller), Lane::Ask).await.ok();
        }
        self.old_nodes.contains(caller)
    }

    /// Calls a peer. With `expected`, it is an error if another node answers at that address.
    pub(super) async fn call(
        &self,
        address: &str,
        expected: Option<NodeId>,
        lane: Lane,
    ) -> io::Result<Stream> {
        let call = async {
            let tcp = connect(address).await?;
            tune(&tcp, lane)?;
            let mut stream: Stream = match &self.tls {
                None => Box::new(BufReader::new(tcp)),
                Some(tls) => {
                    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                    let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
                    let name = ServerName::try_from(host).map_err(io::Error::other)?;
                    Box::new(BufReader::new(tls.connector.connect(name, tcp).await?))
                }
            };
            let (node, version) = handshake::call(&mut stream, self, lane).await?;
            self.old_nodes.proved(node, version);
            match expected {
                Some(expected) if expected != node => {
                    Err(io::Error::other(format!("node {node} answers at this address, not node {expected}")))
                }
                _ => Ok(stream),
            }
        };
        machine::timeout(HANDSHAKE_MAX, call).await.unwrap_or_else(|_| Err(too_slow())).map_err(in_words)
    }

    /// Lets a caller in, if it is one of us.
    pub(super) async fn answer(&self, tcp: TcpStream) -> io::Result<(Stream, NodeId, Lane)> {
        let answer = async {
            // What the connection is for is not known yet.
            tune(&tcp, Lane::Snapshot)?;
            let mut stream: Stream = match &self.tls {
                None => Box::new(BufReader::new(tcp)),
                Some(tls) => Box::new(BufReader::new(tls.acceptor.accept(tcp).await?)),
            };
            let (node, lane, version) = handshake::answer(&mut stream, self).await?;
            self.old_nodes.proved(node, version);
            Ok((stream, node, lane))
        };
        machine::timeout(HANDSHAKE_MAX, answer).await.unwrap_or_else(|_| Err(too_slow())).map_err(in_words)
    }
}

fn too_slow() -> io::Error {
    let why = format!("the greeting took longer than {} s", HANDSHAKE_MAX.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// Says what the end of a connection in the middle of a greeting may mean. The kind of the error stays.
fn in_words(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the other side closed the connection during the greeting: look into its log, and whether both nodes use TLS",
        ),
        _ => error,
    }
}

/// Tries the addresses of a name, which is looked up each time: a peer may have moved.
async fn connect(address: &str) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host(address).await? {
        match machine::timeout(CONNECT_MAX, TcpStream::connect(address)).await {
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failed)
}

/// Frames leave at once, and the kernel gives up on a peer that is gone within seconds.
fn tune(tcp: &TcpStream, lane: Lane) -> io::Result<()> {
    let unacknowledged_max = match lane {
        Lane::Ask | Lane::Append => UNACKNOWLEDGED_MAX,
        Lane::Snapshot => SNAPSHOT_UNACKNOWLEDGED_MAX,
    };
    net::tune(tcp, unacknowledged_max, ALIVE_EVERY)
}
