//! Identities: who a caller was found to be, and what a claim says of its owner.
//!
//! In:    names from tokens, keys, proxies and certificates. Out: [`Identity`]; owners' names for the table.
//! Never: takes a name that could be read as another's.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Longest name of a user or group.
const NAME_LEN_MAX: usize = 256;
/// Most groups of one identity that are looked at: a token may name thousands.
const GROUPS_MAX: usize = 1000;
/// Between a user and the name that its client gave itself, in a claim's owner.
const AS: &str = " for ";

/// How somebody proved who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// No credentials at all.
    Nothing,
    /// Credentials that are not valid.
    Refused,
    /// An access key.
    Key,
    /// A bearer token of an identity provider.
    Token,
    /// A header of a trusted proxy.
    Proxy,
    /// A client certificate.
    Certificate,
    /// A user and password of the administrators' file.
    Basic,
}

impl How {
    /// Its name in logs and audit lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Refused => "refused",
            Self::Key => "key",
            Self::Token => "token",
            Self::Proxy => "proxy",
            Self::Certificate => "certificate",
            Self::Basic => "basic",
        }
    }
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user's name: what a claim's owner is.
    pub user: Arc<str>,
    /// Groups, for rules.
    pub groups: Vec<Arc<str>>,
    /// How that is known.
    pub how: How,
}

/// The name of those who gave no credentials. No user can be called so.
pub const ANONYMOUS: &str = "anonymous";

impl Identity {
    /// A user with groups, if the names can be used as such.
    pub fn new<G: AsRef<str>>(
        user: &str,
        groups: impl IntoIterator<Item = G>,
        how: How,
    ) -> Result<Self, String> {
        check_user(user)?;
        let usable = |group: &G| is_name(group.as_ref());
        let groups = groups.into_iter().take(GROUPS_MAX).filter(usable);
        Ok(Self { user: user.into(), groups: groups.map(|group| group.as_ref().into()).collect(), how })
    }

    /// Somebody without credentials, or without valid ones.
    pub fn nobody(how: How) -> Self {
        Self { user: ANONYMOUS.into(), groups: Vec::new(), how }
    }

    /// Whether credentials were given and found good.
    pub fn is_known(&self) -> bool {
        !matches!(self.how, How::Nothing | How::Refused)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (by {})", self.user, self.how.as_str())
    }
}

/// What is wrong with a user's name, if anything is.
pub fn check_user(user: &str) -> Result<(), String> {
    match user {
        ANONYMOUS | "*" => Err(format!("'{user}' can't be the name of a user: it has a meaning in rules")),
        user if user.contains(AS) => Err(format!("a user's name can't contain {AS:?}")),
        user if !is_name(user) => {
            Err(format!("a user's name has 1 to {NAME_LEN_MAX} bytes and no control characters"))
        }
        _ => Ok(()),
    }
}

fn is_name(name: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// The owner of a claim whose client also gave itself a name: a host and pid, or a client id.
pub fn owner_with(user: &str, client: &str) -> Arc<str> {
    format!("{user}{AS}{client}").into()
}

/// The user in a claim's owner.
pub fn user_of(owner: &str) -> &str {
    owner.split_once(AS).map_or(owner, |(user, _)| user)
}

/// The name that a client gave itself, in a claim's owner; all of it where there is no user in front.
pub fn client_of(owner: &str) -> &str {
    owner.split_once(AS).map_or(owner, |(_, client)| client)
}

/// Whom budgets and rates are counted for. Those without credentials are told apart by their addresses, and in IPv6 by the /64 network
/// in which a single machine has all the addresses it likes.
pub fn client_name(owner: &Arc<str>) -> Arc<str> {
    let named = if user_of(owner) == ANONYMOUS { client_of(owner) } else { owner };
    match named.parse() {
        Ok(IpAddr::V6(ip)) if !ip.is_loopback() => {
            let [a, b, c, d, ..] = ip.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64").into()
        }
        _ if named.len() == owner.len() => owner.clone(),
        _ => named.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_can_pass_for_another() {
        for name in ["", "anonymous", "*", "ci for db1", "a\nb", "a\0", &"x".repeat(257)] {
            assert!(Identity::new(name, [""; 0], How::Key).is_err(), "{name:?}");
        }
        assert_eq!(user_of(&owner_with("ci", "root for db1")), "ci");
        assert_eq!(client_of(&owner_with("ci", "host:1")), "host:1");
        assert_eq!((user_of("10.0.0.1"), client_of("host:1")), ("10.0.0.1", "host:1"));
    }
}
