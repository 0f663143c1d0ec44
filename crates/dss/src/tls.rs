//! TLS to servers: which authorities are trusted, and this client's own certificate.
//!
//! In:    PEM files, or the system's authorities. Out: what connections are made with; errnos for what can be wrong.
//! Never: goes on without a proof of who the server is, or shares a lock with a forked child: sessions are not kept for
//!        later, so there is none.

use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};

use crate::Errno;

/// PEM files; all of them may be left out.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Authorities that are trusted instead of the system's.
    pub(crate) ca: Option<String>,
    /// This client's certificate.
    pub(crate) certificate: Option<String>,
    /// Its key, unless that is in the same file.
    pub(crate) key: Option<String>,
}

impl Files {
    /// Reads them.
    pub(crate) fn read(&self) -> Result<Arc<ClientConfig>, Errno> {
        let bad = |_| Errno(libc::EINVAL);
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(bad)?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(bad)?;
        let builder = builder.with_root_certificates(roots);
        let mut config = match (&self.certificate, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (None, Some(_)) => return Err(Errno(libc::EINVAL)),
            (Some(path), key) => {
                let key = PrivateKeyDer::from_pem_file(key.as_ref().unwrap_or(path));
                let key = key.map_err(|error| errno_of_pem(&error))?;
                builder.with_client_auth_cert(certificates(path)?, key).map_err(bad)?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// The certificates of a PEM file; there must be one.
fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, Errno> {
    let found = CertificateDer::pem_file_iter(path).map_err(|error| errno_of_pem(&error))?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(|error| errno_of_pem(&error))?;
    if found.is_empty() { Err(Errno(libc::EINVAL)) } else { Ok(found) }
}

fn errno_of_pem(error: &pem::Error) -> Errno {
    match error {
        pem::Error::Io(error) => Errno::of(error),
        _ => Errno(libc::EINVAL),
    }
}

/// That of a TLS error in an I/O error, if there is one.
pub(crate) fn errno_in(error: &io::Error) -> Option<Errno> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(Errno(match error {
        rustls::Error::InvalidCertificate(why) => match why {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => libc::ENOKEY,
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => libc::EKEYEXPIRED,
            _ => libc::EKEYREJECTED,
        },
        // The server wants another certificate of this client.
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError,
        ) => libc::EPERM,
        _ => libc::EPROTO,
    }))
}
