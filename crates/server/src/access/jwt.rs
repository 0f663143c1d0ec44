//! Tokens: JSON Web Tokens of an identity provider, verified by `jsonwebtoken`.
//!
//! In:    a token and the provider's keys. Out: its claims and when they end, or why the token is not believed.
//! Never: lets the token choose how it is checked: each key is good for the one algorithm of its kind (`signatures.rs`).

use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::Value;

use super::signatures::{self, ACCEPTED};

/// Largest token that is looked at.
pub const TOKEN_LEN_MAX: usize = 16 << 10;

/// A public key of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    jwk: Jwk,
    /// The one algorithm that it is good for.
    algorithm: Algorithm,
}

/// Why a token is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It can't be read as a token.
    #[error("the token is not a signed JSON Web Token")]
    Malformed,
    /// It is signed in a way that is not accepted.
    #[error("the token's algorithm is {0:?}; RS256, ES256 and EdDSA are accepted")]
    Algorithm(String),
    /// No key of the provider has its `kid`.
    #[error("the token is signed with a key that its issuer does not have")]
    UnknownKey,
    /// The signature is wrong.
    #[error("the token's signature is wrong")]
    Signature,
    /// It is from another issuer.
    #[error("the token's issuer is not one that is configured")]
    Issuer,
    /// It is for another service.
    #[error("the token's audience is another service")]
    Audience,
    /// It has expired, or never does.
    #[error("the token has expired, or has no `exp` claim")]
    Expired,
    /// It is not valid yet.
    #[error("the token is not valid yet")]
    NotYet,
    /// It does not name its user.
    #[error("the token's claim {0:?} names no user that can be used")]
    User(String),
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

/// The issuer that a token names, before anything is believed: only good for choosing the keys.
pub fn issuer(token: &str) -> Result<Option<String>, TokenError> {
    #[derive(Deserialize)]
    struct Issued {
        iss: Option<Value>,
    }
    readable(token)?;
    let issued: Issued = insecure_decode_claims(token).map_err(|_| TokenError::Malformed)?;
    Ok(issued.iss.and_then(|issuer| issuer.as_str().map(ToString::to_string)))
}

/// The token's claims, and when it stops being valid, in unix seconds.
pub fn verify(
    token: &str,
    keys: &[PublicKey],
    expected: &Expected<'_>,
    now: u64,
) -> Result<(Value, u64), TokenError> {
    let (algorithm, key_id) = readable(token)?;
    let fits = |key: &&PublicKey| {
        key.algorithm == algorithm && (key_id.is_none() || key.jwk.common.key_id == key_id)
    };
    let mut result = Err(TokenError::UnknownKey);
    for key in keys.iter().filter(fits) {
        result = verify_with(token, key, expected);
        if result != Err(TokenError::Signature) {
            break;
        }
    }
    let claims = result?;
    let until = expected.until(&claims, now)?;
    Ok((claims, until))
}

fn verify_with(token: &str, key: &PublicKey, expected: &Expected<'_>) -> Result<Value, TokenError> {
    signatures::install();
    let mut validation = Validation::new(key.algorithm);
    validation.leeway = expected.leeway;
    validation.validate_nbf = true;
    validation.set_issuer(&[expected.issuer]);
    validation.set_audience(expected.audiences);
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    let key = DecodingKey::from_jwk(&key.jwk).map_err(|_| TokenError::UnknownKey)?;
    let claims: Value = decode(token, &key, &validation).map_err(|error| reason(&error))?.claims;
    if claims.is_object() { Ok(claims) } else { Err(TokenError::Malformed) }
}

/// The algorithm and the key's name in a token's header, if the token can be checked at all.
fn readable(token: &str) -> Result<(Algorithm, Option<String>), TokenError> {
    if token.len() > TOKEN_LEN_MAX {
        return Err(TokenError::Malformed);
    }
    let header = decode_header(token).map_err(|_| unknown_algorithm(token))?;
    // A critical extension has to be understood, and none is here (RFC 7515, 4.1.11).
    if header.crit.is_some() {
        return Err(TokenError::Malformed);
    }
    match ACCEPTED.contains(&header.alg) {
        true => Ok((header.alg, header.kid)),
        false => Err(TokenError::Algorithm(format!("{:?}", header.alg))),
    }
}

/// The library reads no header with an algorithm that it does not know, such as `none`. Its name helps whoever reads the log.
fn unknown_algorithm(token: &str) -> TokenError {
    use base64::Engine as _;
    #[derive(Deserialize)]
    struct Header {
        alg: String,
    }
    let encoded = token.split('.').next().filter(|_| token.split('.').count() == 3).unwrap_or_default();
    let decoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(encoded).unwrap_or_default();
    match serde_json::from_slice::<Header>(&decoded) {
        Ok(header) if header.alg.parse::<Algorithm>().is_err() => TokenError::Algorithm(header.alg),
        _ => TokenError::Malformed,
    }
}

fn reason(error: &Error) -> TokenError {
    match error.kind() {
        ErrorKind::InvalidSignature => TokenError::Signature,
        ErrorKind::ExpiredSignature => TokenError::Expired,
        ErrorKind::ImmatureSignature => TokenError::NotYet,
        ErrorKind::InvalidIssuer => TokenError::Issuer,
        ErrorKind::InvalidAudience => TokenError::Audience,
        ErrorKind::MissingRequiredClaim(name) | ErrorKind::InvalidClaimFormat(name) => match name.as_str() {
            "exp" => TokenError::Expired,
            "nbf" => TokenError::NotYet,
            "iss" => TokenError::Issuer,
            "aud" => TokenError::Audience,
            _ => TokenError::Malformed,
        },
        _ => TokenError::Malformed,
    }
}

impl Expected<'_> {
    /// What the library leaves open: the issuer is one text, `iat` is not ahead, and when the token ends to the second.
    fn until(&self, claims: &Value, now: u64) -> Result<u64, TokenError> {
        if claims.get("iss").and_then(Value::as_str) != Some(self.issuer) {
            return Err(TokenError::Issuer);
        }
        let (now, leeway) = (now as f64, self.leeway as f64);
        let issued = claims.get("iat").map_or(Some(0.0), Value::as_f64);
        if issued.is_none_or(|issued| issued > now + leeway) {
            return Err(TokenError::NotYet);
        }
        match claims.get("exp").and_then(Value::as_f64).map(|expires| expires + leeway) {
            Some(until) if now < until => Ok(until as u64),
            _ => Err(TokenError::Expired),
        }
    }
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// The keys of a JWKS document that can be used here. Others are passed over: providers publish many kinds.
pub fn parse_keys(text: &[u8]) -> Result<Vec<PublicKey>, String> {
    let set: KeySet = serde_json::from_slice(text).map_err(|error| format!("it is no JWKS: {error}"))?;
    Ok(set.keys.into_iter().filter_map(|key| public_key(serde_json::from_value(key).ok()?)).collect())
}

fn public_key(jwk: Jwk) -> Option<PublicKey> {
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => Algorithm::ES256,
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => Algorithm::EdDSA,
        _ => return None,
    };
    DecodingKey::from_jwk(&jwk).ok()?;
    let for_signatures =
        jwk.common.public_key_use.as_ref().is_none_or(|usage| *usage == PublicKeyUse::Signature);
    let named = jwk.common.key_algorithm.is_none_or(|named| named == KeyAlgorithm::from(algorithm));
    (for_signatures && named).then_some(PublicKey { jwk, algorithm })
}

/// A claim by its path: `groups`, or `realm_access.roles`. A name with dots in it is found as it is, too.
pub fn claim<'a>(claims: &'a Value, path: &str) -> Option<&'a Value> {
    claims.get(path).or_else(|| path.split('.').try_fold(claims, |value, part| value.get(part)))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use ring::signature::{Ed25519KeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    fn part(value: &Value) -> String {
        URL_SAFE_NO_PAD.encode(value.to_string())
    }

    /// A key of a provider, and a function that signs claims with it.
    fn provider() -> (Vec<PublicKey>, impl Fn(&Value) -> String) {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let x = URL_SAFE_NO_PAD.encode(pair.public_key());
        let set = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "use": "sig", "x": x}]});
        let keys = parse_keys(set.to_string().as_bytes()).unwrap();
        let sign = move |claims: &Value| {
            let signed = format!("{}.{}", part(&json!({"alg": "EdDSA", "kid": "k"})), part(claims));
            let signature = URL_SAFE_NO_PAD.encode(pair.sign(signed.as_bytes()));
            format!("{signed}.{signature}")
        };
        (keys, sign)
    }

    #[test]
    fn claims_are_checked_one_by_one() {
        let (keys, sign) = provider();
        let now = super::super::unix_now();
        let audiences = ["locks".to_string()];
        let expected = Expected { issuer: "https://id", audiences: &audiences, leeway: 30 };
        let good =
            json!({"iss": "https://id", "aud": ["x", "locks"], "exp": now + 600, "nbf": now, "iat": now});
        let with = |name: &str, value: Value| {
            let mut claims = good.clone();
            claims[name] = value;
            verify(&sign(&claims), &keys, &expected, now).map(|(_, until)| until)
        };
        assert_eq!(with("sub", json!("anna")), Ok(now + 630));
        assert_eq!(with("exp", json!(now - 20)), Ok(now + 10), "within the leeway");
        assert_eq!(with("exp", json!(now as f64 + 0.5)), Ok(now + 30));
        assert_eq!(with("nbf", json!(now + 20)), Ok(now + 630), "within the leeway");
        for (name, value, why) in [
            ("iss", json!("https://id/"), TokenError::Issuer),
            ("iss", json!(["https://id"]), TokenError::Issuer),
            ("iss", Value::Null, TokenError::Issuer),
            ("aud", json!("Locks"), TokenError::Audience),
            ("aud", json!([["locks"]]), TokenError::Audience),
            ("aud", Value::Null, TokenError::Audience),
            ("exp", json!((now + 600).to_string()), TokenError::Expired),
            ("exp", Value::Null, TokenError::Expired),
            ("exp", json!(now - 30), TokenError::Expired),
            ("exp", json!(-1), TokenError::Expired),
            ("nbf", json!("soon"), TokenError::NotYet),
            ("nbf", json!(now + 600), TokenError::NotYet),
            ("iat", json!(now + 600), TokenError::NotYet),
            ("iat", json!("soon"), TokenError::NotYet),
        ] {
            assert_eq!(with(name, value.clone()), Err(why), "{name}: {value}");
        }
    }

    #[test]
    fn only_the_key_of_that_name_and_kind_is_believed() {
        let (keys, sign) = provider();
        let expected = Expected { issuer: "https://id", audiences: &[], leeway: 30 };
        let token = sign(&json!({}));
        let verified = |token: &str, keys: &[PublicKey]| verify(token, keys, &expected, 0).err();
        assert_eq!(verified(&token, &[]), Some(TokenError::UnknownKey));
        let (signed, _) = token.rsplit_once('.').unwrap();
        let forged = format!("{signed}.{}", URL_SAFE_NO_PAD.encode([1; 64]));
        assert_eq!(verified(&forged, &keys), Some(TokenError::Signature));
        let other = token.replace(
            &part(&json!({"alg": "EdDSA", "kid": "k"})),
            &part(&json!({"alg": "EdDSA", "kid": "x"})),
        );
        assert_eq!(verified(&other, &keys), Some(TokenError::UnknownKey));
        let other = token.replace(
            &part(&json!({"alg": "EdDSA", "kid": "k"})),
            &part(&json!({"alg": "RS256", "kid": "k"})),
        );
        assert_eq!(verified(&other, &keys), Some(TokenError::UnknownKey));
    }

    #[test]
    fn keys_for_other_purposes_are_passed_over() {
        let (keys, _) = provider();
        let mut jwk = serde_json::to_value(&keys[0].jwk).unwrap();
        let usable =
            |jwk: &Value| parse_keys(json!({"keys": [jwk, 7]}).to_string().as_bytes()).unwrap().len();
        assert_eq!(usable(&jwk), 1);
        for (name, value) in [("use", "enc"), ("alg", "RS256"), ("crv", "P-256"), ("kty", "oct"), ("x", "?")]
        {
            let before = std::mem::replace(&mut jwk[name], json!(value));
            assert_eq!(usable(&jwk), 0, "{name}: {value}");
            jwk[name] = before;
        }
        assert!(parse_keys(b"{}").is_err());
    }

    #[test]
    fn what_is_not_signed_is_no_token() {
        let token = |header: Value| format!("{}.{}.", part(&header), part(&json!({})));
        for algorithm in ["none", "None", "HS256", "HS512", "RS512", "RS1", ""] {
            let refused = issuer(&token(json!({"alg": algorithm}))).err();
            assert_eq!(refused, Some(TokenError::Algorithm(algorithm.into())));
        }
        for text in ["", ".", "..", "a.b.c", "e30.e30.", &token(json!({"alg": "RS256", "crit": ["x"]}))] {
            assert_eq!(issuer(text).err(), Some(TokenError::Malformed), "{text}");
        }
    }

    #[test]
    fn claims_are_found_by_path() {
        let claims = json!({"a.b": 1, "c": {"d": 2}});
        assert_eq!((claim(&claims, "a.b"), claim(&claims, "c.d")), (Some(&json!(1)), Some(&json!(2))));
        assert_eq!(claim(&claims, "c.x"), None);
    }
}
