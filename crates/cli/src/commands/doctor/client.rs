//! A client: its addresses, names, TLS, its key and what it may do.
//!
//! In:    the flags that every command of a client has. Out: findings, address by address.
//! Never: claims anything, and never shows a key.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use hyper::Method;
use leasehold_client::internals::address::Address;
use leasehold_client::internals::http::Call;
use leasehold_client::{Api, Error, Options};
use serde_json::Value;

use super::super::connect::block_on;
use super::{ClientArgs, Findings, Level, files};

/// How long a connection or an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is read of an answer.
const ANSWER_LEN_MAX: usize = 64 << 10;
const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) fn examine(args: &ClientArgs) -> anyhow::Result<Findings> {
    let mut findings = Findings::default();
    let options = match args.connect.options() {
        Ok(options) => options,
        Err(error) => {
            let advice = "correct the flag or the variable (LEASEHOLD_KEY_FILE, ...) and ask again";
            findings.bad(Level::Error, "configuration", format!("{error:#}"), advice);
            return Ok(findings);
        }
    };
    if let Some(url) = options.readable_on_the_way().filter(|_| options.key.is_some()) {
        let found = format!("the access key goes to {url} without encryption");
        findings.bad(Level::Warning, "tls", found, "use https://");
    }
    if let Some(path) = &options.tls.client_certificate {
        files::own_certificate(path, files::RENEW_CLIENT, &mut findings);
    }
    for url in options.urls.clone() {
        let mut one = options.clone();
        one.urls = vec![url.clone()];
        if reach(&url, &mut findings) {
            ask(&url, &one, args.resource.as_deref(), &mut findings)?;
        }
    }
    Ok(findings)
}

/// Address, name, TCP. Says whether there is somebody to ask.
fn reach(url: &str, findings: &mut Findings) -> bool {
    let address = match Address::parse(url) {
        Ok(address) => address,
        Err(error) => {
            findings.bad(Level::Error, "address", error.to_string(), "correct --addr or LEASEHOLD_ADDR");
            return false;
        }
    };
    let Address { host, port, .. } = &address;
    let found: Vec<SocketAddr> = match (host.as_str(), *port).to_socket_addrs() {
        Ok(found) => found.collect(),
        Err(error) => {
            let found = format!("the name {host} has no address: {error}");
            findings.bad(Level::Error, "dns", found, "correct the name, or ask the operator of your DNS");
            return false;
        }
    };
    let ips: Vec<String> = found.iter().map(|address| address.ip().to_string()).collect();
    findings.ok("dns", format!("{host} is {}", ips.join(", ")));
    let mut reached = false;
    for address in found {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(_) => {
                reached = true;
                findings.ok("address", format!("{address} accepts connections"));
            }
            Err(error) => {
                let advice = "is the service up, and does a firewall let this machine through?";
                findings.bad(Level::Error, "address", format!("{address}: {error}"), advice);
            }
        }
    }
    reached
}

/// TLS, the service's state, and the key.
fn ask(url: &str, options: &Options, resource: Option<&str>, findings: &mut Findings) -> anyhow::Result<()> {
    let check = if url.starts_with("https") { "tls" } else { "service" };
    let api = match Api::new(options) {
        Ok(api) => api,
        Err(error) => {
            findings.bad(
                Level::Error,
                check,
                error.to_string(),
                "correct --cacert, --client-cert or --client-key",
            );
            return Ok(());
        }
    };
    block_on(async {
        // Probes answer in plain text.
        let get = async |path: &str| -> Result<_, Error> {
            let answer = api.open(&Call::new(Method::GET, path, ""), PATIENCE).await?;
            let status = answer.status;
            Ok((status, answer.rest(ANSWER_LEN_MAX, PATIENCE).await))
        };
        let version = match get("/version").await {
            Ok((200, body)) => serde_json::from_slice::<Value>(&body).unwrap_or_default(),
            Ok((status, _)) => {
                let found = format!("{url} answers {status} to /version");
                let advice = "is that a Leasehold service, or a proxy without one?";
                findings.bad(Level::Error, check, found, advice);
                return Ok(());
            }
            Err(error) => {
                let advice = "see docs/client.md for addresses, and docs/security.md for certificates";
                findings.bad(Level::Error, check, error.to_string(), advice);
                return Ok(());
            }
        };
        if check == "tls" {
            findings.ok("tls", format!("{url} has a certificate that this client trusts"));
        }
        let version = version["version"].as_str().unwrap_or("unknown").to_string();
        findings.ok("service", format!("{url} runs version {version}, this client is {OWN_VERSION}"));
        match get("/readyz").await {
            Ok((200, _)) => findings.ok("service", format!("{url} is ready")),
            Ok((_, body)) => {
                let found =
                    format!("{url} is not ready: {}", leasehold_client::internals::wire::detail(&body));
                findings.bad(
                    Level::Error,
                    "service",
                    found,
                    "ask its operator; `leasehold doctor server` there says more",
                );
            }
            Err(error) => {
                findings.bad(Level::Error, "service", error.to_string(), "ask its operator");
            }
        }
        let query = resource.map(|name| {
            let name: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
            format!("?resource={name}")
        });
        match get(&format!("/v1/whoami{}", query.unwrap_or_default())).await {
            Ok((status, body)) => rights(url, options, resource, status, &body, findings),
            Err(error) => findings.bad(Level::Unknown, "key", error.to_string(), "ask again"),
        }
        Ok(())
    })
}

/// What the service says about the key.
fn rights(
    url: &str,
    options: &Options,
    resource: Option<&str>,
    status: u16,
    body: &[u8],
    findings: &mut Findings,
) {
    let place =
        resource.map_or("somewhere (--resource NAME says where)".into(), |name| format!("on '{name}'"));
    match status {
        200 => {}
        401 if options.key.is_some() => {
            let found = format!(
                "{url} does not know this key: it was withdrawn, has expired, or is of another service"
            );
            return findings.bad(
                Level::Error,
                "key",
                found,
                "ask an administrator for a new key (`leasehold access key make`)",
            );
        }
        401 => {
            let found = format!("{url} asks for credentials");
            return findings.bad(
                Level::Error,
                "key",
                found,
                "set LEASEHOLD_KEY_FILE, or use a client certificate",
            );
        }
        404 => {
            let found = format!("{url} is too old to say what the key may do");
            return findings.bad(Level::Unknown, "key", found, "upgrade the service");
        }
        other => {
            let found = format!("{url} answers {other}: {}", leasehold_client::internals::wire::detail(body));
            return findings.bad(Level::Unknown, "key", found, "ask again");
        }
    }
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    if answer["checked"] == false {
        return findings.ok("key", "the service has no access control: everybody may do everything");
    }
    let user = answer["user"].as_str().unwrap_or("unknown");
    let verbs: Vec<&str> = answer["may"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    match verbs.is_empty() {
        true => {
            let found = format!("this is user '{user}', who may do nothing {place}");
            findings.bad(
                Level::Error,
                "key",
                found,
                "ask an administrator for a rule for that user (docs/security.md)",
            );
        }
        false => findings.ok("key", format!("this is user '{user}', who may {} {place}", verbs.join(", "))),
    }
}
