//! Addresses of servers.
//!
//! In:    `http://host:port`, `https://host:port` or `host:port`. Out: [`Address`].
//! Never: resolves or connects.

use std::net::IpAddr;

use crate::error::Error;

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Whether it is reached with TLS.
    pub is_https: bool,
    /// Host and port as in the URL, for the `Host` header.
    pub authority: String,
    /// Host without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl Address {
    /// Reads one.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let bad = |why: &str| Error::Invalid(format!("'{url}' is not the address of a server: {why}"));
        let (is_https, authority) = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some(_) => return Err(bad("it must begin with http:// or https://")),
            None => (false, url),
        };
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]%".contains(&byte);
        if authority.is_empty() || !authority.bytes().all(plain) {
            return Err(bad("it must be http://host:port or https://host:port, without a path"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((host, rest)) => (host, rest.strip_prefix(':').or((!rest.is_empty()).then_some(rest))),
                None => return Err(bad("a bracket is not closed")),
            },
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let default = if is_https { 443 } else { 80 };
        let port: u16 = port
            .map_or(Ok(default), str::parse)
            .map_err(|_| bad("its port is not a number from 1 to 65535"))?;
        if host.is_empty() || port == 0 {
            return Err(bad("it must have a host and a port"));
        }
        Ok(Self { is_https, authority: authority.into(), host: host.into(), port })
    }

    /// Whether it is certainly on this machine: what is sent there passes no network.
    pub fn is_this_machine(&self) -> bool {
        let name = self.host.trim_end_matches('.').to_ascii_lowercase();
        name == "localhost"
            || name.ends_with(".localhost")
            || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let read =
            |url: &str| Address::parse(url).map(|address| (address.is_https, address.host, address.port));
        assert_eq!(read("http://h:12/").unwrap(), (false, "h".into(), 12));
        assert_eq!(read("h").unwrap(), (false, "h".into(), 80));
        assert_eq!(read("[::1]:7").unwrap(), (false, "::1".into(), 7));
        assert_eq!(read("http://[::1]").unwrap(), (false, "::1".into(), 80));
        assert_eq!(read("https://h").unwrap(), (true, "h".into(), 443));
        assert_eq!(read("HTTPS://h:1").unwrap(), (true, "h".into(), 1));
        for bad in [
            "",
            "http://",
            "https://",
            "ftp://h",
            "http://h:x",
            "h:0",
            "http://h/path",
            "h h",
            "[::1",
            "[::1]x",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn this_machine_is_told_from_others() {
        for (url, is_here) in [
            ("localhost", true),
            ("a.LOCALHOST.:1", true),
            ("127.0.0.2:1", true),
            ("[::1]:1", true),
            ("127.0.0.1.example.org", false),
            ("10.0.0.1", false),
            ("https://h", false),
        ] {
            assert_eq!(Address::parse(url).unwrap().is_this_machine(), is_here, "{url}");
        }
    }
}
