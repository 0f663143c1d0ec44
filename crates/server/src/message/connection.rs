//! A connection: both its ends, and what came over it.
//!
//! In:    addresses, headers. Out: where a request came from, absolute URLs.
//! Never: believes a forwarding header unless it comes from a proxy that the operator named.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use hyper::header::{HOST, HeaderName};

use super::delivery::Delivery;
use super::headers::{Headers, Value};

/// Names are made once: a look-up by text would check and hash it anew with every request.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(crate) const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// All are taken.
    Total,
    /// This client has its share.
    Client,
}

/// What is known of a connection.
#[derive(Debug)]
pub struct Connection {
    /// The other end.
    pub peer: SocketAddr,
    /// The other end's address, as text: the owner of what comes over it where nobody says better.
    pub peer_name: Arc<str>,
    /// This end.
    pub local: SocketAddr,
    /// Whether forwarding headers on it are believed.
    pub trusted: bool,
    /// All proxies whose forwarding headers are believed, if this is one of them.
    trusted_proxies: Box<[IpAddr]>,
    /// Whether it is TLS.
    pub secure: bool,
    /// It has no place among the connections, and why: only health pages are answered on it.
    pub crowded: Option<Full>,
    /// The client's certificate, in DER, which TLS has verified.
    pub certificate: OnceLock<Box<[u8]>>,
    /// Bytes of bodies that came over it and are still kept.
    pub body_bytes: AtomicUsize,
    /// The answer whose arrival matters, if there is one.
    pub delivery: Delivery,
    /// The first `Host` that came over it, and the URL made of that: clients rarely name another one.
    base_url: OnceLock<(Box<[u8]>, Arc<str>)>,
}

impl Connection {
    /// A connection between these two ends.
    pub fn new(peer: SocketAddr, local: SocketAddr, trusted_proxies: &[IpAddr]) -> Self {
        let ip = peer.ip().to_canonical();
        let trusted = is_listed(trusted_proxies, ip);
        Self {
            peer,
            peer_name: ip.to_string().into(),
            local,
            trusted,
            trusted_proxies: if trusted { trusted_proxies.into() } else { Box::default() },
            secure: false,
            crowded: None,
            certificate: OnceLock::new(),
            body_bytes: AtomicUsize::new(0),
            delivery: Delivery::default(),
            base_url: OnceLock::new(),
        }
    }

    /// The address that the request came from: the peer's, or, behind trusted proxies, the one that they forward.
    pub fn client(&self, headers: &Headers) -> Arc<str> {
        match self.trusted.then(|| self.forwarded_for(headers)).flatten() {
            Some(ip) => ip.to_string().into(),
            None => self.peer_name.clone(),
        }
    }

    /// The rightmost address of all `X-Forwarded-For` lines that is not a trusted proxy. Everything to the left of it is
    /// what a stranger wrote. An entry that is no address is not skipped: nothing left of it can be believed.
    fn forwarded_for(&self, headers: &Headers) -> Option<IpAddr> {
        let lines = headers.get_all(FORWARDED_FOR).map(|line| line.to_str().unwrap_or_default());
        let entries: Vec<&str> = lines.flat_map(|line| line.split(',')).map(str::trim).collect();
        let mut last_proxy = None;
        for entry in entries.iter().rev() {
            match address(entry) {
                Some(ip) if is_listed(&self.trusted_proxies, ip) => last_proxy = Some(ip),
                found => return found.or(last_proxy),
            }
        }
        last_proxy
    }

    /// `http://host`, as the client knows this service.
    pub fn base_url(&self, headers: &Headers) -> Arc<str> {
        match headers.get(HOST) {
            Some(host) if !self.trusted => {
                let first = || (host.as_bytes().into(), self.make_base_url(headers));
                match self.base_url.get_or_init(first) {
                    (known, url) if **known == *host.as_bytes() => url.clone(),
                    _ => self.make_base_url(headers),
                }
            }
            _ => self.make_base_url(headers),
        }
    }

    fn make_base_url(&self, headers: &Headers) -> Arc<str> {
        let text = |name: HeaderName| headers.get(name).and_then(Value::to_str).map(str::trim);
        let forwarded = |name| self.trusted.then(|| text(name)).flatten();
        let https = self.secure || forwarded(FORWARDED_PROTO) == Some("https");
        let scheme = if https { "https://" } else { "http://" };
        let host = forwarded(FORWARDED_HOST).filter(|host| is_host(host));
        match host.or_else(|| text(HOST).filter(|host| is_host(host))) {
            Some(host) => [scheme, host].concat().into(),
            None => format!("{scheme}{}", self.local).into(),
        }
    }
}

fn is_listed(proxies: &[IpAddr], ip: IpAddr) -> bool {
    proxies.iter().any(|proxy| proxy.to_canonical() == ip)
}

/// An address, with or without the port that some proxies add.
fn address(entry: &str) -> Option<IpAddr> {
    let bare = || entry.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(entry);
    let with_port = || entry.parse().ok().map(|address: SocketAddr| address.ip());
    bare().parse().ok().or_else(with_port).map(|ip: IpAddr| ip.to_canonical())
}

/// Names, addresses and ports only: this ends up in URLs that other clients read.
fn is_host(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    !host.is_empty() && host.len() <= 255 && host.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url_of(connection: &Connection, headers: &[(HeaderName, &'static str)]) -> String {
        connection.base_url(&headers.iter().map(|(name, value)| (name, value)).collect()).to_string()
    }

    #[test]
    fn each_request_gets_urls_of_the_host_that_it_names() {
        let [peer, local] = [7, 8].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let connection = Connection::new(peer, local, &[]);
        for _ in 0..2 {
            assert_eq!(url_of(&connection, &[(HOST, "one:80")]), "http://one:80");
            assert_eq!(url_of(&connection, &[(HOST, "two")]), "http://two");
            assert_eq!(url_of(&connection, &[(HOST, "<three>")]), "http://127.0.0.1:8");
            assert_eq!(url_of(&connection, &[]), "http://127.0.0.1:8");
            assert_eq!(url_of(&connection, &[(HOST, "one:80"), (FORWARDED_HOST, "x")]), "http://one:80");
        }
    }

    #[test]
    fn behind_a_trusted_proxy_the_forwarded_host_counts_also_when_it_changes() {
        let [peer, local] = [7, 8].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let connection = Connection::new(peer, local, &[peer.ip()]);
        for host in ["one", "two"] {
            let headers = [(HOST, "inside"), (FORWARDED_HOST, host), (FORWARDED_PROTO, "https")];
            assert_eq!(url_of(&connection, &headers), format!("https://{host}"));
        }
    }
    #[test]
    fn the_client_is_the_rightmost_forwarded_address_that_is_no_proxy() {
        let [peer, local] = [7, 8].map(|port| SocketAddr::from(([10, 0, 0, 1], port)));
        let connection = Connection::new(peer, local, &[peer.ip(), [10, 0, 0, 2].into()]);
        for (lines, client) in [
            (&["203.0.113.9"][..], "203.0.113.9"),
            (&["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
            (&["6.6.6.6", "203.0.113.9"], "203.0.113.9"),
            (&["6.6.6.6", "203.0.113.9, 10.0.0.2"], "203.0.113.9"),
            (&["203.0.113.9:4711"], "203.0.113.9"),
            (&["[2001:db8::1]:80", "::ffff:10.0.0.2"], "2001:db8::1"),
            (&["6.6.6.6", "unknown"], "10.0.0.1"),
            (&["6.6.6.6", "unknown, 10.0.0.2"], "10.0.0.2"),
            (&["10.0.0.2"], "10.0.0.2"),
            (&[], "10.0.0.1"),
        ] {
            let headers: Headers = lines.iter().map(|line| (FORWARDED_FOR, line)).collect();
            assert_eq!(&*connection.client(&headers), client, "{lines:?}");
        }
        let stranger = Connection::new(peer, local, &[]);
        assert_eq!(&*stranger.client(&Headers::from_iter([(FORWARDED_FOR, "6.6.6.6")])), "10.0.0.1");
    }
}
