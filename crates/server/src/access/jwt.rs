//! Tokens: JSON Web Tokens of an identity provider, verified.
//!
//! In:    a token and the provider's keys. Out: its claims, or why it is not believed.
//! Never: lets the token choose how it is checked. Three algorithms exist here (RS256, ES256, EdDSA), each with its own
//!        kind of key; `none` and everything with a shared secret do not exist at all.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::Value;

/// Largest token that is looked at.
pub const TOKEN_LEN_MAX: usize = 16 << 10;

/// How a token is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// RSA, PKCS #1 v1.5, SHA-256.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    fn of(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            "EdDSA" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

/// A public key of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    /// Its name, if it has one.
    pub id: Option<String>,
    material: Material,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// Why a token is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is no token at all.
    #[error("it is not a signed JSON Web Token")]
    Malformed,
    /// It is signed in a way that is not accepted.
    #[error("its algorithm is {0:?}; RS256, ES256 and EdDSA are accepted")]
    Algorithm(String),
    /// No key of the provider has its `kid`.
    #[error("it is signed with a key that its issuer does not have")]
    UnknownKey,
    /// The signature is wrong.
    #[error("its signature is wrong")]
    Signature,
    /// It is from somebody else.
    #[error("its issuer is not one that is configured")]
    Issuer,
    /// It is for somebody else.
    #[error("its audience is another service")]
    Audience,
    /// It is over.
    #[error("it has expired, or says not when it does")]
    Expired,
    /// It is not valid yet.
    #[error("it is not valid yet")]
    NotYet,
    /// It does not say who it is about.
    #[error("its claim {0:?} names no user that can be used")]
    User(String),
}

/// A token, taken apart but not yet believed.
pub struct Unverified<'a> {
    signed: &'a str,
    signature: Vec<u8>,
    algorithm: Algorithm,
    key_id: Option<String>,
    claims: Value,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

impl<'a> Unverified<'a> {
    /// Takes a token apart.
    pub fn parse(token: &'a str) -> Result<Self, TokenError> {
        let parts = || {
            let (signed, signature) = token.rsplit_once('.')?;
            let (header, claims) = signed.split_once('.')?;
            let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
            Some((signed, decode(header)?, decode(claims)?, decode(signature)?))
        };
        if token.len() > TOKEN_LEN_MAX {
            return Err(TokenError::Malformed);
        }
        let (signed, header, claims, signature) = parts().ok_or(TokenError::Malformed)?;
        let header: Header = serde_json::from_slice(&header).map_err(|_| TokenError::Malformed)?;
        let claims: Value = serde_json::from_slice(&claims).map_err(|_| TokenError::Malformed)?;
        // What it wants understood is not understood here (RFC 7515, 4.1.11).
        if header.crit.is_some() || !claims.is_object() {
            return Err(TokenError::Malformed);
        }
        let algorithm = Algorithm::of(&header.alg).ok_or(TokenError::Algorithm(header.alg))?;
        Ok(Self { signed, signature, algorithm, key_id: header.kid, claims })
    }

    /// Who it says it is from: only good for choosing the keys.
    pub fn issuer(&self) -> Option<&str> {
        self.claims.get("iss")?.as_str()
    }

    /// Its claims, if one of these keys signed it.
    pub fn verify(self, keys: &[PublicKey]) -> Result<Value, TokenError> {
        let named = |key: &&PublicKey| match (&self.key_id, &key.id) {
            (Some(wanted), Some(id)) => wanted == id,
            (Some(_), None) => false,
            (None, _) => true,
        };
        let mut fitting =
            keys.iter().filter(named).filter(|key| key.material.fits(self.algorithm)).peekable();
        if fitting.peek().is_none() {
            return Err(TokenError::UnknownKey);
        }
        let signed = self.signed.as_bytes();
        match fitting.any(|key| key.material.verify(signed, &self.signature)) {
            true => Ok(self.claims),
            false => Err(TokenError::Signature),
        }
    }
}

impl Material {
    fn fits(&self, algorithm: Algorithm) -> bool {
        let own = match self {
            Self::Rsa { .. } => Algorithm::Rs256,
            Self::P256(_) => Algorithm::Es256,
            Self::Ed25519(_) => Algorithm::EdDsa,
        };
        own == algorithm
    }

    fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Rsa { n, e } => RsaPublicKeyComponents { n, e }
                .verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
                .is_ok(),
            Self::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature).is_ok()
            }
            Self::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok(),
        }
    }
}

#[derive(Deserialize)]
struct JwkSet {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// The keys of a JWKS document that can be used here. Others are passed over: providers publish many kinds.
pub fn parse_keys(text: &[u8]) -> Result<Vec<PublicKey>, String> {
    let set: JwkSet = serde_json::from_slice(text).map_err(|error| format!("it is no JWKS: {error}"))?;
    Ok(set.keys.into_iter().filter_map(|key| public_key(serde_json::from_value(key).ok()?)).collect())
}

fn public_key(jwk: Jwk) -> Option<PublicKey> {
    if jwk.purpose.is_some_and(|purpose| purpose != "sig") {
        return None;
    }
    let decode = |text: Option<String>| text.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
    let material = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
        ("RSA", _) => Material::Rsa { n: strip_zeros(&decode(jwk.n)?), e: strip_zeros(&decode(jwk.e)?) },
        ("EC", Some("P-256")) => {
            let (x, y) = (decode(jwk.x)?, decode(jwk.y)?);
            (x.len() == 32 && y.len() == 32).then_some(())?;
            Material::P256([&[4][..], &x, &y].concat())
        }
        ("OKP", Some("Ed25519")) => Material::Ed25519(decode(jwk.x)?),
        _ => return None,
    };
    let fits = |name: String| Algorithm::of(&name).is_some_and(|algorithm| material.fits(algorithm));
    jwk.alg.is_none_or(fits).then_some(PublicKey { id: jwk.kid, material })
}

fn strip_zeros(bytes: &[u8]) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes[zeros..].to_vec()
}

/// What a token must say.
pub struct Expected<'a> {
    /// Exactly this issuer.
    pub issuer: &'a str,
    /// One of these audiences.
    pub audiences: &'a [String],
    /// How far clocks may differ, in seconds.
    pub leeway: u64,
}

impl Expected<'_> {
    /// Checks the claims of a verified token; gives back when it stops being valid.
    pub fn check(&self, claims: &Value, now: u64) -> Result<u64, TokenError> {
        if claims.get("iss").and_then(Value::as_str) != Some(self.issuer) {
            return Err(TokenError::Issuer);
        }
        let is_ours =
            |audience: &Value| audience.as_str().is_some_and(|text| self.audiences.iter().any(|a| a == text));
        let for_us = match claims.get("aud") {
            Some(Value::Array(audiences)) => audiences.iter().any(is_ours),
            Some(audience) => is_ours(audience),
            None => false,
        };
        if !for_us {
            return Err(TokenError::Audience);
        }
        let instant = |name: &str| claims.get(name).map(|value| value.as_f64().filter(|at| at.is_finite()));
        let (now, leeway) = (now as f64, self.leeway as f64);
        let Some(Some(expires)) = instant("exp") else { return Err(TokenError::Expired) };
        if now >= expires + leeway {
            return Err(TokenError::Expired);
        }
        for name in ["nbf", "iat"] {
            match instant(name) {
                None => {}
                Some(Some(at)) if at <= now + leeway => {}
                Some(_) => return Err(TokenError::NotYet),
            }
        }
        Ok((expires + leeway) as u64)
    }
}

/// A claim by its path: `groups`, or `realm_access.roles`. A name with dots in it is found as it is, too.
pub fn claim<'a>(claims: &'a Value, path: &str) -> Option<&'a Value> {
    claims.get(path).or_else(|| path.split('.').try_fold(claims, |value, part| value.get(part)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const EXPECTED: Expected<'static> = Expected { issuer: "https://id", audiences: &[], leeway: 30 };

    fn check(claims: &Value, now: u64) -> Result<u64, TokenError> {
        let audiences = ["locks".to_string()];
        Expected { audiences: &audiences, ..EXPECTED }.check(claims, now)
    }

    #[test]
    fn claims_are_checked_one_by_one() {
        let good = json!({"iss": "https://id", "aud": ["x", "locks"], "exp": 1000, "nbf": 900, "iat": 900});
        assert_eq!(check(&good, 950), Ok(1030));
        assert_eq!(check(&good, 1029), Ok(1030));
        assert_eq!(check(&good, 1030), Err(TokenError::Expired));
        assert_eq!(check(&good, 869), Err(TokenError::NotYet));
        let with = |name: &str, value: Value| {
            let mut claims = good.clone();
            claims[name] = value;
            check(&claims, 950)
        };
        assert_eq!(with("iss", json!("https://id/")), Err(TokenError::Issuer));
        assert_eq!(with("aud", json!("Locks")), Err(TokenError::Audience));
        assert_eq!(with("aud", json!([["locks"]])), Err(TokenError::Audience));
        assert_eq!(with("exp", json!("1000")), Err(TokenError::Expired));
        assert_eq!(with("exp", Value::Null), Err(TokenError::Expired));
        assert_eq!(with("nbf", json!("soon")), Err(TokenError::NotYet));
    }

    #[test]
    fn what_is_not_signed_is_no_token() {
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let token = |header: Value| format!("{}.{}.", part(header), part(json!({})));
        for algorithm in ["none", "None", "HS256", "HS512", "RS1", ""] {
            let parsed = Unverified::parse(&token(json!({"alg": algorithm}))).err();
            assert_eq!(parsed, Some(TokenError::Algorithm(algorithm.into())));
        }
        for text in ["", ".", "..", "a.b.c", "e30.e30.", &token(json!({"alg": "RS256", "crit": ["x"]}))] {
            assert_eq!(Unverified::parse(text).err(), Some(TokenError::Malformed), "{text}");
        }
    }

    #[test]
    fn claims_are_found_by_path() {
        let claims = json!({"a.b": 1, "c": {"d": 2}});
        assert_eq!((claim(&claims, "a.b"), claim(&claims, "c.d")), (Some(&json!(1)), Some(&json!(2))));
        assert_eq!(claim(&claims, "c.x"), None);
    }
}
