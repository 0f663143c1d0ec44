//! Trusted headers: a proxy in front (Shibboleth, any SSO) says who asks.
//!
//! In:    the connection's peer and the request's headers. Out: the identity that the proxy named.
//! Never: looks at these headers on any other connection, or at `X-Forwarded-For` to tell who the proxy is.

use std::net::IpAddr;

use hyper::header::HeaderName;
use serde::{Deserialize, Serialize};

use super::identity::{How, Identity};
use crate::message::headers::Headers;

/// Trusted headers, as they stand in the TOML file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProxyOptions {
    /// Addresses or networks of proxies: `10.0.0.7`, `10.1.0.0/16`.
    #[serde(default)]
    pub from: Vec<String>,
    /// Users of client certificates that are proxies.
    #[serde(default)]
    pub certificates: Vec<String>,
    /// The header that names the user [default: X-Remote-User].
    #[serde(default = "user_header")]
    pub user_header: String,
    /// The header that lists groups [default: X-Remote-Groups].
    #[serde(default = "groups_header")]
    pub groups_header: String,
    /// What stands between two groups; a backslash in front makes it part of a name [default: ;].
    #[serde(default = "separator")]
    pub separator: char,
}

fn user_header() -> String {
    "X-Remote-User".into()
}

fn groups_header() -> String {
    "X-Remote-Groups".into()
}

fn separator() -> char {
    ';'
}

/// Who is a proxy, and which headers it sets.
#[derive(Debug)]
pub struct Proxies {
    networks: Vec<Network>,
    certificates: Vec<String>,
    user_header: HeaderName,
    groups_header: HeaderName,
    separator: char,
}

impl Proxies {
    /// Checks the settings.
    pub fn new(options: &ProxyOptions) -> Result<Self, String> {
        if options.from.is_empty() && options.certificates.is_empty() {
            return Err("no proxy is trusted: list the proxies in 'from' or 'certificates'".into());
        }
        let header = |name: &str| {
            name.parse::<HeaderName>().map_err(|_| format!("'{name}' is not a valid header name"))
        };
        let names = (header(&options.user_header)?, header(&options.groups_header)?);
        if names.0 == names.1 || [&names.0, &names.1].contains(&&hyper::header::AUTHORIZATION) {
            return Err("user-header and groups-header must be two headers of their own".into());
        }
        Ok(Self {
            networks: options.from.iter().map(|text| Network::new(text)).collect::<Result<_, _>>()?,
            certificates: options.certificates.clone(),
            user_header: names.0,
            groups_header: names.1,
            separator: options.separator,
        })
    }

    /// Whether this is a connection of a proxy.
    pub fn is_proxy(&self, peer: IpAddr, certificate: Option<&Identity>) -> bool {
        let peer = peer.to_canonical();
        let named = |identity: &Identity| self.certificates.iter().any(|name| **name == *identity.user);
        self.networks.iter().any(|network| network.contains(peer)) || certificate.is_some_and(named)
    }

    /// Whether this certificate's user is a proxy: it speaks for others and is nobody itself.
    pub fn is_proxy_certificate(&self, identity: &Identity) -> bool {
        self.certificates.iter().any(|name| **name == *identity.user)
    }

    /// Whom the proxy names; `None` if nobody.
    pub fn identify(&self, headers: &Headers) -> Option<Result<Identity, String>> {
        let mut users = headers.get_all(&self.user_header);
        let user = users.next()?;
        if users.next().is_some() {
            return Some(Err("the proxy names more than one user".into()));
        }
        let Ok(user) = std::str::from_utf8(user.as_bytes()) else {
            return Some(Err("the user's name is not UTF-8".into()));
        };
        let user = user.trim();
        // Shibboleth sets empty headers for those who have not logged in.
        if user.is_empty() {
            return None;
        }
        let lists = headers
            .get_all(&self.groups_header)
            .filter_map(|value| std::str::from_utf8(value.as_bytes()).ok());
        let groups: Vec<String> = lists.flat_map(|list| split(list, self.separator)).collect();
        Some(Identity::new(user, groups, How::Proxy))
    }
}

/// `a;b\;c` are the two names `a` and `b;c`.
fn split(list: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = list.chars();
    while let Some(char) = chars.next() {
        let last = parts.len() - 1;
        match char {
            '\\' => parts[last].extend(chars.next()),
            char if char == separator => parts.push(String::new()),
            char => parts[last].push(char),
        }
    }
    let parts = parts.into_iter().map(|part| part.trim().to_string());
    parts.filter(|part| !part.is_empty()).collect()
}

/// Addresses with the same beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Network {
    start: IpAddr,
    bits: u32,
}

impl Network {
    fn new(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is neither an address nor a network like 10.1.0.0/16");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        let start: IpAddr = address.parse().map_err(|_| bad())?;
        let most = if start.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most { Err(bad()) } else { Ok(Self { start: start.to_canonical(), bits }) }
    }

    fn contains(&self, ip: IpAddr) -> bool {
        let same =
            |a: u128, b: u128, width: u32| self.bits == 0 || (a ^ b) >> (width - self.bits.min(width)) == 0;
        match (self.start, ip) {
            (IpAddr::V4(start), IpAddr::V4(ip)) => same(u32::from(start).into(), u32::from(ip).into(), 32),
            (IpAddr::V6(start), IpAddr::V6(ip)) => same(start.into(), ip.into(), 128),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses_and_no_others() {
        let contains = |network: &str, ip: &str| Network::new(network).unwrap().contains(ip.parse().unwrap());
        for (network, ip, expected) in [
            ("10.1.0.0/16", "10.1.255.3", true),
            ("10.1.0.0/16", "10.2.0.0", false),
            ("10.0.0.7", "10.0.0.7", true),
            ("10.0.0.7", "10.0.0.6", false),
            ("0.0.0.0/0", "9.9.9.9", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "fe12::1", false),
            ("::1", "::1", true),
        ] {
            assert_eq!(contains(network, ip), expected, "{network} {ip}");
        }
        for bad in ["", "10.0.0.0/33", "10.0.0", "proxy.example.org", "10.0.0.0/x"] {
            assert!(Network::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn groups_are_split_as_shibboleth_joins_them() {
        assert_eq!(split(r"a; b\;c ;;d", ';'), ["a", "b;c", "d"]);
        assert_eq!(split("a,b;c", ','), ["a", "b;c"]);
        assert!(split("", ';').is_empty());
    }
}
