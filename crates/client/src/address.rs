//! Addresses of servers.
//!
//! In:    `http://host:port` or `host:port`. Out: [`Address`].
//! Never: resolves or connects.

use crate::error::Error;

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
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
        let bad = |why: &str| Error::Invalid(format!("'{url}' is no address of a server: {why}"));
        let authority = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => {
                return Err(bad("https is not spoken yet; reach it through a proxy on this machine"));
            }
            Some(_) => return Err(bad("it must begin with http://")),
            None => url,
        };
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]%".contains(&byte);
        if authority.is_empty() || !authority.bytes().all(plain) {
            return Err(bad("it must be http://host:port, without a path"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((host, rest)) => (host, rest.strip_prefix(':').or((!rest.is_empty()).then_some(rest))),
                None => return Err(bad("a bracket is not closed")),
            },
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let port: u16 = port.map_or(Ok(80), str::parse).map_err(|_| bad("its port is no number"))?;
        if host.is_empty() || port == 0 {
            return Err(bad("it must have a host and a port"));
        }
        Ok(Self { authority: authority.into(), host: host.into(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let read = |url: &str| Address::parse(url).map(|address| (address.host, address.port));
        assert_eq!(read("http://h:12/").unwrap(), ("h".into(), 12));
        assert_eq!(read("h").unwrap(), ("h".into(), 80));
        assert_eq!(read("[::1]:7").unwrap(), ("::1".into(), 7));
        assert_eq!(read("http://[::1]").unwrap(), ("::1".into(), 80));
        for bad in [
            "",
            "http://",
            "ftp://h",
            "http://h:x",
            "h:0",
            "http://h/path",
            "h h",
            "[::1",
            "[::1]x",
            "https://h",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
