//! The configuration of a node, validated.
//!
//! In:    flags, `LEASEHOLD_*` variables and a TOML file, merged by the command line in that order.
//! Out:   [`Config`], whose every value can be used as it is.
//! Never: guesses: what can't work is an error that names the setting and what to do.

mod cluster;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::{Budgets, Settings, limits};
use serde::{Deserialize, Deserializer};

pub use self::cluster::ClusterOptions;
use crate::access::settings::AccessOptions;
use crate::audit::AuditOptions;
use crate::http::tls::TlsOptions;
use crate::message::origin::is_origin;
use leasehold_engine::ClusterConfig;

/// Where access control is on: a program that loops without a pause is slowed down, and no honest one notices.
const REQUESTS_PER_SECOND_DEFAULT: f64 = 5000.0;

/// Bytes of bodies at a time: eight of the largest, and little on any machine.
const BODY_BYTES_DEFAULT: usize = 64 << 20;
const BODY_BYTES_MIN: usize = 8 << 20;
/// No user and no address takes more than this of any kind of place: three others always find one.
const CLIENT_SHARE_DEFAULT: f64 = 0.25;

/// What an operator may set; `None` means the default. Also the shape of the TOML file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// Addresses to listen on; the first is the one that others are told.
    #[serde(default, deserialize_with = "one_or_more")]
    pub listen: Option<Vec<SocketAddr>>,
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
    /// Requests that stand open at a time, waiting for their turn.
    pub long_polls_max: Option<usize>,
    /// Who may do what. Its presence turns access control on.
    pub access: Option<AccessOptions>,
    /// Certificate and key of the public port.
    pub tls: Option<TlsOptions>,
    /// Where to write who got what.
    pub audit: Option<AuditOptions>,
}

/// A node's configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses to listen on, at least one; the first is the one that others are told.
    pub listen: Vec<SocketAddr>,
    /// Data directory.
    pub data: PathBuf,
    /// Proxies whose `X-Forwarded-*` headers are believed.
    pub trusted_proxies: Vec<IpAddr>,
    /// Who may use the locks dialect's administration.
    pub admin: AdminAccess,
    /// What travels in the log.
    pub settings: Settings,
    /// The same, from table version 2 on.
    pub budgets: Budgets,
    /// The memory with which the node takes nothing that makes the table larger; `None`: what fits the machine.
    pub memory_max_bytes: Option<u64>,
    /// Connections at a time.
    pub connections_max: usize,
    /// Bytes of log after which a snapshot is taken.
    pub snapshot_log_bytes: u64,
    /// How long a client may take to send a request's headers, or keep an idle connection.
    pub header_timeout: Duration,
    /// How long a client may take to send a request's body.
    pub body_timeout: Duration,
    /// How long a client may take nothing of an answer.
    pub write_timeout: Duration,
    /// Bytes of bodies that are received at a time.
    pub body_bytes_max: usize,
    /// What one user or address may take of all places.
    pub share: Share,
    /// Further values of `Host` that mean this service.
    pub allowed_hosts: Vec<String>,
    /// Origins of other web pages that may change something.
    pub allowed_origins: Vec<String>,
    /// The other nodes, if there are any.
    pub cluster: Option<ClusterConfig>,
    /// Requests that one identity may send a second; `None`: as many as it likes.
    pub requests_per_second: Option<f64>,
    /// Requests that stand open at a time, waiting for their turn.
    pub long_polls_max: usize,
    /// Who may do what; `None`: everyone everything.
    pub access: Option<AccessOptions>,
    /// Certificate and key of the public port; `None`: plain HTTP.
    pub tls: Option<TlsOptions>,
    /// Where to write who got what.
    pub audit: Option<AuditOptions>,
}

/// Who may administrate, as set by the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminAccess {
    /// Everyone who can reach this node.
    Open,
    /// Nobody.
    Off,
    /// The users of this file.
    Users(PathBuf),
}

/// The part of all places that one client may take, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// A user, or the address of another machine.
    pub client: f64,
    /// A client that is known by a loopback address alone: many programs have the same.
    pub loopback: f64,
}

/// A setting that can't work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct ConfigError {
    /// Its name, as in the TOML file.
    pub setting: &'static str,
    /// What is wrong and what to do.
    pub problem: String,
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
        }
    }

    /// Checks everything and fills in the defaults.
    pub fn validate(self) -> Result<Config, ConfigError> {
        let listen = addresses(self.listen)?;
        let reachable = listen.iter().find(|address| !address.ip().is_loopback());
        if let Some(address) = reachable.filter(|_| self.access.is_none() && !self.insecure.unwrap_or(false))
        {
            let problem = format!(
                "{address} can be reached from other machines, and nothing says who may do what there: give an \
                 [access] part in the configuration file or --access-keys (see docs/security.md), listen on 127.0.0.1, \
                 or say --insecure if whoever can reach that address may take and break every lock"
            );
            return Err(ConfigError { setting: "listen", problem });
        }
        let at_least_one = |setting, value: Option<u64>, default| match value {
            Some(0) => Err(ConfigError { setting, problem: "must be at least 1".into() }),
            value => Ok(value.unwrap_or(default)),
        };
        let settings = Settings {
            finished_max: self.finished_max.unwrap_or(limits::FINISHED_MAX_DEFAULT),
            queue_len_max: self.queue_len_max.unwrap_or(limits::QUEUE_LEN_MAX_DEFAULT),
            claims_per_owner_max: at_least_one(
                "claims-per-owner-max",
                self.claims_per_owner_max,
                limits::CLAIMS_PER_GROUP_MAX_DEFAULT,
            )?,
            claims_per_namespace_max: at_least_one(
                "claims-per-namespace-max",
                self.claims_per_namespace_max,
                limits::CLAIMS_PER_GROUP_MAX_DEFAULT,
            )?,
            claims_max: at_least_one("claims-max", self.claims_max, limits::CLAIMS_MAX_DEFAULT)?,
            pickup_grace_us: pickup_grace_us(self.pickup_grace)?,
        };
        let budgets = Budgets {
            total: self.bytes_max.unwrap_or(limits::BYTES_MAX_DEFAULT),
            per_owner: self.bytes_per_owner_max.unwrap_or(limits::BYTES_PER_OWNER_MAX_DEFAULT),
            per_namespace: self.bytes_per_namespace_max.unwrap_or(limits::BYTES_PER_NAMESPACE_MAX_DEFAULT),
            finished: self.finished_bytes_max.unwrap_or(limits::FINISHED_BYTES_MAX_DEFAULT),
        };
        let connections_max =
            at_least_one("connections-max", self.connections_max.map(|n| n as u64), 16_000)?;
        let admin =
            admin_access(self.admin_userpass_file.as_deref(), reachable.is_none(), self.access.is_some())?;
        Ok(Config {
            listen,
            data: self.data.unwrap_or_else(|| PathBuf::from("leasehold-data")),
            trusted_proxies: self.trusted_proxies.unwrap_or_default(),
            admin,
            settings,
            budgets,
            memory_max_bytes: self.memory_max_mib.map(|mib| mib << 20),
            connections_max: connections_max as usize,
            snapshot_log_bytes: at_least_one("snapshot-log-mib", self.snapshot_log_mib, 32)? << 20,
            header_timeout: timeout("header-timeout", self.header_timeout, 60.0)?,
            body_timeout: timeout("body-timeout", self.body_timeout, 30.0)?,
            write_timeout: timeout("write-timeout", self.write_timeout, 30.0)?,
            body_bytes_max: body_bytes(self.body_bytes_max)?,
            share: share(self.client_share)?,
            allowed_hosts: self.allowed_hosts.unwrap_or_default(),
            allowed_origins: allowed_origins(self.allowed_origins)?,
            cluster: self.cluster.map(ClusterOptions::validate).transpose()?.flatten(),
            requests_per_second: rate(self.requests_per_second, self.access.is_some())?,
            long_polls_max: at_least_one("long-polls-max", self.long_polls_max.map(|n| n as u64), 16_000)?
                as usize,
            access: self.access,
            tls: self.tls,
            audit: self.audit,
        })
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

/// At least one address, and none twice.
fn addresses(given: Option<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>, ConfigError> {
    let wrong = |problem: String| Err(ConfigError { setting: "listen", problem });
    let addresses = given.unwrap_or_else(|| vec![SocketAddr::from(([127, 0, 0, 1], 4080))]);
    let repeats = |at: usize| addresses[at].port() != 0 && addresses[..at].contains(&addresses[at]);
    match (0..addresses.len()).find(|at| repeats(*at)) {
        _ if addresses.is_empty() => wrong("name at least one address".into()),
        Some(at) => wrong(format!("{} is given twice", addresses[at])),
        None => Ok(addresses),
    }
}

/// The flags' file of keys goes before the file's; everything else stands in the file alone.
fn merged_access(flags: Option<AccessOptions>, file: Option<AccessOptions>) -> Option<AccessOptions> {
    match (flags, file) {
        (Some(flags), Some(file)) => Some(AccessOptions { keys: flags.keys.or(file.keys), ..file }),
        (flags, file) => flags.or(file),
    }
}

/// Where it is known who asks, nobody may ask so often that others have no turn; 0 lifts that.
fn rate(setting: Option<f64>, checked: bool) -> Result<Option<f64>, ConfigError> {
    match setting {
        None => Ok(checked.then_some(REQUESTS_PER_SECOND_DEFAULT)),
        Some(0.0) => Ok(None),
        Some(rate) if (0.001..=1e9).contains(&rate) => Ok(Some(rate)),
        Some(_) => Err(ConfigError {
            setting: "requests-per-second",
            problem: "must be a number from 0.001 on, or 0 for no limit".into(),
        }),
    }
}

/// Less than the largest body could never be received.
fn body_bytes(bytes: Option<usize>) -> Result<usize, ConfigError> {
    match bytes.unwrap_or(BODY_BYTES_DEFAULT) {
        bytes if bytes >= BODY_BYTES_MIN => Ok(bytes),
        _ => Err(ConfigError {
            setting: "body-bytes-max",
            problem: format!("must be at least {BODY_BYTES_MIN}: the largest body has 8 MiB"),
        }),
    }
}

/// Clients on this machine can't be told apart by their address: they have a share only if one is asked for.
fn share(fraction: Option<f64>) -> Result<Share, ConfigError> {
    match fraction {
        None => Ok(Share { client: CLIENT_SHARE_DEFAULT, loopback: 1.0 }),
        Some(fraction) if fraction > 0.0 && fraction <= 1.0 => {
            Ok(Share { client: fraction, loopback: fraction })
        }
        Some(_) => Err(ConfigError {
            setting: "client-share",
            problem: "must be a fraction above 0 and up to 1, such as 0.25".into(),
        }),
    }
}

fn allowed_origins(origins: Option<Vec<String>>) -> Result<Vec<String>, ConfigError> {
    let origins: Vec<String> =
        origins.unwrap_or_default().into_iter().filter(|one| !one.is_empty()).collect();
    match origins.iter().find(|origin| !is_origin(origin)) {
        None => Ok(origins),
        Some(origin) => Err(ConfigError {
            setting: "allowed-origins",
            problem: format!(
                "'{origin}' is no origin: write scheme and host, such as https://tools.example.org"
            ),
        }),
    }
}

/// Who can only come from this machine may administrate unless told otherwise, and whoever the rules let; nobody else.
fn admin_access(
    setting: Option<&str>,
    only_loopback: bool,
    checked: bool,
) -> Result<AdminAccess, ConfigError> {
    match setting {
        Some("yes") => Ok(AdminAccess::Open),
        Some("no") => Ok(AdminAccess::Off),
        Some("") => Err(ConfigError {
            setting: "admin-userpass-file",
            problem: "must be 'yes' (open), 'no' (off) or the path of a file of user:password lines".into(),
        }),
        Some(path) => Ok(AdminAccess::Users(path.into())),
        None if only_loopback || checked => Ok(AdminAccess::Open),
        None => Ok(AdminAccess::Off),
    }
}

fn pickup_grace_us(seconds: Option<f64>) -> Result<u64, ConfigError> {
    match seconds {
        None => Ok(0),
        Some(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok((seconds * 1e6).round() as u64),
        Some(_) => Err(ConfigError {
            setting: "pickup-grace",
            problem: "must be a number of seconds from 0 to 86400".into(),
        }),
    }
}

fn timeout(setting: &'static str, seconds: Option<f64>, default: f64) -> Result<Duration, ConfigError> {
    let seconds = seconds.unwrap_or(default);
    if (0.001..=86_400.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(ConfigError { setting, problem: "must be a number of seconds from 0.001 to 86400".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_address_is_refused_unless_insecure() {
        let open = Options { listen: Some(vec![([0, 0, 0, 0], 4080).into()]), ..Options::default() };
        assert!(open.clone().validate().unwrap_err().to_string().contains("--insecure"));
        assert!(Options { insecure: Some(true), ..open.clone() }.validate().is_ok());
        let access = Some(AccessOptions::default());
        let config = Options { access, ..open }.validate().unwrap();
        assert_eq!(config.admin, AdminAccess::Open, "the rules decide");
    }

    #[test]
    fn administration_is_open_on_loopback_alone_unless_said_otherwise() {
        let admin = |listen: [u8; 4], setting: Option<&str>| {
            let listen = Some(vec![(listen, 4080).into()]);
            let admin_userpass_file = setting.map(ToString::to_string);
            let insecure = Some(true);
            let options = Options { listen, admin_userpass_file, insecure, ..Options::default() };
            options.validate().map(|config| config.admin)
        };
        assert_eq!(admin([127, 0, 0, 1], None), Ok(AdminAccess::Open));
        assert_eq!(admin([0, 0, 0, 0], None), Ok(AdminAccess::Off));
        assert_eq!(admin([0, 0, 0, 0], Some("yes")), Ok(AdminAccess::Open));
        assert_eq!(admin([127, 0, 0, 1], Some("no")), Ok(AdminAccess::Off));
        assert_eq!(admin([127, 0, 0, 1], Some("users")), Ok(AdminAccess::Users("users".into())));
        assert!(admin([127, 0, 0, 1], Some("")).unwrap_err().to_string().contains("admin-userpass-file"));
    }

    #[test]
    fn a_file_is_read_and_flags_go_before_it() {
        let file = Options::from_toml("listen = \"127.0.0.1:5000\"\npickup-grace = 1.5\n").unwrap();
        let flags = Options { listen: Some(vec![([127, 0, 0, 1], 6000).into()]), ..Options::default() };
        let config = flags.or(file).validate().unwrap();
        assert_eq!((config.listen[0].port(), config.settings.pickup_grace_us), (6000, 1_500_000));
    }

    #[test]
    fn several_addresses_are_each_held_to_the_rules() {
        let listening = |text: &str| Options::from_toml(text).map(Options::validate);
        let ports = |text: &str| -> Vec<u16> {
            let config = listening(text).unwrap().unwrap();
            config.listen.iter().map(SocketAddr::port).collect()
        };
        assert_eq!(ports(""), [4080]);
        assert_eq!(ports("listen = \"127.0.0.1:4080\""), [4080]);
        assert_eq!(ports("listen = [\"127.0.0.1:8888\", \"[::1]:4080\"]"), [8888, 4080]);
        assert_eq!(ports("listen = [\"127.0.0.1:0\", \"127.0.0.1:0\"]"), [0, 0]);
        let wrong = |text: &str| listening(text).unwrap().unwrap_err().to_string();
        let second = wrong("listen = [\"127.0.0.1:4080\", \"10.0.0.1:8888\"]");
        assert!(second.contains("10.0.0.1:8888 can be reached") && second.contains("--insecure"), "{second}");
        assert!(wrong("listen = [\"[::1]:1\", \"[::1]:1\"]").contains("[::1]:1 is given twice"));
        assert!(wrong("listen = []").contains("at least one"));
        assert!(listening("listen = 4080").unwrap_err().contains("list of addresses"));
        let mixed = "insecure = true\nlisten = [\"127.0.0.1:4080\", \"10.0.0.1:8888\"]";
        assert_eq!(listening(mixed).unwrap().unwrap().admin, AdminAccess::Off);
    }

    #[test]
    fn an_unknown_setting_is_named() {
        assert!(Options::from_toml("lissten = 1").unwrap_err().contains("lissten"));
    }
}
