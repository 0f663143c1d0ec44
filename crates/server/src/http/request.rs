//! A request as the dialects see it: who asks, from where, for what, with which body.
//!
//! In:    a request and the connection it came on. Out: the body within its limits, the caller, absolute URLs.
//! Never: believes a forwarding header unless it comes from a proxy that the operator named.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use hyper::header::{CONTENT_ENCODING, EXPECT, HOST, HeaderName};
use hyper::http::uri::Uri;
use hyper::{Method, StatusCode, Version};

use super::body::RequestBody;
use super::delivery::Delivery;
use super::headers::{Headers, Value};
use super::problem::{closing, problem};
use super::{Response, server::App};
use crate::access::{Caller, LastKnown};

/// How much of a refused request is read before it is answered.
const DRAIN_LEN_MAX: usize = 64 << 10;

/// Names are made once: a look-up by text would check and hash it anew with every request.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const REASON: HeaderName = HeaderName::from_static("leasehold-reason");

/// A request, whichever protocol it came by.
#[derive(Debug)]
pub struct Request {
    head: Head,
    body: RequestBody,
}

/// What stands before its body.
#[derive(Debug)]
pub struct Head {
    /// What is to be done ...
    pub method: Method,
    /// ... with what.
    pub uri: Uri,
    /// How the client speaks.
    pub version: Version,
    /// All else.
    pub headers: Headers,
}

impl Request {
    /// A request with this head and body.
    pub fn new(head: Head, body: RequestBody) -> Self {
        Self { head, body }
    }

    /// What is to be done.
    pub fn method(&self) -> &Method {
        &self.head.method
    }

    /// What it is to be done with.
    pub fn uri(&self) -> &Uri {
        &self.head.uri
    }

    /// The same, to be changed.
    pub fn uri_mut(&mut self) -> &mut Uri {
        &mut self.head.uri
    }

    /// How the client speaks.
    pub fn version(&self) -> Version {
        self.head.version
    }

    /// Its headers.
    pub fn headers(&self) -> &Headers {
        &self.head.headers
    }

    /// Its body.
    pub fn body(&self) -> &RequestBody {
        &self.body
    }

    /// Its body alone.
    pub fn into_body(self) -> RequestBody {
        self.body
    }

    /// Its head and its body.
    pub fn into_parts(self) -> (Head, RequestBody) {
        (self.head, self.body)
    }
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
    /// Whether it is TLS.
    pub secure: bool,
    /// The client's certificate, in DER, which TLS has verified.
    pub certificate: OnceLock<Box<[u8]>>,
    /// The answer whose arrival matters, if there is one.
    pub delivery: Delivery,
    /// Whom the credentials that came over it last stand for.
    pub last_known: LastKnown,
    /// The first `Host` that came over it, and the URL made of that: clients rarely name another one.
    base_url: OnceLock<(Box<[u8]>, Arc<str>)>,
}

impl Connection {
    /// A connection between these two ends.
    pub fn new(peer: SocketAddr, local: SocketAddr, trusted_proxies: &[IpAddr]) -> Self {
        let ip = peer.ip().to_canonical();
        let trusted = trusted_proxies.iter().any(|proxy| proxy.to_canonical() == ip);
        Self {
            peer,
            peer_name: ip.to_string().into(),
            local,
            trusted,
            secure: false,
            certificate: OnceLock::new(),
            delivery: Delivery::default(),
            last_known: LastKnown::default(),
            base_url: OnceLock::new(),
        }
    }

    /// The address that the request came from: the peer's, or, behind a trusted proxy, the last one that it names.
    pub fn client(&self, headers: &Headers) -> Arc<str> {
        if self.trusted
            && let Some(forwarded) = headers.get(FORWARDED_FOR).and_then(Value::to_str)
            && let Some(Ok(ip)) = forwarded.rsplit(',').next().map(|last| last.trim().parse::<IpAddr>())
        {
            return ip.to_canonical().to_string().into();
        }
        self.peer_name.clone()
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

/// `Leasehold-Reason`, why somebody ends a claim. What can't be kept as text is left out.
pub fn reason(headers: &Headers) -> Option<Arc<str>> {
    let text = std::str::from_utf8(headers.get(REASON)?.as_bytes()).ok()?.trim();
    let text = &text[..text.floor_char_boundary(1024)];
    (!text.is_empty()).then(|| text.into())
}

/// Names, addresses and ports only: this ends up in URLs that other clients read.
fn is_host(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    !host.is_empty() && host.len() <= 255 && host.bytes().all(plain)
}

/// Reads a body of at most `max` bytes, in time.
pub async fn read_body(
    app: &App,
    body: RequestBody,
    headers: &Headers,
    max: usize,
    caller: &Caller,
) -> Result<Bytes, Response> {
    expect_body(&body, headers, max)?;
    collect_body(app, body, max, caller).await
}

/// Refuses what the headers show to be no body for us, before any of it is read.
pub fn expect_body(body: &RequestBody, headers: &Headers, max: usize) -> Result<(), Response> {
    if let Some(coding) = headers.get(CONTENT_ENCODING).filter(|coding| coding.as_bytes() != b"identity") {
        let coding = String::from_utf8_lossy(coding.as_bytes());
        let detail = format!("the body has Content-Encoding {coding:?}; send it as it is, without one");
        return Err(closing(problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content-encoding", &detail)));
    }
    if body.size_hint().lower() > max as u64 {
        // With `Expect: 100-continue` the client has not started to send: nothing has to be thrown away.
        let response = too_large(max);
        return Err(if headers.contains_key(EXPECT) { response } else { closing(response) });
    }
    Ok(())
}

/// Reads a body that is expected, for as long as its caller's credentials are good.
pub async fn collect_body(
    app: &App,
    body: RequestBody,
    max: usize,
    caller: &Caller,
) -> Result<Bytes, Response> {
    match body {
        RequestBody::Whole(whole) if whole.len() <= max => Ok(whole),
        RequestBody::Whole(_) => Err(closing(too_large(max))),
        // Few bodies come in pieces: they alone pay for the room that it takes to wait for them.
        body => {
            Box::pin(async {
                tokio::select! {
                    biased;
                    _ = caller.ended() => Err(closing(caller.refuse_withdrawn())),
                    collected = collect_pieces(app, body, max) => collected,
                }
            })
            .await
        }
    }
}

async fn collect_pieces(app: &App, body: RequestBody, max: usize) -> Result<Bytes, Response> {
    let whole = Limited::new(body, max).collect();
    match crate::outside::timeout(app.config.body_timeout, whole).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(closing(too_large(max))),
        Ok(Err(error)) => {
            let detail = format!("the body could not be read: {error}");
            Err(closing(problem(StatusCode::BAD_REQUEST, "body-unreadable", &detail)))
        }
        Err(_) => {
            let detail = format!("the body did not arrive within {:?}", app.config.body_timeout);
            Err(closing(problem(StatusCode::REQUEST_TIMEOUT, "body-too-slow", &detail)))
        }
    }
}

/// Reads what is left of a small body, and forgets it: a client that is refused while it still sends may miss the
/// answer over HTTP/2, where the rest of its request is reset.
pub async fn drain(app: &App, body: RequestBody) {
    if !matches!(body, RequestBody::Whole(_)) {
        let rest = Limited::new(body, DRAIN_LEN_MAX).collect();
        crate::outside::timeout(app.config.body_timeout, rest).await.ok();
    }
}

fn too_large(max: usize) -> Response {
    let detail = format!("the body is larger than {max} bytes");
    problem(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", &detail)
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
}
