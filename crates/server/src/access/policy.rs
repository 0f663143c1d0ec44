//! A policy: rules, keys, providers of tokens and proxies, as one whole.
//!
//! In:    settings and the files that they name; then the credentials of requests. Out: the identities of callers.
//! Never: changes: a reload puts another policy in its place.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, HeaderName};
use parking_lot::RwLock;

use super::identity::{How, Identity};
use super::jwt::{self, TokenError};
use super::keys::{KeyFile, Keys, PREFIX};
use super::oidc::{self, Provider};
use super::proxy::Proxies;
use super::rules::Rules;
use super::settings::AccessOptions;
use super::validity::{Successor, Validity};
use super::{certificate, unix_now};
use crate::message::connection::Connection;
use crate::message::headers::Headers;

/// Tokens remembered as good: a few megabytes.
const REMEMBERED_MAX: usize = 10_000;
/// Users of tokens that are remembered, so that their waiting claims can be ended with their provider.
const TOKEN_USERS_MAX: usize = 100_000;
/// Where the leases dialect has its credentials.
const LEASES_CREDENTIALS: HeaderName = HeaderName::from_static("x-quorum-your-auth-credentials");

/// Who may do what, as one whole: a reload puts another in its place.
#[derive(Debug)]
pub struct Policy {
    pub(super) options: AccessOptions,
    pub(super) rules: Rules,
    pub(super) keys: Keys,
    pub(super) providers: Vec<Arc<Provider>>,
    pub(super) proxies: Option<Proxies>,
    remembered: RwLock<HashMap<[u8; 32], Remembered>>,
    /// Users that tokens named, and the issuers of these: kept when the policy is replaced.
    pub(super) token_users: RwLock<BTreeSet<(Arc<str>, String)>>,
    pub(super) successor: Successor,
}

/// A token that was found good.
#[derive(Debug)]
pub(super) struct Remembered {
    pub(super) identity: Arc<Identity>,
    pub(super) validity: Validity,
}

/// What is known of credentials without asking a provider.
pub(super) enum Found {
    /// Good until the end of its validity; without one, it is checked again at each request.
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
                // Nobody could get in without it; and a file that is missing for a moment must not withdraw all credentials.
                if !path.exists() {
                    let path = path.display();
                    return Err(format!(
                        "{path}: there is no such file; `leasehold access key make --user NAME --keys {path}` makes it"
                    ));
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
    pub(super) fn find(&self, connection: &Connection, headers: &Headers) -> Found {
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

    /// Whether this connection is a proxy's, which names its users.
    pub(super) fn is_proxy(&self, connection: &Connection) -> bool {
        let is_proxy = |proxies: &Proxies| {
            proxies.is_proxy(connection.peer.ip(), self.certificate(connection).as_deref())
        };
        self.proxies.as_ref().is_some_and(is_proxy)
    }

    pub(super) fn certificate(&self, connection: &Connection) -> Option<Arc<Identity>> {
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
        let issuer = match jwt::issuer(rest) {
            Ok(issuer) => issuer,
            Err(why) => return refuse(&why.to_string()),
        };
        let issued = |provider: &&Arc<Provider>| Some(&provider.options().issuer) == issuer.as_ref();
        match self.providers.iter().find(issued) {
            Some(provider) => Found::Token(provider.clone(), hash),
            None => refuse(&TokenError::Issuer.to_string()),
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

    pub(super) fn remember(&self, hash: [u8; 32], remembered: Remembered) {
        let mut all = self.remembered.write();
        if all.len() >= REMEMBERED_MAX {
            let now = unix_now();
            all.retain(|_, known| known.validity.holds(now));
            if all.len() >= REMEMBERED_MAX {
                // Each token only has to be verified again.
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

    pub(super) fn keep_fresh(&self, old: Option<&Self>) {
        let is_new = |provider: &&Arc<Provider>| {
            !old.is_some_and(|old| old.providers.iter().any(|known| Arc::ptr_eq(known, provider)))
        };
        self.providers.iter().filter(is_new).for_each(Provider::keep_fresh);
    }
}

/// Credentials that are not good. The reason goes to the log, never to the client.
pub(super) fn refused(why: &str) -> Identity {
    tracing::debug!(why, "credentials were refused");
    Identity::nobody(How::Refused)
}

/// `Authorization`, or the header of the older lease protocol that means the same. `Err`: there are two.
pub(super) fn credentials(headers: &Headers) -> Option<Result<&str, ()>> {
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
