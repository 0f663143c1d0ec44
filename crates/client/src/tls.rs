//! TLS to servers: which authorities are trusted, and this client's own certificate.
//!
//! In:    PEM files, or the system's authorities. Out: connections to servers that proved who they are; otherwise why
//!        not, and what to do about it.
//! Never: goes on without that proof, and never drops working files for broken ones.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, AlertDescription, CertificateError, ClientConfig, RootCertStore};

use crate::error::Error;

/// The PEM files of a client. All of them may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsFiles {
    /// Authorities that are trusted instead of the system's.
    pub ca: Option<PathBuf>,
    /// This client's certificate, for servers that ask for one.
    pub client_certificate: Option<PathBuf>,
    /// Its private key; if left out, it is in the same file as the certificate.
    pub client_key: Option<PathBuf>,
}

impl TlsFiles {
    /// Trusts these authorities instead of the system's.
    #[must_use]
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// Shows this certificate to servers that ask for one.
    #[must_use]
    pub fn client_certificate(mut self, path: impl Into<PathBuf>) -> Self {
        self.client_certificate = Some(path.into());
        self
    }

    /// The private key of that certificate.
    #[must_use]
    pub fn client_key(mut self, path: impl Into<PathBuf>) -> Self {
        self.client_key = Some(path.into());
        self
    }

    /// The configuration of a TLS client with these files, for programs that make connections of their own.
    pub fn client_config(&self) -> Result<ClientConfig, Error> {
        read(self).map_err(Error::Invalid)
    }
}

/// What connections are made with.
pub(crate) struct Tls {
    files: TlsFiles,
    current: Mutex<Current>,
}

struct Current {
    /// What the files looked like when they were read.
    seen: Vec<Option<(SystemTime, u64)>>,
    config: Arc<ClientConfig>,
}

impl Tls {
    /// Reads the files.
    pub(crate) fn new(files: &TlsFiles) -> Result<Self, Error> {
        let seen = look(files);
        let config = Arc::new(read(files).map_err(Error::Invalid)?);
        Ok(Self { files: files.clone(), current: Mutex::new(Current { seen, config }) })
    }

    /// Makes a connection secure.
    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, String> {
        let name = ServerName::try_from(host.to_string());
        let name = name.map_err(|_| format!("'{host}' is not a host name that a certificate can have"))?;
        let secure = TlsConnector::from(self.config()).connect(name, stream).await;
        secure.map_err(|error| match explain(&error) {
            Some(why) => why,
            None if was_closed(&error) => CLOSED.into(),
            None => format!("no TLS connection: {error}"),
        })
    }

    /// The newest that can be read: a process may outlive its certificate, and is not told when the files are renewed.
    fn config(&self) -> Arc<ClientConfig> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = look(&self.files);
        if seen != current.seen {
            if let Ok(config) = read(&self.files) {
                *current = Current { seen, config: Arc::new(config) };
            }
        }
        current.config.clone()
    }
}

fn look(files: &TlsFiles) -> Vec<Option<(SystemTime, u64)>> {
    let paths = [&files.ca, &files.client_certificate, &files.client_key];
    let look = |path: &PathBuf| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.modified().ok()?, found.len()))
    };
    paths.into_iter().flatten().map(look).collect()
}

fn read(files: &TlsFiles) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match &files.ca {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let mut config = match (&files.client_certificate, &files.client_key) {
        (None, None) => builder.with_no_client_auth(),
        (None, Some(_)) => return Err("a client key is given, but no client certificate".into()),
        (Some(path), key) => {
            let key_path = key.as_ref().unwrap_or(path);
            let key = PrivateKeyDer::from_pem_file(key_path)
                .map_err(|error| format!("the client key in {}: {error}", key_path.display()))?;
            let made = builder.with_client_auth_cert(certificates(path)?, key);
            made.map_err(|error| format!("{} and {}: {error}", path.display(), key_path.display()))?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The certificates of a PEM file; there must be one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("the certificate in {}: {error}", path.display());
    let found = CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
    if found.is_empty() { Err(failed(&"there is no certificate in this file")) } else { Ok(found) }
}

/// What a TLS error behind another error means, and what to do about it.
pub(crate) fn explain(error: &(dyn StdError + 'static)) -> Option<String> {
    Some(match tls_error(error)? {
        rustls::Error::InvalidCertificate(why) => explain_certificate(why),
        rustls::Error::InvalidMessage(_) => {
            "it does not speak TLS: use http:// for this address, or switch TLS on in the server".into()
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it wants a client certificate: give --client-cert and --client-key, or LEASEHOLD_CLIENT_CERT and \
             LEASEHOLD_CLIENT_KEY"
                .into()
        }
        rustls::Error::AlertReceived(
            why @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError),
        ) => format!(
            "it refuses this client's certificate ({}): use one that is valid and that an authority of the server's \
             `client-ca` file has signed",
            alert_in_words(*why)
        ),
        other => format!("no TLS connection: {other}"),
    })
}

/// Whether the other side ended the connection. It may read as a reset if it left our first bytes unread.
fn was_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// A server at its limit of connections does this too: it has no other way to say so without TLS.
const CLOSED: &str =
    "it closed the connection before TLS began: it may have too many connections, so retry later";

/// Why a server refused a certificate, as far as its alert tells.
fn alert_in_words(why: AlertDescription) -> &'static str {
    match why {
        AlertDescription::UnknownCA => "its authority is unknown there",
        AlertDescription::CertificateExpired => "it has expired",
        AlertDescription::CertificateRevoked => "it was revoked",
        AlertDescription::BadCertificate => "it is not valid",
        AlertDescription::DecryptError => "a signature is wrong",
        _ => "the server does not say why",
    }
}

const NOT_TRUSTED: &str = "its certificate is from an authority that is not trusted here: give the authority's certificate \
                           with --cacert or LEASEHOLD_CACERT";

/// `a.example` out of `DnsName("a.example")`, as rustls names it.
fn bare(name: &str) -> &str {
    name.split_once('(').map_or(name, |(_, inner)| inner.trim_end_matches(')').trim_matches('"'))
}

fn explain_certificate(why: &CertificateError) -> String {
    let clock = "or set this machine's clock, if it is wrong";
    match why {
        // The second: an authority of the same name, with another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => NOT_TRUSTED.into(),
        // The same, and that key is of another kind. The lowest rustls that we allow does not have this name.
        other if format!("{other:?}").contains("SignatureAlgorithmForPublicKey") => NOT_TRUSTED.into(),
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "its certificate is for {}, not for {}: use a name of the certificate as the address, or add this name to the \
             certificate",
            if presented.is_empty() {
                "no name at all".into()
            } else {
                presented.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", ")
            },
            expected.to_str()
        ),
        CertificateError::NotValidForName => {
            "its certificate is for another name: use a name of the certificate as the address".into()
        }
        CertificateError::ExpiredContext { time, not_after } => {
            let ago = Duration::from_secs(time.as_secs().saturating_sub(not_after.as_secs()));
            format!("its certificate expired {} ago: renew it on the server, {clock}", span(ago))
        }
        CertificateError::Expired => format!("its certificate has expired: renew it on the server, {clock}"),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("its certificate is not valid yet: wait, {clock}")
        }
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "its certificate is one for an authority (CA:TRUE), not for a server: issue the server one of its own".into()
        }
        other => format!("its certificate can't be used: {other}"),
    }
}

fn span(ago: Duration) -> String {
    match ago.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} minutes", seconds / 60),
        seconds @ 7200..172_800 => format!("{} hours", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// The TLS error at the bottom, if there is one. An `io::Error` hides what it carries from `source`.
fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(carried) => Some(carried),
            None => error.source(),
        };
    }
    None
}
