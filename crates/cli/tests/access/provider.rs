//! A small honest identity provider: real keys, discovery, a JWKS that rotates, over plain HTTP on loopback.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};

use crate::common::TempDir;
use crate::common::run;

/// A key pair and its name.
pub(crate) struct Key {
    pub(crate) id: String,
    pair: Pair,
}

enum Pair {
    Rsa(Box<RsaKeyPair>),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

pub(crate) fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Key {
    pub(crate) fn rsa(id: &str) -> Self {
        let dir = TempDir::new();
        let (pem, der) = (dir.path().join("key.pem"), dir.path().join("key.der"));
        let (pem, der) = (pem.to_str().unwrap(), der.to_str().unwrap());
        run("openssl", &["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", pem]);
        run("openssl", &["pkcs8", "-topk8", "-nocrypt", "-in", pem, "-outform", "DER", "-out", der]);
        let pair = RsaKeyPair::from_pkcs8(&std::fs::read(der).unwrap()).unwrap();
        Self { id: id.into(), pair: Pair::Rsa(Box::new(pair)) }
    }

    pub(crate) fn p256(id: &str) -> Self {
        let (random, curve) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(curve, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(curve, pkcs8.as_ref(), &random).unwrap();
        Self { id: id.into(), pair: Pair::P256(pair) }
    }

    pub(crate) fn ed25519(id: &str) -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self { id: id.into(), pair: Pair::Ed25519(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap()) }
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::P256(_) => "ES256",
            Pair::Ed25519(_) => "EdDSA",
        }
    }

    /// The public half, as a JWKS has it.
    pub(crate) fn jwk(&self) -> Value {
        let mut jwk = match &self.pair {
            Pair::Rsa(pair) => {
                let public = ring::signature::RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({"kty": "RSA", "n": b64(public.n), "e": b64(public.e)})
            }
            Pair::P256(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "x": b64(&point[1..33]), "y": b64(&point[33..])})
            }
            Pair::Ed25519(pair) => json!({"kty": "OKP", "crv": "Ed25519", "x": b64(pair.public_key())}),
        };
        jwk["kid"] = json!(self.id);
        jwk["use"] = json!("sig");
        jwk
    }

    pub(crate) fn sign(&self, message: &str) -> Vec<u8> {
        let (random, message) = (SystemRandom::new(), message.as_bytes());
        match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
            Pair::P256(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// A token with these claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm(), "kid": self.id, "typ": "JWT"}), claims)
    }

    /// The same under a header that need not be honest.
    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
        let signature = b64(self.sign(&signed));
        format!("{signed}.{signature}")
    }
}

/// The provider. It serves until the test ends.
pub(crate) struct Provider {
    pub(crate) addr: SocketAddr,
    keys: Arc<Mutex<Option<Vec<Value>>>>,
    fetches: Arc<AtomicUsize>,
}

impl Provider {
    pub(crate) fn start(keys: &[&Key]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let provider = Self { addr, keys: Arc::default(), fetches: Arc::default() };
        provider.publish(keys);
        let (keys, fetches) = (provider.keys.clone(), provider.fetches.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut lines = Vec::new();
                let mut line = String::new();
                while stream.read_line(&mut line).unwrap_or(0) > 2 {
                    lines.push(std::mem::take(&mut line));
                }
                let path = lines.first().and_then(|line| line.split(' ').nth(1)).unwrap_or("").to_string();
                let (status, body) = match (&*path, &*keys.lock().unwrap()) {
                    (_, None) => ("503 Out", String::new()),
                    ("/.well-known/openid-configuration", _) => {
                        let issuer = format!("http://{addr}");
                        (
                            "200 OK",
                            json!({"issuer": issuer, "jwks_uri": format!("{issuer}/jwks")}).to_string(),
                        )
                    }
                    ("/jwks", Some(keys)) => {
                        fetches.fetch_add(1, Ordering::SeqCst);
                        ("200 OK", json!({"keys": keys}).to_string())
                    }
                    _ => ("404 Not Found", String::new()),
                };
                let head = format!(
                    "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                stream.get_mut().write_all((head + &body).as_bytes()).ok();
            }
        });
        provider
    }

    /// From now on these are its keys.
    pub(crate) fn publish(&self, keys: &[&Key]) {
        *self.keys.lock().unwrap() = Some(keys.iter().map(|key| key.jwk()).collect());
    }

    /// From now on it answers nobody.
    pub(crate) fn fail(&self) {
        *self.keys.lock().unwrap() = None;
    }

    /// How often its keys were fetched.
    pub(crate) fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }

    pub(crate) fn issuer(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Claims of an ordinary token.
    pub(crate) fn claims(&self, user: &str) -> Value {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        json!({
            "iss": self.issuer(), "aud": "locks", "sub": "123", "preferred_username": user,
            "iat": now, "exp": now + 3600, "realm": {"roles": ["devs", "ops"]},
        })
    }
}
