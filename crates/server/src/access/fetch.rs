//! Small documents from identity providers and to collectors of traces, over HTTPS.
//!
//! In:    a URL that the operator configured, or that the provider's own discovery document names.
//! Out:   the body of a 200, within a size and a time.
//! Never: follows redirects, or speaks plain HTTP with anyone but this machine itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::pem;

/// Largest document.
const DOCUMENT_LEN_MAX: usize = 1 << 20;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Fetches documents, trusting the system's certificate authorities or one of the operator's.
#[derive(Clone)]
pub struct Fetcher {
    tls: Arc<ClientConfig>,
}

impl Fetcher {
    /// Trusts the authorities in this PEM file; the system's, if there is none.
    pub fn new(ca_file: Option<&std::path::Path>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        match ca_file {
            Some(path) => {
                for certificate in pem::read_certificates(path)? {
                    roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
            }
        }
        let config = ClientConfig::builder_with_provider(pem::provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { tls: Arc::new(config) })
    }

    /// The body of a document.
    pub async fn get(&self, url: &str) -> Result<Bytes, String> {
        self.within_patience(url, None).await
    }

    /// Sends a document of this type, and returns what is answered to it.
    pub async fn post(&self, url: &str, kind: &'static str, body: Bytes) -> Result<Bytes, String> {
        self.within_patience(url, Some((kind, body))).await
    }

    async fn within_patience(&self, url: &str, sent: Sent) -> Result<Bytes, String> {
        let fetched = tokio::time::timeout(PATIENCE, self.fetch(url, sent)).await;
        let fetched = fetched.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")));
        fetched.map_err(|why| format!("{url}: {why}"))
    }

    async fn fetch(&self, url: &str, sent: Sent) -> Result<Bytes, String> {
        let uri: Uri = url.parse().map_err(|_| "it is no URL".to_string())?;
        check_url(url)?;
        let host = uri.host().ok_or("it has no host")?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let secure = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let stream = TcpStream::connect((bare, port)).await.map_err(|error| error.to_string())?;
        if !secure {
            return exchange(stream, &uri, sent).await;
        }
        let name = ServerName::try_from(bare.to_string()).map_err(|error| error.to_string())?;
        let stream = TlsConnector::from(self.tls.clone()).connect(name, stream).await;
        exchange(stream.map_err(|error| error.to_string())?, &uri, sent).await
    }
}

/// A document to send, and its type.
type Sent = Option<(&'static str, Bytes)>;

/// HTTPS, or this machine.
pub fn check_url(url: &str) -> Result<(), String> {
    let uri: Uri = url.parse().map_err(|_| format!("'{url}' is no URL"))?;
    let host = uri.host().unwrap_or("");
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    let local = host == "localhost" || address.is_ok_and(|ip| ip.is_loopback());
    match uri.scheme_str() {
        Some("https") if !host.is_empty() => Ok(()),
        Some("http") if local => Ok(()),
        _ => Err(format!("'{url}' must start with https:// (http:// only on this machine itself)")),
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    uri: &Uri,
    sent: Sent,
) -> Result<Bytes, String> {
    let text = |error: hyper::Error| error.to_string();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(text)?;
    let connection = tokio::spawn(connection);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let request = match &sent {
        None => Request::get(path).header(ACCEPT, "application/json"),
        Some((kind, _)) => Request::post(path).header(CONTENT_TYPE, *kind),
    };
    let body = Full::new(sent.map(|(_, body)| body).unwrap_or_default());
    let request = request.header(HOST, authority).body(body).map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(text)?;
    if response.status() != StatusCode::OK {
        return Err(format!("the answer is {}", response.status()));
    }
    let body = Limited::new(response.into_body(), DOCUMENT_LEN_MAX).collect().await;
    connection.abort();
    Ok(body.map_err(|error| error.to_string())?.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_stays_on_this_machine() {
        for good in
            ["https://id.example.org/realm", "http://127.0.0.1:9/x", "http://[::1]/", "http://localhost:1"]
        {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for bad in
            ["http://id.example.org", "http://127.0.0.1.example.org/", "ftp://x", "/path", "https://", ""]
        {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }
}
