//! What web pages of others may do with this service: read nothing under a name that is not ours, and change nothing.
//!
//! In:    the head of a request, before anything is done with it. Out: permission, or a refusal that names the setting.
//! Never: gets in the way of programs that are no browser: they send no `Origin`, and a `Host` that they could reach.
//!
//! Two attacks are refused here. A page of another site has its reader's browser send a form or a script's request here
//! (cross-site request forgery): browsers say so in `Origin` and `Sec-Fetch-Site`. Or it gives its own name the address of
//! this machine (DNS rebinding): then the browser takes us for that page's server, and only `Host` shows it. That second
//! check is made where an address is all that protects the service: on loopback addresses alone, without access control.

use std::net::IpAddr;

use hyper::header::{HOST, HeaderName, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{Method, StatusCode};

use crate::config::Config;
use crate::message::Response;
use crate::message::connection::{Connection, FORWARDED_HOST, FORWARDED_PROTO};
use crate::message::headers::{Headers, Value};
use crate::message::origin::split_origin;
use crate::message::problem::problem;
use crate::message::request::Request;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Which names and pages are ours.
#[derive(Debug)]
pub struct WebOrigins {
    /// Names that `Host` may have besides those of this machine; `None`: it is not looked at.
    hosts: Option<Vec<String>>,
    /// Origins of other pages that may change something, as browsers write them.
    origins: Vec<String>,
}

impl WebOrigins {
    /// As configured.
    pub fn new(config: &Config) -> Self {
        let any = config.allowed_hosts.iter().any(|host| host == "*");
        let only_loopback = config.listen.iter().all(|address| address.ip().is_loopback());
        let is_open = config.access.is_none() && only_loopback && !any;
        let hosts = is_open.then(|| {
            let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let allowed = config.allowed_hosts.iter().map(|host| bare(host).to_ascii_lowercase());
            allowed.chain([own.to_ascii_lowercase()]).filter(|host| !host.is_empty()).collect()
        });
        let origins = config.allowed_origins.iter();
        Self { hosts, origins: origins.map(|origin| origin.trim_end_matches('/').into()).collect() }
    }

    /// Why this request is not looked at any further, if so.
    pub fn refusal(&self, connection: &Connection, request: &Request) -> Option<Response> {
        if let Some(host) = self.foreign_host(connection, request) {
            let detail = format!(
                "{host:?} is not a name of this service: use localhost, or have the operator add the name to \
                 --allowed-hosts (see docs/security.md)"
            );
            return Some(problem(StatusCode::MISDIRECTED_REQUEST, "unknown-host", &detail));
        }
        let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        if reads || self.may_change(connection, request.headers()) {
            return None;
        }
        let detail = "web pages of other origins may not change anything here: have the operator add the page's origin to \
                      --allowed-origins (see docs/security.md)";
        Some(problem(StatusCode::FORBIDDEN, "foreign-origin", detail))
    }

    /// The host that the request names, if that is no name of this service.
    fn foreign_host<'a>(&self, connection: &Connection, request: &'a Request) -> Option<&'a str> {
        let allowed = self.hosts.as_deref().filter(|_| !connection.trusted)?;
        let is_foreign = |host: &&str| !is_this_machine(bare(host), allowed);
        let asked = request.uri().authority().map(Authority::as_str);
        let host = request.headers().get(HOST).map(|host| host.to_str().unwrap_or_default());
        asked.into_iter().chain(host).find(is_foreign)
    }

    /// Whether what sent this may change something: a program, a page of ours, or one that the operator named.
    fn may_change(&self, connection: &Connection, headers: &Headers) -> bool {
        let site = headers.get(FETCH_SITE).map(Value::as_bytes);
        let mut origins = headers.get_all(ORIGIN).map(|origin| origin.to_str().unwrap_or("null"));
        match (origins.next(), origins.next()) {
            (None, _) => !matches!(site, Some(b"cross-site" | b"same-site")),
            (Some(origin), None) if self.origins.iter().any(|known| known.eq_ignore_ascii_case(origin)) => {
                true
            }
            (Some(origin), None) => site != Some(b"cross-site") && is_same(origin, connection, headers),
            (Some(_), Some(_)) => false,
        }
    }
}

/// Whether a page of this origin came from the place that the request goes to.
fn is_same(origin: &str, connection: &Connection, headers: &Headers) -> bool {
    let Some((scheme, page)) = split_origin(origin) else { return false };
    let text = |name: HeaderName| headers.get(name).and_then(Value::to_str).map(str::trim);
    let forwarded = |name| connection.trusted.then(|| text(name)).flatten();
    // A proxy that nobody told us of may have taken off TLS: then either scheme may be ours.
    let own_scheme = forwarded(FORWARDED_PROTO).or(connection.secure.then_some("https"));
    let port = if scheme.eq_ignore_ascii_case("https") { "443" } else { "80" };
    let same = |host: &str| {
        bare(host).eq_ignore_ascii_case(bare(page))
            && port_of(host).unwrap_or(port) == port_of(page).unwrap_or(port)
    };
    own_scheme.is_none_or(|own| own.eq_ignore_ascii_case(scheme))
        && [text(HOST), forwarded(FORWARDED_HOST)].into_iter().flatten().any(same)
}

/// A host without its port, brackets and last dot.
fn bare(host: &str) -> &str {
    let host = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => return address,
        None if host.matches(':').count() == 1 => host.split(':').next().unwrap_or(host),
        None => host,
    };
    host.strip_suffix('.').unwrap_or(host)
}

fn port_of(host: &str) -> Option<&str> {
    let (_, port) = host.rsplit_once(':')?;
    (!port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit())).then_some(port)
}

fn is_this_machine(host: &str, allowed: &[String]) -> bool {
    let localhost = |name: &str| name.eq_ignore_ascii_case("localhost");
    let below = || host.rsplit_once('.').is_some_and(|(_, last)| localhost(last));
    let address = || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    localhost(host) || address() || below() || allowed.iter().any(|known| known.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use crate::message::origin::is_origin;
    use std::net::SocketAddr;

    use hyper::Version;

    use super::*;
    use crate::config::Options;
    use crate::message::body::RequestBody;
    use crate::message::request::Head;

    fn refused(options: Options, proxy: bool, method: Method, headers: &[(&str, &str)]) -> Option<u16> {
        let [peer, local] = [7, 4080].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let proxies = if proxy { vec![peer.ip()] } else { Vec::new() };
        let connection = Connection::new(peer, local, &proxies);
        let headers = headers.iter().copied().collect();
        let head = Head { method, uri: "/v1/claims/".parse().unwrap(), version: Version::HTTP_11, headers };
        let request = Request::new(head, RequestBody::Whole("".into()));
        let guard = WebOrigins::new(&options.validate().unwrap());
        guard.refusal(&connection, &request).map(|refusal| refusal.status().as_u16())
    }

    #[test]
    fn hosts_of_this_machine_are_known_and_others_refused() {
        let allowed = || Options { allowed_hosts: Some(vec!["Locks.Example".into()]), ..Options::default() };
        for (host, status) in [
            ("localhost", None),
            ("LOCALHOST:4080", None),
            ("localhost.:4080", None),
            ("db.localhost:1", None),
            ("127.0.0.1:4080", None),
            ("127.9.9.9", None),
            ("[::1]:4080", None),
            ("[::ffff:127.0.0.1]", None),
            ("locks.example:4080", None),
            ("evil.example:4080", Some(421)),
            ("notlocalhost", Some(421)),
            ("localhost.evil.example", Some(421)),
            ("127.0.0.1.evil.example", Some(421)),
            ("10.0.0.1", Some(421)),
            ("localhost:1:2", Some(421)),
            ("", Some(421)),
        ] {
            assert_eq!(refused(allowed(), false, Method::GET, &[("Host", host)]), status, "{host}");
            assert_eq!(refused(allowed(), true, Method::GET, &[("Host", host)]), None, "{host}, by a proxy");
        }
        assert_eq!(refused(allowed(), false, Method::GET, &[]), None);
        let any = Options { allowed_hosts: Some(vec!["*".into()]), ..Options::default() };
        assert_eq!(refused(any, false, Method::GET, &[("Host", "evil.example")]), None);
        let access = Options { access: Some(Default::default()), ..Options::default() };
        assert_eq!(refused(access, false, Method::GET, &[("Host", "any.example")]), None);
    }

    #[test]
    fn pages_of_others_change_nothing() {
        let host = ("Host", "localhost:4080");
        for (headers, status) in [
            (&[][..], None),
            (&[("Origin", "http://localhost:4080")], None),
            (&[("Origin", "http://localhost:4080"), ("Sec-Fetch-Site", "same-origin")], None),
            (&[("Sec-Fetch-Site", "none")], None),
            (&[("Origin", "https://tools.example"), ("Sec-Fetch-Site", "cross-site")], None),
            (&[("Origin", "https://tools.example:8443")], Some(403)),
            (&[("Origin", "http://localhost:8080"), ("Sec-Fetch-Site", "same-site")], Some(403)),
            (&[("Origin", "http://localhost")], Some(403)),
            (&[("Origin", "http://evil.example")], Some(403)),
            (&[("Origin", "null")], Some(403)),
            (&[("Origin", "")], Some(403)),
            (&[("Origin", "http://localhost:4080"), ("Origin", "http://evil.example")], Some(403)),
            (&[("Sec-Fetch-Site", "cross-site")], Some(403)),
            (&[("Sec-Fetch-Site", "same-site")], Some(403)),
        ] {
            let options = || Options {
                allowed_origins: Some(vec!["https://tools.example/".into()]),
                ..Options::default()
            };
            let headers = [&[host], headers].concat();
            for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
                assert_eq!(refused(options(), false, method, &headers), status, "{headers:?}");
            }
            assert_eq!(refused(options(), false, Method::GET, &headers), None, "{headers:?}");
        }
    }

    #[test]
    fn behind_a_proxy_the_page_is_where_its_readers_see_it() {
        let forwarded =
            [("Host", "inside:4080"), ("X-Forwarded-Host", "locks.example"), ("X-Forwarded-Proto", "https")];
        let with = |origin| [&forwarded[..], &[("Origin", origin)]].concat();
        let status = |proxy, origin| refused(Options::default(), proxy, Method::POST, &with(origin));
        assert_eq!(status(true, "https://locks.example"), None);
        assert_eq!(status(true, "https://locks.example:443"), None);
        assert_eq!(status(true, "http://locks.example"), Some(403));
        assert_eq!(status(false, "https://locks.example"), Some(421));
        // A proxy that nobody named, with TLS, which passes on the name that it was asked for.
        let plain = [("Host", "localhost"), ("Origin", "https://localhost")];
        assert_eq!(refused(Options::default(), false, Method::POST, &plain), None);
    }

    #[test]
    fn settings_name_origins() {
        assert!(["https://a.example", "http://a:1", "https://a/"].into_iter().all(is_origin));
        assert!(
            ["a.example", "https://", "ftp://a", "https://a/b", "https://u@a"]
                .into_iter()
                .all(|bad| !is_origin(bad))
        );
    }
}
