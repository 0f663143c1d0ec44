//! The configuration of a node, validated.
//!
//! In:    flags, `LEASEHOLD_*` variables and a TOML file, merged by the command line in that order.
//! Out:   [`Config`], whose every value can be used as it is.
//! Never: guesses: a value that can't work is an error that names the setting and what to do.

mod advertised;
mod backups;
mod cluster;
mod describe;
mod log_format;
mod options;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::{Budgets, Settings, limits};

pub use self::backups::Backups;
pub use self::cluster::ClusterOptions;
pub use self::log_format::LogFormat;
pub use self::options::Options;
use crate::access::fetch::check_url;
use crate::access::settings::AccessOptions;
use crate::audit::AuditOptions;
use crate::http::tls::TlsOptions;
use crate::message::origin::is_origin;
use leasehold_engine::ClusterConfig;

/// The rate limit with access control: it slows down a program that loops without a pause, and no other.
const REQUESTS_PER_SECOND_DEFAULT: f64 = 5000.0;

/// Bytes of request bodies at a time: eight of the largest bodies, and little memory on any machine.
const BODY_BYTES_DEFAULT: usize = 64 << 20;
const BODY_BYTES_MIN: usize = 8 << 20;
/// The share of each budget that one user or address may take: three others always find a place.
const CLIENT_SHARE_DEFAULT: f64 = 0.25;

/// Where clients are served unless the operator says otherwise.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4080);

/// A node's configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses to listen on, at least one.
    pub listen: Vec<SocketAddr>,
    /// Where clients reach this node, if the operator says so; otherwise see [`Config::advertised`].
    pub advertise_url: Option<String>,
    /// Addresses to listen on for Redis clients.
    pub redis_listen: Vec<SocketAddr>,
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
    /// With more than this in memory, the node refuses commands that make the table larger; `None`: a limit that fits the
    /// machine.
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
    /// Requests that may wait for their turn at a time.
    pub long_polls_max: usize,
    /// Who may do what; `None`: everyone everything.
    pub access: Option<AccessOptions>,
    /// Certificate and key of the public port; `None`: plain HTTP.
    pub tls: Option<TlsOptions>,
    /// Where to write who got what.
    pub audit: Option<AuditOptions>,
    /// How log lines look.
    pub log_format: LogFormat,
    /// How often the table is saved, and where.
    pub backups: Option<Backups>,
    /// The collector of traces; `None`: requests are not traced.
    pub otlp: Option<String>,
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
    /// Checks everything and fills in the defaults.
    pub fn validate(mut self) -> Result<Config, ConfigError> {
        let listen = addresses("listen", self.listen.take().unwrap_or_else(|| vec![DEFAULT_LISTEN]))?;
        let redis_listen = match self.redis_listen.take() {
            Some(given) if !given.is_empty() => addresses("redis-listen", given)?,
            _ => Vec::new(),
        };
        let open = [&listen, &redis_listen].into_iter().flatten().find(|address| !address.ip().is_loopback());
        if let Some(address) = open.filter(|_| self.access.is_none() && !self.insecure.unwrap_or(false)) {
            let setting = if listen.contains(address) { "listen" } else { "redis-listen" };
            return Err(unprotected(setting, *address));
        }
        let (settings, budgets) = (self.settings()?, self.budgets());
        let connections_max =
            at_least_one("connections-max", self.connections_max.map(|n| n as u64), 16_000)?;
        let admin = admin_access(self.admin_userpass_file.as_deref(), open.is_none(), self.access.is_some())?;
        Ok(Config {
            listen,
            advertise_url: self
                .advertise_url
                .map(|url| advertised::check(url, self.tls.is_some()))
                .transpose()?,
            redis_listen,
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
            log_format: self.log_format.unwrap_or_default(),
            backups: Backups::new(self.backup_every.as_deref(), self.backup_dir, self.backup_keep)?,
            otlp: self.otlp.map(collector).transpose()?,
        })
    }

    /// What travels in the log.
    fn settings(&self) -> Result<Settings, ConfigError> {
        let per_group = limits::CLAIMS_PER_GROUP_MAX_DEFAULT;
        Ok(Settings {
            finished_max: self.finished_max.unwrap_or(limits::FINISHED_MAX_DEFAULT),
            queue_len_max: self.queue_len_max.unwrap_or(limits::QUEUE_LEN_MAX_DEFAULT),
            claims_per_owner_max: at_least_one("claims-per-owner-max", self.claims_per_owner_max, per_group)?,
            claims_per_namespace_max: at_least_one(
                "claims-per-namespace-max",
                self.claims_per_namespace_max,
                per_group,
            )?,
            claims_max: at_least_one("claims-max", self.claims_max, limits::CLAIMS_MAX_DEFAULT)?,
            pickup_grace_us: pickup_grace_us(self.pickup_grace)?,
        })
    }

    fn budgets(&self) -> Budgets {
        Budgets {
            total: self.bytes_max.unwrap_or(limits::BYTES_MAX_DEFAULT),
            per_owner: self.bytes_per_owner_max.unwrap_or(limits::BYTES_PER_OWNER_MAX_DEFAULT),
            per_namespace: self.bytes_per_namespace_max.unwrap_or(limits::BYTES_PER_NAMESPACE_MAX_DEFAULT),
            finished: self.finished_bytes_max.unwrap_or(limits::FINISHED_BYTES_MAX_DEFAULT),
        }
    }
}

/// An address of other machines, without access control and without a word that this is meant.
fn unprotected(setting: &'static str, address: SocketAddr) -> ConfigError {
    let problem = format!(
        "{address} can be reached from other machines, and nothing says who may do what there: give an \
         [access] part in the configuration file or --access-keys (see docs/security.md), listen on 127.0.0.1, \
         or give --insecure if everybody who can reach that address may take and break every lock"
    );
    ConfigError { setting, problem }
}

fn at_least_one(setting: &'static str, value: Option<u64>, default: u64) -> Result<u64, ConfigError> {
    match value {
        Some(0) => Err(ConfigError { setting, problem: "must be at least 1".into() }),
        value => Ok(value.unwrap_or(default)),
    }
}

/// HTTPS, or this machine: what clients lock is nobody else's business.
fn collector(url: String) -> Result<String, ConfigError> {
    match check_url(&url) {
        Ok(()) => Ok(url),
        Err(problem) => Err(ConfigError { setting: "otlp", problem }),
    }
}

/// At least one address, and none twice.
fn addresses(setting: &'static str, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, ConfigError> {
    let wrong = |problem: String| Err(ConfigError { setting, problem });
    let repeats = |at: usize| addresses[at].port() != 0 && addresses[..at].contains(&addresses[at]);
    match (0..addresses.len()).find(|at| repeats(*at)) {
        _ if addresses.is_empty() => wrong("name at least one address".into()),
        Some(at) => wrong(format!("{} is given twice", addresses[at])),
        None => Ok(addresses),
    }
}

/// With access control there is a rate limit by default; 0 means no limit.
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

/// A smaller budget could never receive the largest body.
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
                "'{origin}' is not an origin: write scheme and host, such as https://tools.example.org"
            ),
        }),
    }
}

/// By default, clients on this machine may administrate, or those that the access rules allow; nobody else.
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
