//! Settings of a manager and of a claim, and the times that follow from them.
//!
//! In:    what the caller gives, the environment, defaults. Out: checked values.
//! Never: connects, and never guesses what a bad value meant.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use zeroize::Zeroizing;

use crate::address::Address;
use crate::error::Error;
use crate::machine::{Request, Row};
use crate::tls::TlsFiles;

/// Where a server listens unless told otherwise.
pub const URL_DEFAULT: &str = "http://127.0.0.1:4080";
/// How long a claim stays active without renewal unless told otherwise.
pub const TTL_DEFAULT: Duration = Duration::from_secs(30);
/// Longest time that can be set: a hundred days.
const TIME_MAX: Duration = Duration::from_secs(100 * 86_400);

/// Longest idempotency key that is sent: far more than a random one needs.
const KEY_LEN_MAX: usize = 100;

/// How one kind of request is repeated when it fails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// The first pause; it doubles each time.
    pub base: Duration,
    /// The longest pause.
    pub cap: Duration,
    /// How much of a pause is left to chance, 0 to 1: a herd that failed together should not come back together.
    pub jitter: f64,
    /// How long one attempt may take before it counts as failed.
    pub attempt: Duration,
}

/// The six of them, and the pauses between two questions of a claim that waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retries {
    /// POST.
    pub register: Retry,
    /// PATCH `status=active`.
    pub activate: Retry,
    /// PATCH `ttl`, and `POST /v1/renewals`.
    pub renew: Retry,
    /// PATCH `status=released`.
    pub release: Retry,
    /// PATCH `status=withdrawn`.
    pub withdraw: Retry,
    /// PATCH `status=aborted`: fast, since something is failing already.
    pub abort: Retry,
    /// Between two questions on a server that does not know `?wait=`.
    pub poll: Retry,
}

const fn retry(base_ms: u64, cap_ms: u64, attempt_ms: u64) -> Retry {
    Retry {
        base: Duration::from_millis(base_ms),
        cap: Duration::from_millis(cap_ms),
        jitter: 0.5,
        attempt: Duration::from_millis(attempt_ms),
    }
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            register: retry(200, 5_000, 10_000),
            activate: retry(200, 5_000, 10_000),
            renew: retry(100, 1_000, 5_000),
            release: retry(100, 2_000, 5_000),
            withdraw: retry(100, 2_000, 5_000),
            abort: retry(20, 250, 1_000),
            poll: retry(250, 5_000, 10_000),
        }
    }
}

impl Retries {
    /// Those of one kind of request.
    pub fn of(&self, request: Request) -> Retry {
        match request {
            Request::Register => self.register,
            Request::Activate => self.activate,
            Request::Renew => self.renew,
            Request::Release => self.release,
            Request::Withdraw => self.withdraw,
            Request::Abort => self.abort,
        }
    }
}

impl Retry {
    /// The pause before repetition number `attempt`, counted from 0. `chance` is between 0 and 1.
    pub fn pause(&self, attempt: u32, chance: f64) -> Duration {
        let full =
            self.base.saturating_mul(1u32.checked_shl(attempt.min(16)).unwrap_or(u32::MAX)).min(self.cap);
        full.mul_f64(1.0 - self.jitter.clamp(0.0, 1.0) * chance.clamp(0.0, 1.0))
    }
}

/// Who is told of every transition of every claim.
pub type Observer = Arc<dyn Fn(&str, &'static Row) + Send + Sync>;

/// What happens when a claim is lost, after its callbacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnLost {
    /// Nothing more: the program decides.
    #[default]
    Report,
    /// SIGTERM to this process: work without its lock must not go on.
    Terminate,
}

/// Who makes a claim. A worker has one claim on a resource at a time; workers of one process queue for it like strangers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Worker(WorkerKind);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum WorkerKind {
    Task(tokio::task::Id),
    Thread(std::thread::ThreadId),
    Named(String),
}

impl Worker {
    /// The task that runs, or the thread where there is no task.
    pub fn current() -> Self {
        let thread = || WorkerKind::Thread(std::thread::current().id());
        Self(tokio::task::try_id().map_or_else(thread, WorkerKind::Task))
    }

    /// One that the program names.
    pub fn named(name: impl Into<String>) -> Self {
        Self(WorkerKind::Named(name.into()))
    }
}

/// Settings of a manager.
#[derive(Clone)]
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
    /// Told of every transition: for tests and for the curious.
    pub observer: Option<Observer>,
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
    /// For one server.
    pub fn url(url: &str) -> Self {
        Self { urls: split_urls(url), ..Self::default() }
    }

    /// From `LEASEHOLD_ADDR` (several addresses separated by commas), `LEASEHOLD_KEY`, `LEASEHOLD_KEY_FILE`,
    /// `LEASEHOLD_CACERT`, `LEASEHOLD_CLIENT_CERT` and `LEASEHOLD_CLIENT_KEY`.
    pub fn from_env() -> Result<Self, Error> {
        let text = |name: &str| match std::env::var(name) {
            Ok(value) if !value.is_empty() => Ok(Some(value)),
            Err(std::env::VarError::NotUnicode(_)) => Err(Error::Invalid(format!("{name} is not UTF-8"))),
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
        if let Some(key) = &self.key
            && (key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(Error::Invalid(
                "the access key is empty or has characters that can't be in one".into(),
            ));
        }
        let version = &self.api_version;
        if version.is_empty() || !version.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(Error::Invalid(format!("'{version}' is no API version; the current one is v1")));
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

/// How long a claim may wait for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wait {
    /// As the manager says.
    #[default]
    Default,
    /// For ever.
    Forever,
    /// For so long.
    For(Duration),
    /// Not at all: hold it now or not.
    No,
}

/// A claim as asked for.
#[derive(Debug, Clone, Default)]
pub struct ClaimRequest {
    /// What to hold.
    pub resource: String,
    /// How long it stays active without renewal; else the manager's.
    pub ttl: Option<Duration>,
    /// How long it may wait.
    pub wait: Wait,
    /// Any JSON, kept with the claim.
    pub data: Option<Box<RawValue>>,
    /// How long it may be held at most, renewals or not: then it counts as lost. `None`: for as long as it is wanted.
    pub max_hold: Option<Duration>,
    /// How long before the end of the ttl the claim is called lost, so that there is time to stop what it protects.
    pub lead: Duration,
    /// What happens when it is lost; else what the manager says.
    pub on_lost: Option<OnLost>,
    /// Whose it is; else the task or thread that asks for it.
    pub worker: Option<Worker>,
    /// Under which the claim is made, so that whoever asks again under the same key gets the same claim; else a new one.
    pub idempotency_key: Option<String>,
}

impl ClaimRequest {
    /// With defaults.
    pub fn new(resource: impl Into<String>) -> Self {
        Self { resource: resource.into(), ..Self::default() }
    }

    pub(crate) fn check(&self, options: &Options) -> Result<(), Error> {
        let invalid = |what: String| Err(Error::Invalid(what));
        if self.resource.is_empty() {
            return invalid("the name of a resource must not be empty".into());
        }
        if self.max_hold == Some(Duration::ZERO) {
            return invalid(
                "a max_hold of 0 would hold nothing: leave it out to hold without a limit".into(),
            );
        }
        if let Some(key) = &self.idempotency_key
            && (key.is_empty() || key.len() > KEY_LEN_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return invalid(format!("an idempotency key has 1 to {KEY_LEN_MAX} visible ASCII characters"));
        }
        let ttl = self.ttl.unwrap_or(options.ttl);
        if ttl < Duration::from_millis(1) || ttl > TIME_MAX {
            return invalid(format!("a ttl of {ttl:?} can't be kept: it must be 1 ms to 100 days"));
        }
        if self.lead + margin(ttl) >= ttl {
            return invalid(format!(
                "{:?} to stop what a claim protects leave nothing of a ttl of {ttl:?}: give it a longer ttl",
                self.lead
            ));
        }
        Ok(())
    }
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
    fn pauses_grow_to_their_cap_and_leave_room_for_chance() {
        let retry = Retries::default().renew;
        assert_eq!(retry.pause(0, 0.0), retry.base);
        assert_eq!(retry.pause(1, 0.0), retry.base * 2);
        assert_eq!(retry.pause(60, 0.0), retry.cap);
        assert_eq!(retry.pause(0, 1.0), retry.base / 2);
        let retries = Retries::default();
        for other in [retries.register, retries.activate, retries.renew, retries.release, retries.withdraw] {
            assert!(
                retries.abort.cap < other.cap && retries.abort.base < other.base,
                "abort is the fast one"
            );
        }
    }

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
        assert!(bad(Options { key: Some("a b".into()), ..Options::default() }).contains("access key"));
        assert!(bad(Options { api_version: "v1/x".into(), ..Options::default() }).contains("API version"));
        assert_eq!(Options::url("a:1, b:2,").check().unwrap().len(), 2);
        let options = Options::default();
        let claim = |request: ClaimRequest| request.check(&options);
        assert!(claim(ClaimRequest::new("")).is_err());
        assert!(claim(ClaimRequest { lead: TTL_DEFAULT, ..ClaimRequest::new("r") }).is_err());
        assert!(claim(ClaimRequest::new("r")).is_ok());
        let endless = ClaimRequest { max_hold: Some(Duration::ZERO), ..ClaimRequest::new("r") };
        assert!(claim(endless).unwrap_err().to_string().contains("leave it out"));
        let keyed = |key: &str| ClaimRequest { idempotency_key: Some(key.into()), ..ClaimRequest::new("r") };
        assert!(claim(keyed("a-1")).is_ok() && claim(keyed("a b")).is_err() && claim(keyed("")).is_err());
    }
}
