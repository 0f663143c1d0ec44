//! How a handle reaches its server.
//!
//! In:    what the caller gave, else `LEASEHOLD_*`, else defaults. Out: [`Config`], every value checked.
//! Never: connects, and never guesses what a bad value meant.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::Errno;
use crate::tls::Files;

/// Where a server listens unless told otherwise.
const URL_DEFAULT: &str = "http://127.0.0.1:4080";
/// How long a whole call may take.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// How long one connection may take to be made.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// Longest time that can be set: a hundred days.
const TIME_MAX_S: f64 = 100.0 * 86_400.0;

/// What a caller gives; `None` means the environment, then the default.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `https://host:port`, `http://host:port`, or `host:port`; several, separated by commas, are tried in turn.
    pub url: Option<String>,
    /// The access key.
    pub key: Option<String>,
    /// A file whose first line is the access key.
    pub key_file: Option<String>,
    /// For `https`: a PEM file of authorities to trust instead of the system's.
    pub ca: Option<String>,
    /// For `https`: a PEM file of this client's certificate.
    pub client_certificate: Option<String>,
    /// For `https`: a PEM file of its private key, unless it is in the same file.
    pub client_key: Option<String>,
    /// How long a whole call may take.
    pub timeout: Option<Duration>,
    /// How long one connection may take to be made.
    pub connect_timeout: Option<Duration>,
    /// Locks are lost after this long without a refresh, and refreshed in the background until then.
    pub ttl: Option<Duration>,
}

/// A checked configuration.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Tried in turn; there is one at least.
    pub(crate) servers: Vec<Server>,
    /// What connections by `https` are made with.
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
    pub(crate) key: Option<Zeroizing<String>>,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) ttl: Option<Duration>,
}

/// One address.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) is_https: bool,
    /// Host and port as in the URL, for the `Host` header.
    pub(crate) authority: String,
    /// Host without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Options {
    pub(crate) fn check(self) -> Result<Config, Errno> {
        self.check_in(&|name| std::env::var_os(name))
    }

    fn check_in(self, env: &dyn Fn(&str) -> Option<OsString>) -> Result<Config, Errno> {
        let text = |name: &str| match env(name).filter(|value| !value.is_empty()) {
            None => Ok(None),
            Some(value) => value.into_string().map(Some).map_err(|_| Errno(libc::EINVAL)),
        };
        let seconds = |name: &str| match text(name)? {
            None => Ok(None),
            Some(value) => value.parse().ok().and_then(duration).map(Some).ok_or(Errno(libc::EINVAL)),
        };
        let url = match self.url {
            Some(url) => url,
            None => text("LEASEHOLD_ADDR")?.unwrap_or_else(|| URL_DEFAULT.into()),
        };
        let key = match (self.key, self.key_file) {
            (Some(key), _) => Some(key),
            (None, Some(path)) => Some(read_key(&path)?),
            (None, None) => match (text("LEASEHOLD_KEY")?, text("LEASEHOLD_KEY_FILE")?) {
                (Some(key), _) => Some(key),
                (None, Some(path)) => Some(read_key(&path)?),
                (None, None) => None,
            },
        };
        let key = key.map(Zeroizing::new);
        if key.as_ref().is_some_and(|key| key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(Errno(libc::EINVAL));
        }
        let or_env = |given: Option<Duration>, name| match given {
            Some(given) => Ok(Some(given)),
            None => seconds(name),
        };
        let urls = url.split(',').map(str::trim).filter(|url| !url.is_empty());
        let servers = urls.map(Server::parse).collect::<Result<Vec<_>, _>>()?;
        if servers.is_empty() {
            return Err(Errno(libc::EINVAL));
        }
        let or_text = |given: Option<String>, name| match given {
            Some(given) => Ok(Some(given)),
            None => text(name),
        };
        let files = Files {
            ca: or_text(self.ca, "LEASEHOLD_CACERT")?,
            certificate: or_text(self.client_certificate, "LEASEHOLD_CLIENT_CERT")?,
            key: or_text(self.client_key, "LEASEHOLD_CLIENT_KEY")?,
        };
        let is_https = servers.iter().any(|server| server.is_https);
        Ok(Config {
            servers,
            tls: if is_https { Some(files.read()?) } else { None },
            key,
            timeout: or_env(self.timeout, "LEASEHOLD_TIMEOUT")?.unwrap_or(TIMEOUT_DEFAULT),
            connect_timeout: or_env(self.connect_timeout, "LEASEHOLD_CONNECT_TIMEOUT")?
                .unwrap_or(CONNECT_TIMEOUT_DEFAULT),
            ttl: or_env(self.ttl, "LEASEHOLD_DSS_TTL")?,
        })
    }
}

fn duration(seconds: f64) -> Option<Duration> {
    (seconds > 0.0 && seconds <= TIME_MAX_S).then(|| Duration::from_secs_f64(seconds))
}

fn read_key(path: &str) -> Result<String, Errno> {
    let text = Zeroizing::new(std::fs::read_to_string(path).map_err(|error| Errno::of(&error))?);
    Ok(text.lines().next().unwrap_or("").trim().to_string())
}

impl Server {
    /// Reads `https://host:port/` and its like.
    fn parse(url: &str) -> Result<Self, Errno> {
        let bad = || Errno(libc::EINVAL);
        let (is_https, authority) = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some(_) => return Err(bad()),
            None => (false, url),
        };
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]%".contains(&byte);
        if authority.is_empty() || !authority.bytes().all(plain) {
            return Err(bad());
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
                match rest.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if rest.is_empty() => (host, None),
                    None => return Err(bad()),
                }
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let default = if is_https { 443 } else { 80 };
        let port = port.map_or(Ok(default), str::parse).map_err(|_| bad())?;
        if host.is_empty() || port == 0 {
            return Err(bad());
        }
        Ok(Self { is_https, authority: authority.into(), host: host.into(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: Options, env: &[(&str, &str)]) -> Result<Config, Errno> {
        let find = |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        options.check_in(&find)
    }

    #[test]
    fn what_is_given_goes_before_the_environment_before_the_defaults() {
        let config = check(Options::default(), &[]).unwrap();
        let server = &config.servers[0];
        assert_eq!((&*server.host, server.port, config.key), ("127.0.0.1", 4080, None));
        let env =
            [("LEASEHOLD_ADDR", "http://locks:99/"), ("LEASEHOLD_KEY", "k1"), ("LEASEHOLD_TIMEOUT", "2.5")];
        let config = check(Options::default(), &env).unwrap();
        let key = config.key.as_ref().map(|key| key.as_str());
        let server = &config.servers[0];
        assert_eq!((&*server.authority, server.port, key), ("locks:99", 99, Some("k1")));
        assert_eq!(config.timeout, Duration::from_millis(2500));
        let given = Options { url: Some("[::1]:7".into()), key: Some("k2".into()), ..Options::default() };
        let config = check(given, &env).unwrap();
        let key = config.key.as_ref().map(|key| key.as_str());
        let server = &config.servers[0];
        assert_eq!((&*server.host, server.port, key), ("::1", 7, Some("k2")));
        let env = [("LEASEHOLD_ADDR", "http://a, https://b ,c:7,")];
        let config = check(Options::default(), &env).unwrap();
        let servers: Vec<_> = config.servers.iter().map(|s| (s.is_https, &*s.host, s.port)).collect();
        assert_eq!(servers, [(false, "a", 80), (true, "b", 443), (false, "c", 7)]);
    }

    #[test]
    fn what_makes_no_sense_is_einval() {
        let url = |url: &str| Options { url: Some(url.into()), ..Options::default() };
        for bad in [
            "",
            ",",
            "http://",
            "https://",
            "a,ftp://h",
            "ftp://h",
            "http://h:x",
            "http://h:0",
            "http://h/path",
            "h h",
            "[::1",
            "[::1]x",
        ] {
            assert_eq!(check(url(bad), &[]).unwrap_err(), Errno(libc::EINVAL), "{bad}");
        }
        for (variable, errno) in [("LEASEHOLD_CACERT", libc::ENOENT), ("LEASEHOLD_CLIENT_KEY", libc::EINVAL)]
        {
            let env = [(variable, "/nonexistent/pem")];
            assert_eq!(check(url("https://h"), &env).unwrap_err(), Errno(errno), "{variable}");
            assert!(check(url("http://h"), &env).is_ok(), "{variable} is for https");
        }
        for env in [("LEASEHOLD_TIMEOUT", "soon"), ("LEASEHOLD_TIMEOUT", "0"), ("LEASEHOLD_KEY", "a\r\nb")] {
            assert_eq!(check(Options::default(), &[env]).unwrap_err(), Errno(libc::EINVAL), "{env:?}");
        }
        let missing = [("LEASEHOLD_KEY_FILE", "/nonexistent/key")];
        assert_eq!(check(Options::default(), &missing).unwrap_err(), Errno(libc::ENOENT));
    }
}
