//! Files of certificates, and how to notice that one has changed.
//!
//! In:    paths. Out: certificates, the cryptography to use them with, what tells one state of a file from another.
//! Never: keeps anything.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

/// The cryptography that all of this stands on.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(tokio_rustls::rustls::crypto::ring::default_provider())
}

/// The certificates of a PEM file, of which there must be one.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let found = CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
    if found.is_empty() { Err(failed(&"there is no certificate in it")) } else { Ok(found) }
}

/// What tells one state of a file from another.
pub(crate) fn fingerprint(path: &Path) -> Option<(SystemTime, u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}
