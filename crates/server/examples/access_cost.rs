//! What access control costs a request: a key, and a bearer token that was seen before.
//!
//!     cargo run --release -p leasehold-server --example access_cost
//!
//! In:    a policy of a hundred rules, a thousand keys, an identity provider on loopback that signs one token.
//! Out:   nanoseconds a request, on one thread: recognise who asks, and require a right that the last rule gives.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints, and stops where it can't go on"
)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::header::AUTHORIZATION;
use leasehold_server::access::keys::KeyFile;
use leasehold_server::access::rules::Verb;
use leasehold_server::access::settings::AccessOptions;
use leasehold_server::access::{Access, Caller, ConnectionCache, Policy, Recognised};
use leasehold_server::message::connection::Connection;
use leasehold_server::message::headers::Headers;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;

const ROUNDS: u32 = 200_000;

fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A provider that answers discovery and keys for as long as the program runs.
fn provider(pair: &Ed25519KeyPair) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let issuer = format!("http://{}", listener.local_addr().unwrap());
    let discovery = json!({"issuer": issuer, "jwks_uri": format!("{issuer}/jwks")}).to_string();
    let key = json!({"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": b64(pair.public_key())});
    let keys = json!({ "keys": [key] }).to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut first = String::new();
            stream.read_line(&mut first).unwrap();
            let mut line = String::new();
            while stream.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            let body = if first.contains("/jwks") { &keys } else { &discovery };
            let head =
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.get_mut().write_all((head + body).as_bytes()).unwrap();
        }
    });
    issuer
}

/// A token of about a kilobyte, as real providers issue them.
fn token(pair: &Ed25519KeyPair, issuer: &str) -> String {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let groups: Vec<String> = (0..20).map(|i| format!("group-with-a-long-name-{i}")).collect();
    let claims = json!({"iss": issuer, "aud": "locks", "sub": "anna", "exp": now + 3600, "groups": groups});
    let header = json!({"alg": "EdDSA", "kid": "k"});
    let signed = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
    format!("{signed}.{}", b64(pair.sign(signed.as_bytes())))
}

fn options(issuer: &str, keys: &std::path::Path) -> AccessOptions {
    let mut text = format!("keys = {keys:?}\n[[oidc]]\nissuer = \"{issuer}\"\naudiences = [\"locks\"]\n");
    for i in 0..100 {
        text += &format!("[[rule]]\nusers = [\"user{i}\"]\nresources = [\"team{i}\"]\nverbs = [\"claim\"]\n");
    }
    text += "[[rule]]\nusers = [\"*\"]\nresources = [\"shared\"]\nverbs = [\"claim\"]\n";
    toml::from_str(&text).unwrap()
}

async fn recognise(
    access: &Access,
    connection: &Connection,
    connection_cache: &ConnectionCache,
    headers: &Headers,
) -> Caller {
    match access.recognise(connection, connection_cache, headers).unwrap() {
        Recognised::Known(caller) => caller,
        Recognised::Unknown(pending) => access.resolve(*pending).await,
    }
}

#[tokio::main]
async fn main() {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
    let issuer = provider(&pair);
    let path = std::env::temp_dir().join(format!("leasehold-access-cost-{}", std::process::id()));
    let mut file = KeyFile::default();
    let made: Vec<String> =
        (0..1000).map(|i| file.make(&format!("machine{i}"), &[], "", 0, None).unwrap().0).collect();
    file.write(&path).unwrap();
    let policy = Policy::new(&options(&issuer, &path), None).unwrap();
    let access: Arc<Access> = Access::new(Some(policy), None, None);
    let address = "127.0.0.1:9".parse().unwrap();
    let connection = Connection::new(address, address, &[]);
    let connection_cache = ConnectionCache::default();
    for (what, credentials) in [("access key", made[500].clone()), ("bearer token", token(&pair, &issuer))] {
        let headers = Headers::from_iter([(AUTHORIZATION, format!("Bearer {credentials}"))]);
        let first = Instant::now();
        recognise(&access, &connection, &connection_cache, &headers)
            .await
            .require(Verb::Claim, "shared/x")
            .unwrap();
        let first = first.elapsed();
        println!("{what} of {} bytes: first {first:?}", credentials.len());
        // A proxy's connection has the requests of many, each of whom is looked up.
        let other = Headers::from_iter([(AUTHORIZATION, format!("Bearer {}", made[501]))]);
        for (who, others) in [("the same client each time", &headers), ("in turn with a key", &other)] {
            let start = Instant::now();
            for _ in 0..ROUNDS / 2 {
                for headers in [&headers, others] {
                    let caller = recognise(&access, &connection, &connection_cache, headers).await;
                    caller.require(Verb::Claim, "shared/x").unwrap();
                }
            }
            println!("  then, {who}: {:?} a request", start.elapsed() / ROUNDS);
        }
    }
    std::fs::remove_file(&path).ok();
}
