//! Where clients reach this node, as it tells the other nodes and `leasehold cluster status`.
//!
//! In:    `advertise-url`, or the addresses that this node listens on and that its peers know. Out: a URL, if there is one.
//! Never: an address that nobody can connect to, such as 0.0.0.0.

use std::net::{IpAddr, SocketAddr};

use hyper::http::uri::Authority;

use super::{Config, ConfigError};
use crate::message::origin::{is_origin, split_origin};

/// A URL that others can use, without the slash at its end.
pub(super) fn check(url: String, tls: bool) -> Result<String, ConfigError> {
    let wrong = |problem: String| Err(ConfigError { setting: "advertise-url", problem });
    let url = url.strip_suffix('/').map(String::from).unwrap_or(url);
    let parts = split_origin(&url).filter(|_| is_origin(&url));
    let authority = parts.and_then(|(scheme, host)| Some((scheme, host.parse::<Authority>().ok()?)));
    let Some((scheme, authority)) = authority else {
        return wrong(format!("'{url}' is not of the form http://HOST:PORT or https://HOST:PORT"));
    };
    let port = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
    if !port.is_empty() && authority.port_u16().is_none_or(|port| port == 0) {
        return wrong(format!("'{url}': the port must be a number from 1 to 65535"));
    }
    if literal(authority.host()).is_some_and(|ip| ip.is_unspecified()) {
        return wrong(format!(
            "'{url}': nobody can connect to {}, which means all addresses of a machine. Give the name or the address by \
             which clients reach this node",
            authority.host()
        ));
    }
    if tls && scheme.eq_ignore_ascii_case("http") {
        return wrong(format!(
            "'{url}': this node has a certificate and speaks HTTPS: start the URL with https://"
        ));
    }
    Ok(url)
}

/// The IP address that a URL's host is, if it is one.
fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

impl Config {
    /// Where clients reach this node, which listens at `bound`. A node that listens on all addresses of its machine is
    /// reached at the one that its peers know; without peers, nobody can say.
    pub fn advertised(&self, bound: SocketAddr) -> Option<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        if self.advertise_url.is_some() {
            return self.advertise_url.clone();
        }
        if !bound.ip().is_unspecified() {
            return Some(format!("{scheme}://{bound}"));
        }
        let (host, _) = self.cluster.as_ref()?.advertise.rsplit_once(':')?;
        let port = bound.port();
        match literal(host) {
            Some(ip) if ip.is_unspecified() || (ip.is_ipv6() && bound.is_ipv4()) => None,
            _ => Some(format!("{scheme}://{host}:{port}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClusterOptions, Options};

    #[test]
    fn a_url_that_nobody_can_use_is_an_error_that_says_why() {
        for good in
            ["http://a.example:4080", "https://a.example", "HTTP://10.0.0.1:80", "http://[fd00::1]:4080"]
        {
            assert_eq!(check(format!("{good}/"), false).as_deref(), Ok(good), "the slash is dropped");
        }
        for (bad, why) in [
            ("", "form http://HOST:PORT"),
            ("a.example:4080", "form http://HOST:PORT"),
            ("ftp://a.example", "form http://HOST:PORT"),
            ("http://", "form http://HOST:PORT"),
            ("http://a b", "form http://HOST:PORT"),
            ("http://me@a.example", "form http://HOST:PORT"),
            ("http://a.example/locks", "form http://HOST:PORT"),
            ("http://a.example?x", "form http://HOST:PORT"),
            ("http://a.example:0", "from 1 to 65535"),
            ("http://a.example:x", "from 1 to 65535"),
            ("http://a.example:65536", "from 1 to 65535"),
            ("http://a.example:", "from 1 to 65535"),
            ("http://0.0.0.0:4080", "all addresses of a machine"),
            ("http://[::]:4080", "all addresses of a machine"),
        ] {
            let error = check(bad.into(), false).unwrap_err();
            assert!(error.to_string().starts_with("advertise-url: "), "{error}");
            assert!(error.problem.contains(why), "{bad}: {error}");
        }
        assert!(check("http://a.example".into(), true).unwrap_err().problem.contains("https://"));
        assert!(check("https://a.example".into(), true).is_ok());
    }

    #[test]
    fn a_node_on_all_addresses_is_reached_at_the_one_that_its_peers_know() {
        let config = |peer: Option<&str>| {
            let cluster = peer.map(|peer| ClusterOptions {
                node_id: Some(1),
                peers: Some(vec![format!("1={peer}"), "2=b:4090".into(), "3=c:4090".into()]),
                peer_listen: Some("127.0.0.1:4090".parse().unwrap()),
                secret: Some("0123456789abcdef0123456789abcdef".into()),
                ..ClusterOptions::default()
            });
            Options { cluster, ..Options::default() }.validate().unwrap()
        };
        let advertised = |peer, bound: &str| config(peer).advertised(bound.parse().unwrap());
        assert_eq!(advertised(None, "127.0.0.1:4080").as_deref(), Some("http://127.0.0.1:4080"));
        assert_eq!(advertised(None, "0.0.0.0:4080"), None);
        assert_eq!(advertised(Some("a:4090"), "10.0.0.1:4080").as_deref(), Some("http://10.0.0.1:4080"));
        assert_eq!(advertised(Some("a:4090"), "0.0.0.0:4080").as_deref(), Some("http://a:4080"));
        assert_eq!(advertised(Some("[fd00::1]:4090"), "[::]:4080").as_deref(), Some("http://[fd00::1]:4080"));
        assert_eq!(advertised(Some("[fd00::1]:4090"), "0.0.0.0:4080"), None);
        assert_eq!(advertised(Some("0.0.0.0:4090"), "0.0.0.0:4080"), None);
    }
}
