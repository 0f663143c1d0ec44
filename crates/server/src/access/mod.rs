//! Access control: who the caller is, and what it may do.
//!
//! In:    a connection and a request's headers. Out: a [`Caller`], which every dialect asks before it acts.
//! Never: costs anything where it is not configured, or makes a response: a [`Refusal`] says why not.
//!
//! 1. [`Access::recognise`]  finds out who asks: `connection_cache.rs`, `policy.rs` with `proxy.rs`, `keys.rs`, `oidc.rs` with
//!    `jwt.rs`
//!    and `signatures.rs`, `certificate.rs`
//! 2. [`Caller::require`]    asks `rules.rs`; the one evaluation that all dialects share
//! 3. [`Caller::owner`]      is whom a claim then belongs to

mod caller;
pub mod certificate;
mod connection_cache;
pub mod fetch;
pub mod identity;
pub mod jwt;
pub mod keys;
pub mod oidc;
mod policy;
pub mod proxy;
pub mod rate;
mod refusal;
pub mod rules;
pub mod settings;
mod signatures;
pub mod validity;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;
use tokio::sync::watch;

pub use self::caller::Caller;
use self::caller::Ticket;
pub use self::connection_cache::ConnectionCache;
use self::identity::{How, client_name};
use self::keys::Keys;
use self::oidc::{Provider, Verified};
pub use self::policy::Policy;
use self::policy::{Found, Remembered, credentials, refused};
use self::rate::Rates;
pub use self::refusal::Refusal;
use self::settings::AccessOptions;
use self::validity::{Validity, Withdrawn};
use crate::audit::Audit;
use crate::message::connection::Connection;
use crate::message::headers::Headers;
use crate::pem::fingerprint;

/// Bad credentials and new tokens that one address may send per second: enough for a building behind one address to start
/// work, far too few to guess a password or to keep a processor busy with signatures.
const GUESSES_PER_SECOND: f64 = 100.0;
/// How often the file of keys is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// Access control.
#[derive(Debug)]
pub struct Access {
    policy: Option<RwLock<Arc<Policy>>>,
    rates: Option<Rates>,
    /// Counts bad credentials and new tokens, by address.
    guesses: Rates,
    audit: Option<Arc<Audit>>,
    /// Told after each change of the policy.
    changed: watch::Sender<()>,
    withdrawn: Withdrawn,
}

/// The result of a first look at a request.
pub enum Recognised {
    /// Who asks.
    Known(Caller),
    /// A new token: its signature has to be checked with its provider's keys.
    Unknown(Box<UnverifiedToken>),
}

/// A token that was not seen before, and whose signature is not checked yet.
pub struct UnverifiedToken {
    policy: Arc<Policy>,
    provider: Arc<Provider>,
    token: String,
    hash: [u8; 32],
    from: Arc<str>,
}

impl Access {
    /// Access control with this policy; `None`: everyone may do everything.
    pub fn new(policy: Option<Policy>, rates: Option<Rates>, audit: Option<Arc<Audit>>) -> Arc<Self> {
        let policy = policy.map(|policy| {
            policy.keep_fresh(None);
            RwLock::new(Arc::new(policy))
        });
        let guesses = Rates::new(GUESSES_PER_SECOND, 10.0 * GUESSES_PER_SECOND);
        let (changed, withdrawn) = (watch::Sender::new(()), Withdrawn::default());
        Arc::new(Self { policy, rates, guesses, audit, changed, withdrawn })
    }

    /// Whether there is any access control.
    pub fn is_on(&self) -> bool {
        self.policy.is_some()
    }

    /// Identifies the caller, or says that its token has to be checked first. Refuses too many requests.
    pub fn recognise(
        &self,
        connection: &Connection,
        connection_cache: &ConnectionCache,
        headers: &Headers,
    ) -> Result<Recognised, Refusal> {
        let Some(policy) = &self.policy else {
            if let Some(rates) = &self.rates {
                self.admit(rates, &connection.client(headers), connection, headers)?;
            }
            return Ok(Recognised::Known(Caller(None)));
        };
        let policy = policy.read();
        // A proxy's connection carries requests of many, and other headers say whose each is.
        let plain = !connection.trusted && !policy.is_proxy(connection);
        let given = credentials(headers).filter(|_| plain).and_then(Result::ok);
        if let Some(ticket) = given.and_then(|given| connection_cache.find(&policy, given)) {
            return self.admitted(ticket, connection, headers);
        }
        let policy = policy.clone();
        match policy.find(connection, headers) {
            Found::Identity(identity, validity) => {
                let from = connection.client(headers);
                if identity.how == How::Refused {
                    self.admit(&self.guesses, &from, connection, headers)?;
                }
                let keeps = validity.is_some();
                let validity = validity.unwrap_or_default();
                let ticket = Arc::new(Ticket { identity, validity, policy, from, audit: self.audit.clone() });
                if let Some(given) = given.filter(|_| keeps) {
                    connection_cache.keep(given, &ticket);
                }
                self.admitted(ticket, connection, headers)
            }
            Found::Token(provider, hash) => {
                let from = connection.client(headers);
                self.admit(&self.guesses, &from, connection, headers)?;
                let token = credentials(headers).and_then(Result::ok).unwrap_or_default();
                let token = token.split_once(' ').map_or(token, |(_, token)| token).trim().to_string();
                Ok(Recognised::Unknown(Box::new(UnverifiedToken { policy, provider, token, hash, from })))
            }
        }
    }

    /// A known caller, if it is within its rate of requests.
    fn admitted(
        &self,
        ticket: Arc<Ticket>,
        connection: &Connection,
        headers: &Headers,
    ) -> Result<Recognised, Refusal> {
        if let Some(rates) = &self.rates {
            let name = if ticket.identity.is_known() { &ticket.identity.user } else { &ticket.from };
            self.admit(rates, name, connection, headers)?;
        }
        Ok(Recognised::Known(Caller(Some(ticket))))
    }

    fn admit(
        &self,
        rates: &Rates,
        name: &Arc<str>,
        connection: &Connection,
        headers: &Headers,
    ) -> Result<(), Refusal> {
        rates.admit(&client_name(name), Instant::now()).map_err(|wait| {
            if let Some(audit) = &self.audit {
                audit.refused(name, "rate", &connection.client(headers), "request", "", 429);
            }
            Refusal::TooMany { wait }
        })
    }

    /// Verifies a token that was not seen before, and remembers it.
    pub async fn resolve(&self, pending: UnverifiedToken) -> Caller {
        let UnverifiedToken { policy, provider, token, hash, from } = pending;
        let (identity, validity) = match provider.identify(&token, unix_now()).await {
            Ok(Verified { identity, until, generation }) => {
                let identity = Arc::new(identity);
                let provider = Some((provider, generation));
                let validity = Validity { until: Some(until), provider, key: None };
                policy.remember(hash, Remembered { identity: identity.clone(), validity: validity.clone() });
                (identity, validity)
            }
            Err(why) => (Arc::new(refused(&why.to_string())), Validity::default()),
        };
        Caller(Some(Arc::new(Ticket { identity, validity, policy, from, audit: self.audit.clone() })))
    }

    /// Replaces the policy. If the new one has a mistake, the old one stays.
    pub fn reload(&self, options: &AccessOptions) -> Result<(), String> {
        let Some(policy) = &self.policy else {
            return Err("access control was off when the node started: restart it to turn it on".into());
        };
        let old = policy.read().clone();
        let new = Policy::new(options, Some(&old))?;
        new.keep_fresh(Some(&old));
        let (rules, keys) = (new.rules.len(), new.keys.ids().len());
        tracing::info!(rules, keys, "access control was read again");
        if let Some(audit) = &self.audit {
            let missing = |from: &Keys, of: &Keys| -> Vec<String> {
                of.ids().iter().filter(|id| !from.ids().contains(id)).cloned().collect()
            };
            let (added, withdrawn) = (missing(&old.keys, &new.keys), missing(&new.keys, &old.keys));
            audit.access_changed(old.options != new.options, rules, &added, &withdrawn);
        }
        let withdrawn = new.withdrawn_since(&old);
        let new = Arc::new(new);
        *policy.write() = new.clone();
        old.replace_by(new);
        self.withdrawn.add(withdrawn);
        self.changed.send_replace(());
        Ok(())
    }

    /// Told after each change of the policy.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Users whose last credentials were taken away since this was asked last; waits until there are some.
    pub async fn withdrawn(&self) -> BTreeSet<Arc<str>> {
        self.withdrawn.take().await
    }

    /// The authority of this connection's certificate was removed: its user has lost its credentials.
    pub fn certificate_withdrawn(&self, connection: &Connection) {
        let policy = self.policy.as_ref().map(|policy| policy.read().clone());
        let identity = policy.as_ref().and_then(|policy| policy.certificate(connection));
        if let (Some(policy), Some(identity)) = (policy, identity.filter(|identity| identity.is_known()))
            && !policy.keys.users().any(|user| user == identity.user)
        {
            self.withdrawn.add([identity.user.clone()].into());
        }
    }

    /// Reads the file of keys again whenever it changes, so that editing the file is enough to withdraw a key.
    pub fn watch_keys(self: &Arc<Self>) {
        let (access, mut last) = (Arc::downgrade(self), None);
        tokio::spawn(async move {
            while let Some(access) = access.upgrade() {
                let Some(options) = access.policy.as_ref().map(|policy| policy.read().options.clone()) else {
                    return;
                };
                let seen = options.keys.as_deref().map(fingerprint);
                if last.is_some()
                    && last != Some(seen)
                    && let Err(why) = access.reload(&options)
                {
                    let why = in_one_line(&why);
                    tracing::error!(%why, "the access keys changed and can't be read: the old ones stay in force");
                }
                last = Some(seen);
                drop(access);
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
    }
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
/// A mistake in a TOML file without the picture of the line: its place, and what is wrong. A log line is one line.
fn in_one_line(why: &str) -> String {
    let mut lines = why.lines();
    match (lines.next(), lines.next_back()) {
        (Some(first), Some(last)) => format!("{first}: {last}"),
        _ => why.into(),
    }
}
