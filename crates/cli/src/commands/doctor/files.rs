//! Files of a node: who may read them, and when certificates end.

use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_server::access::certificate::{file_expires, file_is_authority};
use leasehold_server::config::{Config, Options};
use leasehold_server::message::time::rfc3339;

use super::{Findings, Level};

/// Certificates that end sooner are to be renewed.
const RENEW_BEFORE_DAYS: i64 = 30;

pub(super) fn examine(config: &Config, given: &Options, findings: &mut Findings) {
    data(&config.data, findings);
    secrets(config, given, findings);
    certificates(config, given, findings);
}

/// The data directory: it is this user's, and nobody else reads it.
fn data(path: &Path, findings: &mut Findings) {
    let check = "permissions";
    let shown = path.display();
    let metadata = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => metadata,
        Ok(_) => {
            let found = format!("{shown} is not a directory");
            return findings.bad(Level::Error, check, found, "give --data another path");
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return findings.ok(check, format!("{shown} does not exist yet: a start makes it"));
        }
        Err(error) => {
            let advice = "run the doctor as the user that runs the node";
            return findings.bad(Level::Unknown, check, format!("{shown}: {error}"), advice);
        }
    };
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user && user != 0 {
        let found = format!("{shown} belongs to user {}, and this is user {user}", metadata.uid());
        return findings.bad(Level::Warning, check, found, "run the node, and the doctor, as the owner");
    }
    if open_to_others(&metadata) {
        let found = format!("others can read {shown}: it has all claims and their data");
        return findings.bad(Level::Warning, check, found, format!("chmod 700 {shown}"));
    }
    findings.ok(check, format!("only its owner can read {shown}"));
}

/// Files with secrets in them.
fn secrets(config: &Config, given: &Options, findings: &mut Findings) {
    let cluster = given.cluster.clone().unwrap_or_default();
    let admin = match &config.admin {
        leasehold_server::config::AdminAccess::Users(path) => Some(path.clone()),
        _ => None,
    };
    let keys = config.access.as_ref().and_then(|access| access.keys.clone());
    let tls_key = config.tls.as_ref().map(|tls| tls.key.clone());
    for path in [cluster.secret_file, cluster.tls_key, tls_key, keys, admin].into_iter().flatten() {
        let shown = path.display();
        match fs::metadata(&path) {
            Ok(metadata) if open_to_others(&metadata) => findings.bad(
                Level::Warning,
                "permissions",
                format!("others can read {shown}, which has secrets in it"),
                format!("chmod 600 {shown}"),
            ),
            Ok(_) => findings.ok("permissions", format!("only its owner can read {shown}")),
            Err(error) => findings.bad(
                Level::Error,
                "permissions",
                format!("{shown}: {error}"),
                "make it, or run the doctor as the user that runs the node",
            ),
        }
    }
}

/// Somebody else than the owner and its group may read it.
fn open_to_others(metadata: &Metadata) -> bool {
    metadata.permissions().mode() & 0o007 != 0
}

/// What to do about a certificate of the public port. The node reads the files again when they change.
const RENEW: &str = "renew it; the node reads the new one by itself";
/// The files of the peer port are read at the start alone.
const RENEW_PEERS: &str =
    "renew it, and restart the node: it reads the files of its peer port when it starts";
/// A client's own.
pub(super) const RENEW_CLIENT: &str = "renew it; clients use the new one from their next connection on";

fn certificates(config: &Config, given: &Options, findings: &mut Findings) {
    let cluster = given.cluster.clone().unwrap_or_default();
    if let Some(tls) = &config.tls {
        own_certificate(&tls.certificate, RENEW, findings);
        if let Some(authority) = &tls.client_ca {
            expiry(authority, RENEW, findings);
        }
    }
    if let Some(path) = &cluster.tls_cert {
        own_certificate(path, RENEW_PEERS, findings);
    }
    if let Some(authority) = &cluster.tls_ca {
        expiry(authority, RENEW_PEERS, findings);
    }
}

/// A certificate that this side shows to the other: it is not one for an authority, and not over.
pub(super) fn own_certificate(path: &Path, renew: &str, findings: &mut Findings) {
    expiry(path, renew, findings);
    // A file that can't be read has its finding already.
    if file_is_authority(path) == Ok(true) {
        let found = format!(
            "{} is a certificate for an authority (CA:TRUE): the nodes and clients of Leasehold refuse it",
            path.display()
        );
        let advice = "issue a certificate of its own with basicConstraints=critical,CA:FALSE; docs/security.md has the \
                      command. curl and other programs on OpenSSL may work meanwhile";
        findings.bad(Level::Error, "certificate", found, advice);
    }
}

/// When a certificate ends.
fn expiry(path: &Path, renew: &str, findings: &mut Findings) {
    let shown = path.display();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let until = match file_expires(path) {
        Ok(until) => until,
        Err(why) => {
            let advice = "give a PEM file with a certificate in it";
            return findings.bad(Level::Error, "certificate", why, advice);
        }
    };
    let days = (until as i64 - now as i64) / 86_400;
    let date = &rfc3339(until * 1_000_000)[..10];
    match days {
        _ if until <= now => {
            findings.bad(Level::Error, "certificate", format!("{shown} expired on {date}"), renew);
        }
        ..RENEW_BEFORE_DAYS => {
            let found = format!("{shown} expires on {date}, in {days} days");
            findings.bad(Level::Warning, "certificate", found, renew);
        }
        _ => findings.ok("certificate", format!("{shown} is valid until {date}")),
    }
}
