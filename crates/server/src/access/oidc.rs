//! OpenID Connect: a provider's keys, found by discovery and kept fresh.
//!
//! In:    bearer tokens. Out: the identity a token stands for, and until when.
//! Never: fetches more often than every few seconds, whatever tokens strangers send; believes a key for longer than one
//!        refresh after its provider has withdrawn it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fetch::{Fetcher, check_url};
use super::identity::{How, Identity};
use super::jwt::{Expected, PublicKey, TokenError, claim, parse_keys, verify};

/// Shortest time between two fetches that unknown keys ask for.
const COOL_DOWN: Duration = Duration::from_secs(5);

/// A provider, as it stands in the TOML file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OidcOptions {
    /// The issuer, exactly as tokens name it.
    pub issuer: String,
    /// Audiences that mean this service.
    pub audiences: Vec<String>,
    /// The claim that names the user [default: sub].
    #[serde(default = "sub")]
    pub user_claim: String,
    /// The claim that lists groups; a path with dots reaches inside [default: groups].
    #[serde(default = "groups")]
    pub groups_claim: String,
    /// Seconds by which clocks may differ [default: 30].
    #[serde(default = "leeway")]
    pub leeway: u64,
    /// Seconds after which keys are fetched anew [default: 300].
    #[serde(default = "refresh")]
    pub refresh: f64,
    /// Where the keys are, for providers without discovery.
    pub jwks_url: Option<String>,
    /// PEM file of the authority that signed the provider's certificate, if the system does not know it.
    pub ca_file: Option<std::path::PathBuf>,
}

fn sub() -> String {
    "sub".into()
}

fn groups() -> String {
    "groups".into()
}

fn leeway() -> u64 {
    30
}

fn refresh() -> f64 {
    300.0
}

/// One provider.
pub struct Provider {
    options: OidcOptions,
    fetcher: Fetcher,
    keys: RwLock<Arc<Vec<PublicKey>>>,
    /// Grows when the keys change: tokens that were remembered under other keys are forgotten.
    generation: AtomicU64,
    /// When the keys were last asked for.
    asked: tokio::sync::Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("issuer", &self.options.issuer).finish_non_exhaustive()
    }
}

/// What a good token says.
pub struct Verified {
    /// Whom it stands for.
    pub identity: Identity,
    /// Until when, in unix seconds.
    pub until: u64,
    /// Under which generation of keys that was found.
    pub generation: u64,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

impl Provider {
    /// Checks a provider's settings. Its keys are fetched when they are first needed.
    pub fn new(options: &OidcOptions) -> Result<Arc<Self>, String> {
        check_url(&options.issuer)?;
        options.jwks_url.as_deref().map_or(Ok(()), check_url)?;
        if options.audiences.is_empty() {
            return Err("audiences: name at least one, so that tokens for other services are refused".into());
        }
        if !(0.1..=86_400.0).contains(&options.refresh) || options.leeway > 600 {
            return Err("refresh must be from 0.1 to 86400 seconds, leeway at most 600".into());
        }
        Ok(Arc::new(Self {
            options: options.clone(),
            fetcher: Fetcher::new(options.ca_file.as_deref())?,
            keys: RwLock::default(),
            generation: AtomicU64::new(0),
            asked: tokio::sync::Mutex::new(None),
        }))
    }

    /// How it was set up.
    pub fn options(&self) -> &OidcOptions {
        &self.options
    }

    /// Changes when the keys do.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The identity in a token, and until when it is valid. An unknown key is looked up at the provider once.
    pub async fn identify(&self, token: &str, now: u64) -> Result<Verified, TokenError> {
        // Read before the keys: if they change in between, the result counts as found under the old keys.
        let mut generation = self.generation();
        let OidcOptions { issuer, audiences, leeway, .. } = &self.options;
        let expected = Expected { issuer, audiences, leeway: *leeway };
        let (claims, until) = match verify(token, &self.current(), &expected, now) {
            Err(TokenError::UnknownKey) => {
                self.refresh(COOL_DOWN.min(self.refresh_every())).await;
                generation = self.generation();
                verify(token, &self.current(), &expected, now)?
            }
            verified => verified?,
        };
        Ok(Verified { identity: self.identity(&claims)?, until, generation })
    }

    fn identity(&self, claims: &Value) -> Result<Identity, TokenError> {
        let user = claim(claims, &self.options.user_claim).and_then(Value::as_str).unwrap_or("");
        let groups: Vec<&str> = match claim(claims, &self.options.groups_claim) {
            Some(Value::Array(groups)) => groups.iter().filter_map(Value::as_str).collect(),
            Some(Value::String(groups)) => groups.split_whitespace().collect(),
            _ => Vec::new(),
        };
        Identity::new(user, groups, How::Token).map_err(|_| TokenError::User(self.options.user_claim.clone()))
    }

    fn current(&self) -> Arc<Vec<PublicKey>> {
        self.keys.read().clone()
    }

    fn refresh_every(&self) -> Duration {
        Duration::from_secs_f64(self.options.refresh)
    }

    /// Keeps the keys fresh for as long as anybody uses this provider.
    pub fn keep_fresh(self: &Arc<Self>) {
        let (provider, every) = (Arc::downgrade(self), self.refresh_every());
        tokio::spawn(async move {
            while let Some(provider) = provider.upgrade() {
                provider.refresh(every / 2).await;
                drop(provider);
                tokio::time::sleep(every).await;
            }
        });
    }

    /// Fetches the keys, unless that was done within this time. Callers that come meanwhile wait for the same fetch.
    async fn refresh(&self, not_within: Duration) {
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|asked| asked.elapsed() < not_within) {
            return;
        }
        let fetched = self.fetch().await;
        *asked = Some(Instant::now());
        let issuer = &self.options.issuer;
        match fetched {
            Err(error) if self.current().is_empty() => tracing::error!(
                %issuer, %error,
                "the keys of an identity provider can't be fetched: its tokens are refused until they are; the next token tries again"
            ),
            Err(error) => {
                tracing::error!(%issuer, %error, "the keys of an identity provider can't be fetched; the old ones stay");
            }
            Ok(keys) if *self.current() == keys => {}
            Ok(keys) => {
                tracing::info!(%issuer, keys = keys.len(), "the keys of an identity provider were fetched");
                *self.keys.write() = Arc::new(keys);
                self.generation.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    async fn fetch(&self) -> Result<Vec<PublicKey>, String> {
        let url = match &self.options.jwks_url {
            Some(url) => url.clone(),
            None => self.discover().await?,
        };
        let keys = parse_keys(&self.fetcher.get(&url).await?).map_err(|why| format!("{url}: {why}"))?;
        match keys.is_empty() {
            true => Err(format!("{url}: there is no key for RS256, ES256 or EdDSA")),
            false => Ok(keys),
        }
    }

    async fn discover(&self) -> Result<String, String> {
        let issuer = &self.options.issuer;
        let url = format!("{}/.well-known/openid-configuration", issuer.strip_suffix('/').unwrap_or(issuer));
        let found: Discovery = serde_json::from_slice(&self.fetcher.get(&url).await?)
            .map_err(|error| format!("{url}: this is not a discovery document: {error}"))?;
        if found.issuer != *issuer {
            return Err(format!("{url}: it is the document of {:?}, and not of this issuer", found.issuer));
        }
        check_url(&found.jwks_uri)?;
        Ok(found.jwks_uri)
    }
}
