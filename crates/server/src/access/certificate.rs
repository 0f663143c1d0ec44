//! Client certificates: the user that one is about.
//!
//! In:    a certificate that TLS has verified already, in DER. Out: its user and groups, and when it expires.
//! Never: decides whether it is valid: the handshake has.

use serde::{Deserialize, Serialize};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::x509::AttributeTypeAndValue;

use super::identity::{How, Identity};

/// What of a certificate names the user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserFrom {
    /// The subject's common name.
    #[default]
    CommonName,
    /// The first alternative name that is an e-mail address.
    Email,
    /// The first that is a DNS name.
    Dns,
    /// The first that is a URI (SPIFFE).
    Uri,
}

/// The identity in a certificate: organisations and units are its groups.
pub fn identify(der: &[u8], user_from: UserFrom) -> Result<Identity, String> {
    let certificate = read(der).ok_or("the client certificate can't be read")?;
    let subject = certificate.subject();
    let user = match user_from {
        UserFrom::CommonName => subject.iter_common_name().filter_map(text).last(),
        other => alternative_name(&certificate, other),
    };
    let user = user.ok_or_else(|| format!("the client certificate has no {user_from:?} to name its user"))?;
    let groups = subject.iter_organization().chain(subject.iter_organizational_unit()).filter_map(text);
    Identity::new(user, groups, How::Certificate)
}

/// When the first of the certificates in a PEM file stops being valid, in unix seconds.
pub fn file_expires(path: &std::path::Path) -> Result<u64, String> {
    let certificates = crate::pem::read_certificates(path)?;
    let expiries = certificates.iter().map(|certificate| expires(certificate));
    let first = expiries.collect::<Option<Vec<u64>>>().and_then(|all| all.into_iter().min());
    first.ok_or_else(|| format!("{}: a certificate in it has no readable expiry date", path.display()))
}

/// Whether the first certificate of a PEM file, the one that a server or a client shows, is one for an authority (CA:TRUE). The
/// clients of Leasehold and its nodes refuse such a certificate; OpenSSL, and so curl, takes it.
pub fn file_is_authority(path: &std::path::Path) -> Result<bool, String> {
    let certificates = crate::pem::read_certificates(path)?;
    Ok(certificates.first().is_some_and(|certificate| is_authority(certificate)))
}

fn is_authority(der: &[u8]) -> bool {
    read(der).is_some_and(|certificate| certificate.is_ca())
}

/// When a certificate stops being valid, in unix seconds. One that expired before 1970 says 0.
pub fn expires(der: &[u8]) -> Option<u64> {
    let seconds = read(der)?.validity().not_after.timestamp();
    Some(u64::try_from(seconds).unwrap_or(0))
}

fn read(der: &[u8]) -> Option<X509Certificate<'_>> {
    X509Certificate::from_der(der).ok().map(|(_, certificate)| certificate)
}

/// A part of the subject, if it is text. What is not in UTF-8 is passed over.
fn text<'a>(part: &'a AttributeTypeAndValue<'_>) -> Option<&'a str> {
    std::str::from_utf8(part.as_slice()).ok()
}

fn alternative_name<'a>(certificate: &'a X509Certificate<'_>, kind: UserFrom) -> Option<&'a str> {
    let names = &certificate.subject_alternative_name().ok()??.value.general_names;
    names.iter().find_map(|name| match (kind, name) {
        (UserFrom::Email, GeneralName::RFC822Name(text))
        | (UserFrom::Dns, GeneralName::DNSName(text))
        | (UserFrom::Uri, GeneralName::URI(text)) => Some(*text),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_certificates_are_refused_and_never_crash() {
        for der in [&b""[..], b"\x30", b"\x30\x84\xff\xff\xff\xff", b"\x30\x02\x30\x00", b"\x30\x80\x00\x00"]
        {
            assert!(identify(der, UserFrom::CommonName).is_err(), "{der:?}");
            assert_eq!(expires(der), None, "{der:?}");
        }
    }
}
