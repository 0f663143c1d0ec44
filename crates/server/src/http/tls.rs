//! TLS on the public port: certificate, key, client certificates; read anew when they are renewed.
//!
//! In:    PEM files. Out: what handshakes are made with.
//! Never: falls back to plain text, and never drops a working certificate for one that can't be read.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::pem::{fingerprint, provider, read_certificates};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// `[tls]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TlsOptions {
    /// PEM file: this node's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// PEM file: its private key.
    pub key: PathBuf,
    /// PEM file: authorities whose client certificates are accepted. Without it none is asked for.
    pub client_ca: Option<PathBuf>,
}

/// What handshakes are made with now.
pub struct Tls {
    options: TlsOptions,
    config: RwLock<Arc<ServerConfig>>,
    /// Whose client certificates are accepted.
    authorities: watch::Sender<Vec<CertificateDer<'static>>>,
}

impl Tls {
    /// Reads the files.
    pub fn new(options: &TlsOptions) -> Result<Arc<Self>, String> {
        let config = RwLock::new(Arc::new(read(options)?));
        let authorities = watch::Sender::new(read_authorities(options));
        Ok(Arc::new(Self { options: options.clone(), config, authorities }))
    }

    /// Told when the client certificates of an authority are no longer accepted.
    pub fn authorities(&self) -> watch::Receiver<Vec<CertificateDer<'static>>> {
        self.authorities.subscribe()
    }

    /// For one handshake.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.read().clone())
    }

    /// Reads the files anew; on a mistake what was read before stays.
    pub fn reload(&self) {
        match read(&self.options) {
            Ok(config) => {
                *self.config.write() = Arc::new(config);
                let authorities = read_authorities(&self.options);
                self.authorities.send_if_modified(|known| {
                    let removed = known.iter().any(|authority| !authorities.contains(authority));
                    *known = authorities;
                    removed
                });
                tracing::info!("the certificate was read again");
            }
            Err(why) => {
                tracing::error!(%why, "the changed certificate can't be read: the old one stays in use");
            }
        }
    }

    /// Reads them whenever they change: whoever renews certificates need not tell.
    pub fn watch(self: &Arc<Self>) {
        let tls = Arc::downgrade(self);
        let files =
            [Some(&self.options.certificate), Some(&self.options.key), self.options.client_ca.as_ref()];
        let files: Vec<PathBuf> = files.into_iter().flatten().cloned().collect();
        let look = move || files.iter().map(|path| fingerprint(path)).collect::<Vec<_>>();
        let mut last = look();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(tls) = tls.upgrade() else { return };
                let seen = look();
                // Renewal writes two files: wait until they stand still.
                if seen != last {
                    last = seen;
                    tokio::time::sleep(LOOK_EVERY / 4).await;
                    tls.reload();
                }
            }
        });
    }
}

fn read_authorities(options: &TlsOptions) -> Vec<CertificateDer<'static>> {
    options.client_ca.as_ref().and_then(|path| read_certificates(path).ok()).unwrap_or_default()
}

fn read(options: &TlsOptions) -> Result<ServerConfig, String> {
    let chain = read_certificates(&options.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&options.key);
    let key = key.map_err(|error| format!("{}: {error}", options.key.display()))?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &options.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in read_certificates(path)? {
                roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
            }
            // Who has none may still bring a token or key.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
            let verifier = verifier.allow_unauthenticated().build();
            builder
                .with_client_cert_verifier(verifier.map_err(|error| format!("{}: {error}", path.display()))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        format!("{} and {}: {error}", options.certificate.display(), options.key.display())
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
