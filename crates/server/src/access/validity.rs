//! How long credentials that were found good stay good.
//!
//! In:    a caller's ticket, and the policies that replace the one it was made under.
//! Out:   the instant at which its credentials end, and why; users whose last credentials were withdrawn.
//! Never: ends what a user holds: that stays until its ttl is over. Open requests, streams and waiting claims end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::caller::{Caller, Ticket};
use super::identity::{How, Identity};
use super::oidc::Provider;
use super::policy::Policy;
use super::unix_now;

/// How long credentials stay good under one policy.
#[derive(Debug, Clone, Default)]
pub(super) struct Validity {
    /// In seconds since 1970; `None`: for ever.
    pub(super) until: Option<u64>,
    /// The provider, and the generation of its keys, that a token was verified with.
    pub(super) provider: Option<(Arc<Provider>, u64)>,
    /// The SHA-256 of an access key.
    pub(super) key: Option<[u8; 32]>,
}

impl Validity {
    pub(super) fn holds(&self, now: u64) -> bool {
        self.until.is_none_or(|until| now < until)
            && self
                .provider
                .as_ref()
                .is_none_or(|(provider, generation)| provider.generation() == *generation)
    }
}

/// Why a caller's credentials are no longer good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The key was withdrawn, or the authority behind the credentials was removed.
    Withdrawn,
    /// Their time is over. The client may come back with fresh ones.
    Expired,
}

/// The policy that replaced another one, once there is one.
#[derive(Debug, Default)]
pub(super) struct Successor {
    policy: std::sync::OnceLock<Arc<Policy>>,
    set: Notify,
}

/// Users whose last credentials were taken away, until somebody asks for them.
#[derive(Debug, Default)]
pub(super) struct Withdrawn {
    users: Mutex<BTreeSet<Arc<str>>>,
    added: Notify,
}

impl Withdrawn {
    pub(super) fn add(&self, mut users: BTreeSet<Arc<str>>) {
        self.users.lock().append(&mut users);
        self.added.notify_one();
    }

    pub(super) async fn take(&self) -> BTreeSet<Arc<str>> {
        loop {
            let users = std::mem::take(&mut *self.users.lock());
            if !users.is_empty() {
                return users;
            }
            self.added.notified().await;
        }
    }
}

impl Policy {
    /// This policy is replaced: requests that still hold it look at the new one.
    pub(super) fn replace_by(&self, new: Arc<Self>) {
        self.successor.policy.set(new).ok();
        self.successor.set.notify_waiters();
    }

    /// The policy in force: this one, or the last that replaced it.
    pub(super) fn newest(&self) -> &Self {
        let mut policy = self;
        while let Some(new) = policy.successor.policy.get() {
            policy = new;
        }
        policy
    }

    /// Waits until this policy is replaced.
    async fn replaced(&self) -> Arc<Self> {
        loop {
            let set = self.successor.set.notified();
            if let Some(new) = self.successor.policy.get() {
                return new.clone();
            }
            set.await;
        }
    }

    /// Whether credentials that were good under an earlier policy still have an authority behind them.
    fn still_admits(&self, identity: &Identity, validity: &Validity) -> bool {
        match identity.how {
            How::Key => {
                let known = validity.key.and_then(|hash| self.keys.find(&hash, 0));
                known.is_some_and(|(known, _)| known.user == identity.user)
            }
            How::Token => validity.provider.as_ref().is_some_and(|(provider, _)| self.has_provider(provider)),
            How::Certificate => self.options.certificate.is_some(),
            How::Proxy => self.proxies.is_some(),
            How::Nothing | How::Refused | How::Basic => true,
        }
    }

    fn has_provider(&self, provider: &Provider) -> bool {
        self.providers.iter().any(|known| known.options() == provider.options())
    }

    /// Users who had credentials under `old` and have none under this policy, as far as that can be told: those whose
    /// last access key is gone, and those known by tokens of a provider that was removed.
    pub(super) fn withdrawn_since(&self, old: &Self) -> BTreeSet<Arc<str>> {
        let has_issuer =
            |issuer: &str| self.providers.iter().any(|provider| provider.options().issuer == issuer);
        let of_tokens = old.token_users.read();
        let of_tokens =
            of_tokens.iter().filter(|(_, issuer)| !has_issuer(issuer)).map(|(user, _)| user.clone());
        let gone = old.keys.users().chain(of_tokens);
        let has_key: BTreeSet<Arc<str>> = self.keys.users().collect();
        gone.filter(|user| !has_key.contains(user)).collect()
    }
}

impl Caller {
    /// Waits until the caller's credentials are no longer good; for ever without access control.
    pub async fn ended(&self) -> Ended {
        match &self.0 {
            Some(ticket) => ticket.ended(|_| false).await,
            None => std::future::pending().await,
        }
    }

    /// Whether the credentials were withdrawn since the request came.
    pub fn is_withdrawn(&self) -> bool {
        self.0.as_ref().is_some_and(|ticket| ticket.is_withdrawn())
    }

    /// The same for streams: they also end when the rules change, since the reader's rights may have.
    pub async fn superseded(&self) -> Ended {
        match &self.0 {
            Some(ticket) => ticket.ended(|new| new.options.rule != ticket.policy.options.rule).await,
            None => std::future::pending().await,
        }
    }
}

impl Ticket {
    /// Whether the credentials still have an authority behind them under the newest policy.
    pub(super) fn is_withdrawn(&self) -> bool {
        let newest = self.policy.newest();
        !std::ptr::eq(newest, &*self.policy) && !newest.still_admits(&self.identity, &self.validity)
    }

    async fn ended(&self, also: impl Fn(&Policy) -> bool) -> Ended {
        let expired = async {
            let Some(until) = self.validity.until else { return std::future::pending().await };
            // The wall clock may be set: look again at least once a minute.
            while let Some(left) = until.checked_sub(unix_now()).filter(|left| *left > 0) {
                tokio::time::sleep(Duration::from_secs(left.min(60))).await;
            }
        };
        let withdrawn = async {
            let mut policy = self.policy.clone();
            loop {
                policy = policy.replaced().await;
                if !policy.still_admits(&self.identity, &self.validity) || also(&policy) {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = withdrawn => Ended::Withdrawn,
            () = expired => Ended::Expired,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_out_is_good_until_then() {
        let until = |until| Validity { until, ..Validity::default() };
        assert!(until(None).holds(u64::MAX) && until(Some(200)).holds(199) && !until(Some(200)).holds(200));
    }
}
