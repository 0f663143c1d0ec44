//! Bearer tokens: three algorithms, rotation, and every forgery that has a name.

use ring::hmac;
use serde_json::{Value, json};

use crate::common::{Reply, claim_body, eventually};
use crate::provider::{Key, Provider, b64};
use crate::support::{Guarded, refused};

fn start(provider: &Provider, refresh: f64) -> Guarded {
    let oidc = format!(
        r#"
[[access.oidc]]
issuer = "{}"
audiences = ["locks", "https://locks.example.org"]
user-claim = "preferred_username"
groups-claim = "realm.roles"
leeway = 5
refresh = {refresh}

[[access.rule]]
groups = ["ops"]
resources = ["ops"]
verbs = ["read", "claim"]

[[access.rule]]
users = ["anna"]
resources = ["anna"]
verbs = ["*"]
"#,
        provider.issuer()
    );
    Guarded::start(&[], &oidc)
}

fn claim(guarded: &Guarded, token: &str, resource: &str) -> Reply {
    let headers = [("Authorization", format!("Bearer {token}"))];
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    guarded.server.client().request("POST", "/v1/claims/", &headers, claim_body(resource, 60.0).as_bytes())
}

#[test]
fn tokens_of_each_algorithm_name_a_user_and_groups() {
    let keys = [Key::rsa("r"), Key::p256("e"), Key::ed25519("d")];
    let provider = Provider::start(&keys.each_ref());
    let guarded = start(&provider, 300.0);
    for key in &keys {
        let token = key.token(&provider.claims("anna"));
        let reply = claim(&guarded, &token, &format!("anna/{}", key.algorithm()));
        assert_eq!((reply.status, reply.json()["owner"].as_str()), (201, Some("anna")), "{reply:?}");
        // Seen before: the same answer, and the provider is not asked again.
        assert_eq!(claim(&guarded, &token, &format!("ops/{}", key.algorithm())).status, 201);
        refused(&claim(&guarded, &token, "bert/x"), 403, "claim", "bert/x");
        let mut audiences = provider.claims("anna");
        audiences["aud"] = json!(["other", "https://locks.example.org"]);
        assert_eq!(claim(&guarded, &key.token(&audiences), "anna/more").status / 100, 2);
    }
    let bert = keys[1].token(&provider.claims("bert"));
    assert_eq!(claim(&guarded, &bert, "ops/bert").status, 201);
    refused(&claim(&guarded, &bert, "anna/x"), 403, "claim", "anna/x");
    assert!(provider.fetches() <= 2, "{} fetches", provider.fetches());
}

#[test]
fn forged_tokens_are_refused() {
    let (rsa, p256, stranger) = (Key::rsa("r"), Key::p256("e"), Key::rsa("r"));
    let provider = Provider::start(&[&rsa, &p256]);
    let guarded = start(&provider, 300.0);
    let good = provider.claims("anna");
    assert_eq!(claim(&guarded, &rsa.token(&good), "anna/x").status, 201);
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        rsa.token(&claims)
    };
    let without = |name: &str| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(name);
        rsa.token(&claims)
    };
    let now = good["iat"].as_u64().unwrap();
    let header = |alg: &str, kid: &str| json!({"alg": alg, "kid": kid});
    let unsigned = |alg: &str| format!("{}.{}.", b64(header(alg, "r").to_string()), b64(good.to_string()));
    // The public key is no secret: whoever signs with it proves nothing.
    let hmac_signed = |secret: &[u8]| {
        let signed = format!("{}.{}", b64(header("HS256", "r").to_string()), b64(good.to_string()));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
        format!("{signed}.{}", b64(tag))
    };
    let token = rsa.token(&good);
    let (front, signature) = token.rsplit_once('.').unwrap();
    let (head, _) = front.split_once('.').unwrap();
    let mut root = good.clone();
    root["preferred_username"] = json!("root");
    let cases = [
        ("another's key under the same name", stranger.token(&good)),
        ("another's key under its own name", Key::p256("zz").token(&good)),
        ("another payload", format!("{head}.{}.{signature}", b64(root.to_string()))),
        ("no signature", format!("{front}.")),
        ("a cut signature", front.to_string() + "." + &signature[..signature.len() - 4]),
        ("expired", with("exp", json!(now - 10))),
        ("without an end", without("exp")),
        ("an end that is text", with("exp", json!("2999"))),
        ("not valid yet", with("nbf", json!(now + 600))),
        ("issued in the future", with("iat", json!(now + 600))),
        ("for another service", with("aud", json!("mail"))),
        ("for nobody", without("aud")),
        ("another issuer", with("iss", json!("https://id.example.org"))),
        ("almost the issuer", with("iss", json!(format!("{}/", provider.issuer())))),
        ("no issuer", without("iss")),
        ("no user", without("preferred_username")),
        ("a user that is no name", with("preferred_username", json!(["anna"]))),
        ("everyone", with("preferred_username", json!("*"))),
        ("nobody in particular", with("preferred_username", json!("anonymous"))),
        ("alg none", unsigned("none")),
        ("alg NONE", unsigned("NONE")),
        ("alg none, signed", rsa.token_with(&header("none", "r"), &good)),
        ("HMAC with the modulus", hmac_signed(rsa.jwk()["n"].as_str().unwrap().as_bytes())),
        ("HMAC with the key set", hmac_signed(rsa.jwk().to_string().as_bytes())),
        ("alg swapped to ES256", rsa.token_with(&header("ES256", "r"), &good)),
        ("RS256 signed by the EC key", p256.token_with(&header("RS256", "r"), &good)),
        ("the EC key's name, RSA's signature", rsa.token_with(&header("RS256", "e"), &good)),
        ("RS512", rsa.token_with(&header("RS512", "r"), &good)),
        ("a header with its own key", {
            stranger.token_with(&json!({"alg": "RS256", "kid": "zz", "jwk": stranger.jwk()}), &good)
        }),
        (
            "a critical extension",
            rsa.token_with(&json!({"alg": "RS256", "kid": "r", "crit": ["b64"]}), &good),
        ),
        ("a path for a name", rsa.token_with(&header("RS256", "../../dev/null"), &good)),
        ("twice as many dots", token.replace('.', "..")),
        ("padding", token.clone() + "=="),
        ("seventeen kilobytes", rsa.token(&json!({"x": "y".repeat(17_000)}))),
    ];
    for (what, token) in &cases {
        let reply = claim(&guarded, token, "anna/x");
        assert_eq!(reply.status, 401, "{what}: {reply:?}");
        refused(&reply, 401, "claim", "*");
    }
    // Strangers with names of keys that do not exist don't make the provider's life hard.
    assert!(provider.fetches() <= 4, "{} fetches", provider.fetches());
    assert_eq!(claim(&guarded, &rsa.token(&good), "anna/x").status, 202);
}

#[test]
fn keys_rotate_and_what_was_withdrawn_is_no_longer_believed() {
    let (old, new) = (Key::p256("old"), Key::ed25519("new"));
    let provider = Provider::start(&[&old]);
    let guarded = start(&provider, 0.3);
    let (before, after) = (old.token(&provider.claims("anna")), new.token(&provider.claims("anna")));
    assert_eq!(claim(&guarded, &before, "anna/1").status, 201);
    assert_eq!(claim(&guarded, &after, "anna/2").status, 401);
    provider.publish(&[&old, &new]);
    eventually("the new key is believed", || claim(&guarded, &after, "anna/2").status / 100 == 2);
    assert_eq!(claim(&guarded, &before, "anna/3").status, 201);
    // Also for a token that was found good before.
    provider.publish(&[&new]);
    eventually("the old key is not", || claim(&guarded, &before, "anna/4").status == 401);
    assert_eq!(claim(&guarded, &after, "anna/5").status, 201);
    // A provider that is down for a while takes nobody's access away.
    provider.fail();
    eventually("it says so", || guarded.server.logged().contains("the old ones stay"));
    assert_eq!(claim(&guarded, &new.token(&provider.claims("anna")), "anna/6").status, 201);
}

#[test]
fn a_provider_that_comes_late_is_found_when_a_token_needs_it() {
    let key = Key::ed25519("d");
    let provider = Provider::start(&[&key]);
    provider.fail();
    let guarded = start(&provider, 0.3);
    let token = key.token(&provider.claims("anna"));
    assert_eq!(claim(&guarded, &token, "anna/1").status, 401);
    provider.publish(&[&key]);
    eventually("its keys are found", || claim(&guarded, &token, "anna/1").status == 201);
}
