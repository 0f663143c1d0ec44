//! Settings of a manager, and the times that follow from them.
//!
//! In:    what the caller gives, the environment, defaults. Out: checked values.
//! Never: connects, and never guesses what a bad value meant.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::address::Address;
use crate::error::Error;
use crate::machine::Row;
use crate::retries::Retries;
use crate::tls::TlsFiles;

/// Where a server listens unless told otherwise.
pub(crate) const URL_DEFAULT: &str = "http://127.0.0.1:4080";
/// How long a claim stays active without renewal unless told otherwise.
pub(crate) const TTL_DEFAULT: Duration = Duration::from_secs(30);

/// Who is told of every transition of every claim.
pub(crate) type Observer = Arc<dyn Fn(&str, &'static Row) + Send + Sync>;

/// What happens when a claim is lost, after its callbacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnLost {
    /// Nothing more: the program decides.
    #[default]
    Report,
    /// SIGTERM to this process: work without its lock must not go on.
    Terminate,
}

/// Settings of a manager.
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_client::{OnLost, Options};
///
/// let options = Options::url("https://locks-1:4080,https://locks-2:4080")
///     .key("the access key")
///     .ttl(Duration::from_secs(20))
///     .timeout(Duration::from_secs(600))
///     .on_lost(OnLost::Terminate);
/// # drop(options);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// The servers, tried in turn: `https://host:port`, `http://host:port`, `host:port`.
    pub urls: Vec<String>,
    /// The access key, sent as a bearer token.
    pub key: Option<String>,
    /// Certificates for `https`.
    pub tls: TlsFiles,
    /// How long claims stay active without renewal, unless they say otherwise.
    pub ttl: Duration,
    /// How long claims wait for their turn, unless they say otherwise. `None`: for ever.
    pub timeout: Option<Duration>,
    /// The first part of every path.
    pub api_version: String,
    /// How failed requests are repeated.
    pub retries: Retries,
    /// How long one question "is it my turn?" waits on the server. Zero: not at all, the client polls.
    pub long_poll: Duration,
    /// How long the last request of a claim is repeated before it is left to the server's ttl.
    pub end_timeout: Duration,
    /// What happens when a claim is lost, unless the claim says otherwise.
    pub on_lost: OnLost,
    /// Whether claims carry a session of their worker (task or thread), so that the server can refuse those that would wait for
    /// each other for ever. The sessions extend the one in `LEASEHOLD_SESSION`.
    pub sessions: bool,
    /// Told of every transition, in tests.
    pub(crate) observer: Option<Observer>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            urls: vec![URL_DEFAULT.into()],
            key: None,
            tls: TlsFiles::default(),
            ttl: TTL_DEFAULT,
            timeout: None,
            api_version: "v1".into(),
            retries: Retries::default(),
            long_poll: Duration::from_secs(30),
            end_timeout: Duration::from_secs(10),
            on_lost: OnLost::default(),
            sessions: true,
            observer: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key stays out of logs.
        f.debug_struct("Options").field("urls", &self.urls).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

impl Options {
    /// For one server, or several with commas between them, which are tried in turn.
    pub fn url(url: &str) -> Self {
        Self { urls: split_urls(url), ..Self::default() }
    }

    /// The access key, sent as a bearer token.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Certificates for `https`.
    #[must_use]
    pub fn tls(mut self, tls: TlsFiles) -> Self {
        self.tls = tls;
        self
    }

    /// How long claims stay active without renewal, unless they say otherwise.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long claims wait for their turn, unless they say otherwise.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The first part of every path.
    #[must_use]
    pub fn api_version(mut self, version: impl Into<String>) -> Self {
        self.api_version = version.into();
        self
    }

    /// How failed requests are repeated.
    #[must_use]
    pub fn retries(mut self, retries: Retries) -> Self {
        self.retries = retries;
        self
    }

    /// How long one question "is it my turn?" waits on the server. Zero: not at all, the client polls.
    #[must_use]
    pub fn long_poll(mut self, long_poll: Duration) -> Self {
        self.long_poll = long_poll;
        self
    }

    /// How long the last request of a claim is repeated before it is left to the server's ttl.
    #[must_use]
    pub fn end_timeout(mut self, end_timeout: Duration) -> Self {
        self.end_timeout = end_timeout;
        self
    }

    /// What happens when a claim is lost, unless the claim says otherwise.
    #[must_use]
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }

    /// Claims carry no session unless they name one: deadlocks are not noticed. For programs whose tasks or threads hand
    /// claims on to each other.
    #[must_use]
    pub fn no_sessions(mut self) -> Self {
        self.sessions = false;
        self
    }

    /// Is told of every transition of every claim.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    #[must_use]
    pub fn observer(mut self, observer: Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// From `LEASEHOLD_ADDR` (several addresses separated by commas), `LEASEHOLD_KEY`, `LEASEHOLD_KEY_FILE`,
    /// `LEASEHOLD_CACERT`, `LEASEHOLD_CLIENT_CERT` and `LEASEHOLD_CLIENT_KEY`.
    pub fn from_env() -> Result<Self, Error> {
        let text = |name: &str| match std::env::var(name) {
            Ok(value) if !value.is_empty() => Ok(Some(value)),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(Error::Invalid(format!("the variable {name} is not UTF-8")))
            }
            _ => Ok(None),
        };
        let mut options = Self::default();
        if let Some(urls) = text("LEASEHOLD_ADDR")? {
            options.urls = split_urls(&urls);
        }
        options.key = match (text("LEASEHOLD_KEY")?, text("LEASEHOLD_KEY_FILE")?) {
            (Some(key), _) => Some(key),
            (None, Some(path)) => Some(read_key(&path)?),
            (None, None) => None,
        };
        options.tls = TlsFiles {
            ca: text("LEASEHOLD_CACERT")?.map(Into::into),
            client_certificate: text("LEASEHOLD_CLIENT_CERT")?.map(Into::into),
            client_key: text("LEASEHOLD_CLIENT_KEY")?.map(Into::into),
        };
        Ok(options)
    }

    /// The first address at which everybody on the way could read what is sent: plain HTTP to another machine. Programs
    /// with an access key should warn their users.
    pub fn readable_on_the_way(&self) -> Option<&str> {
        let is_readable = |url: &&String| {
            Address::parse(url).is_ok_and(|address| !address.is_https && !address.is_this_machine())
        };
        self.urls.iter().find(is_readable).map(String::as_str)
    }

    pub(crate) fn check(&self) -> Result<Vec<Address>, Error> {
        if self.urls.is_empty() {
            return Err(Error::Invalid("no server address is given".into()));
        }
        let is_bad = |key: &String| key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic());
        if self.key.as_ref().is_some_and(is_bad) {
            return Err(Error::Invalid(
                "the access key is empty, or has characters that no access key has".into(),
            ));
        }
        let version = &self.api_version;
        if version.is_empty() || !version.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(Error::Invalid(format!("'{version}' is not an API version; the current one is v1")));
        }
        self.urls.iter().map(|url| Address::parse(url)).collect()
    }
}

/// Several addresses in one text.
pub fn split_urls(urls: &str) -> Vec<String> {
    urls.split(',').map(str::trim).filter(|url| !url.is_empty()).map(String::from).collect()
}

/// An access key: the first line of a file.
pub fn read_key(path: &str) -> Result<String, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::Invalid(format!("the access key can't be read from {path}: {error}")))?;
    let text = Zeroizing::new(text);
    Ok(text.lines().next().unwrap_or("").trim().to_string())
}

/// What is held back of a ttl, against clocks that run at slightly different speeds and a machine that is slow to wake us.
pub(crate) fn margin(ttl: Duration) -> Duration {
    (ttl / 20).clamp(Duration::from_millis(10), Duration::from_secs(1)).min(ttl / 4)
}

/// How long after a renewal the next one is due: a third of what can be used of the ttl, a bit less by chance.
pub(crate) fn renew_period(ttl: Duration, lead: Duration) -> Duration {
    ttl.saturating_sub(lead) / 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_renewed_every_third_of_the_ttl_and_given_up_before_it_ends() {
        let seconds = Duration::from_secs;
        assert_eq!(renew_period(seconds(30), Duration::ZERO), seconds(10));
        assert_eq!(renew_period(seconds(30), seconds(3)), seconds(9));
        assert_eq!(margin(seconds(10)), Duration::from_millis(500));
        assert_eq!(margin(seconds(3600)), seconds(1));
        assert_eq!(margin(Duration::from_millis(20)), Duration::from_millis(5));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let bad = |options: Options| options.check().unwrap_err().to_string();
        assert!(bad(Options::url("")).contains("no server address"));
        assert!(bad(Options::url("ftp://h")).contains("https"));
        assert!(bad(Options::default().key("a b")).contains("access key"));
        assert!(bad(Options::default().api_version("v1/x")).contains("API version"));
        assert_eq!(Options::url("a:1, b:2,").check().unwrap().len(), 2);
    }
}
