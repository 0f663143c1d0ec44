//! Access control: who asks, and may they.
//!
//! In:    a connection and a request's headers. Out: a [`Caller`], whom every dialect asks before it acts.
//! Never: costs anything where it is not configured; and never says in a refusal more than which right on which
//!        resource was missing.
//!
//! 1. [`Access::recognise`]  finds out who asks: `last_known.rs`, `proxy.rs`, `keys.rs`, `oidc.rs` with `jwt.rs`,
//!    `certificate.rs`
//! 2. [`Caller::require`]    asks `rules.rs`; the one evaluation that all dialects share
//! 3. [`Caller::owner`]      is whom a claim then belongs to

pub mod certificate;
pub mod fetch;
pub mod identity;
pub mod jwt;
pub mod keys;
mod last_known;
pub mod oidc;
pub mod proxy;
pub mod rate;
pub mod rules;
pub mod settings;
pub mod validity;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use parking_lot::RwLock;
use tokio::sync::watch;

use self::identity::{How, Identity, owner_with, user_of};
use self::jwt::Unverified;
use self::keys::{KeyFile, Keys, PREFIX};
pub use self::last_known::LastKnown;
use self::oidc::{Provider, Verified};
use self::proxy::Proxies;
use self::rate::Rates;
use self::rules::{Rules, Verb};
use self::settings::AccessOptions;
use self::validity::{Successor, Validity, Withdrawn};
use crate::audit::Audit;
use crate::message::Response;
use crate::message::connection::Connection;
use crate::message::headers::Headers;
use crate::message::problem::problem;

/// Tokens remembered as good: a few megabytes.
const REMEMBERED_MAX: usize = 10_000;
/// Users of tokens that are remembered, so that their waiting claims can be ended with their provider.
const TOKEN_USERS_MAX: usize = 100_000;
/// Bad credentials, and tokens not seen before, that one address may send a second: enough for a building behind one
/// address to start work, far too few to guess a password or to keep a processor busy with signatures.
const GUESSES_PER_SECOND: f64 = 100.0;
/// Where the leases dialect has its credentials.
const LEASES_CREDENTIALS: HeaderName = HeaderName::from_static("x-quorum-your-auth-credentials");
/// How often the file of keys is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// Who may do what, as one whole: a reload puts another in its place.
#[derive(Debug)]
pub struct Policy {
    options: AccessOptions,
    rules: Rules,
    keys: Keys,
    providers: Vec<Arc<Provider>>,
    proxies: Option<Proxies>,
    remembered: RwLock<HashMap<[u8; 32], Remembered>>,
    /// Users that tokens named, and the issuers of these: kept when the policy is replaced.
    token_users: RwLock<BTreeSet<(Arc<str>, String)>>,
    successor: Successor,
}

/// A token that was found good.
#[derive(Debug)]
struct Remembered {
    identity: Arc<Identity>,
    validity: Validity,
}

/// The door.
#[derive(Debug)]
pub struct Access {
    policy: Option<RwLock<Arc<Policy>>>,
    rates: Option<Rates>,
    /// Credentials that are bad, or were not seen before, by address.
    guesses: Rates,
    audit: Option<Arc<Audit>>,
    /// Told after each change of the policy.
    changed: watch::Sender<()>,
    withdrawn: Withdrawn,
}

/// Who asks, for the time of one request. Without access control there is nothing to know.
#[derive(Debug, Clone)]
pub struct Caller(Option<Arc<Ticket>>);

#[derive(Debug)]
struct Ticket {
    identity: Arc<Identity>,
    /// How long the credentials stay good.
    validity: Validity,
    policy: Arc<Policy>,
    from: Arc<str>,
    audit: Option<Arc<Audit>>,
}

/// What a first look at a request told.
pub enum Recognised {
    /// Who asks.
    Known(Caller),
    /// A token that was not seen before: ask its provider's keys.
    Unknown(Box<Pending>),
}

/// A token that was not seen before.
pub struct Pending {
    policy: Arc<Policy>,
    provider: Arc<Provider>,
    token: String,
    hash: [u8; 32],
    from: Arc<str>,
}

/// What credentials stand for, as far as that can be told at once.
enum Found {
    /// Good until the end of its validity; or, without one, to be looked at anew each time.
    Identity(Arc<Identity>, Option<Validity>),
    Token(Arc<Provider>, [u8; 32]),
}

impl Found {
    fn only_now(identity: Identity) -> Self {
        Self::Identity(Arc::new(identity), None)
    }
}

impl Policy {
    /// Checks everything. Providers that `old` has with the same settings are taken over with their keys.
    pub fn new(options: &AccessOptions, old: Option<&Self>) -> Result<Self, String> {
        let keys = match &options.keys {
            Some(path) => {
                // A file that is gone for a moment must not end everybody's credentials.
                if old.is_some() && !path.exists() {
                    return Err(format!("{}: there is no such file", path.display()));
                }
                Keys::new(&KeyFile::read(path)?).map_err(|why| format!("{}: {why}", path.display()))?
            }
            None => Keys::default(),
        };
        let provider = |wanted: &oidc::OidcOptions| {
            let known = old.into_iter().flat_map(|old| &old.providers);
            match known.into_iter().find(|known| known.options() == wanted) {
                Some(known) => Ok(known.clone()),
                None => Provider::new(wanted).map_err(|why| format!("access.oidc {}: {why}", wanted.issuer)),
            }
        };
        let proxies = options.proxy.as_ref().map(Proxies::new).transpose();
        Ok(Self {
            options: options.clone(),
            rules: Rules::new(&options.rule).map_err(|why| format!("access.{why}"))?,
            keys,
            providers: options.oidc.iter().map(provider).collect::<Result<_, String>>()?,
            proxies: proxies.map_err(|why| format!("access.proxy: {why}"))?,
            remembered: RwLock::default(),
            token_users: RwLock::new(old.map_or_else(BTreeSet::new, |old| old.token_users.read().clone())),
            successor: Successor::default(),
        })
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Whom the credentials of a request stand for, as far as that can be told without asking anyone.
    fn find(&self, connection: &Connection, headers: &Headers) -> Found {
        let certificate = self.certificate(connection);
        if let Some(proxies) = &self.proxies
            && proxies.is_proxy(connection.peer.ip(), certificate.as_deref())
            && let Some(named) = proxies.identify(headers)
        {
            return Found::only_now(named.unwrap_or_else(|why| refused(&why)));
        }
        match credentials(headers) {
            Some(Ok(text)) => self.find_by(text),
            Some(Err(())) => Found::only_now(refused("more than one set of credentials")),
            None => {
                // A proxy's own certificate speaks for others: by itself it is nobody.
                let is_proxy = |identity: &Arc<Identity>| {
                    self.proxies.as_ref().is_some_and(|proxies| proxies.is_proxy_certificate(identity))
                };
                let own = certificate.filter(|identity| !is_proxy(identity));
                Found::Identity(own.unwrap_or_else(|| Arc::new(Identity::nobody(How::Nothing))), None)
            }
        }
    }

    fn certificate(&self, connection: &Connection) -> Option<Arc<Identity>> {
        let options = self.options.certificate.as_ref()?;
        let der = connection.certificate.get()?;
        match certificate::identify(der, options.user_from) {
            Ok(identity) => Some(Arc::new(identity)),
            Err(why) => Some(Arc::new(refused(&why))),
        }
    }

    fn find_by(&self, credentials: &str) -> Found {
        let refuse = |why: &str| Found::only_now(refused(why));
        let found = |(identity, validity)| Found::Identity(identity, Some(validity));
        let (scheme, rest) = credentials.split_once(' ').unwrap_or(("bearer", credentials));
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("basic") {
            let decoded = STANDARD.decode(rest).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
            let key =
                pair.and_then(|(user, key)| self.key(key).filter(|(identity, _)| *identity.user == *user));
            return key.map_or_else(|| refuse("no access key of that user"), found);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return refuse("neither a bearer token nor basic credentials");
        }
        if rest.starts_with(PREFIX) {
            return self.key(rest).map_or_else(|| refuse("no such access key"), found);
        }
        let hash = hash(rest);
        if let Some(known) = self.remembered(&hash) {
            return found(known);
        }
        let parsed = match Unverified::parse(rest) {
            Ok(parsed) => parsed,
            Err(why) => return refuse(&why.to_string()),
        };
        let issued = |provider: &&Arc<Provider>| Some(&*provider.options().issuer) == parsed.issuer();
        match self.providers.iter().find(issued) {
            Some(provider) => Found::Token(provider.clone(), hash),
            None => refuse(&jwt::TokenError::Issuer.to_string()),
        }
    }

    fn key(&self, key: &str) -> Option<(Arc<Identity>, Validity)> {
        let hash = hash(key);
        let (identity, until) = self.keys.find(&hash, unix_now())?;
        Some((identity, Validity { until, provider: None, key: Some(hash) }))
    }

    fn remembered(&self, hash: &[u8; 32]) -> Option<(Arc<Identity>, Validity)> {
        let remembered = self.remembered.read();
        let Remembered { identity, validity } = remembered.get(hash)?;
        validity.holds(unix_now()).then(|| (identity.clone(), validity.clone()))
    }

    fn remember(&self, hash: [u8; 32], remembered: Remembered) {
        let mut all = self.remembered.write();
        if all.len() >= REMEMBERED_MAX {
            let now = unix_now();
            all.retain(|_, known| known.validity.holds(now));
            if all.len() >= REMEMBERED_MAX {
                // Each is only a verification away.
                all.clear();
            }
        }
        if let Some((provider, _)) = &remembered.validity.provider {
            let mut users = self.token_users.write();
            if users.len() < TOKEN_USERS_MAX {
                users.insert((remembered.identity.user.clone(), provider.options().issuer.clone()));
            }
        }
        all.insert(hash, remembered);
    }

    fn keep_fresh(&self, old: Option<&Self>) {
        let is_new = |provider: &&Arc<Provider>| {
            !old.is_some_and(|old| old.providers.iter().any(|known| Arc::ptr_eq(known, provider)))
        };
        self.providers.iter().filter(is_new).for_each(Provider::keep_fresh);
    }
}

impl Access {
    /// A door with this policy, or none at all.
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

    /// Finds out who asks, or that it takes a moment to. A refusal: too many requests.
    pub fn recognise(
        &self,
        connection: &Connection,
        last_known: &LastKnown,
        headers: &Headers,
    ) -> Result<Recognised, Response> {
        let Some(policy) = &self.policy else {
            if let Some(rates) = &self.rates {
                self.admit(rates, &connection.client(headers), connection, headers)?;
            }
            return Ok(Recognised::Known(Caller(None)));
        };
        let policy = policy.read();
        // Where proxies speak for others, credentials are not all there is to look at.
        let plain = policy.proxies.is_none() && !connection.trusted;
        let given = credentials(headers).filter(|_| plain).and_then(Result::ok);
        if let Some(ticket) = given.and_then(|given| last_known.find(&policy, given)) {
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
                    last_known.keep(given, &ticket);
                }
                self.admitted(ticket, connection, headers)
            }
            Found::Token(provider, hash) => {
                let from = connection.client(headers);
                self.admit(&self.guesses, &from, connection, headers)?;
                let token = credentials(headers).and_then(Result::ok).unwrap_or_default();
                let token = token.split_once(' ').map_or(token, |(_, token)| token).trim().to_string();
                Ok(Recognised::Unknown(Box::new(Pending { policy, provider, token, hash, from })))
            }
        }
    }

    /// Somebody of whom it is known who it is, within the rate of requests.
    fn admitted(
        &self,
        ticket: Arc<Ticket>,
        connection: &Connection,
        headers: &Headers,
    ) -> Result<Recognised, Response> {
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
    ) -> Result<(), Response> {
        rates.admit(name, Instant::now()).map_err(|wait| {
            if let Some(audit) = &self.audit {
                audit.refused(name, "rate", &connection.client(headers), "request", "", 429);
            }
            let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
            let detail = format!("too many requests: wait {seconds} s");
            let mut response = problem(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", &detail);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            response
        })
    }

    /// Verifies a token that was not seen before, and remembers it.
    pub async fn resolve(&self, pending: Pending) -> Caller {
        let Pending { policy, provider, token, hash, from } = pending;
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

    /// Puts another policy in place of this one; on a mistake the old one stays.
    pub fn reload(&self, options: &AccessOptions) -> Result<(), String> {
        let Some(policy) = &self.policy else {
            return Err("access control was off when the node started: start it anew to turn it on".into());
        };
        let old = policy.read().clone();
        let new = Policy::new(options, Some(&old))?;
        new.keep_fresh(Some(&old));
        let (rules, keys) = (new.rules.len(), new.keys.ids().len());
        tracing::info!(rules, keys, "access control was read anew");
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

    /// Reads the file of keys anew whenever it changes, so that a withdrawal needs nothing else.
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
                    tracing::error!(%why, "the access keys changed and can't be read: the old ones stay in force");
                }
                last = Some(seen);
                drop(access);
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
    }
}

impl Caller {
    /// Somebody on a node without access control.
    pub const ANYONE: Self = Self(None);

    /// Whether valid credentials say who asks.
    pub fn is_known(&self) -> bool {
        self.0.as_ref().is_some_and(|ticket| ticket.identity.is_known())
    }

    /// Whether access control is on.
    pub fn is_checked(&self) -> bool {
        self.0.is_some()
    }

    /// Whom a claim of this caller belongs to: its user, or, without access control, its address.
    pub fn owner(&self, connection: &Connection, headers: &Headers) -> Arc<str> {
        match &self.0 {
            Some(ticket) if ticket.identity.is_known() => ticket.identity.user.clone(),
            Some(ticket) => owner_with(&ticket.identity.user, &ticket.from),
            None => connection.client(headers),
        }
    }

    /// The same where the client gave itself a name.
    pub fn owner_named(&self, client: Arc<str>) -> Arc<str> {
        match &self.0 {
            Some(ticket) => owner_with(&ticket.identity.user, &client),
            None => client,
        }
    }

    /// Whether a claim with this owner is this caller's. Without access control every claim is everybody's.
    pub fn owns(&self, owner: &str) -> bool {
        match &self.0 {
            Some(ticket) if ticket.identity.is_known() => *user_of(owner) == *ticket.identity.user,
            // Bad credentials are nobody's. Those without any are told apart by their addresses alone.
            Some(ticket) if ticket.identity.how == How::Refused => false,
            Some(ticket) => owner_with(&ticket.identity.user, &ticket.from)[..] == *owner,
            None => true,
        }
    }

    /// Whether the caller may do that there, by the rules in force now.
    pub fn may(&self, verb: Verb, resource: &str) -> bool {
        self.0.as_ref().is_none_or(|ticket| {
            ticket.identity.how != How::Refused
                && !ticket.is_withdrawn()
                && ticket.policy.newest().rules.decide(&ticket.identity, verb, resource).allowed
        })
    }

    /// Whether the caller may see a claim: its own, or any where it may read.
    pub fn may_see(&self, resource: &str, owner: &str) -> bool {
        self.0.is_none() || self.owns(owner) || self.may(Verb::Read, resource)
    }

    /// Whether the caller may change a claim: its own, or any where it may revoke.
    pub fn may_change(&self, resource: &str, owner: &str) -> bool {
        self.0.is_none() || self.owns(owner) || self.may(Verb::Revoke, resource)
    }

    /// Leave to do that there, or a 401 or 403 that names what is missing.
    pub fn require(&self, verb: Verb, resource: &str) -> Result<(), Response> {
        if self.may(verb, resource) { Ok(()) } else { Err(self.refuse(verb, resource)) }
    }

    /// The same with one of these verbs; the refusal names the first.
    pub fn require_one_of(&self, verbs: &[Verb], resource: &str) -> Result<(), Response> {
        let may = verbs.iter().any(|verb| self.may(*verb, resource));
        if may { Ok(()) } else { Err(self.refuse(verbs[0], resource)) }
    }

    /// Leave to name resources below this prefix in a body: one of these verbs on any of them.
    pub fn require_below(&self, verbs: &[Verb], prefix: &str) -> Result<(), Response> {
        let Some(Ticket { identity, policy, .. }) = self.0.as_deref() else { return Ok(()) };
        let could = || verbs.iter().any(|verb| policy.rules.could(identity, *verb, prefix));
        let may = identity.how != How::Refused && could();
        if may { Ok(()) } else { Err(self.refuse(verbs[0], &format!("{prefix}*"))) }
    }

    /// Leave to have a list made of what the caller may see, which may be nothing; a 401 for those who gave no
    /// credentials and can't see anything without.
    pub fn require_any(&self, verbs: &[Verb], resource: &str) -> Result<(), Response> {
        let Some(Ticket { identity, policy, .. }) = self.0.as_deref() else { return Ok(()) };
        let could =
            || identity.is_known() || verbs.iter().any(|verb| policy.rules.could(identity, *verb, ""));
        if identity.how != How::Refused && could() { Ok(()) } else { Err(self.refuse(verbs[0], resource)) }
    }

    /// Tells the audit that the table said no to this caller: what it wanted is somebody else's.
    pub fn note_refusal(&self, verb: Verb, resource: &str, status: StatusCode) {
        if let Some(Ticket { identity, from, audit: Some(audit), .. }) = self.0.as_deref() {
            audit.refused(
                &identity.user,
                identity.how.as_str(),
                from,
                verb.as_str(),
                resource,
                status.as_u16(),
            );
        }
    }

    /// The refusal itself: 401 to those who are not known, 403 to the others.
    pub fn refuse(&self, verb: Verb, resource: &str) -> Response {
        let known = self.0.as_ref().is_some_and(|ticket| ticket.identity.is_known());
        let status = if known { StatusCode::FORBIDDEN } else { StatusCode::UNAUTHORIZED };
        self.note_refusal(verb, resource, status);
        if known {
            let detail = format!("the right '{verb}' on '{resource}' is missing");
            return problem(status, "forbidden", &detail);
        }
        let detail = format!("the right '{verb}' on '{resource}' takes valid credentials");
        let mut response = problem(status, "unauthorized", &detail);
        let refused = self.0.as_ref().is_some_and(|ticket| ticket.identity.how == How::Refused);
        let bearer = match refused {
            true => "Bearer realm=\"leasehold\", error=\"invalid_token\"",
            false => "Bearer realm=\"leasehold\"",
        };
        let headers = response.headers_mut();
        headers.append(WWW_AUTHENTICATE, HeaderValue::from_static(bearer));
        headers.append(
            WWW_AUTHENTICATE,
            HeaderValue::from_static("Basic realm=\"leasehold\", charset=\"UTF-8\""),
        );
        response
    }
}

/// Credentials that are not good. Why goes to the log, never to whoever sent them.
fn refused(why: &str) -> Identity {
    tracing::debug!(why, "credentials were refused");
    Identity::nobody(How::Refused)
}

/// `Authorization`, or the header of the older lease protocol that means the same. `Err`: there are two.
fn credentials(headers: &Headers) -> Option<Result<&str, ()>> {
    let mut given = headers.get_all(AUTHORIZATION).chain(headers.get_all(LEASES_CREDENTIALS));
    let first = given.next()?;
    if given.next().is_some() {
        return Some(Err(()));
    }
    Some(first.to_str().map(str::trim).ok_or(()))
}

fn hash(secret: &str) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, secret.as_bytes());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What tells one state of a file from another.
pub(crate) fn fingerprint(path: &Path) -> Option<(SystemTime, u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}
