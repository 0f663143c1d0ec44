//! What every request can reach: the engine, the guards at the door, places and budgets.
//!
//! In:    the configuration, at the start. Out: `App`, shared by all connections.
//! Never: answers a request: `dispatch.rs` and `api/` do.

pub mod administrators;
pub mod budget;
mod expiry;
pub mod long_answer;
pub mod lost_answer;
pub mod pool;
pub mod receive;
mod refusal;
pub mod web_origin;

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use leasehold_core::{ClaimId, Ending};
use leasehold_engine::Engine;
use tokio::sync::watch;

use self::administrators::Administrators;
use self::budget::{Budget, Place};
use self::long_answer::ANSWER_BYTES_MAX;
use self::pool::Pool;
use self::web_origin::WebOrigins;
use crate::access::rate::Rates;
use crate::access::{Access, Caller, Policy};
use crate::audit::{Audit, Noted};
use crate::config::{Config, Share};
use crate::http::tls::Tls;
use crate::message::Response;
use crate::message::connection::{Connection, Full};
use crate::message::headers::Headers;
use crate::message::problem::{problem, try_again};
use crate::observe::Observer;
use crate::observe::hub::STREAMS_MAX;

/// Claims whose ends open requests wait for, at a time: some 150 bytes each, 75 MB at the most.
const WATCHED_MAX: usize = 500_000;

/// How long a connection beyond the limit may take to ask for a health page.
const CROWDED_PATIENCE: Duration = Duration::from_secs(2);

/// Access control, TLS and the audit.
pub struct Guards {
    /// Who may do what.
    pub access: Arc<Access>,
    /// Certificate and key.
    pub tls: Option<Arc<Tls>>,
    /// Who got what.
    pub audit: Option<Arc<Audit>>,
}

impl Guards {
    /// Reads all files that the configuration names, and watches them for changes.
    pub fn new(config: &Config) -> Result<Self, String> {
        let audit = config.audit.as_ref().map(Audit::start).transpose()?;
        let policy = config.access.as_ref().map(|options| Policy::new(options, None)).transpose()?;
        let rates = config.requests_per_second.map(|rate| Rates::new(rate, 2.0 * rate));
        let tls = config.tls.as_ref().map(Tls::new).transpose().map_err(|why| format!("tls: {why}"))?;
        let access = Access::new(policy, rates, audit.clone());
        access.watch_keys();
        if let Some(tls) = &tls {
            tls.watch();
        }
        config.tls.iter().for_each(|tls| expiry::watch(tls.certificate.clone()));
        Ok(Self { access, tls, audit })
    }

    /// Reads everything that the configuration names, and keeps nothing: says whether a node could start with it.
    pub fn check(config: &Config) -> Result<(), String> {
        config.access.as_ref().map(|options| Policy::new(options, None)).transpose()?;
        config.tls.as_ref().map(Tls::new).transpose().map_err(|why| format!("tls: {why}"))?;
        if let Some(why) = config.tls.as_ref().and_then(|tls| expiry::expired(&tls.certificate)) {
            return Err(format!("tls: {why}"));
        }
        match Administrators::problem(&config.admin) {
            Some(why) => Err(format!("admin-userpass-file: {why}")),
            None => Ok(()),
        }
    }

    /// Reads the files again.
    pub fn reload(&self, config: &Config) -> Result<(), String> {
        if let Some(tls) = &self.tls {
            tls.reload();
        }
        match &config.access {
            Some(options) => self.access.reload(options),
            None if self.access.is_on() => {
                Err("the [access] part is gone: restart the node to turn access control off".into())
            }
            None => Ok(()),
        }
    }
}

/// What every request can reach.
pub struct App {
    /// The lock table.
    pub engine: Arc<Engine>,
    /// How this node is set up.
    pub config: Config,
    /// Who may use the locks dialect's administration.
    pub administrators: Administrators,
    /// Access control, TLS and audit.
    pub guards: Arc<Guards>,
    /// Places for requests that stand open.
    pub long_polls: Arc<Budget>,
    /// Places for claims whose ends open requests wait for.
    pub watched: Arc<Budget>,
    /// Places for event streams.
    pub streams: Arc<Budget>,
    /// Bytes of bodies that are received.
    pub body_bytes: Arc<Budget>,
    /// Bytes of long answers that wait for their clients.
    pub answer_bytes: Arc<Budget>,
    /// What web pages may do here.
    pub web_origins: WebOrigins,
    /// Streams, metrics, charts.
    pub observer: Arc<Observer>,
    /// Turns true when the node stops: long-polls answer then.
    pub stopping: watch::Receiver<bool>,
    /// Where long answers are made.
    pub pool: Pool,
}

impl App {
    /// Tells the audit who asks for this claim to be made. Call `settled` when the table has answered.
    pub fn note(&self, claim: ClaimId, caller: &Caller, connection: &Connection, headers: &Headers) -> Noted {
        match &self.guards.audit {
            Some(audit) => audit.note(claim, caller.owner(connection, headers), connection.client(headers)),
            None => Noted::default(),
        }
    }

    /// The same where owner and address are known.
    pub fn note_from(&self, claim: ClaimId, owner: Arc<str>, client: Arc<str>) -> Noted {
        let audit = self.guards.audit.as_ref();
        audit.map_or_else(Noted::default, |audit| audit.note(claim, owner, client))
    }

    /// Tells the audit who asks for this claim to end in this way; `only_of` is the command's guard.
    pub fn note_end(
        &self,
        claim: ClaimId,
        ending: Ending,
        only_of: Option<&Arc<str>>,
        owner: Arc<str>,
        client: Arc<str>,
    ) -> Noted {
        let audit = self.guards.audit.as_ref();
        audit.map_or_else(Noted::default, |audit| {
            audit.note_end(claim, ending, only_of.cloned(), owner, client)
        })
    }

    /// A place for a request of this owner that may wait for long.
    pub fn long_poll(&self, owner: &Arc<str>) -> Result<Place, Response> {
        self.long_polls.take(owner).map_err(|full| {
            let whose = if full == Full::Client { " of this client" } else { "" };
            let detail =
                format!("too many requests{whose} stand open already: retry later, or ask without waiting");
            try_again(problem(StatusCode::SERVICE_UNAVAILABLE, "too-many-long-polls", &detail))
        })
    }

    /// How long this connection may take to ask for something.
    pub(crate) fn patience(&self, connection: &Connection) -> Duration {
        let patience = self.config.header_timeout;
        if connection.crowded.is_some() { patience.min(CROWDED_PATIENCE) } else { patience }
    }

    pub(crate) fn new(
        engine: Arc<Engine>,
        config: Config,
        guards: Arc<Guards>,
        observer: Arc<Observer>,
        stopping: watch::Receiver<bool>,
        pool: Pool,
    ) -> Self {
        // Where users have names of their own, none of them gets more by calling itself 127.0.0.1.
        let loopback = if config.access.is_some() { config.share.client } else { config.share.loopback };
        let by_user = Share { loopback, ..config.share };
        Self {
            administrators: Administrators::new(config.admin.clone()),
            long_polls: Budget::new(config.long_polls_max, by_user),
            watched: Budget::new(WATCHED_MAX, by_user),
            streams: Budget::new(STREAMS_MAX, by_user),
            body_bytes: Budget::new(config.body_bytes_max, config.share),
            answer_bytes: Budget::new(ANSWER_BYTES_MAX, config.share),
            web_origins: WebOrigins::new(&config),
            engine,
            config,
            guards,
            observer,
            stopping,
            pool,
        }
    }
}

/// For the simulation: the same road, without a socket.
#[cfg(feature = "sim")]
impl App {
    /// What requests to a simulated node can reach.
    pub fn simulated(engine: Arc<Engine>, observer: Arc<Observer>) -> Arc<Self> {
        let allowed_hosts = Some(vec!["*".into()]);
        let options = crate::config::Options { allowed_hosts, ..Default::default() };
        let config = options.validate().expect("the defaults are good");
        let (stop, stopping) = watch::channel(false);
        // A simulated node is never told to stop; it crashes.
        std::mem::forget(stop);
        let guards = Arc::new(Guards { access: Access::new(None, None, None), tls: None, audit: None });
        Arc::new(Self::new(engine, config, guards, observer, stopping, Pool::default()))
    }
}
